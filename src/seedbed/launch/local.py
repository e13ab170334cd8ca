"""The launcher of this machine: instances are processes, or threads where the carrier is in-process.

A process is started by ``exec`` and never forked from the process that holds JAX. If this process is killed, a guard
(:mod:`seedbed.launch.guard`) ends the instances.
"""

from __future__ import annotations

import contextlib
import errno
import io
import json
import logging
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import jax
import psutil

from seedbed import faults, regular_files
from seedbed.architectures.program import Role, Task
from seedbed.errors import CheckpointError
from seedbed.faults import Fault
from seedbed.instances import GRACE_SECONDS, Instance, ThreadInstance
from seedbed.launch.allocator import without_tuning
from seedbed.launch.entry import TOKEN, context_of, entry_of
from seedbed.launch.folder import RunFolder
from seedbed.launch.logs import shortened
from seedbed.learning.checkpoint import Contents, load_latest, save
from seedbed.transport.connect import CARRIERS

_log = logging.getLogger(__name__)
_ANNOUNCED = 'trap "" PIPE; echo "+$$" >&0; trap - PIPE; exec "$@" </dev/null'
"""A shell script that writes its process group to the guard's pipe, then becomes the program.

It ignores a broken pipe: the guard may have been killed."""


_GUARD_SECONDS = 2 * GRACE_SECONDS
"""Time in which a guard ends; it gives the first half to the processes that it ends."""


class Guard:
    """A process that kills the programs that were started through it, if this process is killed.

    :meth:`close` it at the end.
    """

    def __init__(self) -> None:
        self._groups: set[int] = set()
        self._process = self._begin()

    @staticmethod
    def _begin() -> subprocess.Popen[bytes]:
        # Isolated and without site packages: it starts in a moment and stays small.
        command = [sys.executable, "-I", "-S", str(Path(__file__).with_name("guard.py")), str(GRACE_SECONDS)]
        return subprocess.Popen(
            command, stdin=subprocess.PIPE, env=without_tuning({**os.environ}), process_group=0
        )

    def start(self, command: Sequence[str], **options: Any) -> subprocess.Popen[Any]:
        """Starts a program that leads a process group of its own and has no input.

        The program announces itself to the guard. An announcement from here would be lost if this process were killed
        or interrupted between the start and the announcement. Until the program has announced itself it holds the
        guard's pipe open, and the guard waits for the pipe's end.

        Args:
          command: the program and its arguments.
          **options: further arguments of :class:`subprocess.Popen`.
        """
        announced = ["/bin/sh", "-c", _ANNOUNCED, "sh", *command]
        process = subprocess.Popen(announced, stdin=self._pipe, process_group=0, **options)
        self._groups.add(process.pid)
        return process

    def forget(self, group: int) -> None:
        """Tells the guard that a process group has ended: its number may be given to another one."""
        self._groups.discard(group)
        self._say(f"-{group}\n")

    def look_after(self) -> None:
        """Replaces a guard that was killed, and tells the new one the process groups that there are."""
        if self._process.poll() is None:
            return
        before = self._process
        try:
            self._process = self._begin()
        except OSError:  # there is no room for a process: the next call tries again
            return
        before.communicate()
        _log.warning("the guard has ended (status %d): another one takes its place", before.returncode)
        for group in sorted(self._groups):
            self._say(f"+{group}\n")

    def _say(self, line: str) -> None:
        # If the guard was killed, the run goes on without it until it is replaced.
        with contextlib.suppress(BrokenPipeError):
            os.write(self._pipe, line.encode())

    @property
    def _pipe(self) -> int:
        assert self._process.stdin is not None
        return self._process.stdin.fileno()

    def close(self) -> None:
        """Ends the guard, which kills the process groups that were started and not forgotten."""
        try:
            self._process.communicate(timeout=_GUARD_SECONDS)
        except subprocess.TimeoutExpired:  # it stands still
            self._process.kill()
            self._process.communicate()
            for group in self._groups:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(group, signal.SIGKILL)


