"""Exploration by chance: each environment with an epsilon of its own."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from seedbed.ops.masks import is_forbidden
from seedbed.types import Exploration


def epsilons_of(exploration: Exploration, *, base: float, exponent: float, evaluation: float) -> jax.Array:
    """Returns an epsilon for each environment: ``base^(1 + exponent * rank)`` (Ape-X, Horgan et al. 2018, section 4:
    0.4 and 7, where i / (N - 1) is the rank of the i-th of N).

    Args:
      exploration: ranks and flags ``[B]``.
      base: epsilon at rank 0.
      exponent: decrease of the epsilon up to rank 1.
      evaluation: epsilon of the environments that only evaluate.

    Returns:
      float32 ``[B]``.
    """
    explored = base ** (1.0 + exponent * exploration.rank)
    return jnp.where(exploration.evaluates, evaluation, explored).astype(jnp.float32)


def epsilon_greedy(key: jax.Array, q: jax.Array, epsilon: jax.Array) -> jax.Array:
    """The best action by ``q [A]``, or with probability ``epsilon []`` any, each as often; int32 ``[]``.

    Actions with the q-value :data:`seedbed.ops.masks.FORBIDDEN` are never taken.
    """
    chance, which = jax.random.split(key)
    so_many = jnp.cumsum(~is_forbidden(q))
    anything = jnp.argmax(so_many > jax.random.randint(which, (), 0, so_many[-1]))
    return jnp.where(jax.random.uniform(chance) < epsilon, anything, jnp.argmax(q)).astype(jnp.int32)
