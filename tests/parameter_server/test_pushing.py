"""A learner whose gradients others apply: what it pushes, when it fetches, and what it leaves out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from seedbed.learning.learner import Learner
from seedbed.parameter_server.pushing import Outliers, Pushed, PushingLearner
from seedbed.parameter_server.shards import Bound, Fetched, LocalShards, Part, Receipt
from seedbed.types import ActOutput, Agent, DataPlan, TimeStep, Tree, Unroll


def pull(target_period: int = 0) -> Agent:
    """Pulls ``w`` towards the mean reward: its gradient is their difference; the metrics have the target's ``w``."""

    def loss(params: Tree, target: Tree, unroll: Unroll, key: Any) -> Any:
        del key
        error = 0.5 * jnp.mean((params["w"] - unroll.timestep.reward[1:]) ** 2)
        return error, ({"target": params["w"] if target is None else target["w"]}, None)

    return Agent(
        name="pull",
        init=lambda key: {"w": jnp.zeros(())},
        initial_state=lambda batch: {},
        act=lambda params, key, timestep, state: (ActOutput(timestep.reward, {}), state),
        loss=loss,
        optimizer=optax.sgd(1.0),
        data=DataPlan(1, 2, target_period=target_period),
        mode=lambda params, timestep, state: (timestep.reward, state),
    )


def batch(reward: float) -> Unroll:
    values = np.full((2, 2), reward, np.float32)
    flags = np.zeros((2, 2), bool)
    return Unroll(
        TimeStep(values, values, flags, flags, flags), values[:1], {}, {}, np.zeros((1, 2), np.int32)
    )


class Watched(LocalShards):
    """A server that keeps what comes."""

    def __init__(self, bound: Bound | None = None) -> None:
        params = {"w": jnp.zeros(())}
        rule = optax.sgd(1.0)
        super().__init__(rule, Part(params, rule.init(params), 0, 0), 1, bound or Bound())
        self.pushed: list[tuple[float, tuple[int, ...]]] = []
        self.fetched = 0

    def fetch(self) -> Fetched:
        self.fetched += 1
        return super().fetch()

    def push(self, gradient: Tree, versions: Sequence[int], carried: float = 1.0) -> list[Receipt]:
        self.pushed.append((float(gradient["w"]), tuple(versions)))
        return super().push(gradient, versions, carried)


def learner(
    server: Watched, agent: Agent | None = None, deviations: float | None = None, **often: int
) -> PushingLearner:
    return PushingLearner(
        agent or pull(), jax.devices()[:1], jax.random.key(0), server, Outliers(deviations), **often
    )


def learn(learner: Learner, *rewards: float) -> list[dict[str, Any]]:
    return [learner.update(learner.put(batch(reward))) for reward in rewards]


def test_one_gradient_at_a_time_is_what_a_learner_does() -> None:
    server = Watched()
    ours, theirs = learner(server), Learner(pull(), jax.devices()[:1], jax.random.key(0))
    learn(ours, 1.0, 3.0, 2.0)
    learn(theirs, 1.0, 3.0, 2.0)
    # With a step size of 1, w is the newest reward.
    assert server.pushed == [(-1.0, (0,)), (-2.0, (1,)), (1.0, (2,))]
    assert float(ours.params["w"]) == float(theirs.params["w"]) == 2.0
    assert int(ours.state.updates) == int(theirs.state.updates) == 3
    assert ours.newest == 3
    # One float32 is pushed each time, and fetched after it; and once before.
    assert ours.pushed() == Pushed([0, 0, 0], dropped=0, outliers=0, version=3, up=12, down=16)
    assert ours.pushed() == Pushed([], 0, 0, version=3, up=0, down=0), "nothing is told twice"


def test_gradients_are_pushed_together_and_parameters_fetched_now_and_then() -> None:
    server = Watched()
    ours = learner(server, n_push=2, n_fetch=3)
    assert server.fetched == 1
    learn(ours, 1.0, 3.0, 5.0)
    # The first two are of w = 0; so is the third, since nothing was fetched before it.
    assert server.pushed == [(-2.0, (0,))]
    assert server.fetched == 2
    assert float(ours.params["w"]) == 2.0
    learn(ours, 7.0)
    # The mean of -5, of version 0, and of 2 - 7, of version 1: as stale as the older of them.
    assert server.pushed[1:] == [(-5.0, (0,))]
    assert ours.pushed().staleness == [0, 1]
    learn(ours, 4.0)
    assert len(server.pushed) == 2
    ours.flush()
    ours.flush()
    assert len(server.pushed) == 3


def test_what_another_has_pushed_is_fetched_and_counts() -> None:
    server = Watched(Bound(0))
    ours, other = learner(server), learner(server)
    learn(other, 4.0)
    learn(ours, 1.0)
    told = ours.pushed()
    assert (told.staleness, told.dropped, told.version) == ([1], 1, 1)
    # What was dropped has changed nothing, and what the other has done is here.
    assert float(ours.params["w"]) == 4.0
    assert int(ours.state.updates) == 1


def test_the_target_follows_the_servers_count() -> None:
    server = Watched()
    ours, other = (learner(server, pull(target_period=3)) for _ in range(2))
    learn(other, 4.0, 5.0)
    metrics = learn(ours, 1.0, 6.0, 7.0)
    # Gradients 3, 4 and 5 of all: the target is of version 3 from then on, which is 5 + (1 - 0).
    assert [float(m["loss/target"]) for m in metrics] == [0.0, 6.0, 6.0]
    assert int(ours.state.updates) == 3


def test_a_gradient_that_is_not_finite_is_not_pushed() -> None:
    server = Watched()
    ours = learner(server)
    metrics = learn(ours, 1.0, np.nan, np.nan)
    assert len(server.pushed) == 1
    assert int(metrics[-1]["skipped_updates"]) == 2
    assert int(ours.state.skipped_in_row) == 2
    learn(ours, 2.0)
    assert int(ours.state.skipped_in_row) == 0
    assert float(ours.params["w"]) == 2.0


def test_an_outlier_is_not_pushed_and_counted() -> None:
    server = Watched()
    ours = learner(server, deviations=3.0)
    for index in range(100):
        learn(ours, float(index % 2))
    pushed = len(server.pushed)
    learn(ours, 1e3)
    assert len(server.pushed) == pushed == 100
    assert ours.pushed().outliers == 1


def test_warming_up_pushes_nothing() -> None:
    server = Watched()
    ours, other = learner(server), learner(server)
    learn(other, 4.0)
    ours.warm_up(batch(1.0))
    assert len(server.pushed) == 1
    # Compiling takes a while, in which others go on.
    assert ours.newest == 1
