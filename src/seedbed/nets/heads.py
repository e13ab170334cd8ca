"""The last layers of a network: a few numbers each, of the same features, in one product.

The features are read once for all heads, and once for the gradients of all.
"""

from __future__ import annotations

from collections.abc import Sequence

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from seedbed.nets.dense import multiply


class Head(nn.Module):
    """The weights of one head, ``(kernel [features, size], bias [size])``; :func:`outputs` is the product."""

    size: int
    kernel_init: nn.initializers.Initializer

    @nn.compact
    def __call__(self, features: int) -> tuple[jax.Array, jax.Array]:
        """The weights for ``features`` numbers."""
        kernel: jax.Array = self.param("kernel", self.kernel_init, (features, self.size))
        bias: jax.Array = self.param("bias", nn.initializers.zeros_init(), (self.size,))
        return kernel, bias


class Free(nn.Module):
    """Numbers ``[size]`` that are learned and depend on no features; they begin at 0."""

    size: int

    @nn.compact
    def __call__(self) -> jax.Array:
        """The numbers."""
        value: jax.Array = self.param("value", nn.initializers.zeros_init(), (self.size,))
        return value


def outputs(features: jax.Array, heads: Sequence[tuple[jax.Array, jax.Array]]) -> list[jax.Array]:
    """``features @ kernel + bias`` of each head.

    It can be differentiated in reverse mode, once.

    Args:
      features: float32 ``[..., D]``.
      heads: the weights of each.

    Returns:
      float32 ``[..., size]`` for each.
    """
    kernels, biases = (jnp.concatenate(parts, axis=-1) for parts in zip(*heads, strict=True))
    flat = multiply(features.reshape(-1, features.shape[-1]), kernels) + biases
    ends = np.cumsum([len(bias) for _, bias in heads])[:-1]
    return jnp.split(flat.reshape(*features.shape[:-1], -1), ends, axis=-1)
