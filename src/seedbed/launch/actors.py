"""The actors that a run starts on its own machine: started, watched, restarted within a bound, stopped.

An actor is a process (or, in-process, a thread). A process is started by ``exec`` and never forked from the
process that holds JAX. Should this process be killed, a guard (:mod:`seedbed.launch.guard`) sees to it that they end.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol

from seedbed import faults
from seedbed.errors import ConnectionLost, RunFailed
from seedbed.faults import Fault
from seedbed.launch.actor import act
from seedbed.launch.allocator import without_tuning
from seedbed.transport.connect import connect

_log = logging.getLogger(__name__)
WATCH_SECONDS = 0.2
GRACE_SECONDS = 3.0
"""In which an actor may close its environments once its learner is gone."""
RESTART_WINDOW_SECONDS = 600.0


class Actor(Protocol):
    """One started actor."""

    log: str
    """Where its traceback is, and its last words."""

    def ended(self) -> Fault | None:
        """Why it ended; None while it lives."""

    def ask_to_end(self) -> None:
        """Tells it that it is over, if it does not hear that otherwise."""

    def kill(self) -> bool:
        """Ends it at once; False if that is not possible."""

    def finish(self, seconds: float) -> None:
        """Lets it end by itself for so long, then kills it."""


_ANNOUNCED = 'trap "" PIPE; echo "+$$" >&0; trap - PIPE; exec "$@" </dev/null'
"""What becomes the program once it has named itself on the guard's pipe; a guard that was killed hears nothing."""


class Guard:
    """The process that ends what was started under it if this process is killed; :meth:`close` it at the end."""

    def __init__(self) -> None:
        # Isolated and without site packages: it starts in a moment and stays small.
        command = [sys.executable, "-I", "-S", str(Path(__file__).with_name("guard.py")), str(GRACE_SECONDS)]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, env=without_tuning({**os.environ}), process_group=0
        )

    def start(self, command: Sequence[str], **options: Any) -> subprocess.Popen[Any]:
        """Starts a program that leads a process group of its own and has no input; ``options`` are those of Popen.

        The program announces itself: were it announced from here, it would be lost if this process were killed, or
        interrupted, in the moment between. Until it has, it holds the pipe whose end the guard awaits.
        """
        announced = ["/bin/sh", "-c", _ANNOUNCED, "sh", *command]
        return subprocess.Popen(announced, stdin=self._pipe, process_group=0, **options)

    def forget(self, group: int) -> None:
        """Says that the group has ended: its number may become somebody else's."""
        # A guard that was killed is not worth a run: the run goes on without it.
        with contextlib.suppress(BrokenPipeError):
            os.write(self._pipe, f"-{group}\n".encode())

    @property
    def _pipe(self) -> int:
        assert self._process.stdin is not None
        return self._process.stdin.fileno()

    def close(self) -> None:
        """Ends it, and with it what was started and not forgotten."""
        self._process.communicate()


class ProcessActor:
    """An actor in a process of its own, which leads a group with whatever processes its environments start.

    Args:
      words: a module and its arguments.
      token: what to say where it connects.
      log: file that takes what it prints; its fault comes as a file beside it.
      guard: who ends it should this process be killed.
      beside: variables of its environment, beside this process's. An environment that is a JAX function runs on the
        processor; accelerators are the learner's.
    """

    def __init__(
        self,
        words: Sequence[str],
        token: str,
        log: Path,
        guard: Guard,
        beside: Mapping[str, str] = MappingProxyType({"JAX_PLATFORMS": "cpu"}),
    ) -> None:
        self.log = str(log)
        self._fault = log.with_suffix(".fault").absolute()
        self._fault.unlink(missing_ok=True)
        self._guard = guard
        command = [sys.executable, "-P", "-m", *words]
        with log.open("ab") as output:
            self._begins = output.tell()
            # A group of its own: Ctrl-C on a terminal goes to a whole group, and the learner decides when its actors
            # stop.
            self._process = guard.start(
                command,
                stdout=output,
                stderr=output,
                env=without_tuning(
                    {**os.environ, "SEEDBED_TOKEN": token, faults.FILE: str(self._fault), **beside}
                ),
            )

    def ended(self) -> Fault | None:
        """See :class:`Actor`."""
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

    def _last_line(self) -> str:
        with Path(self.log).open("rb") as file:
            file.seek(0, os.SEEK_END)
            # What stands before are the last words of those that had this place earlier.
            file.seek(max(self._begins, file.tell() - 4096))
            lines = file.read().decode(errors="replace").split("\n")
        return next((line.strip() for line in reversed(lines) if line.strip()), "")

    def ask_to_end(self) -> None:
        """See :class:`Actor`."""
        self._process.terminate()

    def kill(self) -> bool:
        """See :class:`Actor`."""
        self._process.kill()
        self._process.wait()
        self._kill_group()
        return True

    def finish(self, seconds: float) -> None:
        """See :class:`Actor`."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(seconds)
        self.kill()
        self._fault.unlink(missing_ok=True)

    def _kill_group(self) -> None:
        """Kills what the actor's environments have started and left behind."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._guard.forget(self._process.pid)


