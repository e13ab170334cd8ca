"""Behaviour cloning beyond the contract: the likelihood by hand, what is trained on, and what is remembered."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from seedbed.agents.bc import BCSettings, make_agent
from seedbed.errors import ConfigError
from seedbed.nets.network import Network
from seedbed.ops import distributions
from seedbed.testing.agents import SPECS, Subject, at, experience
from seedbed.types import DataPlan

SETTINGS = BCSettings(unroll_length=8, batch_size=4)
ENDS = [(2, 0, "terminated"), (4, 1, "truncated"), (0, 2, "terminated"), (5, 2, "truncated")]


def subject(spec="vector", network=None, **changes):
    agent = make_agent(dataclasses.replace(SETTINGS, **changes), SPECS[spec], Network(**(network or {})))
    return Subject(agent, SPECS[spec])


def always(it, probabilities):
    """Params of a policy that says the same in every state."""
    params = jax.tree.map(jnp.zeros_like, it.params)
    bias = params["network"]["params"]["policy"]["bias"]
    params["network"]["params"]["policy"]["bias"] = jnp.log(jnp.array(probabilities)).reshape(bias.shape)
    return params


def test_the_loss_is_the_mean_negative_log_likelihood_of_the_actions():
    it = subject(entropy_cost=0.1)
    p = np.array([0.5, 0.2, 0.15, 0.1, 0.05])
    unroll = it.unroll(ENDS)._replace(action=np.arange(32, dtype=np.int32).reshape(8, 4) % 5)
    # Each end is followed by a step that begins an episode: the action in between is no one's.
    trained = [(t, row) for t in range(8) for row in range(4) if (t, row) not in {end[:2] for end in ENDS}]
    actions = [(4 * t + row) % 5 for t, row in trained]
    params = always(it, p)
    loss, (metrics, priorities) = jax.jit(it.agent.loss)(params, params, unroll, jax.random.key(0))
    likelihood = -sum(math.log(p[action]) for action in actions) / 32
    entropy = -float(p @ np.log(p))
    assert metrics["likelihood_loss"] == pytest.approx(likelihood, rel=1e-5)
    assert metrics["accuracy"] == pytest.approx(actions.count(0) / len(actions))
    assert metrics["entropy"] == pytest.approx(entropy, rel=1e-5)
    assert metrics["valid"] == pytest.approx(28 / 32)
    assert loss == pytest.approx(likelihood - 0.1 * entropy * 28 / 32, rel=1e-5)
    assert priorities is None


def test_an_action_of_several_choices_is_right_if_all_of_them_are():
    it = subject("tree", burn_in=0)
    params = always(it, [0.2, 0.5, 0.3, 0.4, 0.6])
    actions = np.zeros((it.agent.data.trained_length, 4, 2), np.int32)
    actions[:, 0] = [1, 1]
    actions[:, 1] = [1, 0]
    actions[:, 2] = [0, 1]
    unroll = it.unroll()._replace(action=actions)
    loss, (metrics, _) = it.agent.loss(params, params, unroll, jax.random.key(0))
    assert metrics["accuracy"] == pytest.approx(0.25)
    assert loss == pytest.approx(-np.mean(np.log([0.5 * 0.6, 0.5 * 0.4, 0.2 * 0.6, 0.2 * 0.4])), rel=1e-5)


def test_continuous_actions_have_a_likelihood_and_no_accuracy():
    it = subject("continuous")
    unroll = it.unroll(ENDS)
    loss, metrics, _ = it.gradient(unroll)
    log_probs = distributions.from_spec(it.spec.action).log_prob(unroll.record["policy"], unroll.action)
    assert loss == pytest.approx(-float(jnp.where(unroll.timestep.first[1:], 0, log_probs).mean()), rel=1e-4)
    assert "accuracy" not in metrics


def test_a_data_set_need_not_say_what_its_actions_were_drawn_from():
    it = subject()
    unroll = it.unroll(ENDS)
    loss, metrics, _ = it.gradient(unroll)
    bare, (fewer, _) = it.agent.loss(it.params, it.params, unroll._replace(record={}), jax.random.key(0))
    assert loss == pytest.approx(float(bare), rel=1e-5)
    assert metrics.keys() - fewer.keys() == {"kl"}


@pytest.mark.parametrize(
    ("spec", "changes", "needed"),
    [
        ("vector", {}, 0),
        ("vector", {"previous_action": True}, 1),
        ("image", {}, 2),
        ("image", {"burn_in": 5}, 5),
    ],
)
def test_its_plan_has_as_many_transitions_before_as_memory_needs(spec, changes, needed):
    plan = subject(spec, **changes).agent.data
    assert plan == DataPlan(8, 4, overlap=needed, dataset=True)
    assert plan.trained_length == 8 + needed


@pytest.mark.parametrize("spec", ["vector", "image"])
def test_what_a_policy_remembers_is_made_anew_by_the_transitions_before(spec):
    """A data set has no state: with none, frames and previous actions are what they were when it acted."""
    it = subject(spec, previous_action=True, previous_reward=True)
    skip = it.agent.data.overlap + 3
    steps = experience(it.spec, skip + it.agent.data.trained_length + 1, 4, [(1, 0, "terminated")])
    forgotten = it.play(steps, skip=skip)._replace(state=it.agent.initial_state(4))
    _, metrics, _ = it.gradient(forgotten)
    assert metrics["kl"] == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize("network", [{}, {"lstm": 8}], ids=["no memory", "lstm"])
def test_the_transitions_before_are_not_trained_on(network):
    it = subject(network=network, burn_in=3)
    unroll = it.unroll(ENDS)
    other = np.array(unroll.action)
    other[:3] = (other[:3] + 1) % 5
    one, changed = it.gradient(unroll), it.gradient(unroll._replace(action=other))
    assert one[0] == changed[0]
    jax.tree.map(np.testing.assert_array_equal, one[2], changed[2])
    if not network:
        without = subject(burn_in=0)
        short = unroll._replace(
            timestep=at(unroll.timestep, slice(3, None)), action=unroll.action[3:], record={}
        )
        loss, _ = without.agent.loss(it.params, it.params, short, jax.random.key(0))
        assert loss == pytest.approx(float(one[0]), rel=1e-5)


@pytest.mark.parametrize("name", ["entropy_cost", "burn_in", "batch_size"])
def test_settings_that_make_no_sense_are_refused(name):
    with pytest.raises(ConfigError, match=f"{name} is -1"):
        dataclasses.replace(SETTINGS, **{name: -1})
