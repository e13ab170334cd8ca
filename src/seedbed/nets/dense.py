"""Dense layers, whose gradient a CPU takes its own way.

The gradient of a layer's weights is the product ``[D, N] x [N, size]`` over a batch of N rows, which XLA's CPU backend
multiplies slowly where ``size`` is small. There it is taken the other way round, ``[size, N] x [N, D]``, and
transposed.
"""

from __future__ import annotations

import flax.linen as nn
import jax
from jax import lax

_NARROW = 64
"""Up to this size, and not for fewer inputs than outputs, the other way is the faster one (benchmarks/dense.py)."""


class Dense(nn.Module):
    """``flax.linen.Dense`` with that gradient; it can be differentiated in reverse mode, once.

    Attributes:
      size: number of outputs.
      kernel_init: initializer of the weights; biases begin at 0.
    """

    size: int
    kernel_init: nn.initializers.Initializer

    @nn.compact
    def __call__(self, rows: jax.Array) -> jax.Array:
        """Float32 ``[N, D]`` to ``[N, size]``."""
        kernel: jax.Array = self.param("kernel", self.kernel_init, (rows.shape[-1], self.size))
        bias: jax.Array = self.param("bias", nn.initializers.zeros_init(), (self.size,))
        return multiply(rows, kernel) + bias


@jax.custom_vjp
def multiply(rows: jax.Array, kernel: jax.Array) -> jax.Array:
    """``[N, D] x [D, size]``; it can be differentiated in reverse mode, once."""
    return rows @ kernel


def _forward(rows: jax.Array, kernel: jax.Array) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    return multiply(rows, kernel), (rows, kernel)


def _backward(kept: tuple[jax.Array, jax.Array], gradient: jax.Array) -> tuple[jax.Array, jax.Array]:
    rows, kernel = kept
    of_rows = gradient @ kernel.T
    inputs, size = kernel.shape
    if size > min(inputs, _NARROW) or jax.default_backend() != "cpu":
        return of_rows, rows.T @ gradient
    # Without the barrier the compiler would turn the product round again, to save the transposition.
    of_kernel: jax.Array = lax.optimization_barrier(gradient.T @ rows)  # type: ignore[no-untyped-call]
    return of_rows, of_kernel.T


multiply.defvjp(_forward, _backward)
