import dataclasses
from itertools import pairwise
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from harness import on_four_devices, thorough

from seedbed.errors import ConfigError, SpecError
from seedbed.learning.learner import Learner
from seedbed.learning.update import Update, too_far
from seedbed.ops.optimizers import OptimizerSettings, make_optimizer
from seedbed.replay.queue import rows_of, select
from seedbed.types import ActOutput, Agent, DataPlan, ReplayPlan, TimeStep, Tree, Unroll

BATCH, LENGTH = 8, 3


def line(batch_size: int = BATCH) -> Agent:
    """Fits ``reward = w * x + b`` with Adam; it draws nothing."""

    def loss(params: Tree, target_params: Tree, unroll: Unroll, key: Any) -> Any:
        guess = params["w"] * unroll.timestep.observation["x"] + params["b"] + unroll.state["h"] * 0
        error = jnp.mean((guess - unroll.timestep.reward) ** 2)
        return error, ({"error": error, "drawn": jax.random.uniform(key)}, None)

    return Agent(
        name="line",
        init=lambda key: {"w": jax.random.normal(key), "b": jnp.zeros(())},
        initial_state=lambda batch: {"h": jnp.zeros(batch)},
        act=lambda params, key, timestep, state: (ActOutput(timestep.reward, {}), state),
        loss=loss,
        optimizer=optax.adam(0.1),
        data=DataPlan(LENGTH, batch_size),
        mode=lambda params, timestep, state: (timestep.reward, state),
    )


def batch(seed: int = 0, rows: int = BATCH) -> Unroll:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(LENGTH + 1, rows)).astype(np.float32)
    flags = np.zeros(x.shape, bool)
    step = TimeStep({"x": x}, 3 * x + 1, flags, flags, flags)
    action = np.zeros((LENGTH, rows), np.int32)
    return Unroll(step, action, {"q": x[:-1]}, {"h": x[0]}, np.zeros((LENGTH, rows), np.int32))


def spoiled(unroll: Unroll, value: float) -> Unroll:
    reward = unroll.timestep.reward.copy()
    reward[1, BATCH - 1] = value
    return unroll._replace(timestep=unroll.timestep._replace(reward=reward))


def values(tree: Any) -> list[Any]:
    return [np.asarray(leaf).tolist() for leaf in jax.tree.leaves(tree)]


@pytest.fixture(scope="module")
def compiled() -> Learner:
    return Learner(line(), jax.devices()[:1], jax.random.key(3))


@pytest.fixture
def learner(compiled: Learner) -> Learner:
    """A learner that has learned nothing; the module compiles it once."""
    compiled.restore(Learner(line(), jax.devices()[:1], jax.random.key(3)).state)
    return compiled


def test_an_update_is_the_optimizers_step_on_the_losss_gradient(learner: Learner) -> None:
    agent, unroll, before = line(), batch(), learner.state
    (loss, _), gradient = jax.value_and_grad(agent.loss, has_aux=True)(
        before.params, None, unroll, jax.random.key(0)
    )
    changes, _ = agent.optimizer.update(gradient, agent.optimizer.init(before.params), before.params)
    metrics = learner.update(learner.put(unroll))
    np.testing.assert_allclose(
        values(learner.state.params), values(optax.apply_updates(before.params, changes)), rtol=1e-6
    )
    assert float(metrics["loss/total"]) == pytest.approx(float(loss))
    assert float(metrics["loss/error"]) == pytest.approx(float(loss))
    norm = np.linalg.norm(values(gradient))
    assert float(metrics["loss/gradient_norm"]) == pytest.approx(norm, rel=1e-5)
    assert (int(learner.state.updates), int(learner.state.skipped)) == (1, 0)


def test_it_learns(learner: Learner) -> None:
    for seed in range(200):
        metrics = learner.update(learner.put(batch(seed)))
    assert float(metrics["loss/total"]) < 0.05


def test_warm_up_changes_nothing(learner: Learner) -> None:
    before = values(learner.state)
    learner.warm_up(batch())
    assert values(learner.state) == before


