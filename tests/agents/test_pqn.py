"""PQN beyond the contract: its targets, its exploration, its network."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from seedbed.agents.pqn import PQNSettings, make_agent
from seedbed.errors import ConfigError
from seedbed.nets.network import AUTO, Network
from seedbed.testing.agents import SPECS, Subject, at, experience
from seedbed.types import Exploration

SETTINGS = PQNSettings(unroll_length=8, batch_size=4, minibatches=1, discount=0.9, trace_lambda=0.7)
ENDS = [(2, 0, "terminated"), (4, 1, "truncated"), (0, 2, "terminated"), (5, 2, "truncated")]
ACTIONS = 5


def subject(spec="vector", network=AUTO, **changes):
    return Subject(make_agent(dataclasses.replace(SETTINGS, **changes), SPECS[spec], network), SPECS[spec])


def walked_back(steps, values, discount, trace_lambda):
    """Q(lambda) of each environment by itself, from the end to the beginning; values are of the best actions."""
    steps = [np.asarray(part, np.float64) for part in steps[1:]]
    reward, terminated, _, first = steps
    targets, after = np.zeros((8, 4)), values[-1].copy()
    for t in reversed(range(8)):
        gamma = np.where(terminated[t + 1], 0, discount)
        told = reward[t + 1] + gamma * ((1 - trace_lambda) * values[t + 1] + trace_lambda * after)
        after = targets[t] = np.where(first[t + 1], values[t], told)
    return targets


@pytest.mark.parametrize("network", [Network(), Network(lstm=6)], ids=["feed-forward", "lstm"])
def test_targets_are_those_of_the_values_that_acted(network):
    it = subject(network=network)
    longer = it.play(experience(it.spec, 10, 4, ENDS))
    q = np.asarray(longer.record["q"], np.float64)
    unroll = longer._replace(
        timestep=at(longer.timestep, slice(None, -1)),
        action=longer.action[:-1],
        record=jax.tree.map(lambda array: array[:-1], longer.record),
        version=longer.version[:-1],
    )
    targets = it.prepare(unroll).record["target"]
    expected = walked_back(unroll.timestep, q.max(-1), 0.9, 0.7)
    np.testing.assert_allclose(targets, expected, atol=1e-4)


def test_the_loss_is_half_the_mean_squared_error_of_what_was_done():
    it = subject()
    unroll = it.unroll(ENDS)
    prepared = it.prepare(unroll)
    loss, metrics, gradient = it.gradient(unroll)
    q = np.take_along_axis(unroll.record["q"], unroll.action[..., None], -1)[..., 0]
    valid = ~unroll.timestep.first[1:]
    errors = np.where(valid, np.asarray(prepared.record["target"]) - q, 0.0)
    assert loss == pytest.approx(0.5 * np.mean(np.square(errors)), rel=1e-4)
    assert metrics["td_error"] == pytest.approx(np.abs(errors).sum() / valid.sum(), rel=1e-4)
    assert not np.any(gradient["steps"]), "no gradient moves the count"


def test_rewards_are_clipped_and_then_scaled():
    plain, changed = subject(trace_lambda=0.0), subject(trace_lambda=0.0, reward_clip=0.5, reward_scale=0.1)
    unroll = plain.unroll(ENDS)
    difference = plain.prepare(unroll).record["target"] - changed.prepare(unroll).record["target"]
    reward, valid = unroll.timestep.reward[1:], ~unroll.timestep.first[1:]
    expected = np.where(valid, reward - 0.1 * np.clip(reward, -0.5, 0.5), 0.0)
    np.testing.assert_allclose(difference, expected, atol=1e-5)


def test_there_is_no_replay_and_no_target_network():
    plan = subject().agent.data
    assert (plan.replay, plan.target_period) == (None, 0)
    settings = PQNSettings(unroll_length=32, batch_size=128, minibatches=32, reuse=2)
    plan = make_agent(settings, SPECS["vector"]).data
    assert (plan.rows, plan.updates_a_batch) == (4096, 64)
    with pytest.raises(ConfigError, match="minibatches is 64, and has to be a divisor of the batch size"):
        make_agent(
            PQNSettings(unroll_length=32, batch_size=32, minibatches=64), SPECS["vector"], Network(lstm=4)
        )


@pytest.mark.parametrize("spec", ["vector", "image"])
def test_a_batch_of_transitions_has_the_loss_and_the_gradient_of_its_unrolls(spec):
    options = {"previous_action": True, "previous_reward": True, "minibatches": 4}
    whole, cut = (subject(spec, shuffle=shuffle, **options) for shuffle in ("unrolls", "transitions"))
    unroll = whole.unroll(ENDS)
    assert cut.prepare(unroll).version.shape == (1, 32) != whole.prepare(unroll).version.shape
    for one, other in zip(
        jax.tree.leaves(whole.gradient(unroll)), jax.tree.leaves(cut.gradient(unroll)), strict=True
    ):
        np.testing.assert_allclose(one, other, atol=2e-5)


def share_by_chance(it, steps, ranks, evaluates):
    """How often environments of these ranks leave their best action, after so many steps, as shares of chance."""
    copies = 4_000
    rows = copies * len(ranks)
    exploration = Exploration(
        jnp.repeat(jnp.asarray(ranks, jnp.float32), copies), jnp.repeat(jnp.asarray(evaluates), copies)
    )
    state = it.agent.explore(it.agent.initial_state(rows), exploration)
    step = at(experience(it.spec, 1, rows), 0)
    params = {**it.params, "steps": jnp.float32(steps)}
    output, after = it.act(params, jax.random.split(jax.random.key(2), rows), step, state)
    for name in ("epsilon", "epsilon_start"):
        np.testing.assert_array_equal(after[name], state[name])
    left = np.asarray(output.action) != np.asarray(output.record["q"]).argmax(-1)
    # One of the actions by chance is the best one after all.
    return left.reshape(-1, copies).mean(1) * ACTIONS / (ACTIONS - 1)


def test_every_environment_begins_by_chance_and_sinks_to_a_share_of_its_own():
    it = subject(epsilon_start=0.8, epsilon_steps=1_000, epsilon_base=0.4, epsilon_exponent=1.0)
    ranks, evaluates = [0.0, 1.0, 1.0], [False, False, True]
    for steps, expected in [
        (0, [0.8, 0.8, 0.001]),
        (500, [0.6, 0.48, 0.001]),
        (1_000, [0.4, 0.16, 0.001]),
        (9_000, [0.4, 0.16, 0.001]),
    ]:
        np.testing.assert_allclose(share_by_chance(it, steps, ranks, evaluates), expected, atol=0.035)
    at_once = subject(epsilon_steps=0, epsilon_base=0.4, epsilon_exponent=1.0)
    np.testing.assert_allclose(share_by_chance(at_once, 0, [0.0, 1.0], [False] * 2), [0.4, 0.16], atol=0.035)


def test_who_was_not_told_to_explore_does_not():
    it = subject(epsilon_start=1.0)
    step, keys = at(experience(it.spec, 1, 64), 0), jax.random.split(jax.random.key(0), 64)
    output, _ = it.act(it.params, keys, step, it.agent.initial_state(64))
    np.testing.assert_array_equal(output.action, np.asarray(output.record["q"]).argmax(-1))


def test_the_share_sinks_by_what_environments_carried_out():
    it = subject(epsilon_start=1.0, epsilon_base=0.2, epsilon_steps=100)
    params = jax.jit(it.agent.init)(jax.random.key(0))
    unroll = it.unroll(ENDS)
    carried = np.sum(~unroll.timestep.first[1:])
    assert carried == 28, "four of 32 transitions only reset"
    for batches in (1, 2):
        params, prepared = jax.jit(it.agent.prepare)(params, unroll)
        assert params["steps"] == batches * carried
    _, (metrics, _) = it.agent.loss(params, None, prepared, jax.random.key(0))
    assert metrics["epsilon"] == pytest.approx(1.0 - 0.8 * 0.56)


@pytest.mark.parametrize("spec", ["vector", "image"])
def test_layers_are_normalized_and_rectified_unless_others_are_asked_for(spec):
    def layers(network):
        params = jax.eval_shape(lambda: make_agent(SETTINGS, SPECS[spec], network).init(jax.random.key(0)))
        return [
            name for path, _ in jax.tree.leaves_with_path(params) for name in [jax.tree_util.keystr(path)]
        ]

    assert any("LayerNorm" in name for name in layers(Network()))
    assert not any("LayerNorm" in name for name in layers(Network(normalization="none")))


def test_an_mlp_is_rectified_unless_another_activation_is_asked_for():
    params = jax.jit(make_agent(SETTINGS, SPECS["vector"]).init)(jax.random.key(0))
    step = at(experience(SPECS["vector"], 1, 4), 0)

    def values(activation):
        agent = make_agent(SETTINGS, SPECS["vector"], Network(activation=activation))
        output, _ = agent.act(params, jax.random.split(jax.random.key(0), 4), step, agent.initial_state(4))
        return np.asarray(output.record["q"])

    np.testing.assert_array_equal(values("auto"), values("relu"))
    assert not np.allclose(values("auto"), values("tanh"))


@pytest.mark.parametrize(
    "wrong",
    [
        {"trace_lambda": 1.5},
        {"epsilon_start": -0.1},
        {"epsilon_base": 2.0},
        {"epsilon_steps": -1},
        {"reward_scale": 0.0},
        {"reuse": 0},
        {"minibatches": 3},
        {"unroll_length": 0},
    ],
    ids=str,
)
def test_settings_that_mean_nothing_are_refused(wrong):
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        dataclasses.replace(SETTINGS, **wrong)


def test_actions_that_are_no_choice_are_refused():
    for spec in ("continuous", "tree"):
        with pytest.raises(ConfigError, match="q-values are for one choice among a few"):
            make_agent(SETTINGS, SPECS[spec])
