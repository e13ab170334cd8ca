"""The run folder, with a run's configuration, metrics, logs and checkpoints."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import os
import secrets
import shlex
import shutil
import time
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

from seedbed import regular_files
from seedbed.acting.trust import foreign_names, untrusted
from seedbed.config import resolve
from seedbed.config.placement import NetworkSettings
from seedbed.config.settings import RunConfig
from seedbed.errors import CheckpointError, ConfigError, InUse, SpecError
from seedbed.launch.directory import ADDRESSES, SESSION, SUMMARY, TOKEN, dialled
from seedbed.launch.runtime_folder import runtime_folder
from seedbed.launch.signature import is_signed, sign
from seedbed.learning.checkpoint import Checkpoint, load_latest
from seedbed.metrics.say import say
from seedbed.plugins import standing_above
from seedbed.transport.admission import Gate, Invitation, require_token
from seedbed.transport.connect import is_free
from seedbed.transport.tls import Identity, needs_tls
from seedbed.types import EnvSpec

GOING_ON: dict[str, tuple[type, ...]] = {"version": (int,), "seconds": (int, float), "exact": (bool,)}
"""Values of a run's checkpoint that going on takes, with their types; playing takes the version."""
CONFIG, CERTIFICATE, KEY = "config.json", "certificate.pem", "key.pem"
SECRETS = frozenset({TOKEN, CERTIFICATE, KEY})
"""Names of the files by which actors and hosts know a run."""


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
        self.summary = path / SUMMARY
        self.live = path / "live.json"
        self.program = path / "program.json"
        self._config = path / CONFIG
        self._signature = path / "signature"
        self._unsigned = False
        self._token = path / TOKEN
        self._certificate = path / CERTIFICATE
        self._key = path / KEY
        self._lock = path / "lock"
        self._addresses = path / ADDRESSES
        self._session = path / SESSION
        self._spec = path / "spec.json"
        self._identity_word = path / "identity"
        self._run_id = path / "run_id"
        self._small = (
            self._config,
            self._signature,
            self._token,
            self._certificate,
            self._key,
            self._lock,
            self._addresses,
            self._session,
            self._spec,
            self._identity_word,
            self._run_id,
            self.live,
            self.program,
            self.metrics,
            self.log,
        )
        self._others: set[Path] = set()  # which somebody else had put there before the run began
        self._own_session = ""
        self._overtaken: str | None = None

    @staticmethod
    def create(config: RunConfig) -> RunFolder:
        """Creates a folder with the configuration in it; raises :class:`ConfigError` if it holds a run already."""
        try:
            path = Path(config.run_dir) if config.run_dir else _fresh_folder(Path("runs"), config)
        except OSError as error:
            raise ConfigError(f"cannot create a run folder in runs: {error.strerror}") from error
        folder = RunFolder(path)
        folder._others = {file for file in folder._small if os.path.lexists(file)}
        try:
            folder.logs.mkdir(parents=True, exist_ok=True)
            # If two runs begin in one folder at the same moment, only one of them gets past this line.
            text = _text_of(config)
            regular_files.write_new(folder._config, text, lasting=True)
            folder._sign(text)
            folder._write(folder._run_id, secrets.token_hex(8) + "\n")
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
            runs = sorted(
                filter(Path.is_file, Path("runs").glob("*/config.json")),
                key=lambda file: file.stat().st_mtime,
            )
            hint = f"; the newest here: {', '.join(str(run.parent) for run in runs[-3:])}" if runs else ""
            if around := next(filter(_is_run, folder.path.parents), None):
                hint = f", and lies in one: give {around}"
            raise ConfigError(f"{path} is not a run folder (no config.json in it){hint}")
        return folder

    @property
    def begun(self) -> bool:
        """True if the folder holds a run."""
        return os.path.lexists(self._config)

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Locks the folder against training by other processes; raises :class:`InUse` if one holds the lock."""
        try:
            self.logs.mkdir(exist_ok=True)
            lock = regular_files.open_to_append(self._lock)
        except OSError as error:
            raise ConfigError(f"cannot write {error.filename or self._lock}: {error.strerror}") from error
        with lock as file:
            try:
                regular_files.lock(file)
            except BlockingIOError as error:
                raise InUse(
                    f"another process trains in {self.path}: wait for it or stop it, or choose another folder"
                ) from error
            except OSError as error:
                say(
                    f"the file system of {self.path} has no locks ({error.strerror}): of two sessions of this run, the "
                    "later one goes on"
                )
            yield

    def require_free(self) -> None:
        """Raises :class:`InUse` if another process trains in the folder."""
        if self.begun:
            with self.held():
                pass

    def keep(self, config: RunConfig) -> None:
        """Writes the configuration of the run, atomically, and signs it with this user's key.

        Without a key a line says which ``--trust`` going on will take, if it takes any.
        """
        text = _text_of(config)
        self._write(self._config, text)
        self._sign(text)

    def _sign(self, text: str) -> None:
        record = json.loads(text)
        try:
            self._write(self._signature, sign(self.path, record) + "\n")
        except ConfigError as error:
            with contextlib.suppress(OSError):
                self._signature.unlink(missing_ok=True)
            names = " ".join(sorted(foreign_names(record)))
            if names and not self._unsigned:
                say(
                    f"this run cannot be known again as yours ({error}): resume and eval will need --trust {names}"
                )
            self._unsigned = True

    def keep_spec(self, spec: EnvSpec) -> None:
        """Keeps the spec of the run's environments, for policies that are loaded without one."""
        self._write(self._spec, json.dumps(spec.to_json(), indent=2) + "\n")

    def keep_program(self, program: dict[str, Any]) -> None:
        """Keeps the program of the run as JSON values, for programs that watch it."""
        self._write(self.program, json.dumps(program, indent=2) + "\n")

    def spec(self) -> EnvSpec | None:
        """Returns the spec of the run's environments; None for a run that kept none."""
        try:
            return EnvSpec.from_json(regular_files.read_object(self._spec))
        except FileNotFoundError:
            return None
        except (OSError, ValueError, SpecError) as error:
            raise ConfigError(f"{self._spec} is damaged: {error}") from error

    def session(self, resumed: bool) -> int:
        """Returns the number of the session that begins: 0 for the first one, plus 1 for each resumption.

        Runs of version 0.1 did not count their sessions; their next session is number 1.
        """
        return self.last_session + 1 if resumed else 0

    @property
    def last_session(self) -> int:
        """Number of the session that began last; 0 if none is known."""
        try:
            return int(regular_files.read(self._session).split()[0])
        except (OSError, ValueError, IndexError):
            return 0

    @property
    def goes_on_since_its_summary(self) -> bool:
        """True if a session has begun since the summary was written, which is an earlier one's then."""
        try:
            return self._session.stat().st_mtime_ns > self.summary.stat().st_mtime_ns
        except OSError:  # there is one of them, or none
            return False

    def identity(self) -> str | None:
        """Returns the word by which the run is known in its store; None if it was never copied to one."""
        try:
            return regular_files.read(self._identity_word).decode().strip()
        except FileNotFoundError:
            return None
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"cannot read {self._identity_word}: {error}") from error

    def run_id(self) -> str | None:
        """Returns the word by which services know the run, wherever it is; None if an earlier version began it."""
        try:
            return regular_files.read(self._run_id).decode().strip() or None
        except (OSError, UnicodeDecodeError):
            return None

    def keep_identity(self, word: str) -> None:
        """Writes the word by which the run is known in its store."""
        self._write(self._identity_word, f"{word}\n")

    def state(self) -> Iterator[tuple[str, bytes]]:
        """Yields path and content of the files from which the run goes on elsewhere, beside its checkpoints.

        Of rows, whole ones only; no secret is among them.

        Raises:
          OSError: a file cannot be read, or is no regular file.
        """
        small = [self._config, self._run_id, self._spec, self.program, self._signature]
        small += [self.summary] if not self.goes_on_since_its_summary else []
        variants = [
            path for name in ("variants", "members") for path in self.path.glob(f"{name}/*/metrics.jsonl")
        ]
        for path in (*small, self.metrics, *sorted(variants)):
            try:
                content = regular_files.read(path, most=None)
            except FileNotFoundError:
                continue
            whole = content[: content.rfind(b"\n") + 1] if path.name == self.metrics.name else content
            yield str(path.relative_to(self.path)), whole

    def keep_session(self, number: int) -> None:
        """Writes the number of the session that has begun, with a word of its own; it stays if the session fails."""
        self._own_session = f"{number} {secrets.token_hex(8)}"
        self._write(self._session, f"{self._own_session}\n")

    @contextlib.contextmanager
    def going_on(self) -> Iterator[None]:
        """Lets actors elsewhere know that a run that was over goes on, long before its next session listens.

        Unless the block raises :class:`ConfigError` before that session begins.
        """
        before = None
        with contextlib.suppress(OSError):  # no session is known, or the disk fails, which the run will find
            before = self._session.stat()
            os.utime(self._session)
        try:
            yield
        except ConfigError:
            if before is not None and self._own_session == "":
                with contextlib.suppress(OSError):
                    os.utime(self._session, ns=(before.st_atime_ns, before.st_mtime_ns))
            raise

    def overtaken(self) -> str | None:
        """Returns a line that says so if another session has begun since; None while this one is the newest.

        The lock keeps a second session out on one machine; not every network file system has locks that hold.
        """
        if self._overtaken is not None:
            return self._overtaken
        try:
            found = regular_files.read(self._session).decode().strip()
        except (OSError, UnicodeDecodeError):  # the folder is gone, or its disk fails: nobody has begun
            return None
        if self._own_session in ("", found):
            return None
        return (
            f"another session of this run has begun in {self.path} (number {found.partition(' ')[0]}): this one, "
            f"number {self._own_session.partition(' ')[0]}, ends and writes nothing more there"
        )

    def give_up(self, reason: str) -> None:
        """Has :meth:`overtaken` return a line: another session was seen elsewhere. May be called from any thread."""
        self._overtaken = reason

    def _write(self, path: Path, text: str, mode: int = 0o666) -> None:
        """Writes a small file atomically, so that it outlives a loss of power too."""
        try:
            regular_files.write_whole(path, text, mode, lasting=True)
        except OSError as error:
            raise ConfigError(f"cannot write {path}: {error.strerror}") from error

    def config(self, trust: Collection[str] | None = ()) -> RunConfig:
        """Reads the configuration with which the run was started or last resumed.

        Its names are imported: in a run that this user did not begin here, only names that the user gives.

        Args:
          trust: names ``module:name`` that may be imported, though somebody else began the run; None for any.

        Raises:
          ConfigError: it is damaged, a module stands in it that the user did not name, or a folder of a run that is not
            this user's is a link.
        """
        record = self.record()
        if not self._is_signed(record):
            self._require_no_links()
            if unknown := untrusted(foreign_names(record), trust):
                raise ConfigError(
                    f"{self.path} has Seedbed import {unknown}, and is not known as a run that this user began in this "
                    f"place, on this machine: if you know what that does, add --trust {unknown}"
                )
        try:
            return resolve.from_json(record)
        except ConfigError as error:
            if isinstance(error.__cause__, ModuleNotFoundError):
                self.require_modules()
            raise

    def require_modules(self) -> None:
        """Raises :class:`ConfigError` if a module that the run names is not found from here, but above the run."""
        record = self.record()
        # Not what only looks like a name, in an option.
        naming = {"env", "arch", "agent", "network", "log"}
        named = {key: value for key, value in record.items() if key in naming}
        for name in sorted(foreign_names(named)):
            if (place := standing_above(name, self.path)) is not None:
                run = os.path.relpath(self.path.resolve(), place)
                raise ConfigError(
                    f"{name} is not found from this folder, and is in {place}: go there "
                    f"(cd {shlex.quote(str(place))}), and name the run {run}"
                )

    def store(self) -> str | None:
        """Returns the URL that the run's state is copied to; None if it is copied nowhere, or no run is here.

        Raises:
          ConfigError: there is one in a run that this user did not begin here.
        """
        record = self.record() if self.begun else {}
        url = record.get("store")
        if url is not None and not self._is_signed(record):
            raise ConfigError(
                f"{self.path} has its state copied to {url}, and is not known as a run that this user began in this "
                f"place, on this machine: add --store {url} if that is yours, or --store None"
            )
        return url

    def own_names(self) -> set[str]:
        """Returns the names ``module:name`` in the configuration; none in a run that this user did not begin here."""
        return self._names(own=True)

    def unknown_names(self) -> set[str]:
        """Returns the names in the configuration that take consent; none if this user began the run here."""
        return self._names(own=False)

    def _names(self, *, own: bool) -> set[str]:
        record = self.record() if self.begun else {}
        return foreign_names(record) if self._is_signed(record) is own else set()

    def newest(self, *more: str) -> Checkpoint:
        """Loads the newest checkpoint that is intact, of a run; raises :class:`CheckpointError` if there is none.

        ``more``: values that it has to have beside its version, of :data:`GOING_ON`.
        """
        checkpoint = load_latest(self.checkpoints)
        for name in ("version", *more):
            if type(value := checkpoint.meta.get(name)) not in GOING_ON[name]:
                where = f"checkpoint {checkpoint.path}"
                raise CheckpointError(f"{where} is not of a run: its {name} is {value!r}")
        return checkpoint

    def record(self) -> dict[str, Any]:
        """Returns the recorded settings by name; nothing that they name is imported.

        Raises:
          ConfigError: the record is damaged, or there is none.
        """
        try:
            return regular_files.read_object(self._config)
        except OSError as error:
            raise ConfigError(f"cannot read {self._config}: {error.strerror}") from error
        except ValueError as error:
            raise ConfigError(f"{self._config} is damaged: {error}") from error

    def _is_signed(self, record: dict[str, Any]) -> bool:
        try:
            return is_signed(regular_files.read(self._signature).decode("ascii").strip(), self.path, record)
        except (OSError, ValueError):
            return False

    def _require_no_links(self) -> None:
        """Refuses links that lead out: files would be removed and written over where a stranger's lead."""
        within = self.path.resolve()
        for folder, folders, files in os.walk(self.path):
            for path in (Path(folder, name) for name in (*folders, *files)):
                if path.is_symlink() and not Path(os.path.realpath(path)).is_relative_to(within):
                    raise ConfigError(
                        f"{path} is a link that leads out of the run folder, and this run is not known as one that "
                        "this user began in this place: put the file or folder itself there"
                    )

    @property
    def has_token(self) -> bool:
        """True if the secret that actors and hosts need to join is in the folder."""
        return os.path.lexists(self._token)

    def token(self) -> str:
        """Returns the secret that actors and hosts need to join; creates it once, readable only by the owner."""
        if not self.has_token:
            # Letters and digits only: it is pasted behind a flag, where "-…" would be taken for another flag.
            self._write(self._token, secrets.token_hex(16), 0o600)
        try:
            return require_token(self._said())
        except (UnicodeDecodeError, ConfigError) as error:
            raise ConfigError(f"{self._token} holds no token: {error}") from error

    @property
    def token_in_a_shell(self) -> str:
        """Words of a shell that read the token."""
        return f'"$(cat {shlex.quote(str(self._token))})"'

    def _said(self) -> str:
        try:
            return regular_files.read(self._token).decode().strip()
        except OSError as error:
            raise ConfigError(f"cannot read {self._token}: {error.strerror}") from error

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

    def identity_files(self, settings: NetworkSettings) -> tuple[str, str]:
        """Returns the paths of the certificate that the run shows and of the key to it."""
        if settings.tls_cert:
            certificate, key = (str(Path(file).absolute()) for file in settings.tls_cert)
            return certificate, key
        return str(self._certificate), str(self._key)

    def _identity(self) -> Identity:
        if not (os.path.lexists(self._key) and os.path.lexists(self._certificate)):
            made = Identity.make()
            self._write(self._key, made.key.decode(), 0o600)
            self._write(self._certificate, made.certificate.decode())
        return Identity.read(self._certificate, self._key, links=False)

    def invitation(self, *, insecure: bool) -> Invitation:
        """Returns the invitation for a host that shares this folder's disk.

        Raises:
          ConfigError: the folder holds no token that can be read.
        """
        try:
            return Invitation(require_token(self._said()), insecure=insecure)
        except UnicodeDecodeError as error:
            raise ConfigError(f"cannot read {self._token}: {error}") from error

    def socket(self) -> str:
        """Returns the path of this run's Unix socket, which is always the same one.

        It is in the runtime folder: a run folder may be on a network file system, which holds no sockets.
        """
        name = hashlib.sha256(os.fsencode(self.path.resolve())).hexdigest()[:16]
        return str(runtime_folder() / f"{name}.sock")

    def keep_addresses(self, asked: Sequence[str], listening: Sequence[str], gate: Gate) -> None:
        """Writes the addresses at which the run listens, so that remote actors find it there when it is resumed.

        Beside them stands what actors that share this disk need to dial the first one, see
        :func:`seedbed.launch.directory.learner_of`.

        Args:
          asked: addresses that the user has asked for.
          listening: addresses at which the run listens for them, in the same order.
          gate: admission at these addresses.
        """
        if asked:
            found = {"asked": [*asked], "listening": [*listening], "dial": dialled(listening[0], gate)}
            self._write(self._addresses, json.dumps(found) + "\n")

    def addresses(self, asked: Sequence[str]) -> list[str]:
        """Returns the addresses to listen at: ``asked``, with the ports that an earlier session chose for the same.

        A port that the system chose then, and that somebody else has now, is chosen anew.
        """
        try:
            kept = regular_files.read_object(self._addresses)
            if kept["asked"] != [*asked]:
                return [*asked]
            pairs = zip(asked, map(str, kept["listening"]), strict=True)
            return [one if one.endswith(":0") and not is_free(before) else before for one, before in pairs]
        except (OSError, ValueError, KeyError, TypeError):
            return [*asked]

    def metrics_of(self, variant: int) -> Path:
        """Returns the file of metrics of one variant of the agent."""
        folder = next((old for old in [self.path / "members"] if old.is_dir()), self.path / "variants")  # 0.1
        return folder / str(variant) / "metrics.jsonl"

    def discard(self) -> None:
        """Removes the files of a run that could not start, and no others; nothing once anything was trained."""
        if self.checkpoints.exists() or (self.metrics.exists() and self.metrics.stat().st_size):
            return
        for file in self._small:
            if file in self._others:
                continue
            with contextlib.suppress(OSError):  # there is none, or it cannot be removed
                file.unlink()
        shutil.rmtree(self.events, ignore_errors=True)
        for folder in (self.logs, self.path):
            with contextlib.suppress(OSError):  # it holds something else
                folder.rmdir()


def _text_of(config: RunConfig) -> str:
    return json.dumps(resolve.to_json(config), indent=2) + "\n"


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


def _is_run(folder: Path) -> bool:
    """Returns whether a folder holds a run, and not another program's ``config.json``."""
    try:
        return {"env", "arch", "agent"} <= regular_files.read_object(folder / "config.json").keys()
    except (OSError, ValueError):
        return False
