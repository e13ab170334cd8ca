"""The extension's functions, as JAX calls them: plain arithmetic on a CPU, with rules for vmap and without gradients.

Images are ``[N, H, W, C]``, float32 or bfloat16, or uint8, which stands for 0 … 1; kernels ``[kh, kw, in, out]`` and
biases ``[out]`` float32, and so are their gradients. They may only be lowered for a CPU, after
:func:`seedbed.nets.cpu.library.find` has found the dtype, and convolutions only if they are
:attr:`usual <Geometry.is_usual>`.
Computed in a loop they take no longer than outside of one, and twice the same inputs give the same bits, however many
cores there are.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

Shape = tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class Geometry:
    """The way of a kernel or a window over an image: its stride, rows and columns of padding, and the result's size.

    Attributes:
      is_usual: whether oneDNN is trusted with it: a kernel passes over no pixel, at the edges neither, and is no larger
        than the image. Of others it has code that reads and writes beyond the image (3.2, bfloat16).
    """

    stride: int
    top: int
    bottom: int
    left: int
    right: int
    out_height: int
    out_width: int
    is_usual: bool

    @classmethod
    def of(cls, images: Shape, window: Shape, stride: int, padding: Literal["SAME", "VALID"]) -> Geometry:
        """Of images ``[N, H, W, C]`` and a window ``[height, width]`` that is not larger, unless ``SAME``."""
        sides = list(zip(images[1:3], window, strict=True))
        rows, columns = (_along(size, side, stride, padding) for size, side in sides)
        usual = all(stride <= side <= size for size, side in sides) and all(
            (out - 1) * stride + side >= size + before
            for (size, side), (out, before, _) in zip(sides, (rows, columns), strict=True)
        )
        return cls(stride, *rows[1:], *columns[1:], rows[0], columns[0], usual)

    def attributes(self) -> dict[str, np.int64]:
        """As the extension takes it."""
        return {name: np.int64(getattr(self, name)) for name in ("stride", "top", "bottom", "left", "right")}


def _along(size: int, window: int, stride: int, padding: str) -> tuple[int, int, int]:
    """Output size, and padding before and after."""
    if padding == "VALID":
        return (size - window) // stride + 1, 0, 0
    out = -(-size // stride)
    missing = max((out - 1) * stride + window - size, 0)
    return out, missing // 2, missing - missing // 2


def convolve(
    images: jax.Array,
    kernel: jax.Array,
    bias: jax.Array,
    layer: Geometry,
    *,
    rectified: bool,
    dtype: jax.typing.DTypeLike,
) -> jax.Array:
    """``images * kernel + bias``, ``[N, H', W', out]`` in a dtype, to which the kernel is rounded first.

    Images are of that dtype, or uint8. With ``rectified`` negative results become 0, and NaN stays.
    """

    def call(images: jax.Array, kernel: jax.Array, bias: jax.Array) -> jax.Array:
        out = (len(images), layer.out_height, layer.out_width, kernel.shape[-1])
        result = jax.ShapeDtypeStruct(out, dtype)
        attributes = {"rectified": np.int64(rectified), **layer.attributes()}
        return _call("seedbed_convolve", result, images, kernel, bias, **attributes)

    return _batched(call, "n..")(images, kernel, bias)


def by_images(towards: jax.Array, kernel: jax.Array, images: Shape, layer: Geometry) -> jax.Array:
    """Returns the gradient of images of that shape; ``towards`` ``[N, H', W', out]`` is the results' gradient."""

    def call(towards: jax.Array, kernel: jax.Array) -> jax.Array:
        result = _like((len(towards), *images[1:]), towards)
        return _call("seedbed_convolution_by_images", result, towards, kernel, **layer.attributes())

    return _batched(call, "n.")(towards, kernel)


