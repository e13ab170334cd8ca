"""The score of a run: the mean of its learning curve over a share of its budget.

A mean over the budget tells runs apart that all reach the goal at its end, and is less a matter of chance than the last
value. A run that stopped early, since it had reached its ``until_return``, keeps its last return for the rest.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from seedbed.metrics.console import Budget

RUNGS = 16
"""Parts of the budget, after each of which a run may be stopped."""


def score(rows: Sequence[Mapping[str, float]], budget: Budget, part: float = 1.0) -> float:
    """Returns the mean of the mean return over the first ``part`` of the budget; nan before the first episode's end.

    The curve is a line between its rows, and level before the first one and after the last one.

    Args:
      rows: rows of metrics, in their order; of a row that a resumed run went back behind the later one counts.
      budget: limits of the run; one of frames and seconds at least.
      part: share of the budget.
    """
    points: list[tuple[float, float]] = []
    for row in rows:
        x, y = budget.share(row), row.get("mean_return", math.nan)
        while points and points[-1][0] > x:
            points.pop()
        if math.isfinite(y):
            points.append((x, y))
    if not points:
        return math.nan
    x, y = np.array(points).T
    grid = np.unique(np.concatenate([[0.0, part], x[x < part]]))
    heights = np.interp(grid, x, y)
    return float(np.trapezoid(heights, grid) / part)


def rung(row: Mapping[str, float], budget: Budget) -> int:
    """Returns the number of parts of the budget, of :data:`RUNGS`, that are spent."""
    return int(budget.share(row) * RUNGS + 1e-9)
