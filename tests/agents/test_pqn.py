"""PQN beyond the contract: its targets, its exploration, its network."""

import dataclasses

import jax
import numpy as np
import pytest
from harness import thorough

from seedbed.agents.pqn import PQNSettings, make_agent
from seedbed.errors import ConfigError
from seedbed.nets.network import AUTO, Network
from seedbed.testing.agents import SPECS, Subject, at, experience

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


@pytest.mark.parametrize("spec", ["image", *thorough("vector")])
def test_a_batch_of_transitions_has_the_loss_and_the_gradient_of_its_unrolls(spec):
    options = {"previous_action": True, "previous_reward": True, "minibatches": 4}
    whole, cut = (subject(spec, shuffle=shuffle, **options) for shuffle in ("unrolls", "transitions"))
    unroll = whole.unroll(ENDS)
    assert cut.prepare(unroll).version.shape == (1, 32) != whole.prepare(unroll).version.shape
    for one, other in zip(
        jax.tree.leaves(whole.gradient(unroll)), jax.tree.leaves(cut.gradient(unroll)), strict=True
    ):
        np.testing.assert_allclose(one, other, atol=2e-5)


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
