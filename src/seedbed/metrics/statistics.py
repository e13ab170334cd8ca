"""Point estimates and intervals for a handful of returns or runs.

The interquartile mean is the mean of the middle half: it is not moved by one lucky run as a mean is, and it
wastes less than a median (Agarwal et al. 2021, "Deep Reinforcement Learning at the Edge of the Statistical
Precipice").
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field
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
      agents: mean return of each agent by its name, where an environment has several.
    """

    cut: int
    max_steps: int
    agents: dict[str, float] = field(default_factory=dict)


def interquartile_mean(values: ArrayLike, axis: int = 0) -> NDArray[np.float64]:
    """The mean without the lowest and the highest quarter (rounded down to whole values) along ``axis``."""
    from scipy import stats  # here: it takes as long to import as JAX, and most runs have no interval to tell

    trimmed: Any = stats.trim_mean(np.asarray(values, np.float64), 0.25, axis=axis)
    return np.asarray(trimmed, np.float64)


def bootstrap_interval(
    values: ArrayLike,
    confidence: float = 0.95,
    resamples: int = 2000,
    seed: int = 0,
    strata: Sequence[Hashable] | None = None,
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The percentile bootstrap interval of the interquartile mean over the first axis, ``(low, high)``.

    The same values, ``resamples`` and ``seed`` give the same interval. One value is its own interval.

    Args:
      values: float64 ``[N, ...]``.
      confidence: probability that the interval stands for.
      resamples: number of resamples.
      seed: root of the resampling.
      strata: ``N`` names of strata (tasks); each is resampled within itself (stratified bootstrap). None: one for all.
    """
    array = np.asarray(values, np.float64)
    random = np.random.default_rng(seed)
    # In pieces: all of them at once would take resamples * values numbers.
    means = np.concatenate(
        [
            interquartile_mean(array[_resampled(random, piece, len(array), strata)], axis=1)
            for piece in _pieces(resamples, max(1, _AT_ONCE // array.size))
        ]
    )
    return _interval(means, confidence)


def probability_of_improvement(
    values: Sequence[ArrayLike], others: Sequence[ArrayLike], resamples: int = 2000, seed: int = 0
) -> tuple[float, float, float]:
    """The probability that a run of one group scores higher than a run of another, and its 95% interval.

    It is the Mann-Whitney U statistic over the number of pairs, ``mean over tasks of P(X > Y) + P(X = Y) / 2`` (Agarwal
    et al. 2021, section 4.3). Its interval is a stratified bootstrap: both groups are resampled within each task.

    Args:
      values: scores of one group, float64 ``[N_t]`` for each task.
      others: scores of the other group, float64 ``[M_t]`` for each task.
      resamples: number of resamples.
      seed: root of the resampling.

    Returns:
      The probability, and the bounds of its interval.
    """
    random = np.random.default_rng(seed)
    better, drawn = 0.0, np.zeros(resamples)
    for one, other in zip(values, others, strict=True):
        x, y = np.asarray(one, np.float64), np.asarray(other, np.float64)
        wins = (np.sign(x[:, None] - y[None, :]) + 1) / 2
        better += float(wins.mean())
        rows = _resampled(random, resamples, len(x), None)
        columns = _resampled(random, resamples, len(y), None)
        drawn += wins[rows[:, :, None], columns[:, None, :]].mean(axis=(1, 2))
    low, high = _interval(drawn / len(values), 0.95)
    return better / len(values), float(low), float(high)


def _resampled(
    random: np.random.Generator, count: int, size: int, strata: Sequence[Hashable] | None
) -> NDArray[np.int64]:
    """Indices ``[count, size]``, drawn with replacement, each stratum from itself."""
    if strata is None or len(set(strata)) == 1:
        return random.integers(size, size=(count, size))
    members = [np.flatnonzero([stratum == each for each in strata]) for stratum in dict.fromkeys(strata)]
    return np.concatenate(
        [part[random.integers(len(part), size=(count, len(part)))] for part in members], axis=1
    )


def _interval(
    means: NDArray[np.float64], confidence: float
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
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
