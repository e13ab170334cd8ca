"""Agents that explore by chance: every environment begins at one share, which sinks to a share of its own."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from harness import shortened

from seedbed.agents import dqn, pqn, r2d2
from seedbed.errors import ConfigError
from seedbed.nets.network import AUTO, Network
from seedbed.testing.agents import SPECS, Subject, at, experience
from seedbed.types import Exploration

ACTIONS = 5
BY_REPLAY = {
    "dqn": (dqn.DQNSettings, dqn.make_agent, AUTO, {"batch_size": 4, "replay_ratio": 8.0}),
    "r2d2": (
        r2d2.R2D2Settings,
        r2d2.make_agent,
        Network(lstm=6),
        {"batch_size": 4, "burn_in": 2, "unroll_length": 8, "replay_ratio": 64.0},
    ),
}
"""Each makes an update for every half a step."""
AGENTS = {
    "pqn": (pqn.PQNSettings, pqn.make_agent, AUTO, {"batch_size": 4, "minibatches": 1}),
    **BY_REPLAY,
}


def subject(name, **changes):
    settings, make_agent, network, known = AGENTS[name]
    return Subject(make_agent(settings(**known | changes), SPECS["vector"], network), SPECS["vector"])


def share_by_chance(it, steps, ranks, evaluates):
    """How often environments of these ranks leave their best action, after so many steps, as shares of chance."""
    copies = 2_000
    rows = copies * len(ranks)
    exploration = Exploration(
        jnp.repeat(jnp.asarray(ranks, jnp.float32), copies), jnp.repeat(jnp.asarray(evaluates), copies)
    )
    state = it.agent.explore(it.agent.initial_state(rows), exploration)
    step = at(experience(it.spec, 1, rows), 0)
    params = {**it.params, "steps": jnp.float32(steps)} if "steps" in it.params else it.params
    output, after = it.act(params, jax.random.split(jax.random.key(2), rows), step, state)
    for name in {"epsilon", "epsilon_start"} & set(state):
        np.testing.assert_array_equal(after[name], state[name])
    left = np.asarray(output.action) != np.asarray(output.record["q"]).argmax(-1)
    # One of the actions by chance is the best one after all.
    return left.reshape(-1, copies).mean(1) * ACTIONS / (ACTIONS - 1)


@pytest.mark.parametrize("name", shortened(AGENTS, ("pqn", "dqn")))
def test_every_environment_begins_by_chance_and_sinks_to_a_share_of_its_own(name):
    it = subject(name, epsilon_start=0.8, epsilon_steps=1_000, epsilon_base=0.4, epsilon_exponent=1.0)
    ranks, evaluates = [0.0, 1.0, 1.0], [False, False, True]
    for steps, expected in [
        (0, [0.8, 0.8, 0.001]),
        (500, [0.6, 0.48, 0.001]),
        (1_000, [0.4, 0.16, 0.001]),
        (9_000, [0.4, 0.16, 0.001]),
    ]:
        np.testing.assert_allclose(share_by_chance(it, steps, ranks, evaluates), expected, atol=0.05)
    at_once = subject(name, epsilon_steps=0, epsilon_base=0.4, epsilon_exponent=1.0)
    np.testing.assert_allclose(share_by_chance(at_once, 0, [0.0, 1.0], [False] * 2), [0.4, 0.16], atol=0.05)


@pytest.mark.parametrize("name", AGENTS)
def test_who_was_not_told_to_explore_does_not(name):
    it = subject(name, epsilon_start=1.0, epsilon_steps=1_000)
    step, keys = at(experience(it.spec, 1, 64), 0), jax.random.split(jax.random.key(0), 64)
    output, _ = it.act(it.params, keys, step, it.agent.initial_state(64))
    np.testing.assert_array_equal(output.action, np.asarray(output.record["q"]).argmax(-1))


@pytest.mark.parametrize("name", shortened(BY_REPLAY, ("dqn",)))
def test_steps_are_those_that_filled_the_replay_and_those_of_the_updates(name):
    it = subject(name, epsilon_start=1.0, epsilon_steps=100, epsilon_base=0.2, replay_min_size=50)
    params = jax.jit(it.agent.init)(jax.random.key(0))
    assert params["steps"] == 0
    unroll = it.unroll()
    for steps in (50.5, 51.0, 51.5):
        params, _ = jax.jit(it.agent.prepare)(params, unroll)
        assert params["steps"] == steps
    _, (metrics, _) = jax.jit(it.agent.loss)(params, params, unroll, jax.random.key(0))
    assert metrics["epsilon"] == pytest.approx(1 - 0.8 * 0.515)


@pytest.mark.parametrize("name", BY_REPLAY)
def test_nothing_is_counted_where_the_share_stays(name):
    """Checkpoints of runs without these settings stay as they are."""
    it = subject(name)
    assert set(it.params) == {"network"} and it.agent.prepare is None
    assert "epsilon_start" not in it.agent.initial_state(1)


@pytest.mark.parametrize("name", BY_REPLAY)
def test_steps_cannot_be_counted_under_a_free_replay_ratio(name):
    settings = BY_REPLAY[name][0]
    settings(epsilon_steps=0, replay_ratio=None)
    with pytest.raises(
        ConfigError, match=r"replay_ratio.*a number: epsilon_steps are counted by the updates"
    ):
        settings(epsilon_steps=100, replay_ratio=None)
