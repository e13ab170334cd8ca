"""Priorities: how much there is to be learned from an item of a replay."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from seedbed.ops.checks import check_time_major


def sequence_priority(errors: jax.Array, valid: jax.Array, *, eta: float) -> jax.Array:
    """``eta max_t |error_t| + (1 - eta) mean_t |error_t|`` (R2D2, Kapturowski et al. 2019, section 2.3).

    Args:
      errors: float ``[T]``.
      valid: bool ``[T]``; the others count neither for the maximum nor for the mean.
      eta: weight of the maximum.

    Returns:
      float ``[]``; 0 if nothing is valid.

    Raises:
      SpecError: shapes do not fit, when traced.
    """
    check_time_major(errors=errors, valid=valid)
    sizes = jnp.where(valid, jnp.abs(errors), 0.0)
    mean = jnp.sum(sizes) / jnp.maximum(jnp.sum(valid), 1)
    return eta * jnp.max(sizes) + (1.0 - eta) * mean
