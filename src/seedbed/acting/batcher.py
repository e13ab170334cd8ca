"""The rule by which batches of observations go to the accelerator, as one pure function.

Alternatives weighed: exactly full batches, as in SEED RL (one dead actor stalls all others); all waiting lanes
whenever the accelerator is free (many tiny batches while actors trickle in). So: a full batch goes at once, a
partial one after a stated wait, and at once where every living lane waits, since no further observation can come.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class BatchRule:
    """The sizes and times at which a batch is due.

    Attributes:
      max_rows: number of environments in a full batch.
      wait: time in s that a partial batch waits for more lanes, from its first arrival.
    """

    max_rows: int
    wait: float


@dataclass(frozen=True)
class Decision:
    """The lanes that are due.

    Attributes:
      take: number of waiting lanes that go now, in order of arrival.
      wait: time in s after which to decide again if no lane arrives; None if there is no need.
    """

    take: int
    wait: float | None = None


def decide(waiting: Sequence[tuple[int, float]], busy_lanes: int, now: float, rule: BatchRule) -> Decision:
    """Decides on the lanes of the next batch.

    Args:
      waiting: pairs ``(rows, arrival time in s)`` of the waiting lanes, in order of arrival.
      busy_lanes: number of living lanes that are still stepping, whose observations may come.
      now: the time in s, on the clock of the arrivals.
      rule: size of a full batch, and wait of a partial one.
    """
    if not waiting:
        return Decision(0)
    take, rows = 0, 0
    for lane_rows, _ in waiting:
        if take and rows + lane_rows > rule.max_rows:
            return Decision(take)
        take, rows = take + 1, rows + lane_rows
    age = now - waiting[0][1]
    if rows >= rule.max_rows or busy_lanes == 0 or age >= rule.wait:
        return Decision(take)
    return Decision(0, wait=rule.wait - age)


def buckets(smallest: int, largest: int) -> tuple[int, ...]:
    """Returns the batch sizes that inference is compiled for: ``smallest``, its doublings, and ``largest``."""
    sizes = []
    size = max(1, smallest)
    while size < largest:
        sizes.append(size)
        size *= 2
    return (*sizes, largest)


def bucket_for(rows: int, sizes: Sequence[int]) -> int:
    """Returns the smallest compiled size that holds ``rows``."""
    return next(size for size in sizes if size >= rows)
