"""The one seam of all convolutions and max-pools, so that a backend can lower them its own way.

Images are ``[N, H, W, C]``, float32 or bfloat16, or uint8, which stands for 0 … 1; kernels ``[kh, kw, in, out]`` and
biases ``[out]`` are float32. On accelerators the lowering is XLA's. On a CPU they go to oneDNN where it is there
(:mod:`seedbed.nets.cpu`), which is faster and does not mind loops. XLA's CPU backend, which takes the rest, is fast
at plain forward convolutions and has four weak points, for which this module makes up:

- a convolution inside a loop (``while``, hence ``lax.scan``) is some twenty times slower: time is folded into
  N before anything comes here, and small convolutions, as of MinAtar's 10x10 images, are products of matrices (in
  Anakin they do stand in loops; outside of one the product is a little faster too);
- ``reduce_window`` is slow: max-pool is a maximum over strided slices;
- the gradient of a kernel reads its images many times over, and two to three times slower if they do not fit
  into the cache: it is summed over pieces of the batch that do;
- the gradient of the images of a strided convolution multiplies mostly zeros: where the strides divide kernel
  and image, it is taken of the same convolution over blocks of pixels, which has no stride.

It has no arithmetic for bfloat16 either: rounded numbers are multiplied and added up in float32.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, Literal

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import lax
from jax.typing import DTypeLike

from seedbed.errors import SpecError
from seedbed.nets.cpu import library, operations
from seedbed.nets.cpu.operations import Geometry
from seedbed.nets.initializers import fan_in_normal

Padding = Literal["SAME", "VALID"]

_LARGEST_WINDOW = 15
"""Its pixels are counted in a uint8 where the extension keeps which of them was the largest."""

_CACHE_BYTES = 2 << 20
"""Size of a core's own cache, about; measured with benchmarks/convolutions.py."""

_SMALL_PIXELS, _SMALL_PATCH = 144, 128
"""Limits of small images, and of numbers in the patch under the kernel, by the same measurements."""

_MOST_PIECES = 64
"""Every piece takes some 30 ms to compile."""


@dataclasses.dataclass(frozen=True)
class _Layer:
    """All of a convolution but its arrays; see :func:`convolve`."""

    stride: int
    padding: Padding
    rectified: bool
    dtype: jnp.dtype[Any]


def convolve(
    images: jax.Array,
    kernel: jax.Array,
    bias: jax.Array,
    stride: int,
    padding: Padding,
    *,
    rectified: bool = False,
    dtype: DTypeLike = jnp.float32,
) -> jax.Array:
    """Convolves ``[N, H, W, in]`` with ``[kh, kw, in, out]`` and adds ``bias`` ``[out]``.

    It can be differentiated in reverse mode, once, by all that is no uint8.

    Args:
      images: unscaled images, see :func:`scaled`; they and the kernel are rounded to ``dtype``. On a CPU all sums are
        float32; on accelerators, gradients of weights have passed through ``dtype``.
      kernel: weights, float32.
      bias: biases, float32.
      stride: step along both axes.
      padding: padding of both axes.
      rectified: whether negative numbers become 0.
      dtype: dtype of the result, float32 or bfloat16.

    Returns:
      ``[N, H', W', out]``.

    Raises:
      SpecError: it is differentiated twice.
    """
    layer = _Layer(stride, padding, rectified, jnp.dtype(dtype))
    kernel, bias = kernel.astype(jnp.float32), bias.astype(jnp.float32)
    if images.dtype != jnp.uint8:
        images = images.astype(dtype)
    if padding == "VALID":
        images = _seen(images, kernel, stride)
    if _is_small(images, kernel, layer):
        return _multiply(layer, images, kernel, bias)
    return jnp.asarray(_with_gradients(layer, images, kernel, bias))