@pytest.mark.parametrize("cuts", [(), (3,), (1, 4, 5)])
def test_a_batch_gathered_from_devices_is_the_batch(learner: Learner, cuts: tuple[int, ...]) -> None:
    whole = batch()
    edges = [0, *cuts, rows_of(whole)]
    pieces = [jax.device_put(select(whole, *edge)) for edge in pairwise(edges)]
    gathered, put = learner.gather(pieces), learner.put(whole)
    assert jax.tree.map(lambda leaf: leaf.sharding, gathered) == jax.tree.map(lambda leaf: leaf.sharding, put)
    jax.tree.map(np.testing.assert_array_equal, gathered, put)


def test_a_snapshot_outlives_the_updates_after_it(learner: Learner) -> None:
    kept = learner.state.params
    before = values(kept)
    for seed in range(3):
        learner.update(learner.put(batch(seed)))
    assert values(kept) == before != values(learner.state.params)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1e30])
def test_an_update_that_is_not_finite_changes_nothing_but_the_counters(
    learner: Learner, value: float
) -> None:
    learner.update(learner.put(batch()))
    before = learner.state
    metrics = learner.update(learner.put(spoiled(batch(1), value)))
    after = learner.state
    assert values((after.params, after.opt_state, after.key)) == values(
        (before.params, before.opt_state, before.key)
    )
    assert (int(after.updates), int(after.skipped), int(after.skipped_in_row)) == (2, 1, 1)
    assert int(metrics["skipped_updates"]) == 1


def test_a_gradient_that_is_not_finite_is_skipped_though_the_loss_is_fine() -> None:
    def loss(params: Tree, target_params: Tree, unroll: Unroll, key: Any) -> Any:
        cliff = jnp.sqrt(jnp.abs(params["w"] - jax.lax.stop_gradient(params["w"])))
        return cliff + params["b"], ({}, None)

    learner = Learner(dataclasses.replace(line(), loss=loss), jax.devices()[:1], jax.random.key(0))
    before = learner.state
    metrics = learner.update(learner.put(batch()))
    assert np.isfinite(metrics["loss/total"])
    assert int(learner.state.skipped) == 1
    assert values(learner.state.params) == values(before.params)


def test_a_change_that_is_not_finite_is_skipped_though_the_gradient_is_fine() -> None:
    def loss(params: Tree, target_params: Tree, unroll: Unroll, key: Any) -> Any:
        return params["b"], ({}, None)  # the gradient of w is 0: without an epsilon Adam divides 0 by 0

    agent = dataclasses.replace(line(), loss=loss, optimizer=optax.adam(0.1, eps=0.0))
    learner = Learner(agent, jax.devices()[:1], jax.random.key(0))
    before = learner.state
    learner.update(learner.put(batch()))
    assert int(learner.state.skipped) == 1
    assert values(learner.state.params) == values(before.params)


def test_skipped_in_row_counts_the_latest_ones(learner: Learner) -> None:
    seen = []
    for value in (np.nan, np.nan, 0.0, np.nan, 0.0, 0.0):
        learner.update(learner.put(spoiled(batch(), value)))
        state = learner.state
        seen.append((int(state.updates), int(state.skipped), int(state.skipped_in_row)))
    assert seen == [(1, 1, 1), (2, 2, 2), (3, 2, 0), (4, 3, 1), (5, 3, 0), (6, 3, 0)]


def test_every_update_draws_anew_and_a_restored_one_draws_the_same(learner: Learner) -> None:
    def draw() -> float:
        return float(learner.update(learner.put(batch()))["loss/drawn"])

    kept = jax.device_get(learner.state)
    first = [draw() for _ in range(3)]
    assert len(set(first)) == 3
    end = values(learner.state)
    learner.restore(kept)
    assert [draw() for _ in range(3)] == first
    assert values(learner.state) == end


def test_nothing_is_compiled_after_warm_up(learner: Learner, caplog: pytest.LogCaptureFixture) -> None:
    learner.warm_up(batch())
    with jax.log_compiles(), caplog.at_level("WARNING", logger="jax"):
        for seed in range(3):
            learner.update(learner.put(batch(seed)))
    assert [r.getMessage()[:80] for r in caplog.records if "Compiling" in r.getMessage()] == []


def test_a_batch_that_cannot_be_shared_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"7 unrolls cannot be shared equally by 2 .* a multiple of 2"):
        Learner(line(7), jax.devices()[:1] * 2, jax.random.key(0))


