"""The lag that a loop counts, in batches and in updates, of unrolls whose weights are known."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from seedbed.acting.lag import ExactLag, lag_of
from seedbed.learning.books import Books
from seedbed.learning.loop import LearnerLoop
from seedbed.learning.memory import Batch
from seedbed.types import DataPlan

LENGTH, ROWS = 3, 4


class Loop:
    """A loop at the beginning of a batch, whose updates only count."""

    def __init__(self, plan: DataPlan, lag: Any) -> None:
        self.version, self.books = 0, Books()
        self._plan, self._settings = plan, SimpleNamespace(lag=lag, max_skipped=1)
        self._agent = SimpleNamespace(data=plan)
        self._learner_time, self._reuse = _Nothing(), SimpleNamespace(add=lambda *_: None)
        self.memory = SimpleNamespace(learned=lambda *_: None)
        self.learner = SimpleNamespace(
            updates=self._updates, updates_a_step=1, state=SimpleNamespace(skipped_in_row=0), priorities=None
        )

    def _publish(self) -> None:
        pass

    def _updates(self, unroll: Any, carried: float) -> Any:
        for count in range(1, self._plan.updates_a_batch + 1):
            self.version += 1
            yield {}, count == self._plan.updates_a_batch

    def train(self, acted_with: int) -> None:
        """Trains on a batch whose steps these weights chose."""
        version = np.full((LENGTH, ROWS), acted_with, np.int32)
        LearnerLoop._train(self, None, Batch((), version, version.size))  # type: ignore[arg-type]


class _Nothing:
    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        pass


@pytest.mark.parametrize(("reuse", "minibatches"), [(1, 1), (10, 16)])
@pytest.mark.parametrize("behind", [0, 1, 3])
def test_passes_and_minibatches_of_a_batch_are_no_lag_in_batches(
    reuse: int, minibatches: int, behind: int
) -> None:
    plan = DataPlan(LENGTH, 16, reuse=reuse, minibatches=minibatches)
    loop = Loop(plan, ExactLag(behind))
    for number in range(behind, behind + 3):
        loop.version = number * plan.updates_a_batch
        loop.train(acted_with=(number - behind) * plan.updates_a_batch)
    row = loop.books.progress(loop.version, 1)
    assert row["policy_lag_batches"] == behind
    most = (behind + 1) * plan.updates_a_batch - 1
    assert row["policy_lag_max"] == most
    assert row["policy_lag_mean"] == pytest.approx((most + behind * plan.updates_a_batch) / 2)


def test_weights_between_two_batches_are_parts_of_a_batch_behind() -> None:
    loop = Loop(DataPlan(LENGTH, 4, reuse=4), lag_of("free"))
    loop.version = 6
    loop.train(acted_with=3)
    assert loop.books.progress(loop.version, 1)["policy_lag_batches"] == 0.75
