"""Targets of a model that is unrolled from one step of a trajectory (MuZero, Schrittwieser et al. 2020, section 3)."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from seedbed.ops.checks import check_time_major
from seedbed.ops.returns import n_step


class ModelTargets(NamedTuple):
    """Targets of steps 0 … K of one trajectory, constants as far as gradients are concerned.

    Attributes:
      values: float32 ``[K + 1]``, returns of n steps; 0 from the end of a terminated episode on.
      rewards: float32 ``[K]``, of the transitions; 0 after the end.
      has_value: bool ``[K + 1]``, whether there is such a value: at steps of the episode at which something is decided,
        and at all steps from a termination on.
      has_policy: bool ``[K + 1]``, whether something is decided at the step.
      has_reward: bool ``[K]``, whether there is such a reward.
      is_over: bool ``[K]``, whether the transition is one after a termination, where any action leads nowhere.
    """

    values: jax.Array
    rewards: jax.Array
    has_value: jax.Array
    has_policy: jax.Array
    has_reward: jax.Array
    is_over: jax.Array


def model_targets(
    discounts: jax.Array, rewards: jax.Array, values: jax.Array, valid: jax.Array, *, n: int
) -> ModelTargets:
    """Computes the targets of a model that is unrolled K steps from step 0.

    The end of a terminated episode is a state that no action leaves, without rewards, whose value is 0. Of a truncated
    one nothing is known after its final observation.

    Args:
      discounts: float ``[K + n]``, 0 where the transition ended in a termination, and nowhere else.
      rewards: float ``[K + n]``, of the transitions.
      values: float ``[K + n + 1]``, values to bootstrap from.
      valid: bool ``[K + n]``, False where the transition leads into a new episode.
      n: steps of the returns, 1 or more.

    Raises:
      SpecError: shapes do not fit, when traced.
    """
    check_time_major(discounts=discounts, rewards=rewards, valid=valid)
    check_time_major(length=discounts.shape[0] + 1, values=values)
    steps = len(valid) - n
    # Of steps 0 … K: whether the trajectory has come to it within the first episode.
    reached = jnp.concatenate([jnp.ones(1, bool), jnp.cumprod(valid[:steps]).astype(bool)])
    over = jnp.concatenate([jnp.zeros(1, bool), jnp.cumsum(reached[1:] & (discounts[:steps] == 0)) > 0])
    decided = reached & valid[: steps + 1]
    returns = n_step(discounts, rewards, values, valid, n=n)[: steps + 1]
    found = ModelTargets(
        values=jnp.where(decided, returns, 0.0),
        rewards=jnp.where(reached[1:], rewards[:steps], 0.0),
        has_value=decided | over,
        has_policy=decided,
        has_reward=reached[1:] | over[:-1],
        is_over=over[:-1],
    )
    return lax.stop_gradient(found)
