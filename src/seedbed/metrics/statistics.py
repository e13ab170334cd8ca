"""Point estimates and intervals for a handful of returns or runs.

The interquartile mean is the mean of the middle half: it is not moved by one lucky run as a mean is, and it
wastes less than a median (Agarwal et al. 2021, "Deep Reinforcement Learning at the Edge of the Statistical
Precipice").
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from seedbed.errors import ConfigError

_AT_ONCE = 1 << 20
"""Numbers that are resampled at once."""


@dataclass(frozen=True)
class Estimate:
    """An estimate from ``count`` numbers.

    Attributes:
      mean: their mean.
      interquartile_mean: the mean of their middle half.
      low, high: 95% bootstrap interval of the interquartile mean.
      count: number of numbers.
    """

    mean: float
    interquartile_mean: float
    low: float
    high: float
    count: int


@dataclass(frozen=True)
class Evaluation(Estimate):
    """An estimate from the returns of episodes, some of which may have been cut.

    Attributes:
      cut: episodes that had not ended after ``max_steps`` steps. They are counted with their return up to there, as
        after a time limit: none is left out, which would favour short episodes.
      max_steps: the most steps of an episode.
    """

    cut: int
    max_steps: int


def interquartile_mean(values: ArrayLike, axis: int = 0) -> NDArray[np.float64]:
    """The mean without the lowest and the highest quarter (rounded down to whole values) along ``axis``."""
    from scipy import stats  # here: it takes as long to import as JAX, and most runs have no interval to tell

    trimmed: Any = stats.trim_mean(np.asarray(values, np.float64), 0.25, axis=axis)
    return np.asarray(trimmed, np.float64)


def bootstrap_interval(
    values: ArrayLike, confidence: float = 0.95, resamples: int = 2000, seed: int = 0
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The percentile bootstrap interval of the interquartile mean over the first axis, ``(low, high)``.

    The same values, ``resamples`` and ``seed`` give the same interval. One value is its own interval.
    """
    array = np.asarray(values, np.float64)
    random = np.random.default_rng(seed)
    # In pieces: all of them at once would take resamples * values numbers.
    means = np.concatenate(
        [
            interquartile_mean(array[random.integers(len(array), size=(piece, len(array)))], axis=1)
            for piece in _pieces(resamples, max(1, _AT_ONCE // len(array)))
        ]
    )
    tail = (1 - confidence) / 2
    low, high = np.quantile(means, [tail, 1 - tail], axis=0)
    return np.asarray(low, np.float64), np.asarray(high, np.float64)


def _pieces(total: int, largest: int) -> Iterator[int]:
    """Positive sizes of at most ``largest`` that add up to ``total``."""
    for start in range(0, total, largest):
        yield min(largest, total - start)


def estimate(values: Sequence[float], seed: int = 0) -> Estimate:
    """Mean, interquartile mean and its interval; raises :class:`ConfigError` if there are no values."""
    if not len(values):
        raise ConfigError("no values to summarise: at least one finished episode or run is needed")
    low, high = bootstrap_interval(values, resamples=10_000, seed=seed)
    return Estimate(
        mean=float(np.mean(values)),
        interquartile_mean=float(interquartile_mean(values)),
        low=float(low),
        high=float(high),
        count=len(values),
    )
