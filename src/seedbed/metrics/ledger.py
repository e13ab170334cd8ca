"""A ledger of all places in unrolls, which shows that none is trained twice and none is lost.

One place is one decision of the policy for one environment. At every moment::

    received = trained + queued + open + dropped

A decision at the final observation of an episode is a place too, but the environment does not carry it out: it only
resets. These are counted beside the books, since a run is as long as the decisions that were carried out::

    agent steps = received - resets
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

COLUMNS = ("received", "trained", "queued", "open", "dropped", "resets")
"""Keys of :meth:`Ledger.counts`."""


def carried_out(counts: Mapping[str, int]) -> int:
    """Returns the agent steps in the counts of a ledger: decisions that the environments carried out.

    Ledgers of 0.1 know of no resets: a run keeps its counts of that time.
    """
    return counts["received"] - counts.get("resets", 0)


@dataclass
class Ledger:
    """Counters in places of unrolls; every booking moves places from one column to another under a lock.

    Attributes:
      received: all places.
      open, queued, trained, dropped: places by their whereabouts.
      resets: received places that only reset their environment.
    """

    received: int = 0
    open: int = 0
    queued: int = 0
    trained: int = 0
    dropped: int = 0
    resets: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False, compare=False)

    @contextmanager
    def _booking(self) -> Iterator[None]:
        with self._lock:
            yield
            if min(self.open, self.queued, self.dropped, self.resets) < 0 or not self._balanced():
                raise AssertionError(f"the books do not balance: {self}")

    def _balanced(self) -> bool:
        whole = self.received == self.trained + self.queued + self.open + self.dropped
        return whole and self.resets <= self.received

    def decide(self, steps: int, resets: int = 0) -> None:
        """The policy acted: the steps enter open unrolls; so many of them only reset their environment."""
        with self._booking():
            self.received += steps
            self.open += steps
            self.resets += resets

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
            return {name: getattr(self, name) for name in COLUMNS}

    def restore(self, counts: Mapping[str, int]) -> None:
        """Sets the columns to the result of :meth:`counts`; ledgers of 0.1 know of no resets."""
        with self._booking():
            for name, value in counts.items():
                setattr(self, name, value)
