"""The runtime folder: a folder of this user on this machine for sockets and scratch, which outlive no run.

Sockets cannot stand on most network file systems, where run folders may be. ``XDG_RUNTIME_DIR`` is made for them; where
there is none, the temporary folder holds one that only this user may enter.
"""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

from seedbed.errors import ConfigError

_LONGEST = 64
"""Bytes of its path, so that the system takes the paths of sockets in it."""


def runtime_folder() -> Path:
    """Returns the runtime folder, and makes it if there is none.

    Raises:
      ConfigError: it cannot be made, or what stands there is not a folder that only this user may enter.
    """
    refusals = []
    for path in _places():
        try:
            return _made(path)
        except OSError as error:
            refusals.append(f"{path}: {error.strerror or error}")
    raise ConfigError(
        f"no folder for sockets ({'; '.join(refusals)}): set XDG_RUNTIME_DIR to a folder of yours with a short path"
    )


def _places() -> Iterator[Path]:
    if (given := os.environ.get("XDG_RUNTIME_DIR", "")) and Path(given).is_dir():
        yield Path(given) / "seedbed"
    for parent in dict.fromkeys((tempfile.gettempdir(), "/tmp")):
        yield Path(parent) / f"seedbed-{os.getuid()}"


def _made(path: Path) -> Path:
    """Makes a folder with mode 0700; raises OSError if it cannot be one, or belongs to somebody else."""
    name = os.fsencode(path)
    if len(name) > _LONGEST or b"," in name or name.decode("utf-8", "replace").encode() != name:
        raise OSError("the path is too long for sockets, or has a comma, or is no UTF-8")
    path.mkdir(mode=0o700, exist_ok=True)
    found = path.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
        raise OSError("it is not a folder of this user")
    if stat.S_IMODE(found.st_mode) & 0o077:
        raise OSError(f"others may enter it: chmod 700 {path}")
    return path
