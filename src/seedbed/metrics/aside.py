"""Sinks that may be slow, fail or hang, in a thread of their own with a bounded queue."""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Callable

from seedbed.errors import RunFailed, cause_of
from seedbed.metrics.sinks import Row, Sink

_MOST_WAITING = 1000
CLOSING_SECONDS = 30.0
"""Seconds for which the end of a run waits for the rows that are left."""


class Aside:
    """A sink that hands its rows to another one, in a thread; the run never waits for it.

    The other sink is made in that thread, with the first row; one that cannot be made is tried again with the next row.

    Args:
      name: name of the other sink, for people.
      make: function that makes it.
    """

    def __init__(self, name: str, make: Callable[[], Sink]) -> None:
        self._name = name
        self._make = make
        self._rows: queue.Queue[Row | None] = queue.Queue(_MOST_WAITING)
        self._failure: Exception | None = None
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def __str__(self) -> str:
        return self._name

    def write(self, row: Row) -> None:
        """Hands over ``row``.

        Raises:
          RunFailed: an earlier row was not taken, or too many wait.
        """
        if self._thread.ident is None:
            self._thread.start()
        # Taken before the row is handed over, or the failure of this very row might be lost.
        failure, self._failure = self._failure, None
        try:
            self._rows.put_nowait(dict(row))
        except queue.Full:
            raise RunFailed(
                f"{self._name}: {_MOST_WAITING:,} rows wait for it, and more are left out"
            ) from None
        if failure is not None:
            raise RunFailed(f"{self._name}: {cause_of(failure)}")

    def close(self) -> None:
        """Waits for the rows that are left, for a while; safe to call twice.

        Raises:
          RunFailed: some are left all the same, or were not taken.
        """
        if self._thread.is_alive():
            with contextlib.suppress(queue.Full):
                self._rows.put(None, timeout=CLOSING_SECONDS)
            self._thread.join(CLOSING_SECONDS)
        if self._thread.is_alive():
            raise RunFailed(
                f"{self._name}: not done {CLOSING_SECONDS:g} s after the end of the run; rows are missing"
            )

        failure, self._failure = self._failure, None
        if failure is not None:
            raise RunFailed(f"{self._name}: {cause_of(failure)}; rows are missing")

    def _run(self) -> None:
        sink: Sink | None = None
        while (row := self._rows.get()) is not None:
            try:
                sink = sink or self._make()
                sink.write(row)
            except Exception as error:
                self._failure = error
        if sink is not None:
            try:
                sink.close()
            except Exception as error:
                self._failure = error
