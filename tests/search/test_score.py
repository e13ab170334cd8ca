import math

import pytest

from seedbed.metrics.console import Budget
from seedbed.search.score import RUNGS, rung, score


def rows(*points: tuple[float, float]) -> list[dict[str, float]]:
    return [{"env_frames": frames, "mean_return": value} for frames, value in points]


def test_a_score_is_the_area_under_the_curve() -> None:
    budget = Budget(frames=100)
    assert score(rows((0, 0.0), (100, 10.0)), budget) == pytest.approx(5)
    assert score(rows((0, 0.0), (100, 10.0)), budget, 0.5) == pytest.approx(2.5)
    # Level before the first row and after the last: a run that reached its goal at half of its budget.
    assert score(rows((20, 2.0), (50, 8.0)), budget) == pytest.approx(0.2 * 2 + 0.3 * 5 + 0.5 * 8)
    assert score(rows((20, 2.0), (50, 8.0)), budget, 0.1) == pytest.approx(2)
    assert math.isnan(score(rows((10, math.nan)), budget)) and math.isnan(score([], budget))


def test_rows_that_a_resumed_run_went_back_behind_do_not_count() -> None:
    budget = Budget(frames=100)
    assert score(rows((0, 1.0), (90, 99.0), (50, 1.0), (100, 1.0)), budget) == pytest.approx(1)


def test_the_budget_may_be_of_seconds() -> None:
    budget = Budget(seconds=10)
    assert score([{"seconds": 0, "mean_return": 0}, {"seconds": 10, "mean_return": 4}], budget) == 2
    assert [rung({"seconds": s}, budget) for s in (0, 0.62, 0.625, 5, 20)] == [0, 0, 1, 8, RUNGS]
