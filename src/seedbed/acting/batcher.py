"""When does a batch of observations go to the accelerator? One pure function decides.

Alternatives weighed: exactly full batches, as in SEED RL (one dead actor stalls everybody); whatever is there
whenever the accelerator is free (many tiny batches while actors trickle in). So: a full batch goes at once, a
partial one after a stated wait, and nobody waits for observations that cannot come, because every living lane
is already here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class BatchRule:
    """When a batch is due.

    Attributes:
      max_rows: environments in a full batch.
      wait: seconds that a partial batch waits for more, counted from its first arrival.
    """

    max_rows: int
    wait: float


@dataclass(frozen=True)
class Decision:
    """What is due.

    Attributes:
      take: how many of the waiting lanes go now, in order of arrival.
      wait: seconds until the question should be asked again if nothing arrives; None for no need.
    """

    take: int
    wait: float | None = None


def decide(waiting: Sequence[tuple[int, float]], busy_lanes: int, now: float, rule: BatchRule) -> Decision:
    """Decides on the lanes that wait.

    Args:
      waiting: ``(rows, arrival time in s)`` of each waiting lane, in order of arrival.
      busy_lanes: living lanes that are still stepping, whose observations may come.
      now: the time in s, on the clock of the arrivals.
      rule: size and wait.
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
    """The batch sizes that inference is compiled for: ``smallest``, its doublings, and ``largest``."""
    sizes = []
    size = max(1, smallest)
    while size < largest:
        sizes.append(size)
        size *= 2
    return (*sizes, largest)


def bucket_for(rows: int, sizes: Sequence[int]) -> int:
    """The smallest compiled size that holds ``rows``."""
    return next(size for size in sizes if size >= rows)
