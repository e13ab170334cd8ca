"""``python -m orchard.nets.native.proof EXTENSION LIBRARY``: whether the two compute what XLA does on this processor.

Prints ``{"version": …, "dtypes": […]}`` as its last line, or ends with another status than 0 and a line that says why,
or is ended by the processor, which is what a process of its own is for.
"""

from __future__ import annotations

import functools
import json
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from orchard.nets.native import library
from orchard.nets.native.operations import (
    Geometry,
    by_images,
    by_kernel,
    convolve,
    pool,
    pool_by_images,
    pool_keeping,
)

_IMAGES = 19  # pieces of two sizes
_TOLERANCE = {"float32": 1e-4, "bfloat16": 2e-2}


def main(extension: str, file: str) -> None:
    """Proves it, or raises :class:`SystemExit`."""
    opened = library.open_library(Path(extension), Path(file))
    dtypes = ["float32", "bfloat16"] if opened.orchard_has_bfloat16() else ["float32"]
    for dtype in dtypes:
        _prove(dtype)
    number = opened.orchard_version()
    version = f"{number // 10000}.{number // 100 % 100}.{number % 100}"
    print(json.dumps({"version": version, "dtypes": dtypes}))  # noqa: T201


def _prove(dtype: str) -> None:
    """Compares a convolution, a max-pool and their gradients with XLA's."""
    keys = jax.random.split(jax.random.key(0), 4)
    images = jax.random.normal(keys[0], (_IMAGES, 12, 10, 5)).astype(dtype)
    kernel, bias = jax.random.normal(keys[1], (3, 3, 5, 8)), jax.random.normal(keys[2], (8,))
    layer = Geometry.of(images.shape, kernel.shape[:2], 2, "SAME")

    def plain(images: jax.Array, kernel: jax.Array, bias: jax.Array) -> jax.Array:
        kernel = kernel.astype(images.dtype).astype(jnp.float32)
        padding = ((layer.top, layer.bottom), (layer.left, layer.right))
        numbers = ("NHWC", "HWIO", "NHWC")
        wide = images.astype(jnp.float32)
        return lax.conv_general_dilated(wide, kernel, (2, 2), padding, dimension_numbers=numbers) + bias

    out, pull = jax.vjp(plain, images, kernel, bias)
    towards = jax.random.normal(keys[3], out.shape).astype(dtype)
    expected = (out, *pull(towards.astype(jnp.float32)))
    by_kernel_and_bias = by_kernel(images, towards, kernel.shape[:2], layer)
    ours = (
        convolve(images, kernel, bias, layer),
        by_images(towards, kernel, images.shape, layer),
        *by_kernel_and_bias,
    )
    for what, found, wanted in zip(("a convolution", "its gradients", "", ""), ours, expected, strict=True):
        _compare(f"{what or 'its gradients'} in {dtype}", found, wanted, _TOLERANCE[dtype])
    _prove_pool(images, dtype)


def _prove_pool(images: jax.Array, dtype: str) -> None:
    layer = Geometry.of(images.shape, (3, 3), 2, "SAME")
    reduce = functools.partial(lax.reduce_window, init_value=-jnp.inf, computation=lax.max, padding="SAME")
    out, pull = jax.vjp(
        lambda x: reduce(x, window_dimensions=(1, 3, 3, 1), window_strides=(1, 2, 2, 1)),
        images.astype(jnp.float32),
    )
    pooled, places = pool_keeping(images, 3, layer)
    _compare(f"a max-pool in {dtype}", pooled, out, 0.0)
    _compare(f"a max-pool in {dtype}", pool(images, 3, layer), out, 0.0)
    ones = jnp.ones(out.shape, dtype)
    of_images = pool_by_images(ones, places, images.shape, 3, layer)
    _compare(f"the gradient of a max-pool in {dtype}", of_images, pull(jnp.ones(out.shape))[0], 0.0)


def _compare(what: str, found: Any, wanted: Any, tolerance: float) -> None:
    one, other = np.asarray(found, np.float64), np.asarray(wanted, np.float64)
    off = float(np.max(np.abs(one - other))) / max(1.0, float(np.max(np.abs(other))))
    if not off <= tolerance:
        sys.exit(f"{what} differs from XLA's by {off:.2g} of the largest number")


if __name__ == "__main__":
    main(*sys.argv[1:])