def _seen(images: jax.Array, kernel: jax.Array, stride: int) -> jax.Array:
    """Cuts the last rows and columns, which no kernel reaches if strides do not divide the rest of the image."""
    sides = zip(images.shape[1:3], kernel.shape[:2], strict=True)
    height, width = ((size - side) // stride * stride + side for size, side in sides)
    return images[:, :height, :width]


def scaled(images: jax.Array) -> jax.Array:
    """As float32; uint8 as 0 … 1."""
    return images.astype(jnp.float32) * (1 / 255 if images.dtype == jnp.uint8 else 1.0)


def _goes_to_extension(images: jax.Array, dtype: DTypeLike) -> bool:
    """Returns whether the extension computes with these images in a dtype, where they are on a CPU."""
    return images.size > 0 and str(dtype) in library.find().dtypes


def _lowered(extension: Callable[..., Any] | None, otherwise: Callable[..., Any], *arrays: Any) -> Any:
    """``extension(*arrays)`` if that is lowered for a CPU and there is one, else ``otherwise(*arrays)``.

    It cannot be differentiated: gradients are lowered themselves.
    """

    @jax.custom_jvp
    def lowered(*arrays: Any) -> Any:
        if extension is None:
            return otherwise(*arrays)
        return lax.platform_dependent(*arrays, cpu=extension, default=otherwise)

    lowered.defjvp(_refuse)
    return lowered(*arrays)


def _refuse(*_: Any) -> Any:
    raise SpecError(
        "a convolution or a max-pool was differentiated twice; it can be once, in reverse mode: write the network with"
        " jax.lax's own where second derivatives are needed"
    )


def _geometry(layer: _Layer, images: jax.Array, kernel: jax.Array) -> Geometry | None:
    """Returns the way of the kernel over the images in the extension; None if this is not for it."""
    if not _goes_to_extension(images, layer.dtype) or not kernel.size:
        return None
    geometry = Geometry.of(images.shape, kernel.shape[:2], layer.stride, layer.padding)
    return geometry if geometry.is_usual else None


def _convolve(layer: _Layer, images: jax.Array, kernel: jax.Array) -> jax.Array:
    """XLA's, of one dtype, and nothing but the convolution."""
    strides = (layer.stride, layer.stride)
    return lax.conv_general_dilated(
        images, kernel, strides, layer.padding, dimension_numbers=("NHWC", "HWIO", "NHWC")
    )


def _as_xla_multiplies(layer: _Layer, images: jax.Array, kernel: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Both, rounded to the layer's dtype, in the one in which the backend has arithmetic."""
    wide = jnp.float32 if jax.default_backend() == "cpu" else layer.dtype
    numbers = scaled(images) if images.dtype == jnp.uint8 else images
    return numbers.astype(layer.dtype).astype(wide), kernel.astype(layer.dtype).astype(wide)


def _finished(layer: _Layer, products: jax.Array, bias: jax.Array) -> jax.Array:
    """Adds the bias to the products of a convolution, and rectifies them where the layer does."""
    out = (products + bias.astype(products.dtype)).astype(layer.dtype)
    return nn.relu(out) if layer.rectified else out


def _with_bias(layer: _Layer, images: jax.Array, kernel: jax.Array, bias: jax.Array) -> jax.Array:
    geometry = _geometry(layer, images, kernel)

    def extension(images: jax.Array, kernel: jax.Array, bias: jax.Array) -> jax.Array:
        assert geometry is not None
        return operations.convolve(
            images, kernel, bias, geometry, rectified=layer.rectified, dtype=layer.dtype
        )

    def otherwise(images: jax.Array, kernel: jax.Array, bias: jax.Array) -> jax.Array:
        products = _convolve(layer, *_as_xla_multiplies(layer, images, kernel))
        return _finished(layer, products, bias)

    return jnp.asarray(_lowered(extension if geometry else None, otherwise, images, kernel, bias))


def _is_small(images: jax.Array, kernel: jax.Array, layer: _Layer) -> bool:
    """Returns whether the product of matrices is the faster way."""
    pixels = images.shape[1] * images.shape[2]
    patch = kernel.shape[0] * kernel.shape[1] * kernel.shape[2]
    plain = layer.stride == 1 and layer.padding == "VALID" and jax.default_backend() == "cpu"
    return plain and pixels <= _SMALL_PIXELS and patch <= _SMALL_PATCH


def _multiply(layer: _Layer, images: jax.Array, kernel: jax.Array, bias: jax.Array) -> jax.Array:
    """The convolution of stride 1 without padding, as patches ``[N, H', W', kh * kw * in]`` times the kernel."""
    images, kernel = _as_xla_multiplies(layer, images, kernel)
    height, width, _, features = kernel.shape
    rows, columns = images.shape[1] - height + 1, images.shape[2] - width + 1
    shifted = [images[:, y : y + rows, x : x + columns] for y in range(height) for x in range(width)]
    return _finished(layer, jnp.concatenate(shifted, axis=-1) @ kernel.reshape(-1, features), bias)


def _forward(
    layer: _Layer, images: jax.Array, kernel: jax.Array, bias: jax.Array
) -> tuple[jax.Array, tuple[jax.Array, ...]]:
    """Keeps the result too, if it is rectified."""
    out = _with_bias(layer, images, kernel, bias)
    return out, (images, kernel, *([out] if layer.rectified else []))


def _backward(
    layer: _Layer, kept: tuple[jax.Array, ...], gradient: jax.Array
) -> tuple[jax.Array | None, jax.Array, jax.Array]:
    images, kernel, *rectified = kept
    geometry, of_bytes = _geometry(layer, images, kernel), images.dtype == jnp.uint8
    for out in rectified:
        gradient = _where_positive(out, gradient)

    def extension(images: jax.Array, kernel: jax.Array, gradient: jax.Array) -> tuple[jax.Array, ...]:
        assert geometry is not None
        weights = operations.by_kernel(images, gradient, kernel.shape[:2], geometry)
        if of_bytes:
            return weights
        return *weights, operations.by_images(gradient, kernel, images.shape, geometry)

    def otherwise(images: jax.Array, kernel: jax.Array, gradient: jax.Array) -> tuple[jax.Array, ...]:
        gradients = _gradients(layer, images, kernel, gradient)
        return gradients[:2] if of_bytes else gradients

    of_kernel, of_bias, *of_images = _lowered(
        extension if geometry else None, otherwise, images, kernel, gradient
    )
    return of_images[0] if of_images else None, of_kernel, of_bias


def _where_positive(out: jax.Array, gradient: jax.Array) -> jax.Array:
    """``gradient`` where ``out`` is larger than 0, which NaN is not, else 0.

    Widened first: XLA's CPU backend takes many times as long to choose between numbers of 16 bits.
    """
    chosen = jnp.where(out.astype(jnp.float32) > 0, gradient.astype(jnp.float32), 0)
    return chosen.astype(gradient.dtype)


def _gradients(
    layer: _Layer, images: jax.Array, kernel: jax.Array, gradient: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """XLA's, of kernel, bias and images."""
    images, kernel = _as_xla_multiplies(layer, images, kernel)
    gradient = gradient.astype(images.dtype)
    convolution = functools.partial(_convolve, layer)
    over_images, piece = convolution, max(1, len(images))
    if jax.default_backend() == "cpu" and images.size:
        piece = max(1, _CACHE_BYTES // images[0].nbytes, -(-len(images) // _MOST_PIECES))
        sides = (*images.shape[1:3], *kernel.shape[:2])
        if layer.stride > 1 and layer.padding == "VALID" and all(side % layer.stride == 0 for side in sides):
            over_images = functools.partial(_convolve_blocks, layer)
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
    of_bias = gradient.astype(jnp.float32).sum((0, 1, 2))
    return of_kernel.astype(jnp.float32), of_bias, of_images.astype(layer.dtype)


_with_gradients = jax.custom_vjp(_with_bias, nondiff_argnums=(0,))
_with_gradients.defvjp(_forward, _backward)


def _convolve_blocks(layer: _Layer, images: jax.Array, kernel: jax.Array) -> jax.Array:
    """The convolution without padding, as one of stride 1 over blocks of the stride's side."""
    side = layer.stride
    height, width, channels, features = kernel.shape
    blocks = kernel.reshape(height // side, side, width // side, side, channels, features)
    blocks = blocks.transpose(0, 2, 1, 3, 4, 5).reshape(height // side, width // side, -1, features)
    return _convolve(dataclasses.replace(layer, stride=1), _to_blocks(images, side), blocks)


def _to_blocks(images: jax.Array, side: int) -> jax.Array:
    """``[N, H, W, C]`` to ``[N, H / side, W / side, side * side * C]``."""
    n, height, width, channels = images.shape
    blocks = images.reshape(n, height // side, side, width // side, side, channels)
    return blocks.transpose(0, 1, 3, 2, 4, 5).reshape(n, height // side, width // side, -1)


def max_pool(images: jax.Array, window: int, stride: int) -> jax.Array:
    """Maximum over square patches, padding ``SAME``: ``[N, H, W, C]`` to ``[N, ceil(H/stride), …, C]``, in their dtype.

    It can be differentiated in reverse mode, once. Of equal maxima, the extension gives all of the gradient to the
    first; XLA shares it out among them.

    Raises:
      SpecError: it is differentiated twice.
    """
    return jnp.asarray(_pool_with_gradients(window, stride, images))


def _pool(images: jax.Array, window: int, stride: int) -> jax.Array:
    """XLA's."""
    layer = _over(images, window, stride)
    edges = ((0, 0), (layer.top, layer.bottom), (layer.left, layer.right), (0, 0))
    least = 0 if images.dtype == jnp.uint8 else -jnp.inf
    padded = jnp.pad(images, edges, constant_values=least)
    pooled = None
    for y in range(window):
        for x in range(window):
            last_row, last_column = y + (layer.out_height - 1) * stride, x + (layer.out_width - 1) * stride
            part = padded[:, y : last_row + 1 : stride, x : last_column + 1 : stride]
            pooled = part if pooled is None else jnp.maximum(pooled, part)
    assert pooled is not None
    return pooled


def _is_pooled_by_extension(images: jax.Array, window: int) -> bool:
    computed_as = jnp.float32 if images.dtype == jnp.uint8 else images.dtype
    return window <= _LARGEST_WINDOW and _goes_to_extension(images, jnp.dtype(computed_as))


def _pool_only(window: int, stride: int, images: jax.Array) -> jax.Array:
    def extension(images: jax.Array) -> jax.Array:
        return operations.pool(images, window, _over(images, window, stride))

    otherwise = functools.partial(_pool, window=window, stride=stride)
    return jnp.asarray(
        _lowered(extension if _is_pooled_by_extension(images, window) else None, otherwise, images)
    )


def _pool_forward(
    window: int, stride: int, images: jax.Array
) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    """Keeps the images, from which XLA finds the largest pixels, and their places, which the extension reads."""

    def extension(images: jax.Array) -> tuple[jax.Array, jax.Array]:
        return operations.pool_keeping(images, window, _over(images, window, stride))

    def otherwise(images: jax.Array) -> tuple[jax.Array, jax.Array]:
        pooled = _pool(images, window, stride)
        return pooled, jnp.zeros(pooled.shape, jnp.uint8)

    pooled, places = _lowered(
        extension if _is_pooled_by_extension(images, window) else None, otherwise, images
    )
    return pooled, (images, places)


def _pool_backward(
    window: int, stride: int, kept: tuple[jax.Array, jax.Array], gradient: jax.Array
) -> tuple[jax.Array | None]:
    images, _ = kept
    if images.dtype == jnp.uint8:
        return (None,)

    def extension(images: jax.Array, places: jax.Array, gradient: jax.Array) -> jax.Array:
        layer = _over(images, window, stride)
        return operations.pool_by_images(gradient, places, images.shape, window, layer)

    def otherwise(images: jax.Array, places: jax.Array, gradient: jax.Array) -> jax.Array:
        del places
        return jnp.asarray(jax.vjp(lambda x: _pool(x, window, stride), images)[1](gradient)[0])

    by_extension = _is_pooled_by_extension(images, window)
    return (_lowered(extension if by_extension else None, otherwise, *kept, gradient),)


_pool_with_gradients = jax.custom_vjp(_pool_only, nondiff_argnums=(0, 1))
_pool_with_gradients.defvjp(_pool_forward, _pool_backward)


def _over(images: jax.Array, window: int, stride: int) -> Geometry:
    return Geometry.of(images.shape, (window, window), stride, "SAME")


class Conv(nn.Module):
    """A convolution with bias: ``[N, H, W, C]`` to ``[N, H', W', features]``; weights are float32.

    Attributes:
      features, kernel, stride, padding: sizes of the layer; kernels are square.
      rectified, dtype: see :func:`convolve`.
      kernel_init: makes the kernel.

    Raises:
      SpecError: the image is smaller than the kernel (padding ``VALID``).
    """

    features: int
    kernel: int
    stride: int = 1
    padding: Padding = "SAME"
    rectified: bool = False
    dtype: DTypeLike = jnp.float32
    kernel_init: nn.initializers.Initializer = fan_in_normal

    @nn.compact
    def __call__(self, images: jax.Array) -> jax.Array:
        """Applies it."""
        height, width = images.shape[1:3]
        if self.padding == "VALID" and min(height, width) < self.kernel:
            raise SpecError(
                f"images of {height}x{width} are smaller than a {self.kernel}x{self.kernel} kernel"
            )
        shape = (self.kernel, self.kernel, images.shape[-1], self.features)
        kernel = self.param("kernel", self.kernel_init, shape)
        bias = self.param("bias", nn.initializers.zeros_init(), (self.features,))
        return convolve(
            images, kernel, bias, self.stride, self.padding, rectified=self.rectified, dtype=self.dtype
        )
