"""From one trajectory ``[T]`` to a batch ``[T, B]``, and means over its valid part."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from seedbed.types import TimeStep, Tree, map_leaves


def transitions(
    timestep: TimeStep, *, discount: float, reward_clip: float
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Validity, discounts and rewards ``[T, B]`` of the transitions between the steps ``[T + 1, B]``.

    A truncation keeps its discount: it bootstraps from the final observation, which is the step it leads to.

    Args:
      timestep: the steps.
      discount: gamma.
      reward_clip: rewards are clipped to plus or minus this; 0 is off.
    """
    valid = ~timestep.first[1:]
    discounts = jnp.where(timestep.terminated[1:], 0.0, discount)
    rewards = timestep.reward[1:]
    if reward_clip > 0:
        rewards = jnp.clip(rewards, -reward_clip, reward_clip)
    return valid, discounts, rewards


def add_time(timestep: TimeStep) -> TimeStep:
    """``[B, ...]`` to ``[1, B, ...]``."""
    return TimeStep(map_leaves(lambda x: x[None], timestep.observation), *(x[None] for x in timestep[1:]))


def over_batch(function: Callable[..., Tree], out_axes: int = 1) -> Callable[..., Any]:
    """A function of one trajectory ``[T]`` as one of ``[T, B]``."""
    return jax.vmap(function, in_axes=1, out_axes=out_axes)


def mean_over_batch(part: Callable[..., jax.Array], *arrays: jax.Array) -> jax.Array:
    """A part of a loss, averaged over the batch axis of ``arrays [T, B]``."""
    return jnp.mean(over_batch(part, 0)(*arrays))


def average(array: jax.Array, valid: jax.Array) -> jax.Array:
    """Mean over the valid entries, 0 if there are none."""
    return jnp.sum(jnp.where(valid, array, 0.0)) / jnp.maximum(jnp.sum(valid), 1)


def explained_variance(values: jax.Array, targets: jax.Array, valid: jax.Array) -> jax.Array:
    """``1 - Var(target - value) / Var(target)``: 1 is perfect, 0 no better than a constant."""

    def variance(array: jax.Array) -> jax.Array:
        return average(jnp.square(array - average(array, valid)), valid)

    return 1.0 - variance(targets - values) / jnp.maximum(variance(targets), 1e-8)
