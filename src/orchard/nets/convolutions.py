"""The one seam of all convolutions and max-pools, so that a backend can lower them its own way.

Images are ``[N, H, W, C]``, float32 or bfloat16; kernels ``[kh, kw, in, out]`` and biases ``[out]`` are float32, and
what comes out has the dtype of the images. On accelerators the lowering is XLA's. On a CPU, batches that are worth it
go to oneDNN where it is there (:mod:`orchard.nets.native`), which is faster and does not mind loops. XLA's CPU
backend, which takes the rest, is fast at plain forward convolutions and has four weak points, for which this module
makes up:

- a convolution inside a loop (``while``, hence ``lax.scan``) is some twenty times slower: time is folded into
  N before anything comes here, and small convolutions, as of MinAtar's 10x10 images, are products of matrices (in
  Anakin they do stand in loops; outside of one the product is a little faster too);
- ``reduce_window`` is slow: max-pool is a maximum over strided slices;
- the gradient of a kernel reads its images many times over, and two to three times slower if they do not fit
  into the cache: it is summed over pieces of the batch that do;
- the gradient of the images of a strided convolution multiplies mostly zeros: where the strides divide kernel
  and image, it is taken of the same convolution over blocks of pixels, which has no stride.

It has no arithmetic for bfloat16 either: what was rounded to that is multiplied and added up in float32.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Literal

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import lax

from orchard.errors import SpecError
from orchard.nets.initializers import fan_in_normal
from orchard.nets.native import library, operations
from orchard.nets.native.operations import Geometry

Padding = Literal["SAME", "VALID"]

_FEWEST_IMAGES = 16
"""Below it XLA is faster: oneDNN brings the kernel into an order of its own in every call."""

_LARGEST_WINDOW = 15
"""Its pixels are counted in a uint8 where the extension keeps which of them was the largest."""

_CACHE_BYTES = 2 << 20
"""About what a core has for itself; measured with benchmarks/convolutions.py."""

_SMALL_PIXELS, _SMALL_PATCH = 144, 128
"""Of an image, and numbers in the patch under the kernel: what counts as small, by the same measurements."""

_MOST_PIECES = 64
"""Every piece takes some 30 ms to compile."""


def convolve(
    images: jax.Array, kernel: jax.Array, bias: jax.Array, stride: int, padding: Padding
) -> jax.Array:
    """Convolves ``[N, H, W, in]`` with ``[kh, kw, in, out]`` and adds ``bias`` ``[out]``; returns ``[N, H', W', out]``.

    The kernel is rounded to the images' dtype; sums are float32 either way. It can be differentiated in reverse mode,
    once.

    Raises:
      SpecError: it is differentiated twice.
    """
    if _is_small(images, kernel, stride, padding):
        return _multiply(images, kernel, bias)
    return jnp.asarray(_with_gradients(stride, padding, images, kernel, bias))


def _goes_to_extension(images: jax.Array) -> bool:
    """Whether the extension takes these images where they are on a CPU."""
    return len(images) >= _FEWEST_IMAGES and images.size > 0 and str(images.dtype) in library.find().dtypes


def _lowered(
    native: Callable[..., Any], otherwise: Callable[..., Any], images: jax.Array, *others: Any
) -> Any:
    """``native(images, *others)`` if that is lowered for a CPU and the extension takes the images, else ``otherwise``.

    It cannot be differentiated: the gradients of what is lowered are lowered themselves.
    """

    @jax.custom_jvp
    def lowered(images: jax.Array, *others: Any) -> Any:
        if not _goes_to_extension(images):
            return otherwise(images, *others)
        return lax.platform_dependent(images, *others, cpu=native, default=otherwise)

    lowered.defjvp(_refuse)
    return lowered(images, *others)


def _refuse(*_: Any) -> Any:
    raise SpecError(
        "a convolution or a max-pool was differentiated twice, or forward; it can be once, in reverse mode: write the"
        " network with jax.lax's own where second derivatives are needed"
    )


def _convolve(stride: int, padding: Padding, images: jax.Array, kernel: jax.Array) -> jax.Array:
    """XLA's, of one dtype, without a bias."""
    return lax.conv_general_dilated(
        images, kernel, (stride, stride), padding, dimension_numbers=("NHWC", "HWIO", "NHWC")
    )