ON_PROCESSOR: Mapping[str, str] = {"JAX_PLATFORMS": "cpu"}
"""Environment variables of an instance whose JAX runs on the CPU; accelerators belong to the head."""


class ProcessInstance:
    """An instance in a process, which leads a process group with the processes that its environments start.

    Args:
      words: a module and its command-line arguments.
      token: token by which other instances admit this one.
      log: file for its output; the file of its fault stands beside it.
      guard: guard that kills the instance if this process is killed.
      beside: environment variables in addition to this process's.
    """

    def __init__(
        self,
        words: Sequence[str],
        token: str,
        log: Path,
        guard: Guard,
        beside: Mapping[str, str] = ON_PROCESSOR,
    ) -> None:
        self.log = str(log)
        self._fault = log.with_suffix(".fault").absolute()
        self._forget_fault()
        self._guard = guard
        command = [sys.executable, "-P", "-m", *words]
        with _opened(log) as output:
            self._begins = output.seek(0, os.SEEK_END)
            # A group of its own: Ctrl-C on a terminal goes to a whole group, and the learner decides when its
            # instances stop.
            self._process = guard.start(
                command,
                stdout=output,
                stderr=output,
                env=without_tuning({**os.environ, TOKEN: token, faults.FILE: str(self._fault), **beside}),
            )

    def ended(self) -> Fault | None:
        """See :class:`~seedbed.instances.Instance`."""
        code = self._process.poll()
        if code is None:
            return None
        self._kill_group()
        if (fault := faults.read(self._fault)) is not None:
            return fault
        if code < 0:
            return Fault(f"killed by signal {-code}")
        last = self._last_line()
        return Fault(f"ended with status {code}" + (f"; its last line: {last}" if last else ""))

    def stopped(self) -> bool:
        """See :class:`~seedbed.instances.Instance`."""
        try:
            return psutil.Process(self._process.pid).status() == psutil.STATUS_STOPPED
        except psutil.Error:
            return False

    def look_after(self) -> None:
        """Keeps its log within bounds."""
        if (cut := shortened(Path(self.log))) is not None:
            self._begins = min(self._begins, cut)

    def _last_line(self) -> str:
        try:
            with regular_files.open_to_read(self.log) as file:
                file.seek(0, os.SEEK_END)
                # The lines before are of earlier instances with the same index.
                file.seek(max(self._begins, file.tell() - 4096))
                lines = file.read().decode(errors="replace").split("\n")
        except OSError:  # the folder was removed
            return ""
        return next((line.strip() for line in reversed(lines) if line.strip()), "")

    def ask_to_end(self) -> None:
        """See :class:`~seedbed.instances.Instance`."""
        self._process.terminate()

    def kill(self) -> bool:
        """See :class:`~seedbed.instances.Instance`."""
        self._process.kill()
        self._process.wait()
        self._kill_group()
        return True

    def finish(self, seconds: float) -> None:
        """See :class:`~seedbed.instances.Instance`."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(seconds)
        self.kill()
        self._forget_fault()

    def _forget_fault(self) -> None:
        with contextlib.suppress(OSError):  # there is none, or no folder for it any more
            self._fault.unlink()

    def _kill_group(self) -> None:
        """Kills the processes that the instance's environments have started and left behind."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._guard.forget(self._process.pid)


def _opened(log: Path) -> io.FileIO:
    """Opens a log to append to, or the null device if that fails: an instance is worth more than its log."""
    try:
        log.parent.mkdir(parents=True, exist_ok=True)
        return regular_files.open_to_append(log)
    except OSError as error:
        if error.errno == errno.EINVAL:  # something else is in its place
            raise
        _log.warning("no log %s: %s", log, error)
        return io.FileIO(os.devnull, "ab")