def in_parts(**plan: Any) -> Agent:
    """The line in passes over minibatches; ``prepare`` counts batches and gives rows their numbers."""

    def loss(params: Tree, target_params: Tree, unroll: Unroll, key: Any) -> Any:
        error, (metrics, _) = line().loss(params["line"], None, unroll, key)
        rows = jnp.sort(unroll.record["row"][0])
        return error, ({**metrics, "kl": error, "rows": jnp.sum(2.0**rows)}, None)

    def prepare(params: Tree, unroll: Unroll, last: Tree | None = None) -> tuple[Tree, Unroll]:
        rows = jnp.broadcast_to(jnp.arange(BATCH), (LENGTH, BATCH))
        return {**params, "batches": params["batches"] + 1}, unroll._replace(record={"row": rows})

    return dataclasses.replace(
        line(),
        init=lambda key: {"line": line().init(key), "batches": jnp.zeros(())},
        loss=loss,
        prepare=prepare,
        data=DataPlan(LENGTH, BATCH, **plan),
    )


def test_each_pass_trains_once_on_each_unroll_in_minibatches_of_its_own() -> None:
    learner = Learner(in_parts(reuse=3, minibatches=4), jax.devices()[:1], jax.random.key(0))
    learner.warm_up(batch())
    seen, ends = [], []
    for seed in range(2):
        for metrics, last in learner.updates(learner.put(batch(seed))):
            seen.append(int(metrics["loss/rows"]))
            ends.append(last)
    assert ends == 2 * ([False] * 11 + [True])
    assert int(learner.state.updates) == 24
    assert float(learner.state.params["batches"]) == 2, "a batch is prepared once"
    passes = [seen[start : start + 4] for start in range(0, 24, 4)]
    assert all(sum(rows) == 2**BATCH - 1 for rows in passes), "each row once"
    assert all(bin(rows).count("1") == 2 for rows in seen)
    assert len({tuple(sorted(rows)) for rows in passes}) == 6, "other minibatches at every pass"


def test_a_minibatch_has_whole_unrolls() -> None:
    unroll, rows = batch(), np.array([5, 2])
    part = jax.jit(Update(in_parts(minibatches=4), jax.devices()[:1]).minibatch)(unroll, rows)
    wanted = Unroll(
        *(jax.tree.map(lambda array: array[:, rows], field) for field in unroll[:3]),
        {"h": unroll.state["h"][rows]},
        unroll.version[:, rows],
    )
    assert jax.tree.structure(part) == jax.tree.structure(wanted)
    assert values(part) == values(wanted)


def test_passes_end_when_the_policy_has_gone_too_far_and_the_version_does_not_notice() -> None:
    learner = Learner(in_parts(reuse=5, minibatches=2, most_kl=0.0), jax.devices()[:1], jax.random.key(0))
    assert [last for _, last in learner.updates(learner.put(batch()))] == [False, True]
    assert int(learner.state.updates) == 10
    patient = Learner(in_parts(reuse=5, minibatches=2, most_kl=1e9), jax.devices()[:1], jax.random.key(0))
    assert len(list(patient.updates(patient.put(batch())))) == 10


def test_absent_places_do_not_hide_how_far_the_policy_has_gone() -> None:
    assert not too_far({"loss/kl": jnp.float32(0.3)}, 0.3)
    assert too_far({"loss/kl": jnp.float32(0.31)}, 0.3)
    assert too_far({"loss/kl": jnp.float32(0.07), "loss/valid": jnp.float32(0.2)}, 0.3)
    assert not too_far({"loss/kl": jnp.float32(0.05), "loss/valid": jnp.float32(0.2)}, 0.3)


@pytest.mark.parametrize("at_once", [False, True])
def test_passes_that_are_left_out_lower_an_annealed_rate_all_the_same(at_once: bool) -> None:
    settings = OptimizerSettings(learning_rate=0.1, anneal_to_zero=True)
    agent = dataclasses.replace(
        in_parts(reuse=5, minibatches=2, most_kl=0.0), optimizer=make_optimizer(settings, 20)
    )
    learner = Learner(agent, jax.devices()[:1], jax.random.key(0))
    if at_once:
        passes = jax.jit(Update(agent, jax.devices()[:1]).passes)
        learner.restore(passes(learner.state, learner.put(batch()))[0])
    else:
        assert len(list(learner.updates(learner.put(batch())))) == 2
    *_, count = jax.tree.leaves(learner.state.opt_state)
    assert (int(learner.state.updates), float(count)) == (10, 10.0)


