"""The previous action and reward as inputs of the network."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from seedbed.nets.actor_critic import ActorCritic
from seedbed.ops.distributions import from_spec
from seedbed.testing.agents import SPECS, experience

SPEC = SPECS["vector"]
NEW = 2  # the step that begins an episode
STEPS = 4


def changed(what: str, step: int, value: float, *, against: float) -> set[int]:
    """At which of the steps the policy is another one, with ``value`` instead of ``against`` at one step."""
    distribution = from_spec(SPEC.action)
    model = ActorCritic(
        SPEC,
        distribution.encode,
        num_params=distribution.num_params,
        previous_action=True,
        previous_reward=True,
    )
    params = jax.tree.map(
        lambda x: x + jnp.cos(jnp.arange(x.size)).reshape(x.shape), model.init(jax.random.key(0))
    )
    timestep = experience(SPEC, STEPS, 1, [(NEW - 1, 0, "terminated")])

    def policy(value: float) -> np.ndarray:
        reward, actions = np.array(timestep.reward), np.zeros((STEPS - 1, 1), np.int32)
        {"reward": reward, "action": actions}[what][step] = value
        out, *_ = model.apply(params, timestep._replace(reward=reward), actions, model.initial_state(1))
        return np.asarray(out[:, 0])

    differs = np.abs(policy(value) - policy(against)).max(axis=-1) > 1e-4
    return set(np.flatnonzero(differs).tolist())


@pytest.mark.parametrize("step", range(STEPS - 1))
def test_an_action_is_seen_at_the_step_that_it_leads_to_unless_that_begins_an_episode(step: int) -> None:
    assert changed("action", step, 3, against=1) == {step + 1} - {NEW}


@pytest.mark.parametrize("step", range(STEPS))
def test_a_reward_is_seen_at_its_step_unless_that_begins_an_episode(step: int) -> None:
    # Step 0 begins one too.
    assert changed("reward", step, 0.7, against=-0.4) == {step} - {0, NEW}


def test_a_reward_is_clipped() -> None:
    assert changed("reward", 1, 50.0, against=1.0) == changed("reward", 1, -50.0, against=-1.0) == set()
