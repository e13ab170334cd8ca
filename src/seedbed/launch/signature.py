"""The user's key, by which a run folder is known again as one that this user has begun in this place.

The key is outside of every run folder: ``~/.config/seedbed/key`` (or ``$XDG_CONFIG_HOME/seedbed/key``), for its owner
only, made with the first run. A signature is an HMAC with it over the folder's path, the settings that have modules
imported, and the store. So it is worth nothing for another user, on another machine, in another place, or for other
settings.

Alternatives weighed: the owner of the files (an unpacked archive belongs to the user); a list of
folders in the home (runs come and go by the thousand, and begin at the same moment); a number in the folder instead of
its path (a copy that somebody gives back would be one's own); device and inode (change with a reboot or a mount).
"""

from __future__ import annotations

import contextlib
import hmac
import json
import os
import pwd
import secrets
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from seedbed import regular_files
from seedbed.errors import ConfigError

_SIGNED = ("env", "env_options", "arch", "agent", "network", "store")
"""Settings that are imported, and the place that the run is copied to."""
_SIGNED_IF_GIVEN = ("log",)
"""The same, but for runs that give none, whose signatures are older than this."""
_DEFINED = ("arch", "agent")
_KEY_BYTES = 32


def sign(folder: Path, record: Mapping[str, Any]) -> str:
    """Returns the signature of a run; makes the key if there is none.

    Args:
      folder: the run folder.
      record: its settings, in JSON values.

    Raises:
      ConfigError: there is no key, and none can be kept.
    """
    return _signature(_key(make=True), folder, record)


def is_signed(signature: str, folder: Path, record: Mapping[str, Any]) -> bool:
    """Returns whether this user has signed these settings for this folder; False without a key."""
    try:
        known = _signature(_key(make=False), folder, record)
    except ConfigError:
        return False
    return hmac.compare_digest(known.encode(), signature.encode(errors="replace"))


def _signature(key: bytes, folder: Path, record: Mapping[str, Any]) -> str:
    # An agent or architecture of somebody else's may import what its own settings name.
    whole = any(":" in str(record.get(name)) for name in _DEFINED)
    settings = {
        name: value
        for name, value in record.items()
        if name in _SIGNED or (name in _SIGNED_IF_GIVEN and value) or (whole and name != "run_dir")
    }
    signed = {"folder": os.fsencode(folder.resolve()).hex(), "settings": settings}
    return hmac.digest(key, json.dumps(signed, sort_keys=True).encode(), "sha256").hex()


def _key(*, make: bool) -> bytes:
    """The key of this user; raises :class:`ConfigError` if there is none."""
    path = _place()
    try:
        if make and not path.exists():
            _make(path)
        found = path.stat()
        if found.st_uid != os.geteuid() or stat.S_IMODE(found.st_mode) & 0o077:
            raise ConfigError(f"{path} is not yours alone: chmod 600 {path}, or remove it")
        key = regular_files.read(path, links=True)
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from error
    if len(key) < _KEY_BYTES:
        raise ConfigError(f"{path} is no key: remove it, and a new one is made")
    return key


def _place() -> Path:
    """The path of the key; raises :class:`ConfigError` if this user has no home."""
    if (config := Path(os.environ.get("XDG_CONFIG_HOME", ""))).is_absolute():
        return config / "seedbed" / "key"
    try:
        home = Path(os.environ.get("HOME") or pwd.getpwuid(os.geteuid()).pw_dir)
    except KeyError:
        raise ConfigError("this user has no home folder: set HOME or XDG_CONFIG_HOME") from None
    if not home.is_dir():
        raise ConfigError(f"the home folder {home} does not exist: set HOME or XDG_CONFIG_HOME")
    return home / ".config" / "seedbed" / "key"


def _make(path: Path) -> None:
    """Makes the key, whole and once, also where many runs begin together; raises :class:`OSError`."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with contextlib.suppress(FileExistsError):  # another run was faster
        regular_files.write_new(path, secrets.token_hex(_KEY_BYTES), 0o600)
