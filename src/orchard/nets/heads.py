"""The last layers of a network: a few numbers each, of the same features, in one product.

On a CPU, XLA multiplies ``[D, N] x [N, few]``, the gradient of a narrow layer's weights, at a twentieth of the speed of
a wide one's. The other way round, ``[few, N] x [N, D]``, it is four to five times faster; and the features are read
once for all heads.
"""

from __future__ import annotations

from collections.abc import Sequence

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import lax


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
    flat = _product(features.reshape(-1, features.shape[-1]), kernels) + biases
    ends = [sum(bias.shape[0] for _, bias in heads[: i + 1]) for i in range(len(heads) - 1)]
    return jnp.split(flat.reshape(*features.shape[:-1], -1), ends, axis=-1)


@jax.custom_vjp
def _product(features: jax.Array, kernel: jax.Array) -> jax.Array:
    """``[N, D] x [D, few]``."""
    return features @ kernel


def _forward(features: jax.Array, kernel: jax.Array) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    return _product(features, kernel), (features, kernel)


def _backward(kept: tuple[jax.Array, jax.Array], gradient: jax.Array) -> tuple[jax.Array, jax.Array]:
    features, kernel = kept
    # Without the barrier the compiler would turn the product round again, to save the transposition.
    of_kernel: jax.Array = lax.optimization_barrier(gradient.T @ features)  # type: ignore[no-untyped-call]
    return gradient @ kernel.T, of_kernel.T


_product.defvjp(_forward, _backward)
