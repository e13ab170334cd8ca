from typing import Any

import numpy as np
import pytest

from seedbed.errors import ConfigError
from seedbed.metrics import statistics
from seedbed.metrics.statistics import (
    bootstrap_interval,
    estimate,
    interquartile_mean,
    probability_of_improvement,
)


def test_interquartile_mean_by_hand() -> None:
    assert interquartile_mean([100, 1, 2, 3, 4, 5, 6, -50]) == pytest.approx((2 + 3 + 4 + 5) / 4)
    assert interquartile_mean([1.0, 2.0, 9.0]) == pytest.approx(4.0)  # a quarter of three is no whole value
    assert interquartile_mean([7.0]) == 7.0
    assert interquartile_mean([[0, 1], [2, 5], [4, 6], [90, 90]]).tolist() == [3.0, 5.5]


def test_the_interval_of_two_values_by_hand() -> None:
    # A resample of {0, 1} has mean 0, ½, ½ or 1, a quarter each: 2.5% from either end lie 0 and 1.
    low, high = bootstrap_interval([0.0, 1.0])
    assert (low, high) == (0.0, 1.0)
    low, high = bootstrap_interval([0.0, 1.0], confidence=0.4)  # 30% from either end lies ½
    assert (low, high) == (0.5, 0.5)


def test_the_interval_agrees_with_scipy() -> None:
    from scipy import stats

    values = np.random.default_rng(1).normal(3, 2, size=60)
    theirs = stats.bootstrap(
        (values,), interquartile_mean, axis=-1, method="percentile", rng=np.random.default_rng(0)
    ).confidence_interval
    ours = bootstrap_interval(values, resamples=10_000)
    assert ours == pytest.approx((theirs.low, theirs.high), abs=0.03)


def test_the_interval_covers_as_often_as_it_says() -> None:
    rng = np.random.default_rng(0)
    covered = 0
    for trial in range(200):
        low, high = bootstrap_interval(rng.normal(size=50), resamples=400, seed=trial)
        covered += low <= 0 <= high
    assert 180 <= covered <= 199


def test_the_same_seed_gives_the_same_interval() -> None:
    values = np.random.default_rng(2).normal(size=(5, 3))
    np.testing.assert_array_equal(bootstrap_interval(values, seed=4), bootstrap_interval(values, seed=4))
    assert not np.array_equal(bootstrap_interval(values, seed=4), bootstrap_interval(values, seed=5))
    assert bootstrap_interval(values)[0].shape == (3,)


def test_many_columns_take_no_more_memory_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """As of ten thousand agents of a population; the pieces give the interval of the whole."""
    values = np.random.default_rng(2).normal(size=(10, 100))
    whole = bootstrap_interval(values, resamples=50)
    sizes: list[int] = []

    def watched(resampled: Any, axis: int = 0) -> Any:
        sizes.append(resampled.size)
        return interquartile_mean(resampled, axis)

    monkeypatch.setattr(statistics, "interquartile_mean", watched)
    monkeypatch.setattr(statistics, "_AT_ONCE", 3000)
    np.testing.assert_array_equal(bootstrap_interval(values, resamples=50), whole)
    assert max(sizes) == 3000


def test_columns_are_resampled_together() -> None:
    values = np.random.default_rng(3).normal(size=(6, 2))
    low, _ = bootstrap_interval(values, resamples=300)
    assert low[1] == pytest.approx(bootstrap_interval(values[:, 1], resamples=300)[0])


def test_an_estimate_of_one_value_is_that_value() -> None:
    one = estimate([5.0])
    assert (one.mean, one.interquartile_mean, one.low, one.high, one.count) == (5, 5, 5, 5, 1)


def test_an_estimate_of_nothing_is_refused() -> None:
    with pytest.raises(ConfigError, match="no values"):
        estimate([])


def test_strata_are_resampled_within_themselves() -> None:
    # Two tasks of which each has one value only: no resample differs from the values, whatever is drawn.
    values, strata = [0.0, 0.0, 8.0, 8.0], ["a", "a", "b", "b"]
    assert bootstrap_interval(values, strata=strata) == (4.0, 4.0)
    low, high = bootstrap_interval(values)
    assert (low, high) == (0.0, 8.0)
    np.testing.assert_array_equal(bootstrap_interval(values), bootstrap_interval(values, strata=["a"] * 4))


def test_the_probability_of_improvement_is_the_u_statistic() -> None:
    from scipy import stats

    x, y = [1.0, 2.0, 2.0, 5.0], [0.0, 2.0, 4.0]
    found, low, high = probability_of_improvement([x], [y])
    # Wins of 1, 2, 2 and 5: 1, 1½, 1½ and 3 of three.
    assert found == pytest.approx(7 / 12)
    assert found == pytest.approx(stats.mannwhitneyu(x, y).statistic / 12)
    assert 0 <= low < found < high <= 1
    # Over tasks it is a mean; each task is resampled within itself.
    assert probability_of_improvement([[1.0], [0.0]], [[0.0], [1.0]]) == (0.5, 0.5, 0.5)


def test_the_interval_of_a_probability_by_hand() -> None:
    # One value against {0, 2}: a resample of the two wins 0, ½, ½ or 1, a quarter each.
    found = probability_of_improvement([[1.0]], [[0.0, 2.0]], resamples=4000)
    assert found == (0.5, 0.0, 1.0)
