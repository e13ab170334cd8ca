"""What the gradients of convolutions cost on this machine's processor, as XLA takes them and as Orchard does.

``.venv/bin/python benchmarks/convolutions.py`` prints, for every convolution of the networks, microseconds a frame
(medians of nine, one after the other in turn) and appends a row to ``benchmarks/results/convolutions.jsonl``.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import jax
from jax import lax

from orchard.launch.bench import provenance
from orchard.nets.convolutions import Padding, convolve

RESULTS = Path(__file__).parent / "results" / "convolutions.jsonl"
FRAMES = 32 * 21
LAYERS: dict[str, tuple[tuple[int, int, int], int, int, int, Padding]] = {
    # Image, kernel, stride, filters, padding.
    "nature 1": ((84, 84, 4), 8, 4, 32, "VALID"),
    "nature 2": ((20, 20, 32), 4, 2, 64, "VALID"),
    "nature 3": ((9, 9, 64), 3, 1, 64, "VALID"),
    "pooled 1": ((42, 42, 4), 4, 2, 16, "VALID"),
    "pooled 2": ((20, 20, 16), 4, 2, 16, "VALID"),
    "deep 1": ((72, 96, 3), 3, 1, 16, "SAME"),
    "deep 2": ((36, 48, 16), 3, 1, 16, "SAME"),
    "deep 3": ((18, 24, 32), 3, 1, 32, "SAME"),
}


def plain(images: jax.Array, kernel: jax.Array, stride: int, padding: Padding) -> jax.Array:
    return lax.conv_general_dilated(
        images, kernel, (stride, stride), padding, dimension_numbers=("NHWC", "HWIO", "NHWC")
    )


def gradients(
    convolution: Callable[..., jax.Array], stride: int, padding: Padding, *, first: bool
) -> Callable[..., object]:
    """Of kernel and images; the images of a network's first layer need none."""

    def pull(images: jax.Array, kernel: jax.Array, towards: jax.Array) -> object:
        of_images, of_kernel = jax.vjp(lambda *inputs: convolution(*inputs, stride, padding), images, kernel)[
            1
        ](towards)
        return of_kernel if first else (of_images, of_kernel)

    return jax.jit(pull)


def seconds(function: Callable[..., object], *inputs: jax.Array) -> float:
    begun = time.perf_counter()
    jax.block_until_ready(function(*inputs))
    return time.perf_counter() - begun


def main() -> None:
    row = {}
    for name, (image, side, stride, features, padding) in LAYERS.items():
        keys = jax.random.split(jax.random.key(0), 3)
        images = jax.random.normal(keys[0], (FRAMES, *image))
        kernel = jax.random.normal(keys[1], (side, side, image[-1], features))
        towards = jax.random.normal(keys[2], plain(images, kernel, stride, padding).shape)
        ways = {
            way: gradients(convolution, stride, padding, first=name.endswith("1"))
            for way, convolution in (("xla", plain), ("orchard", convolve))
        }
        compiling = {way: seconds(function, images, kernel, towards) for way, function in ways.items()}
        times: dict[str, list[float]] = {way: [] for way in ways}
        for _ in range(9):
            for way, function in ways.items():
                times[way].append(seconds(function, images, kernel, towards))
        row[name] = {way: round(median(taken) / FRAMES * 1e6, 1) for way, taken in times.items()}
        print(
            f"{name}: {row[name]} microseconds a frame; first call",
            {w: f"{s:.1f} s" for w, s in compiling.items()},
        )
    with RESULTS.open("a") as file:
        file.write(json.dumps({"frames": FRAMES, "microseconds_a_frame": row, **provenance()}) + "\n")


if __name__ == "__main__":
    main()
