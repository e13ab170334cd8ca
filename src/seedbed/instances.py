"""The instances of a program's roles: processes or threads, as seen by the supervisor and by the run's head."""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from seedbed.errors import ConnectionLost
from seedbed.faults import Fault

_log = logging.getLogger(__name__)
GRACE_SECONDS = 3.0
"""Time in which an instance may end by itself once its peers are gone."""
START_SECONDS = 120.0
"""Time in which an instance has to be ready: it imports, makes its environments and compiles, maybe on busy cores."""


class Instance(Protocol):
    """A started instance of a role: a process or a thread."""

    log: str
    """Path of the log file that has its last words and its traceback."""

    @property
    def machine(self) -> str:
        """Name of the machine that it runs on; empty while it has none."""

    @property
    def begun(self) -> float | None:
        """Time (monotonic, s) at which it began to run; None while it waits for a machine."""

    def ended(self) -> Fault | None:
        """Returns the fault with which it ended; None while it lives."""

    def stopped(self) -> bool:
        """Returns whether its process is stopped by a signal: it then does nothing, however fast its environments."""

    def ask_to_end(self) -> None:
        """Asks it to end, where the closing of its connection does not."""

    def kill(self) -> bool:
        """Kills it at once; returns False if that is not possible."""

    def finish(self, seconds: float) -> None:
        """Waits up to ``seconds`` for its end, then kills it."""


def _owes_nothing() -> Mapping[int, float | None]:
    return {}


def _nobody_elsewhere() -> Mapping[int, str]:
    return {}


def _nobody_to_tell() -> None:
    """Returns at once: there are no instances on other machines."""


@dataclass(frozen=True)
class Instances:
    """The instances of one role, as the head knows them.

    Attributes:
      owes: function that returns, by the index of each instance that has joined, the time (monotonic, s) since which
        it owes the head a sign of life; None if it owes none. An instance that is not ready yet is left out: it may
        still make its environments, or compile.
      start: function that starts the instance with an index, where instances are threads of the head's process.
      begins: function that returns the state with which the instance with an index resumes, as
        :class:`~seedbed.learning.checkpoint.Contents`; None if it needs none.
      elsewhere: function that returns the address of the machine of each instance that has joined by itself, which no
        launcher has started, by its index; an empty address is this machine's.
      say_over: function that tells instances on other machines that the run is over, so that they end.
    """

    owes: Callable[[], Mapping[int, float | None]] = _owes_nothing
    start: Callable[[int], Instance] | None = None
    begins: Callable[[int], Any] | None = None
    elsewhere: Callable[[], Mapping[int, str]] = _nobody_elsewhere
    say_over: Callable[[], None] = _nobody_to_tell


class ThreadInstance:
    """An instance in a thread of this process, which cannot be killed.

    Args:
      name: name of the thread.
      run: function that runs the instance to its end; it raises :class:`~seedbed.errors.ConnectionLost` when its peers
        are gone.
      log: path of the log file that has its traceback.
      over: event that is set to ask it to end; None if the closing of its connection ends it.

    Attributes:
      machine: name of this machine.
      begun: time (monotonic, s) of its start.
    """

    def __init__(
        self, name: str, run: Callable[[], None], log: str, over: threading.Event | None = None
    ) -> None:
        self.log = log
        self.machine = socket.gethostname()
        self._run_to_end = run
        self._over = over
        self._error: BaseException | None = None
        self.begun = time.monotonic()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._run_to_end()
        except ConnectionLost:
            pass
        except BaseException as error:
            _log.exception("%s", self._thread.name)
            self._error = error

    def ended(self) -> Fault | None:
        """See :class:`Instance`."""
        if self._thread.is_alive():
            return None
        return Fault.of(self._error) if self._error else Fault("ended")

    def stopped(self) -> bool:
        """See :class:`Instance`; a thread is stopped with the process that asks."""
        return False

    def ask_to_end(self) -> None:
        """See :class:`Instance`."""
        if self._over is not None:
            self._over.set()

    def kill(self) -> bool:
        """Waits for the thread, which ends when its connection does; returns False if it has not ended in time."""
        self.finish(GRACE_SECONDS)
        return not self._thread.is_alive()

    def finish(self, seconds: float) -> None:
        """See :class:`Instance`."""
        self._thread.join(timeout=seconds)