@pytest.mark.parametrize(
    "plan",
    [
        {},
        {"minibatches": 4},
        {"reuse": 5, "minibatches": 2, "most_kl": 0.0},
        {"reuse": 3, "minibatches": 2, "most_kl": 1e9},
        *thorough({"reuse": 3}, {"reuse": 3, "minibatches": 2}),
    ],
)
def test_in_one_piece_the_updates_are_the_same(plan: dict[str, Any]) -> None:
    agent = in_parts(**plan)
    learner = Learner(agent, jax.devices()[:1], jax.random.key(0))
    update = Update(agent, jax.devices()[:1])
    at_once = Learner(agent, jax.devices()[:1], jax.random.key(0), at_once=True)
    at_once.warm_up(batch())
    state, put = update.begin(jax.random.key(0)), learner.put(batch())
    for _ in range(2):
        one_by_one = list(learner.updates(put))
        expected, _ = one_by_one[-1]
        state, metrics = jax.jit(update.passes)(state, put)
        # Whether passes end early is looked at on the host.
        assert len(list(at_once.updates(put))) == (len(one_by_one) if "most_kl" in plan else 1)
        np.testing.assert_allclose(values(at_once.state.params), values(state.params), rtol=1e-6)
        assert int(state.updates) == int(learner.state.updates)
        np.testing.assert_allclose(values(state.params), values(learner.state.params), rtol=1e-6)
        assert metrics.keys() == expected.keys()
        for name in metrics:
            np.testing.assert_allclose(metrics[name], expected[name], rtol=1e-5, atol=1e-7, err_msg=name)


def test_with_one_minibatch_a_pass_is_one_update_with_the_batch(learner: Learner) -> None:
    before, put = learner.state, learner.put(batch())
    learner.update(put)
    expected = values(learner.state)
    learner.restore(before)
    assert [last for _, last in learner.updates(put)] == [True]
    assert values(learner.state) == expected


def test_minibatches_that_cannot_be_shared_are_refused() -> None:
    with pytest.raises(
        ConfigError,
        match=r"8 minibatches of 1 unrolls .* 2 training devices: give batches of a multiple of 16",
    ):
        Learner(in_parts(minibatches=8), jax.devices()[:1] * 2, jax.random.key(0))


PROGRAM = """
import json, sys
import jax
from test_learner import BATCH, batch, in_parts, line, spoiled, values
from seedbed.learning.learner import Learner

assert len(jax.devices()) == 4
for devices in (jax.devices()[:1], jax.devices()[:2], jax.devices()):
    learner = Learner(line(), devices, jax.random.key(3))
    for seed in range(3):
        metrics = learner.update(learner.put(batch(seed)))
    told = {
        "state": values((learner.state.params, learner.state.opt_state)),
        "norm": float(metrics["loss/gradient_norm"]),
        "loss": float(metrics["loss/total"]),
        "spread": len(learner.put(batch()).state["h"].sharding.device_set),
    }
    learner.update(learner.put(spoiled(batch(4), float("nan"))))  # one device's share alone is spoiled
    kept = values((learner.state.params, learner.state.opt_state)) == told["state"]
    parts = Learner(in_parts(reuse=2, minibatches=2), devices, jax.random.key(3))
    list(parts.updates(parts.put(batch())))
    told["after parts"] = values(parts.state.params)
    print("told", json.dumps({**told, "kept": kept, "skipped": int(learner.state.skipped)}))
"""


def test_one_device_and_four_give_the_same_update() -> None:
    one, *others = on_four_devices(PROGRAM, beside=Path(__file__).parent)
    assert [told["spread"] for told in (one, *others)] == [1, 2, 4]
    for told in (one, *others):
        np.testing.assert_allclose(told["state"], one["state"], rtol=1e-5)
        assert told["norm"] == pytest.approx(one["norm"], rel=1e-5)
        assert told["loss"] == pytest.approx(one["loss"], rel=1e-5)
        assert told["kept"] and told["skipped"] == 1
        np.testing.assert_allclose(told["after parts"], one["after parts"], rtol=1e-5)