class LocalLauncher:
    """A :class:`~seedbed.launch.launcher.Launcher` of processes, or threads, on this machine.

    Args:
      folder: run folder.
      transport: name of the carrier; with ``inproc`` the instances are threads.
    """

    def __init__(self, folder: RunFolder, transport: str) -> None:
        self._folder = folder
        self._carrier = CARRIERS[transport]
        self._in_threads = transport == "inproc"
        self._guard: Guard | None = None
        self._processes: dict[tuple[str, int], ProcessInstance] = {}
        self._listening: set[str] = set()

    def address(self, role: Role, index: int) -> str:
        """See :class:`~seedbed.launch.launcher.Launcher`."""
        # Short, since the length of a socket's path is limited.
        initials = "".join(word[0] for word in role.name.replace("-", " ").split())
        # The head has the path without a suffix, which users know.
        suffix = "" if role.entry is None else f".{initials}{index}"
        address = f"{self._carrier}:{self._folder.socket()}{suffix}"
        self._listening.add(address)
        return address

    def folder(self, role: Role, index: int) -> str:
        """See :class:`~seedbed.launch.launcher.Launcher`."""
        return str((self._folder.path / "instances" / self._name(role.name, index)).absolute())

    def prepare(self, role: Role, index: int, contents: Contents) -> None:
        """See :class:`~seedbed.launch.launcher.Launcher`."""
        folder = Path(self.folder(role, index))
        regular_files.remove(folder)
        folder.mkdir(parents=True)
        save(folder, contents.meta["version"], contents, keep=1)

    def standing(self, role: Role, index: int) -> str | None:
        """See :class:`~seedbed.launch.launcher.Launcher`."""
        folder = Path(self.folder(role, index))
        if not folder.exists():
            return None
        try:
            return f"goes on from its snapshot of version {load_latest(folder).step}"
        except CheckpointError as error:
            return f"has no snapshot to go on from ({error})"

    def start(self, role: Role, task: Task) -> Instance:
        """See :class:`~seedbed.launch.launcher.Launcher`."""
        name, token = self._name(role.name, task.index), self._folder.token()
        if self._in_threads:
            over = threading.Event()
            run = partial(entry_of(task), context_of(task, token, over))
            return ThreadInstance(f"{role.name} {task.index}", run, str(self._folder.log), over)
        self._guard = self._guard or Guard()
        path = (self._folder.logs / f"{name}.json").absolute()
        _write(path, json.dumps(task.to_json()))
        beside = _accelerated() if role.accelerated else ON_PROCESSOR
        words = ["seedbed.launch.entry", str(path)]
        log = self._folder.logs / f"{name}.log"
        process = ProcessInstance(words, token, log, self._guard, beside)
        self._processes[role.name, task.index] = process
        return process

    def look_after(self) -> None:
        """See :class:`~seedbed.launch.launcher.Launcher`: keeps logs within bounds, and a guard in its place."""
        if self._guard is not None:
            self._guard.look_after()
        for process in self._processes.values():
            process.look_after()

    @staticmethod
    def _name(role: str, index: int) -> str:
        return f"{role.replace(' ', '-')}-{index}"

    def close(self) -> None:
        """See :class:`~seedbed.launch.launcher.Launcher`."""
        if self._guard is not None:
            self._guard.close()
        for address in self._listening:  # an instance that was killed leaves its socket
            carrier, _, path = address.partition(":")
            if carrier != "inproc":
                Path(path).unlink(missing_ok=True)


def _write(path: Path, text: str) -> None:
    """Writes a file, unless it holds the text already: so a disk that is full by then hinders no restart."""
    with contextlib.suppress(OSError, UnicodeDecodeError):
        if regular_files.read(path).decode() == text:
            return
    path.parent.mkdir(parents=True, exist_ok=True)
    regular_files.write_whole(path, text)


def _accelerated() -> dict[str, str]:
    """Returns the environment variables with which an instance's JAX uses the same platform as the head's."""
    if jax.default_backend() == "cpu":
        return {"JAX_PLATFORMS": "cpu"}
    # JAX finds the same platform as here; the head has allocated most of its memory already.
    return {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
