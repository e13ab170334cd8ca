"""SEED's lag, where it is free."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from harness import tiny, until

from seedbed.launch.train import train
from seedbed.learning.loop import LearnerLoop
from seedbed.learning.memory import Batch
from seedbed.types import Unroll


@pytest.mark.slow
def test_the_mean_of_a_free_lag_is_bounded_and_is_that_of_the_unrolls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lags: list[np.ndarray[Any, Any]] = []
    learn = LearnerLoop._train

    def wait_and_count(self: LearnerLoop, unroll: Unroll, batch: Batch) -> Any:
        # As behind a slow learner: whatever can be ahead of it is.
        until(lambda: self.memory.meters()["queue_fill"] >= 1, "a full queue")
        lags.extend(self.version - each.version for each in batch.unrolls)
        return learn(self, unroll, batch)

    monkeypatch.setattr(LearnerLoop, "_train", wait_and_count)
    batch, queue, envs, length = 4, 8, 8, 5
    config = tiny(
        *("toy:catch", tmp_path / "run"),
        transport="inproc",
        actors=2,
        envs_per_actor=envs // 2,
        unroll_length=length,
        batch_size=batch,
        queue_size=queue,
        prefetch=0,
        frames=20 * batch * length,
    )
    run = train(config)
    updates = run.weights_version
    counted = np.concatenate([lag.ravel() for lag in lags])
    assert counted.size == run.to_json()["steps_trained"] == updates * batch * length
    assert counted.min() >= 0 and updates > 10
    assert (run.policy_lag_mean, run.policy_lag_max) == (pytest.approx(counted.mean()), counted.max())
    # The sum of all lags is, summed over the updates, how many steps were waiting meanwhile: of each environment one
    # unroll at most, open or held, and what is in the queue; which is full here, but for the last ones never trained.
    assert run.policy_lag_mean is not None
    assert (1 - queue / batch / updates) * queue / batch <= run.policy_lag_mean <= (queue + envs) / batch
