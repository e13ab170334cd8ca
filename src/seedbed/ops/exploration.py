"""Exploration by chance: each environment with an epsilon of its own."""

from __future__ import annotations

import jax
import jax.numpy as jnp


def ladder(places: jax.Array, *, base: float, exponent: float, evaluation: float) -> jax.Array:
    """The epsilons of environments by their places: ``base^(1 + exponent * place)`` (Ape-X, Horgan et al. 2018,
    section 4: 0.4 and 7; i / (N - 1) is the place of the i-th of N).

    Args:
      places: float ``[B]``, from 0 (explores most) to 1 (least); above 1: it evaluates.
      base: epsilon at place 0.
      exponent: how much smaller it gets up to place 1.
      evaluation: epsilon where it evaluates.

    Returns:
      float32 ``[B]``.
    """
    return jnp.where(places <= 1.0, base ** (1.0 + exponent * places), evaluation).astype(jnp.float32)


def epsilon_greedy(key: jax.Array, q: jax.Array, epsilon: jax.Array) -> jax.Array:
    """The best action by ``q [A]``, or with probability ``epsilon []`` any; int32 ``[]``."""
    chance, which = jax.random.split(key)
    anything = jax.random.randint(which, (), 0, q.shape[-1])
    return jnp.where(jax.random.uniform(chance) < epsilon, anything, jnp.argmax(q)).astype(jnp.int32)
