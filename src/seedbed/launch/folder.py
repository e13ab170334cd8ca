"""The run folder, with a run's configuration, metrics, logs and checkpoints."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import itertools
import json
import os
import secrets
import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from seedbed import atomic_folder
from seedbed.config import resolve
from seedbed.config.placement import NetworkSettings
from seedbed.config.settings import RunConfig
from seedbed.errors import ConfigError, SpecError
from seedbed.transport.admission import Gate, Invitation, require_token
from seedbed.transport.tls import Identity, needs_tls
from seedbed.types import EnvSpec

_LONGEST_SOCKET_PATH = 90


class RunFolder:
    """The paths and small files of one run; absolute paths, since environments may change the current folder.

    Args:
      path: the folder.

    Attributes:
      given: the path as it was given, relative perhaps, which may hold on another machine too.
    """

    def __init__(self, path: Path) -> None:
        self.given = path
        self.path = path = path.absolute()
        self.checkpoints = path / "checkpoints"
        self.metrics = path / "metrics.jsonl"
        self.events = path / "events"
        self.logs = path / "logs"
        self.log = self.logs / "learner.log"
        self.curve = path / "curve.png"
        self.video = path / "video.mp4"
        self.summary = path / "summary.json"
        self._config = path / "config.json"
        self._token = path / "token"
        self._certificate = path / "certificate.pem"
        self._key = path / "key.pem"
        self._lock = path / "lock"
        self._addresses = path / "addresses.json"
        self._session = path / "session"
        self._spec = path / "spec.json"

    @staticmethod
    def create(config: RunConfig) -> RunFolder:
        """Creates a folder with the configuration in it; raises :class:`ConfigError` if it holds a run already."""
        try:
            path = Path(config.run_dir) if config.run_dir else _fresh_folder(Path("runs"), config)
        except OSError as error:
            raise ConfigError(f"cannot create a run folder in runs: {error.strerror}") from error
        folder = RunFolder(path)
        try:
            folder.logs.mkdir(parents=True, exist_ok=True)
            # If two runs begin in one folder at the same moment, only one of them gets past this line.
            folder._config.touch(exist_ok=False)
            folder.keep(config)
        except FileExistsError as error:
            raise ConfigError(
                f"{path} already holds a run: go on with it by 'seedbed resume {path}', or choose another --run-dir"
            ) from error
        except OSError as error:
            folder.discard()
            raise ConfigError(f"cannot create the run folder {path}: {error.strerror}") from error
        except ConfigError:
            folder.discard()
            raise
        return folder

    @staticmethod
    def open(path: str | Path) -> RunFolder:
        """Opens an existing run folder; if it is none, raises a :class:`ConfigError` that names the newest runs."""
        folder = RunFolder(Path(path))
        if not folder.begun:
            runs = sorted(Path("runs").glob("*/config.json"), key=lambda file: file.stat().st_mtime)
            hint = f"; the newest here: {', '.join(str(run.parent) for run in runs[-3:])}" if runs else ""
            raise ConfigError(f"{path} is not a run folder (no config.json in it){hint}")
        folder.logs.mkdir(exist_ok=True)
        return folder

    @property
    def begun(self) -> bool:
        """True if the folder holds a run."""
        return self._config.exists()

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Locks the folder against training by other processes; raises :class:`ConfigError` if one holds the lock."""
        try:
            lock = self._lock.open("wb")
        except OSError as error:
            raise ConfigError(f"cannot write {self._lock}: {error.strerror}") from error
        with lock as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise ConfigError(
                    f"another process trains in {self.path}: wait for it or stop it, or choose another folder"
                ) from error
            yield

    def keep(self, config: RunConfig) -> None:
        """Writes the configuration of the run, atomically."""
        self._write(self._config, json.dumps(resolve.to_json(config), indent=2) + "\n")

    def keep_spec(self, spec: EnvSpec) -> None:
        """Keeps the spec of the run's environments, for policies that are loaded without one."""
        self._write(self._spec, json.dumps(spec.to_json(), indent=2) + "\n")

    def spec(self) -> EnvSpec | None:
        """Returns the spec of the run's environments; None for a run that kept none."""
        try:
            return EnvSpec.from_json(json.loads(self._spec.read_text()))
        except FileNotFoundError:
            return None
        except (OSError, ValueError, SpecError) as error:
            raise ConfigError(f"{self._spec} is damaged: {error}") from error

    def session(self, resumed: bool) -> int:
        """Returns the number of the session that begins: 0 for the first one, plus 1 for each resumption.

        Runs of version 0.1 did not count their sessions; their next session is number 1.
        """
        try:
            before = int(self._session.read_text())
        except (OSError, ValueError):
            before = 0
        return before + 1 if resumed else 0

    def keep_session(self, number: int) -> None:
        """Writes the number of the session that has begun; it stays if the session fails."""
        self._write(self._session, f"{number}\n")

    def _write(self, path: Path, text: str, mode: int = 0o666) -> None:
        """Writes a small file atomically."""
        try:
            atomic_folder.write_whole(path, text.encode(), mode)
        except OSError as error:
            raise ConfigError(f"cannot write {path}: {error.strerror}") from error

    def config(self) -> RunConfig:
        """Reads the configuration with which the run was started or last resumed."""
        try:
            return resolve.from_json(json.loads(self._config.read_text()))
        except ValueError as error:
            raise ConfigError(f"{self._config} is damaged: {error}") from error

    def token(self) -> str:
        """Returns the secret that actors and hosts need to join; creates it once, readable only by the owner."""
        if not self._token.exists():
            # Letters and digits only: it is pasted behind a flag, where "-…" would be taken for another flag.
            self._write(self._token, secrets.token_hex(16), 0o600)
        try:
            return require_token(self._token.read_text().strip())
        except (OSError, UnicodeDecodeError, ConfigError) as error:
            raise ConfigError(f"{self._token} holds no token: {error}") from error

    def rotate_token(self) -> None:
        """Deletes the token, so that a new one is created and the old one admits no more."""
        with self.held():
            self._token.unlink(missing_ok=True)

    def gate(self, settings: NetworkSettings, addresses: Sequence[str]) -> Gate:
        """Returns the admission of a server: the token, and a certificate if an address needs TLS.

        The run's own certificate is created once; its key is readable only by the owner.

        Args:
          settings: the user's certificate, if there is one, and whether plain text is allowed.
          addresses: addresses at which the server will listen.
        """
        identity = None
        if settings.tls_cert:
            identity = Identity.read(*settings.tls_cert)
        elif not settings.insecure and any(map(needs_tls, addresses)):
            identity = self._identity()
        return Gate(self.token(), identity, insecure=settings.insecure)

    def _identity(self) -> Identity:
        if not (self._key.exists() and self._certificate.exists()):
            made = Identity.make()
            self._write(self._key, made.key.decode(), 0o600)
            self._write(self._certificate, made.certificate.decode())
        return Identity.read(self._certificate, self._key)

    def invitation(self, *, insecure: bool) -> Invitation:
        """Returns the invitation for a host that shares this folder's disk.

        Raises:
          ConfigError: the folder holds no token that can be read.
        """
        try:
            return Invitation(require_token(self._token.read_text().strip()), insecure=insecure)
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"cannot read {self._token}: {error}") from error

    def socket(self) -> str:
        """Returns the path of this run's Unix socket: in the run folder, if its path is short enough for a socket."""
        whole = str(self.path / "actors.sock")
        for path in (whole, os.path.relpath(whole)):
            if (
                len(os.fsencode(path)) <= _LONGEST_SOCKET_PATH and "," not in path
            ):  # gRPC takes none with commas
                return path
        name = hashlib.sha256(os.fsencode(self.path.resolve())).hexdigest()[:16]
        return str(Path(tempfile.gettempdir()) / f"seedbed-{name}.sock")

    def keep_addresses(self, asked: Sequence[str], listening: Sequence[str]) -> None:
        """Writes the addresses at which the run listens, so that remote actors find it there when it is resumed."""
        if asked:
            self._write(self._addresses, json.dumps({"asked": [*asked], "listening": [*listening]}) + "\n")

    def addresses(self, asked: Sequence[str]) -> list[str]:
        """Returns the addresses to listen at: ``asked``, with the ports that an earlier session chose for the same."""
        try:
            kept = json.loads(self._addresses.read_text())
            return [str(address) for address in kept["listening"]] if kept["asked"] == [*asked] else [*asked]
        except (OSError, ValueError, KeyError, TypeError):
            return [*asked]

    def metrics_of(self, variant: int) -> Path:
        """Returns the file of metrics of one variant of the agent."""
        folder = next((old for old in [self.path / "members"] if old.is_dir()), self.path / "variants")  # 0.1
        return folder / str(variant) / "metrics.jsonl"

    def discard(self) -> None:
        """Removes the files of a run that could not start; removes nothing once anything was trained."""
        if self.checkpoints.exists() or (self.metrics.exists() and self.metrics.stat().st_size):
            return
        small = (
            self._config,
            self._token,
            self._certificate,
            self._key,
            self._lock,
            self._addresses,
            self._session,
            self._spec,
        )
        for file in (*small, self.metrics, self.log):
            with contextlib.suppress(OSError):  # there is none, or it cannot be removed
                file.unlink()
        shutil.rmtree(self.events, ignore_errors=True)
        for folder in (self.logs, self.path):
            with contextlib.suppress(OSError):  # it holds something else
                folder.rmdir()


def _fresh_folder(parent: Path, config: RunConfig) -> Path:
    """Makes a new folder, named after the run and the time."""
    env = "".join(c if c.isalnum() or c in ".-" else "-" for c in config.env)
    stem = f"{env}-{config.arch}-{config.agent}-{time.strftime('%Y%m%d-%H%M%S')}"
    parent.mkdir(exist_ok=True)
    for number in itertools.count(1):
        path = parent / (stem if number == 1 else f"{stem}-{number}")
        with contextlib.suppress(FileExistsError):
            path.mkdir()
            break
    return path
