"""What the gradients of dense layers' weights cost on this machine's processor, as XLA takes them and as Seedbed does.

``.venv/bin/python benchmarks/dense.py`` prints, for layers of several shapes, microseconds of a gradient (medians of
nine windows, in turn) and appends a row to ``benchmarks/results/dense.jsonl``.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median

import jax
from side_by_side import keep

from seedbed.nets.dense import multiply
from seedbed.timing.stages import provenance

LAYERS = {
    # Rows, inputs, outputs.
    "heads of a policy with two choices": (8256, 64, 3),
    "hidden layer": (8256, 64, 64),
    "first layer of MinAtar's Breakout": (8256, 400, 64),
    "first layer of CartPole": (8256, 4, 64),
    "dense layer of the Nature network": (672, 3136, 512),
}
CALLS, WINDOWS = 10, 9


def gradient(product: Callable[..., jax.Array]) -> Callable[..., object]:
    """Of the weights alone."""

    def of_kernel(rows: jax.Array, kernel: jax.Array, towards: jax.Array) -> object:
        return jax.vjp(lambda kernel: product(rows, kernel), kernel)[1](towards)

    return jax.jit(of_kernel)


def microseconds(function: Callable[..., object], *inputs: jax.Array) -> float:
    begun = time.perf_counter()
    for _ in range(CALLS):
        jax.block_until_ready(function(*inputs))
    return (time.perf_counter() - begun) / CALLS * 1e6


def main() -> None:
    measured_on = provenance()
    ways = {"xla": gradient(lambda rows, kernel: rows @ kernel), "seedbed": gradient(multiply)}
    layers = {}
    for name, (rows, inputs, outputs) in LAYERS.items():
        keys = jax.random.split(jax.random.key(0), 3)
        shapes = ((rows, inputs), (inputs, outputs), (rows, outputs))
        arrays = [jax.random.normal(key, shape) for key, shape in zip(keys, shapes, strict=True)]
        took: dict[str, list[float]] = {way: [] for way in ways}
        for window in range(WINDOWS + 1):  # the first one compiles
            for way, function in ways.items():
                spent = microseconds(function, *arrays)
                if window:
                    took[way].append(spent)
        layers[name] = {way: round(median(found)) for way, found in took.items()}
        print(f"{name:<36} {layers[name]['xla']:>8} {layers[name]['seedbed']:>8}", flush=True)
    keep("dense.jsonl", {"microseconds": layers, **measured_on})


if __name__ == "__main__":
    main()