def _as_xla_multiplies(images: jax.Array, kernel: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Both, rounded to the images' dtype, in the one in which the backend has arithmetic."""
    wide = jnp.float32 if jax.default_backend() == "cpu" else images.dtype
    return images.astype(wide), kernel.astype(images.dtype).astype(wide)


def _convolve_with_bias(
    stride: int, padding: Padding, images: jax.Array, kernel: jax.Array, bias: jax.Array
) -> jax.Array:
    def native(images: jax.Array, kernel: jax.Array, bias: jax.Array) -> jax.Array:
        layer = Geometry.of(images.shape, kernel.shape[:2], stride, padding)
        return operations.convolve(images, kernel, bias, layer)

    def otherwise(images: jax.Array, kernel: jax.Array, bias: jax.Array) -> jax.Array:
        wide, rounded = _as_xla_multiplies(images, kernel)
        return (_convolve(stride, padding, wide, rounded) + bias.astype(wide.dtype)).astype(images.dtype)

    return jnp.asarray(_lowered(native, otherwise, images, kernel, bias))


def _is_small(images: jax.Array, kernel: jax.Array, stride: int, padding: Padding) -> bool:
    """Whether the product of matrices is the faster way."""
    pixels = images.shape[1] * images.shape[2]
    patch = kernel.shape[0] * kernel.shape[1] * kernel.shape[2]
    plain = stride == 1 and padding == "VALID" and jax.default_backend() == "cpu"
    return plain and pixels <= _SMALL_PIXELS and patch <= _SMALL_PATCH


def _multiply(images: jax.Array, kernel: jax.Array, bias: jax.Array) -> jax.Array:
    """The convolution of stride 1 without padding, as patches ``[N, H', W', kh * kw * in]`` times the kernel."""
    dtype = images.dtype
    images, kernel = _as_xla_multiplies(images, kernel)
    height, width, _, features = kernel.shape
    rows, columns = images.shape[1] - height + 1, images.shape[2] - width + 1
    shifted = [images[:, y : y + rows, x : x + columns] for y in range(height) for x in range(width)]
    return (jnp.concatenate(shifted, axis=-1) @ kernel.reshape(-1, features) + bias).astype(dtype)


def _forward(
    stride: int, padding: Padding, images: jax.Array, kernel: jax.Array, bias: jax.Array
) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    return _convolve_with_bias(stride, padding, images, kernel, bias), (images, kernel)


def _backward(
    stride: int, padding: Padding, inputs: tuple[jax.Array, jax.Array], gradient: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array]:
    def native(
        images: jax.Array, kernel: jax.Array, gradient: jax.Array
    ) -> tuple[jax.Array, jax.Array, jax.Array]:
        layer = Geometry.of(images.shape, kernel.shape[:2], stride, padding)
        of_images = operations.by_images(gradient, kernel, images.shape, layer)
        return of_images, *operations.by_kernel(images, gradient, kernel.shape[:2], layer)

    otherwise = functools.partial(_gradients, stride, padding)
    of_images, of_kernel, of_bias = _lowered(native, otherwise, *inputs, gradient)
    return of_images, of_kernel, of_bias


def _gradients(
    stride: int, padding: Padding, images: jax.Array, kernel: jax.Array, gradient: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """XLA's, of images, kernel and bias."""
    dtypes = images.dtype, kernel.dtype
    images, kernel = _as_xla_multiplies(images, kernel)
    gradient = gradient.astype(images.dtype)
    convolution = functools.partial(_convolve, stride, padding)
    over_images, piece = convolution, max(1, len(images))
    if jax.default_backend() == "cpu" and images.size:
        piece = max(1, _CACHE_BYTES // images[0].nbytes, -(-len(images) // _MOST_PIECES))
        sides = (*images.shape[1:3], *kernel.shape[:2])
        if stride > 1 and padding == "VALID" and all(side % stride == 0 for side in sides):
            over_images = functools.partial(_convolve_blocks, stride)
    (of_images,) = jax.linear_transpose(lambda x: over_images(x, kernel), images)(gradient)
    of_kernel = sum(
        (
            jax.linear_transpose(functools.partial(convolution, images[i : i + piece]), kernel)(
                gradient[i : i + piece]
            )[0]
            for i in range(0, len(images), piece)
        ),
        start=jnp.zeros_like(kernel),
    )
    of_bias = gradient.astype(dtypes[1]).sum((0, 1, 2))
    return of_images.astype(dtypes[0]), of_kernel.astype(dtypes[1]), of_bias


_with_gradients = jax.custom_vjp(_convolve_with_bias, nondiff_argnums=(0, 1))
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
    """Maximum over square patches, padding ``SAME``: ``[N, H, W, C]`` to ``[N, ceil(H/stride), …, C]``.

    It can be differentiated in reverse mode, once. Of equal maxima, the extension gives all of the gradient to the
    first; XLA shares it out among them.

    Raises:
      SpecError: it is differentiated twice.
    """
    if window > _LARGEST_WINDOW or not _goes_to_extension(images):
        return _pool(images, window, stride)
    return jnp.asarray(_pool_with_gradients(window, stride, images))


def _pool(images: jax.Array, window: int, stride: int) -> jax.Array:
    """XLA's."""
    layer = _over(images, window, stride)
    edges = ((0, 0), (layer.top, layer.bottom), (layer.left, layer.right), (0, 0))
    padded = jnp.pad(images, edges, constant_values=-jnp.inf)
    pooled = None
    for y in range(window):
        for x in range(window):
            last_row, last_column = y + (layer.out_height - 1) * stride, x + (layer.out_width - 1) * stride
            part = padded[:, y : last_row + 1 : stride, x : last_column + 1 : stride]
            pooled = part if pooled is None else jnp.maximum(pooled, part)
    assert pooled is not None
    return pooled


def _pool_only(window: int, stride: int, images: jax.Array) -> jax.Array:
    def native(images: jax.Array) -> jax.Array:
        return operations.pool(images, window, _over(images, window, stride))

    return jnp.asarray(_lowered(native, functools.partial(_pool, window=window, stride=stride), images))


def _pool_forward(
    window: int, stride: int, images: jax.Array
) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    """Keeps the images, from which XLA sees what was largest, and where that was, which the extension reads."""

    def native(images: jax.Array) -> tuple[jax.Array, jax.Array]:
        return operations.pool_keeping(images, window, _over(images, window, stride))

    def otherwise(images: jax.Array) -> tuple[jax.Array, jax.Array]:
        pooled = _pool(images, window, stride)
        return pooled, jnp.zeros(pooled.shape, jnp.uint8)

    pooled, places = _lowered(native, otherwise, images)
    return pooled, (images, places)


def _pool_backward(
    window: int, stride: int, kept: tuple[jax.Array, jax.Array], gradient: jax.Array
) -> tuple[jax.Array]:
    def native(images: jax.Array, places: jax.Array, gradient: jax.Array) -> jax.Array:
        layer = _over(images, window, stride)
        return operations.pool_by_images(gradient, places, images.shape, window, layer)

    def otherwise(images: jax.Array, places: jax.Array, gradient: jax.Array) -> jax.Array:
        del places
        return jnp.asarray(jax.vjp(lambda x: _pool(x, window, stride), images)[1](gradient)[0])

    return (_lowered(native, otherwise, *kept, gradient),)


_pool_with_gradients = jax.custom_vjp(_pool_only, nondiff_argnums=(0, 1))
_pool_with_gradients.defvjp(_pool_forward, _pool_backward)


def _over(images: jax.Array, window: int, stride: int) -> Geometry:
    return Geometry.of(images.shape, (window, window), stride, "SAME")


class Conv(nn.Module):
    """A convolution with bias: ``[N, H, W, C]`` to ``[N, H', W', features]``, float32 or bfloat16; weights are float32.

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
        return convolve(images, kernel, bias, self.stride, self.padding)