class ThreadActor:
    """An actor in a thread of this process."""

    def __init__(self, index: int, address: str, token: str, log: Path) -> None:
        self.log = str(log)
        self._error: BaseException | None = None
        self._index, self._address, self._token = index, address, token
        self._thread = threading.Thread(target=self._run, name=f"actor {index}", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            # The server listens before its actors start. One that waited for it would join the next run of this
            # process at the same address.
            with contextlib.closing(connect(self._address, timeout=0.0)) as client:
                act(client, token=self._token, index=self._index)
        except ConnectionLost:
            pass
        except BaseException as error:
            _log.exception("actor %d", self._index)
            self._error = error

    def ended(self) -> Fault | None:
        """See :class:`Actor`."""
        if self._thread.is_alive():
            return None
        return Fault.of(self._error) if self._error else Fault("ended")

    def ask_to_end(self) -> None:
        """See :class:`Actor`; a thread hears it by its connection."""

    def kill(self) -> bool:
        """See :class:`Actor`; a thread cannot be killed: it ends when its connection does."""
        self._thread.join(timeout=GRACE_SECONDS)
        return not self._thread.is_alive()

    def finish(self, seconds: float) -> None:
        """See :class:`Actor`."""
        self._thread.join(timeout=seconds)


class Supervisor:
    """Keeps a run's own actors alive; one thread.

    Args:
      start: starts the actor with an index.
      count: how many.
      stalled: the indices of those that owe something for too long, and for how many seconds.
      most_restarts: of one actor within ten minutes.
      restart: False ends the run at the first death (an exact lag cannot go on without an actor's state).
      on_failure: called with the error that should end the run.
      note: takes one line for people.
      noun: what they are called there.
      late_with: what is said of one that is stalled for so many seconds.
    """

    def __init__(
        self,
        start: Callable[[int], Actor],
        count: int,
        *,
        stalled: Callable[[], dict[int, float]],
        most_restarts: int,
        restart: bool,
        on_failure: Callable[[BaseException], None],
        note: Callable[[str], None],
        noun: str = "actor",
        late_with: Callable[[float], str] = "silent for {:.0f} s".format,
    ) -> None:
        self._start = start
        self._count = count
        self._late_with = late_with
        self._stalled = stalled
        self._most_restarts = most_restarts
        self._restart = restart
        self._on_failure = on_failure
        self._note = note
        self._noun = noun
        self.actors: dict[int, Actor] = {}
        self.restarts = 0
        self._history: dict[int, deque[float]] = {index: deque() for index in range(count)}
        self._faults: dict[int, Fault] = {}
        self._stopping = threading.Event()
        self._looked = time.monotonic()
        self._thread = threading.Thread(target=self._run, name=f"supervisor of {noun}s", daemon=True)

    def start(self) -> None:
        """Starts the actors and the watch."""
        self._thread.start()

    def stand_down(self) -> None:
        """From now on actors may end without being replaced."""
        self._stopping.set()

    def stop(self) -> None:
        """Ends the watch and the actors, whose connections are closed; safe to call twice."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        try:
            for index in range(self._count):
                self._begin(index)
            while not self._stopping.wait(WATCH_SECONDS):
                self._watch()
        except BaseException as error:
            self._on_failure(error)
            self._stopping.wait()
        finally:
            over = time.monotonic() + GRACE_SECONDS
            for actor in self.actors.values():
                actor.finish(max(0.0, over - time.monotonic()))

    def _watch(self) -> None:
        stalled = self._look()
        for index, actor in self.actors.items():
            if (reason := actor.ended()) is not None:
                self._replace(index, actor, reason)
            elif index in stalled:
                reason = Fault(self._late_with(stalled[index]))
                if not actor.kill():
                    raise RunFailed(
                        f"{self._noun} {index}: {reason}, and a thread cannot be killed and started again: an "
                        f"actor of seed, impala, apex or rapid with --transport shm can (log: {actor.log})"
                    )
                self._replace(index, actor, reason)

    def _look(self) -> dict[int, float]:
        """Who is stalled; nobody if this process itself stood still (Ctrl-Z) and steps may wait to be read."""
        before, self._looked = self._looked, time.monotonic()
        return {} if self._looked - before > 10 * WATCH_SECONDS else self._stalled()

    def _replace(self, index: int, actor: Actor, reason: Fault) -> None:
        if self._stopping.is_set():
            return
        now = time.monotonic()
        history = self._history[index]
        while history and now - history[0] > RESTART_WINDOW_SECONDS:
            history.popleft()
        if not self._restart:
            raise RunFailed(
                f"{self._noun} {index}: {reason} (log: {actor.log}); a run with an exact lag cannot go on "
                "without it: 'seedbed resume' goes on from the last checkpoint"
            )
        if reason.repeats(self._faults.get(index)):
            raise RunFailed(
                f"{self._noun} {index}: {reason} (log: {actor.log}); it was the same before its restart, so that "
                "another one would come to the same: mend what the log shows, then 'seedbed resume'"
            )
        if len(history) >= self._most_restarts:
            raise RunFailed(
                f"{self._noun} {index}: {reason} (log: {actor.log}); it was restarted {len(history)} times already, "
                "and --actor-restarts allows no more: mend what the log shows, then 'seedbed resume'"
            )
        history.append(now)
        self._faults[index] = reason
        self.restarts += 1
        self._note(f"{self._noun} {index}: {reason}; restart {len(history)} of {self._most_restarts}")
        self._begin(index)

    def _begin(self, index: int) -> None:
        _log.info("%s %d starts", self._noun, index)
        self.actors[index] = self._start(index)
