"""First values of weights."""

from __future__ import annotations

import math
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

RELU_INIT = nn.initializers.orthogonal(math.sqrt(2))
"""Keeps the size of activations and gradients through rectified layers (Saxe et al. 2014)."""


def fan_in_normal(key: jax.Array, shape: tuple[int, ...], dtype: Any = jnp.float32) -> jax.Array:
    """Normal with variance ``1 / fan-in``, the last axis being the outputs (LeCun et al. 1998).

    Drawn flat: XLA takes five times as long to compile random numbers of four axes, seconds for a deep network.
    """
    fan_in = math.prod(shape[:-1])
    return jax.random.normal(key, (math.prod(shape),), dtype).reshape(shape) / math.sqrt(fan_in)
