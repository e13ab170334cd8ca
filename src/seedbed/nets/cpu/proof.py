"""``python -m seedbed.nets.cpu.proof EXTENSION LIBRARY``: compares the two with XLA on this processor.

Prints ``{"version": …, "dtypes": […]}`` as its last line, or ends with another status than 0 and a line that says why,
or is ended by the processor, hence a process of its own.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from seedbed.nets.cpu import library
from seedbed.nets.cpu.operations import (
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
_NEAR_ZERO = 0.05


def main(extension: str, file: str) -> None:
    """Proves it, or raises :class:`SystemExit`."""
    opened = library.open_library(Path(extension), Path(file))
    dtypes = ["float32", "bfloat16"] if opened.seedbed_has_bfloat16() else ["float32"]
    for dtype in dtypes:
        _prove(dtype)
    number = opened.seedbed_version()
    version = f"{number // 10000}.{number // 100 % 100}.{number % 100}"
    print(json.dumps({"version": version, "dtypes": dtypes}))  # noqa: T201


def _prove(dtype: str) -> None:
    """Compares a convolution, plain of numbers and rectified of bytes, max-pools and their gradients with XLA's."""
    random = np.random.default_rng(0)
    images = jnp.asarray(random.normal(size=(_IMAGES, 12, 10, 5)), dtype)
    _prove_convolution(images, images.astype(jnp.float32), dtype, rectified=False)
    shades = jnp.asarray(random.integers(0, 256, images.shape), jnp.uint8)
    _prove_convolution(shades, shades.astype(jnp.float32) / 255, dtype, rectified=True)
    _prove_pool(images, dtype)
    layer = Geometry.of(shades.shape, (3, 3), 2, "SAME")
    _compare("a max-pool of bytes", pool(shades, 3, layer), _plain_pool(shades.astype(jnp.float32)), 0.0)


def _prove_convolution(images: jax.Array, numbers: jax.Array, dtype: str, *, rectified: bool) -> None:
    keys = jax.random.split(jax.random.key(0), 3)
    kernel, bias = jax.random.normal(keys[0], (3, 3, 5, 8)), jax.random.normal(keys[1], (8,))
    layer = Geometry.of(images.shape, kernel.shape[:2], 2, "SAME")

    def plain(numbers: jax.Array, kernel: jax.Array, bias: jax.Array) -> jax.Array:
        numbers, kernel = (x.astype(dtype).astype(jnp.float32) for x in (numbers, kernel))
        padding = ((layer.top, layer.bottom), (layer.left, layer.right))
        axes = ("NHWC", "HWIO", "NHWC")
        out = lax.conv_general_dilated(numbers, kernel, (2, 2), padding, dimension_numbers=axes) + bias
        return jnp.maximum(out, 0) if rectified else out

    wanted, pull = jax.vjp(plain, numbers, kernel, bias)
    towards = jax.random.normal(keys[2], wanted.shape).astype(dtype)
    if rectified:  # What is near 0 may be rounded to either side of it.
        towards = jnp.where(wanted < _NEAR_ZERO, 0, towards)
    out = convolve(images, kernel, bias, layer, rectified=rectified, dtype=dtype)
    of_numbers, *of_weights = pull(towards.astype(jnp.float32))
    found = [out, *by_kernel(images, towards, kernel.shape[:2], layer)]
    expected = [wanted, *of_weights]
    if images.dtype != jnp.uint8:
        found.append(by_images(towards, kernel, images.shape, layer))
        expected.append(of_numbers)
    names = ("a convolution", *["a convolution's gradient"] * 3)
    for name, ours, xlas in zip(names, found, expected, strict=False):
        _compare(f"{name} in {dtype}", ours, xlas, _TOLERANCE[dtype])


def _prove_pool(images: jax.Array, dtype: str) -> None:
    layer = Geometry.of(images.shape, (3, 3), 2, "SAME")
    out, pull = jax.vjp(_plain_pool, images.astype(jnp.float32))
    pooled, places = pool_keeping(images, 3, layer)
    _compare(f"a max-pool in {dtype}", pooled, out, 0.0)
    _compare(f"a max-pool in {dtype}", pool(images, 3, layer), out, 0.0)
    ones = jnp.ones(out.shape, dtype)
    of_images = pool_by_images(ones, places, images.shape, 3, layer)
    _compare(f"the gradient of a max-pool in {dtype}", of_images, pull(jnp.ones(out.shape))[0], 0.0)


def _plain_pool(images: jax.Array) -> jax.Array:
    return jnp.asarray(lax.reduce_window(images, -jnp.inf, lax.max, (1, 3, 3, 1), (1, 2, 2, 1), "SAME"))


def _compare(what: str, found: Any, wanted: Any, tolerance: float) -> None:
    one, other = np.asarray(found, np.float64), np.asarray(wanted, np.float64)
    off = float(np.max(np.abs(one - other))) / max(1.0, float(np.max(np.abs(other))))
    if not off <= tolerance:
        print(f"{what} differs from XLA's by {off:.2g} of the largest number", file=sys.stderr)  # noqa: T201
        sys.exit(library.DIFFERS)


if __name__ == "__main__":
    main(*sys.argv[1:])
