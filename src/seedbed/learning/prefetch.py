"""Batches that are assembled and moved to the training devices while the learner is busy with the one before."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

Batch = TypeVar("Batch")


class Prefetch(Generic[Batch]):
    """A thread that keeps up to ``depth`` batches ready.

    Args:
      make: function that makes the next batch, always called by one thread. It returns None if there is no batch
        within a short time of its own choice, and is then called again.
      depth: number of batches made ahead of time; with 0 each batch is made on demand, on the taker's thread.
      on_failure: function that is called with the exception that ended the thread.
    """

    def __init__(
        self,
        make: Callable[[], Batch | None],
        depth: int,
        on_failure: Callable[[BaseException], None],
    ) -> None:
        self._make = make
        self._depth = depth
        self._on_failure = on_failure
        self._changed = threading.Condition()
        self._ready: deque[Batch] = deque()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="prefetch", daemon=True)
        if depth:
            self._thread.start()

    def take(self, timeout: float) -> Batch | None:
        """Returns the next batch; None when ``timeout`` s have passed or it is closed.

        With a ``depth`` of 0, the timeout is the one of ``make``.
        """
        if not self._depth:
            return self._make()
        with self._changed:
            self._changed.wait_for(lambda: self._ready or self._closed, timeout)
            batch = self._ready.popleft() if self._ready else None
            self._changed.notify_all()
            return batch

    def close(self) -> None:
        """Ends the thread, once the present call of ``make`` returns; closing does not interrupt it."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        if self._depth:
            self._thread.join()

    def _run(self) -> None:
        try:
            while self._has_room():
                batch = self._make()
                with self._changed:
                    if batch is not None:
                        self._ready.append(batch)
                    self._changed.notify_all()
        except BaseException as error:
            self._on_failure(error)

    def _has_room(self) -> bool:
        with self._changed:
            self._changed.wait_for(lambda: len(self._ready) < self._depth or self._closed)
            return not self._closed
