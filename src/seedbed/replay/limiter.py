"""Flow control of a replay: acting and learning wait for each other so that a stated ratio is kept.

After the first ``base`` inserts, every insert earns ``ratio`` samples::

    credit = ratio * (inserts - base) - samples

A batch is sampled when its credit is there; acting goes on while not more than ``tolerance`` of credit lies
unused. All are counted in items; an insert may count less than its items (resets do not count). (The same as
Reverb's SampleToInsertRatio, with the formula in sight.)
"""

from __future__ import annotations

import math
from typing import Any

from seedbed.errors import ConfigError

_ROUNDING = 1e-3
"""Tolerance of comparisons: far above float64's rounding, far below one item."""


class RateLimiter:
    """A decider between acting and learning; has no lock, and does not wait.

    It never stalls: at any moment either a batch may be sampled or ``largest_insert`` items may be inserted.
    *Proof.* Say a batch may not be sampled. Below ``base`` any insert is allowed. At ``base`` the credit is not above
    0, since samples are not negative. Above it, the credit is below ``batch``. In both cases
    ``credit + ratio * largest_insert < batch + ratio * largest_insert <= tolerance``, and the insert is allowed.

    Args:
      ratio: mean number of samples of an item; None: inserts never wait, and samples only for ``base``.
      base: items that are inserted before anything is sampled, at least 0.
      batch: items in one sample.
      largest_insert: items in one insert, at most.
      tolerance: credit up to which inserts go on. The default is twice the least one, so that acting and learning
        go on side by side.

    Raises :class:`ConfigError` where it could stall, or a number makes no sense.
    """

    def __init__(
        self, ratio: float | None, base: int, batch: int, largest_insert: int, tolerance: float | None = None
    ) -> None:
        if ratio is not None and not (math.isfinite(ratio) and ratio > 0):
            raise ConfigError(
                f"a replay ratio of {ratio:g} trains on nothing: give a number above 0, or none to let "
                "neither acting nor learning wait"
            )
        if base < 0 or batch < 1 or largest_insert < 1:
            raise ConfigError(
                f"no flow with a base of {base}, batches of {batch} and inserts of {largest_insert} items: "
                "the base has to be 0 or more, the others 1 or more"
            )
        needed = batch + (ratio or 0.0) * largest_insert
        self.tolerance = 2 * needed if tolerance is None else float(tolerance)
        if not self.tolerance >= needed:
            raise ConfigError(
                f"a tolerance of {self.tolerance:g} items could stall acting and learning for good: batches of "
                f"{batch} items and inserts of up to {largest_insert} at a ratio of {ratio or 0:g} need a "
                f"tolerance of {needed:g} or more"
            )
        self.ratio = ratio
        self.base: float = base
        self._batch = batch
        self.inserts: float = 0
        self.samples = 0.0

    @property
    def credit(self) -> float:
        """Items that may still be sampled for the inserted ones; below 0 while it fills. 0 without a ratio."""
        if self.ratio is None:
            return 0.0
        return self.ratio * (self.inserts - self.base) - self.samples

    def may_insert(self, items: int, pending: int = 0) -> bool:
        """Returns whether ``items`` may be inserted while ``pending`` others are on their way in."""
        if self.ratio is None or self.inserts + pending < self.base:
            return True
        return self.credit + self.ratio * (pending + items) <= self.tolerance

    def may_sample(self) -> bool:
        """Returns whether a batch may be sampled."""
        if self.ratio is None:
            return self.inserts >= max(self.base, 1)
        # There is none before the base. The margin keeps rounding from holding back the last batch that was earned, for
        # which lockstep would wait.
        return self.credit >= self._batch - _ROUNDING

    def insert(self, items: float) -> None:
        """Books inserted items."""
        self.inserts += items

    def sample(self) -> None:
        """Books a batch."""
        self.samples += self._batch

    def give_back(self) -> None:
        """Books that a batch was not sampled after all."""
        self.samples -= self._batch

    @property
    def missing(self) -> float:
        """Items that are still to be inserted before inserts earn samples."""
        return max(self.base - self.inserts, 0)

    def settle(self, after: int | None = None) -> None:
        """Forgets credit and debt: inserts after the next ``after`` ones (None: the missing ones) earn the samples
        from now on."""
        self.base = self.inserts + (self.missing if after is None else after)
        self.samples = 0.0

    def state(self) -> dict[str, Any]:
        """Returns all bookings, as plain JSON values."""
        return {"ratio": self.ratio, "base": self.base, "inserts": self.inserts, "samples": self.samples}

    def restore(self, state: dict[str, Any]) -> None:
        """Takes over a result of :meth:`state`; bookings under another ratio are settled."""
        self.inserts, self.samples, self.base = (
            state["inserts"],
            float(state["samples"]),
            state["base"],
        )
        if state["ratio"] != self.ratio:
            self.settle()
