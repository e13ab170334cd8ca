"""The instances of a program's roles: processes or threads, as they are watched, and as the run's head knows them."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from seedbed.errors import ConnectionLost
from seedbed.faults import Fault

_log = logging.getLogger(__name__)
GRACE_SECONDS = 3.0
"""In which an instance may end by itself once the others are gone."""
START_SECONDS = 120.0
"""In which an instance is to be ready: it imports, makes its environments, and compiles, on cores that may be busy."""


class Instance(Protocol):
    """One instance that was started."""

    log: str
    """Where its traceback is, and its last words."""

    def ended(self) -> Fault | None:
        """Returns why it ended; None while it lives."""

    def ask_to_end(self) -> None:
        """Tells it that it is over, if it does not hear that otherwise."""

    def kill(self) -> bool:
        """Ends it at once; returns False if that is not possible."""

    def finish(self, seconds: float) -> None:
        """Lets it end by itself for so long, then kills it."""


def _owes_nothing() -> Mapping[int, float | None]:
    return {}


@dataclass(frozen=True)
class Instances:
    """The instances of one role, as the head knows them.

    Attributes:
      owes: for each instance that is there, the time (monotonic, s) since when it owes something; None if it owes
        nothing. One that is not there yet, since it makes its environments or compiles, is left out.
      start: starts the instance with an index, where instances are threads of the head's own.
      begins: contents of the checkpoint that the instance with an index begins with, of the type
        :class:`~seedbed.learning.checkpoint.Contents`; None if it needs none.
    """

    owes: Callable[[], Mapping[int, float | None]] = _owes_nothing
    start: Callable[[int], Instance] | None = None
    begins: Callable[[int], Any] | None = None


class ThreadInstance:
    """An instance in a thread of this process, which cannot be killed.

    Args:
      name: of the thread.
      run: runs the instance to its end; it raises :class:`~seedbed.errors.ConnectionLost` when the others are gone.
      log: where its traceback is.
      over: set to ask it to end; None if it hears that by its connection.
    """

    def __init__(
        self, name: str, run: Callable[[], None], log: str, over: threading.Event | None = None
    ) -> None:
        self.log = log
        self._run_to_end = run
        self._over = over
        self._error: BaseException | None = None
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

    def ask_to_end(self) -> None:
        """See :class:`Instance`."""
        if self._over is not None:
            self._over.set()

    def kill(self) -> bool:
        """See :class:`Instance`; it ends when its connection does."""
        self.finish(GRACE_SECONDS)
        return not self._thread.is_alive()

    def finish(self, seconds: float) -> None:
        """See :class:`Instance`."""
        self._thread.join(timeout=seconds)
