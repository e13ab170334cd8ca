"""Processes of instances, and the guard that ends them if the process that started them is killed.

A process is started by ``exec`` and never forked from the process that holds JAX. Imports no JAX.
"""

from __future__ import annotations

import contextlib
import errno
import io
import json
import logging
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil

from seedbed import faults, regular_files
from seedbed.architectures.program import Task
from seedbed.faults import Fault
from seedbed.instances import GRACE_SECONDS
from seedbed.launch.allocator import with_tuning, without_tuning
from seedbed.launch.logs import shortened

_log = logging.getLogger(__name__)
_ANNOUNCED = 'trap "" PIPE; echo "+$$" >&0; trap - PIPE; exec "$@" </dev/null'
"""A shell script that writes its process group to the guard's pipe, then becomes the program.

It ignores a broken pipe: the guard may have been killed."""


_APART = 'exec 3<&0; "$@" <&3 3<&- >/dev/null 2>&1 &'
"""A shell script that starts a program as nobody's child, with this script's input."""


class Guard:
    """A process that kills the programs that were started through it, if this process is killed.

    :meth:`close` it at the end.

    Args:
      apart: whether it is nobody's child, in a session of its own. An engine that ends this process kills its children
        too, and would kill the guard with them before it could end anything.
      grace: seconds in which the programs may end by themselves before.
    """

    def __init__(self, *, apart: bool = False, grace: float = GRACE_SECONDS) -> None:
        self._groups: set[int] = set()
        self._grace = grace
        self._apart = apart
        self._process = self._begin()

    def _begin(self) -> subprocess.Popen[bytes]:
        # Isolated and without site packages: it starts in a moment and stays small.
        command = [sys.executable, "-I", "-S", str(Path(__file__).with_name("guard.py")), str(self._grace)]
        if self._apart:
            command = ["/bin/sh", "-c", _APART, "sh", *command]
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, env=without_tuning({**os.environ}), start_new_session=True
        )
        if self._apart:
            process.wait()
        return process

    @property
    def _gone(self) -> bool:
        """True if the guard has ended: nobody reads its pipe any more."""
        if not self._apart:
            return self._process.poll() is not None
        pipe = select.poll()
        pipe.register(self._pipe, 0)
        return any(event & (select.POLLERR | select.POLLHUP) for _, event in pipe.poll(0))

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
        if not self._gone:
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
            self._process.communicate(timeout=2 * self._grace)
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
      log: file for its output; the file of its fault stands beside it.
      guard: guard that kills the instance if this process is killed.
      beside: environment variables in addition to this process's.
      trains: whether it trains, so that its memory allocator has a learner's settings.

    Attributes:
      machine: name of this machine.
      begun: time (monotonic, s) of its start.
    """

    def __init__(
        self,
        words: Sequence[str],
        log: Path,
        guard: Guard,
        beside: Mapping[str, str] = ON_PROCESSOR,
        *,
        trains: bool = False,
    ) -> None:
        self.log = str(log)
        self.machine = socket.gethostname()
        self._fault = log.with_suffix(".fault").absolute()
        self._forget_fault()
        self._guard = guard
        command = [sys.executable, "-P", "-m", *words]
        environment = {**os.environ, faults.FILE: str(self._fault), **beside}
        with _opened(log) as output:
            self._begins = output.seek(0, os.SEEK_END)
            # A group of its own: Ctrl-C on a terminal goes to a whole group, and the learner decides when its
            # instances stop.
            self._process = guard.start(
                command,
                stdout=output,
                stderr=output,
                env=with_tuning(environment) if trains else without_tuning(environment),
            )
        self.begun = time.monotonic()

    @property
    def pid(self) -> int:
        """Number of the process, and of its group."""
        return self._process.pid

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


def start_task(
    task: Task, logs: Path, tasks: Path, guard: Guard, beside: Mapping[str, str], *, trains: bool
) -> ProcessInstance:
    """Starts the process of a task.

    Args:
      task: task of the instance.
      logs: folder of its log.
      tasks: folder for the file with its task.
      guard: guard that kills it if this process is killed.
      beside: environment variables in addition to this process's, among them its secrets.
      trains: whether it trains, so that its memory allocator has a learner's settings.
    """
    name = name_of(task.role, task.index)
    path = (tasks / f"{name}.json").absolute()
    _write(path, json.dumps(task.to_json()))
    words = ["seedbed.launch.entry", str(path)]
    return ProcessInstance(words, logs / f"{name}.log", guard, beside, trains=trains)


def name_of(role: str, index: int) -> str:
    """Returns the name of an instance in files and on the command line: ``actor-3``."""
    return f"{role.replace(' ', '-')}-{index}"


def _write(path: Path, text: str) -> None:
    """Writes a file, unless it holds the text already: so a disk that is full by then hinders no restart."""
    with contextlib.suppress(OSError, UnicodeDecodeError):
        if regular_files.read(path).decode() == text:
            return
    path.parent.mkdir(parents=True, exist_ok=True)
    regular_files.write_whole(path, text)
