"""The watchdog of an actor: it ends the actor's process if an environment does not return. Imports no JAX.

The learner's supervisor ends such an actor too, if it has started it and can still reach it. An actor that somebody
else has started, or whose learner is behind a broken network, has only itself.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Callable
from types import TracebackType

import psutil

from seedbed import faults
from seedbed.errors import EnvironmentFault
from seedbed.instances import GRACE_SECONDS

_TICK_SECONDS = 0.5
MARGIN_SECONDS = 2 * GRACE_SECONDS
"""Seconds beyond the limit, in which a supervisor that watches the actor says more about it and starts another."""


class Watchdog:
    """A context manager around calls of environments, which may take so long and no longer.

    It counts its own ticks instead of asking a clock: if the whole process stood still (a signal, a suspended machine),
    no environment is late. One call at a time is watched. :meth:`close` it at the end.

    Args:
      seconds: longest time of one call.
      late: function that is called once, from the watchdog's thread, when a call has taken longer.
      tick: seconds between two ticks.
    """

    def __init__(self, seconds: float, late: Callable[[], None], tick: float = _TICK_SECONDS) -> None:
        self._allowed = int(seconds / tick) + 1
        self._late = late
        self._tick = tick
        self._begun = self._ended = 0
        self._seen, self._ticks = 0, 0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watchdog", daemon=True)

    def start(self) -> Watchdog:
        """Begins to watch; returns itself."""
        self._thread.start()
        return self

    def __enter__(self) -> None:
        self._begun += 1

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended = self._begun

    def tick(self) -> bool:
        """Counts a tick for the call that is under way; returns whether that call is late."""
        begun = self._begun
        if begun == self._ended or begun != self._seen:
            self._seen, self._ticks = begun, 0
            return False
        self._ticks += 1
        return self._ticks > self._allowed

    def _run(self) -> None:
        while not self._over.wait(self._tick):
            if self.tick():
                self._late()
                return

    def close(self) -> None:
        """Ends the watch."""
        self._over.set()


def ending_this_process(env: str, seconds: float) -> Watchdog:
    """Returns a started watchdog that ends this process with status 3, and all processes that it has started.

    Args:
      env: name of the environments, for the message.
      seconds: longest time of one call that the run's settings allow.
    """

    def end() -> None:
        said = (
            f"its environments ({env}) did not return within {seconds + MARGIN_SECONDS:g} s, and its learner allows "
            f"them {seconds:g} s (--env-timeout there)"
        )
        status = faults.leave(EnvironmentFault(said))
        for child in psutil.Process().children(recursive=True):
            with contextlib.suppress(psutil.Error):
                child.kill()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)  # a call that hangs in foreign code cannot be interrupted

    return Watchdog(seconds + MARGIN_SECONDS, end).start()