def by_kernel(
    images: jax.Array, towards: jax.Array, window: Shape, layer: Geometry
) -> tuple[jax.Array, jax.Array]:
    """The gradients of a kernel of that height and width, and of the bias."""

    def call(images: jax.Array, towards: jax.Array) -> tuple[jax.Array, jax.Array]:
        features = towards.shape[-1]
        shapes = ((*window, images.shape[-1], features), (features,))
        results = tuple(jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes)
        return _call("seedbed_convolution_by_kernel", results, images, towards, **layer.attributes())

    return _batched(call, "..")(images, towards)


def pool(images: jax.Array, window: int, layer: Geometry) -> jax.Array:
    """The maximum over square windows: ``[N, H', W', C]``."""

    def call(images: jax.Array) -> jax.Array:
        return _call(
            "seedbed_max_pool", _like(_pooled(images, layer), images), images, **_window(window, layer)
        )

    return _batched(call, "n")(images)


def pool_keeping(images: jax.Array, window: int, layer: Geometry) -> tuple[jax.Array, jax.Array]:
    """:func:`pool`, and where in each window the maximum was, uint8 ``[N, H', W', C]``, for :func:`pool_by_images`."""

    def call(images: jax.Array) -> tuple[jax.Array, jax.Array]:
        out = _pooled(images, layer)
        results = (_like(out, images), jax.ShapeDtypeStruct(out, jnp.uint8))
        return _call("seedbed_max_pool_keeping", results, images, **_window(window, layer))

    return _batched(call, "n")(images)


def pool_by_images(
    towards: jax.Array, places: jax.Array, images: Shape, window: int, layer: Geometry
) -> jax.Array:
    """The gradient of images of that shape: all of it goes to the first of equal maxima."""

    def call(towards: jax.Array, places: jax.Array) -> jax.Array:
        result = _like((len(towards), *images[1:]), towards)
        return _call("seedbed_max_pool_by_images", result, towards, places, **_window(window, layer))

    return _batched(call, "nn")(towards, places)


def _pooled(images: jax.Array, layer: Geometry) -> Shape:
    return len(images), layer.out_height, layer.out_width, images.shape[-1]


def _window(window: int, layer: Geometry) -> dict[str, np.int64]:
    return {"window": np.int64(window), **layer.attributes()}


def _like(shape: Shape, array: jax.Array) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, array.dtype)


def _call(target: str, results: Any, *arrays: jax.Array, **attributes: np.int64) -> Any:
    return jax.ffi.ffi_call(target, results)(*arrays, **attributes)


def _batched(call: Callable[..., Any], axes: str) -> Callable[..., Any]:
    """``call`` with a rule for vmap.

    Args:
      call: function of arrays.
      axes: a letter for each array: ``n`` if its first axis is N, and results have it too. Where exactly these
        are mapped over, the mapped axis is folded into N; elsewhere one call follows the other.
    """
    mapped = jax.custom_batching.custom_vmap(call)
    folds = [axis == "n" for axis in axes]

    @mapped.def_vmap
    def over(size: int, batched: list[bool], *arrays: jax.Array) -> tuple[Any, Any]:
        if any(folds) and list(batched) == folds:
            merged = [
                x.reshape(size * x.shape[1], *x.shape[2:]) if fold else x
                for x, fold in zip(arrays, folds, strict=True)
            ]
            n = arrays[folds.index(True)].shape[1]
            out = jax.tree.map(lambda y: y.reshape(size, n, *y.shape[1:]), mapped(*merged))
        else:
            out = lax.map(lambda some: mapped(*_merge(batched, arrays, some)), _split(batched, arrays))
        return out, jax.tree.map(lambda _: True, out)

    return mapped


def _split(batched: list[bool], arrays: tuple[jax.Array, ...]) -> list[jax.Array]:
    return [x for x, one_of_many in zip(arrays, batched, strict=True) if one_of_many]


def _merge(batched: list[bool], arrays: tuple[jax.Array, ...], some: list[jax.Array]) -> list[jax.Array]:
    rest = iter(some)
    return [next(rest) if one_of_many else x for x, one_of_many in zip(arrays, batched, strict=True)]
