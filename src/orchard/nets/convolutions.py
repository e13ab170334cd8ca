"""The one seam of all convolutions and max-pools, so that a backend can lower them its own way.

Arrays are ``[N, H, W, C]``, float32, kernels ``[kh, kw, in, out]``. On accelerators the lowering is XLA's. Its
CPU backend is fast at plain forward convolutions and has four weak points, for which this module makes up:

- a convolution inside a loop (``while``, hence ``lax.scan``) is some twenty times slower: time is folded into
  N before anything comes here, and small convolutions, as of MinAtar's 10x10 images, are products of matrices (in
  Anakin they do stand in loops; outside of one the product is a little faster too);
- ``reduce_window`` is slow: max-pool is a maximum over strided slices;
- the gradient of a kernel reads its images many times over, and two to three times slower if they do not fit
  into the cache: it is summed over pieces of the batch that do;
- the gradient of the images of a strided convolution multiplies mostly zeros: where the strides divide kernel
  and image, it is taken of the same convolution over blocks of pixels, which has no stride.
"""

from __future__ import annotations

import functools
from typing import Literal

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import lax

from orchard.errors import SpecError
from orchard.nets.initializers import fan_in_normal

Padding = Literal["SAME", "VALID"]

_CACHE_BYTES = 2 << 20
"""About what a core has for itself; measured with benchmarks/convolutions.py."""

_SMALL_PIXELS, _SMALL_PATCH = 144, 128
"""Of an image, and numbers in the patch under the kernel: what counts as small, by the same measurements."""

_MOST_PIECES = 64
"""Every piece takes some 30 ms to compile."""


def convolve(images: jax.Array, kernel: jax.Array, stride: int, padding: Padding) -> jax.Array:
    """Convolves ``[N, H, W, in]`` with ``[kh, kw, in, out]``; returns ``[N, H', W', out]``.

    It can be differentiated in reverse mode, once.
    """
    if _is_small(images, kernel, stride, padding):
        return _multiply(images, kernel)
    return jnp.asarray(_with_gradients(stride, padding, images, kernel))


def _convolve(stride: int, padding: Padding, images: jax.Array, kernel: jax.Array) -> jax.Array:
    return lax.conv_general_dilated(
        images, kernel, (stride, stride), padding, dimension_numbers=("NHWC", "HWIO", "NHWC")
    )


def _is_small(images: jax.Array, kernel: jax.Array, stride: int, padding: Padding) -> bool:
    """Whether the product of matrices is the faster way."""
    pixels = images.shape[1] * images.shape[2]
    patch = kernel.shape[0] * kernel.shape[1] * kernel.shape[2]
    plain = stride == 1 and padding == "VALID" and jax.default_backend() == "cpu"
    return plain and pixels <= _SMALL_PIXELS and patch <= _SMALL_PATCH


def _multiply(images: jax.Array, kernel: jax.Array) -> jax.Array:
    """The convolution of stride 1 without padding, as patches ``[N, H', W', kh * kw * in]`` times the kernel."""
    height, width, _, features = kernel.shape
    rows, columns = images.shape[1] - height + 1, images.shape[2] - width + 1
    shifted = [images[:, y : y + rows, x : x + columns] for y in range(height) for x in range(width)]
    return jnp.concatenate(shifted, axis=-1) @ kernel.reshape(-1, features)


def _forward(
    stride: int, padding: Padding, images: jax.Array, kernel: jax.Array
) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    return _convolve(stride, padding, images, kernel), (images, kernel)


def _backward(
    stride: int, padding: Padding, inputs: tuple[jax.Array, jax.Array], gradient: jax.Array
) -> tuple[jax.Array, jax.Array]:
    images, kernel = inputs
    convolution = functools.partial(_convolve, stride, padding)
    over_images, piece = convolution, len(images)
    if jax.default_backend() == "cpu":
        piece = max(1, _CACHE_BYTES // images[0].nbytes, -(-len(images) // _MOST_PIECES))
        sides = (*images.shape[1:3], *kernel.shape[:2])
        if stride > 1 and padding == "VALID" and all(side % stride == 0 for side in sides):
            over_images = functools.partial(_convolve_blocks, stride)
    (of_images,) = jax.linear_transpose(lambda x: over_images(x, kernel), images)(gradient)
    of_kernel = sum(
        jax.linear_transpose(functools.partial(convolution, images[i : i + piece]), kernel)(
            gradient[i : i + piece]
        )[0]
        for i in range(0, len(images), piece)
    )
    return of_images, jnp.asarray(of_kernel)


_with_gradients = jax.custom_vjp(_convolve, nondiff_argnums=(0, 1))
_with_gradients.defvjp(_forward, _backward)


def _convolve_blocks(side: int, images: jax.Array, kernel: jax.Array) -> jax.Array:
    """The convolution of stride ``side`` without padding, as one of stride 1 over blocks of that side."""
    height, width, channels, features = kernel.shape
    blocks = kernel.reshape(height // side, side, width // side, side, channels, features)
    blocks = blocks.transpose(0, 2, 1, 3, 4, 5).reshape(height // side, width // side, -1, features)
    return _convolve(1, "VALID", _to_blocks(images, side), blocks)


def _to_blocks(images: jax.Array, side: int) -> jax.Array:
    """``[N, H, W, C]`` to ``[N, H / side, W / side, side * side * C]``."""
    n, height, width, channels = images.shape
    blocks = images.reshape(n, height // side, side, width // side, side, channels)
    return blocks.transpose(0, 1, 3, 2, 4, 5).reshape(n, height // side, width // side, -1)


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
