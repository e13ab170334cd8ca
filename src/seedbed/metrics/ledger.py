"""Where every step went: the books that show that none is trained twice and none is lost.

One step is one decision of the policy for one environment. At every moment::

    received = trained + queued + open + dropped
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field


@dataclass
class Ledger:
    """Counters in steps; every booking moves steps from one column to another under a lock."""

    received: int = 0
    open: int = 0
    queued: int = 0
    trained: int = 0
    dropped: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False, compare=False)

    @contextmanager
    def _booking(self) -> Iterator[None]:
        with self._lock:
            yield
            if min(self.open, self.queued, self.dropped) < 0 or not self._balanced():
                raise AssertionError(f"the books do not balance: {self}")

    def _balanced(self) -> bool:
        return self.received == self.trained + self.queued + self.open + self.dropped

    def decide(self, steps: int) -> None:
        """The policy acted: the steps enter open unrolls."""
        with self._booking():
            self.received += steps
            self.open += steps

    def cut(self, steps: int) -> None:
        """An unroll was completed: its steps wait for the learner."""
        with self._booking():
            self.open -= steps
            self.queued += steps

    def train(self, steps: int) -> None:
        """The learner has used the steps in an update."""
        with self._booking():
            self.queued -= steps
            self.trained += steps

    def drop(self, *, open_steps: int = 0, queued_steps: int = 0) -> None:
        """An actor left in the middle of an unroll, or unrolls were thrown away."""
        with self._booking():
            self.open -= open_steps
            self.queued -= queued_steps
            self.dropped += open_steps + queued_steps

    def counts(self) -> dict[str, int]:
        """The columns by name, read at one moment."""
        with self._lock:
            return {
                name: getattr(self, name) for name in ("received", "trained", "queued", "open", "dropped")
            }

    def restore(self, counts: dict[str, int]) -> None:
        """Sets the columns to what :meth:`counts` gave."""
        with self._booking():
            for name, value in counts.items():
                setattr(self, name, value)
