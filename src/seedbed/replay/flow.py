"""The flow between the threads that insert into a replay and the one that samples."""

from __future__ import annotations

import threading
from collections.abc import Callable

from seedbed.replay.limiter import RateLimiter


class Flow:
    """The part of a replay that says who has to wait, wherever its contents are; safe to use from any thread.

    Args:
      limiter: flow control of acting and learning.
    """

    def __init__(self, limiter: RateLimiter) -> None:
        self._limiter = limiter
        self._changed = threading.Condition()
        self._closed = False
        self._listeners: list[Callable[[], None]] = []

    def listen(self, wake: Callable[[], None]) -> None:
        """Calls ``wake`` whenever room was made, from the taker's thread."""
        self._listeners.append(wake)

    @property
    def missing(self) -> float:
        """Items that are still to be inserted before inserts earn samples."""
        return self._limiter.missing

    def settle(self, after: int | None = None) -> None:
        """Forgets credit and debt between acting and learning, see :meth:`RateLimiter.settle`."""
        with self._changed:
            self._limiter.settle(after)
            self._changed.notify_all()

    def close(self) -> None:
        """Wakes waiting threads; nothing can be taken afterwards."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _tell_of_room(self) -> None:
        for wake in self._listeners:
            wake()