def towards_a_target(devices: int = 1, period: int = 3, rate: float = 1.0) -> Learner:
    """One whose guesses are to come to twice those of its target, item by item of a replay."""

    def loss(params: Tree, target_params: Tree, unroll: Unroll, key: Any) -> Any:
        del key
        errors = 2 * target_params["w"] + unroll.timestep.observation["x"][0] - params["w"]
        return jnp.mean(unroll.weight * errors**2), ({}, jnp.abs(errors))

    replay = ReplayPlan(capacity=100, min_size=1, ratio=1.0, window=LENGTH, start=0)
    agent = dataclasses.replace(
        line(),
        init=lambda key: {"w": jnp.asarray(1.0)},
        loss=loss,
        optimizer=optax.sgd(0.1),
        data=DataPlan(LENGTH, BATCH, replay=replay, target_period=period, target_rate=rate),
    )
    return Learner(agent, jax.devices()[:devices], jax.random.key(3))


def test_the_target_becomes_the_newest_parameters_after_every_period() -> None:
    learner = towards_a_target()
    unroll = batch()._replace(weight=np.ones(BATCH, np.float32))
    targets, newest = [], []
    for _ in range(7):
        learner.update(learner.put(unroll))
        targets.append(float(learner.state.target["w"]))
        newest.append(float(learner.state.params["w"]))
    assert targets == [1.0, 1.0, newest[2], newest[2], newest[2], newest[5], newest[5]]
    assert len({*newest}) == 7


@pytest.mark.parametrize(("period", "rate"), [(1, 0.25), (2, 0.1)])
def test_the_target_follows_by_a_share_of_the_way(period: int, rate: float) -> None:
    learner = towards_a_target(period=period, rate=rate)
    unroll = batch()._replace(weight=np.ones(BATCH, np.float32))
    by_hand = 1.0
    for update in range(1, 7):
        learner.update(learner.put(unroll))
        newest = float(learner.state.params["w"])
        assert abs(newest - by_hand) > 1e-3
        if update % period == 0:
            by_hand = (1 - rate) * by_hand + rate * newest
        assert float(learner.state.target["w"]) == pytest.approx(by_hand, rel=1e-5)


@pytest.mark.parametrize("rate", [0.0, -0.5, 1.01])
def test_a_rate_that_is_no_share_is_refused(rate: float) -> None:
    with pytest.raises(SpecError, match="needed is a share of the way"):
        DataPlan(LENGTH, BATCH, target_period=1, target_rate=rate)


def test_a_skipped_update_is_no_new_target() -> None:
    learner = towards_a_target(period=1)
    unroll = batch()._replace(weight=np.full(BATCH, np.nan, np.float32))
    learner.update(learner.put(unroll))
    assert float(learner.state.target["w"]) == float(learner.state.params["w"]) == 1.0


def test_weights_and_priorities_are_those_of_each_item() -> None:
    learner = towards_a_target()
    unroll = batch()
    weight = np.zeros(BATCH, np.float32)
    weight[2] = 7.0  # relative to the greatest
    learner.update(learner.put(unroll._replace(weight=weight)))
    errors = 1.0 + unroll.timestep.observation["x"][0]
    np.testing.assert_allclose(learner.priorities, np.abs(errors), rtol=1e-5)
    # The only item that counts; the others have a weight of 0.
    assert float(learner.state.params["w"]) == pytest.approx(1.0 + 0.2 * errors[2] / BATCH, rel=1e-5)


IN_ORDER = """
import json
import numpy as np
from test_learner import BATCH, batch, towards_a_target

for devices in (1, 4):
    learner = towards_a_target(devices)
    learner.update(learner.put(batch()._replace(weight=np.ones(BATCH, np.float32))))
    print("told", json.dumps([learner.priorities.tolist(), float(learner.params["w"])]))
"""


def test_priorities_come_in_order_from_several_devices() -> None:
    (priorities, weight), four = on_four_devices(IN_ORDER, beside=Path(__file__).parent)
    assert len({*priorities}) == BATCH
    np.testing.assert_allclose(four[0], priorities, rtol=1e-6)
    assert four[1] == pytest.approx(weight, rel=1e-6)
