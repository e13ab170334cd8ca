"""A2C beyond the contract: n-step advantages of the newest weights, and what its data may be."""

import dataclasses

import jax
import numpy as np
import pytest

from seedbed.agents.a2c import A2CSettings, make_agent
from seedbed.errors import ConfigError
from seedbed.testing.agents import SPECS, Subject

SETTINGS = A2CSettings(unroll_length=8, batch_size=4, discount=0.9)
ENDS = [(2, 0, "terminated"), (4, 1, "truncated"), (0, 2, "terminated"), (5, 2, "truncated")]


def subject(spec="vector", **changes):
    return Subject(make_agent(dataclasses.replace(SETTINGS, **changes), SPECS[spec]), SPECS[spec])


def test_the_loss_is_the_weighted_sum_of_its_parts():
    it = subject(baseline_cost=0.3, entropy_cost=0.02)
    loss, metrics, _ = it.gradient(it.unroll(ENDS))
    parts = metrics["policy_loss"] + 0.3 * metrics["value_loss"] + 0.02 * metrics["entropy_loss"]
    assert loss == pytest.approx(float(parts), rel=1e-5)
    assert metrics["kl"] == pytest.approx(0, abs=1e-6), "the weights that acted"


def test_targets_are_returns_of_all_steps_that_follow():
    """Algorithm S3: ``R = r_t + gamma R``, from the last value, or from 0 where the episode ended."""
    it = subject()
    steps = it.unroll(ENDS).timestep
    # All rewards are 1 and the value is zero everywhere: what follows is a sum of powers.
    params = jax.tree.map(np.zeros_like, it.params)
    unroll = it.unroll(ENDS)._replace(timestep=steps._replace(reward=np.ones_like(steps.reward)))
    _, (metrics, _) = jax.jit(it.agent.loss)(params, params, unroll, jax.random.key(0))
    needed = []
    for row in range(4):
        following = 0.0
        for t in reversed(range(8)):
            first, terminated, truncated = (
                x[t + 1, row] for x in (steps.first, steps.terminated, steps.truncated)
            )
            if first:
                following = 0.0
                continue
            following = 1.0 + 0.9 * (0.0 if terminated or truncated else following)
            needed.append(following)
    assert metrics["target"] == pytest.approx(np.mean(needed), rel=1e-5)


@pytest.mark.parametrize("wrong", [{"reuse": 2}, {"minibatches": 2}], ids=str)
def test_data_are_trained_on_once(wrong):
    with pytest.raises(ConfigError, match="off-policy"):
        dataclasses.replace(SETTINGS, **wrong)
