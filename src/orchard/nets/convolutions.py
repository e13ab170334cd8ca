"""The one seam of all convolutions and max-pools, so that a backend can lower them its own way.

Arrays are ``[N, H, W, C]``, float32, kernels ``[kh, kw, in, out]``. XLA's CPU backend is fastest with plain
NHWC convolutions, very slow with a convolution inside a loop (``while``, hence ``lax.scan``), and slow with
``reduce_window``: time is therefore folded into N before anything comes here, and max-pool is a maximum over
strided slices.
"""

from __future__ import annotations

from typing import Literal

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import lax

from orchard.errors import SpecError
from orchard.nets.initializers import fan_in_normal

Padding = Literal["SAME", "VALID"]


def convolve(images: jax.Array, kernel: jax.Array, stride: int, padding: Padding) -> jax.Array:
    """Convolves ``[N, H, W, in]`` with ``[kh, kw, in, out]``; returns ``[N, H', W', out]``."""
    return lax.conv_general_dilated(
        images, kernel, (stride, stride), padding, dimension_numbers=("NHWC", "HWIO", "NHWC")
    )


def max_pool(images: jax.Array, window: int, stride: int) -> jax.Array:
    """Maximum over square patches, padding ``SAME``: ``[N, H, W, C]`` to ``[N, ceil(H/stride), …, C]``."""
    _, height, width, _ = images.shape
    (rows, above, below), (columns, left, right) = (_same(n, window, stride) for n in (height, width))
    padded = jnp.pad(images, ((0, 0), (above, below), (left, right), (0, 0)), constant_values=-jnp.inf)
    pooled = None
    for y in range(window):
        for x in range(window):
            part = padded[
                :, y : y + (rows - 1) * stride + 1 : stride, x : x + (columns - 1) * stride + 1 : stride
            ]
            pooled = part if pooled is None else jnp.maximum(pooled, part)
    assert pooled is not None
    return pooled


def _same(size: int, window: int, stride: int) -> tuple[int, int, int]:
    """Output size and padding before and after of padding ``SAME``."""
    out = -(-size // stride)
    padding = max((out - 1) * stride + window - size, 0)
    return out, padding // 2, padding - padding // 2


class Conv(nn.Module):
    """A convolution with bias: ``[N, H, W, C]`` to ``[N, H', W', features]``.

    Raises:
      SpecError: the image is smaller than the kernel (padding ``VALID``).
    """

    features: int
    kernel: int
    stride: int = 1
    padding: Padding = "SAME"
    kernel_init: nn.initializers.Initializer = fan_in_normal

    @nn.compact
    def __call__(self, images: jax.Array) -> jax.Array:
        """Applies it."""
        height, width = images.shape[1:3]
        if self.padding == "VALID" and min(height, width) < self.kernel:
            raise SpecError(
                f"images of {height}x{width} are smaller than a {self.kernel}x{self.kernel} kernel: choose a"
                " network for small images ('tiny') or 'auto'"
            )
        shape = (self.kernel, self.kernel, images.shape[-1], self.features)
        kernel = self.param("kernel", self.kernel_init, shape)
        bias = self.param("bias", nn.initializers.zeros_init(), (self.features,))
        return convolve(images, kernel, self.stride, self.padding) + bias
