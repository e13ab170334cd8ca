"""What convolutional networks cost on this machine's processor, by XLA and by oneDNN, in turn in one session.

``.venv/bin/python benchmarks/convolutions.py`` prints frames/s (median, least and most of the rounds) of acting and of
a training step with the Nature, the shallow and the deep network, and appends a row to
``benchmarks/results/convolutions.jsonl``. Instead of that

- ``--layers`` does the same, in microseconds a frame, for the gradients of every layer alone;
- ``--loops``, for training steps one after the other and inside of a ``lax.scan``;
- ``--taken``, for the training step while something else takes one core;
- ``--runs``, in agent steps a second, for whole runs of Breakout, also while something else takes one core;
- ``--smoke`` with any of them tries it for a moment and keeps nothing.

It starts itself anew with the settings of the allocator that ``seedbed train`` has.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from statistics import median
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from side_by_side import keep, seedbed

from seedbed.launch.allocator import restart_tuned
from seedbed.nets.build import build_torso
from seedbed.nets.convolutions import Padding, convolve
from seedbed.nets.cpu import library
from seedbed.nets.network import Network
from seedbed.timing.stages import provenance
from seedbed.types import ArraySpec

SMOKE = "--smoke" in sys.argv
ROUNDS, WINDOW_SECONDS = (1, 0.0) if SMOKE else (7, 0.7)
NETWORKS = ("nature", "shallow", "deep")
FORWARD = (1, 8, 32, 128, 640)
TRAINED = 16 if SMOKE else 32 * 21
LOOPED, STEPS = (16, 2) if SMOKE else (128, 2)  # XLA makes some 50 frames/s in a loop
RUN_SECONDS = 20.0
RUNS = {
    "nature": "ALE/Breakout-v5 --network nature --actors 2 --envs-per-actor 32",
    "deep": "ALE/Breakout-v5 --network deep --actors 2 --envs-per-actor 16 --batch-size 8",
}
ATARI = ArraySpec((84, 84, 4), "uint8")
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

Calls = dict[str, Callable[[], object]]
"""What is compared, by name; each call computes it once."""


def ways() -> dict[str, tuple[str, str]]:
    """What is compared: the switch of the extension, and the dtype."""
    found = library.find().dtypes
    return {"xla": ("xla", "float32")} | {f"onednn {dtype}": ("auto", dtype) for dtype in found}


def compiled(way: tuple[str, str], function: Callable[..., Any], *inputs: Any) -> Callable[[], object]:
    """``function(*inputs)`` as that way lowers it."""
    os.environ[library.SWITCH] = way[0]
    program = jax.jit(function).lower(*inputs).compile()
    os.environ[library.SWITCH] = "auto"
    return lambda: jax.block_until_ready(program(*inputs))


def rates(calls: Calls) -> dict[str, list[float]]:
    """Calls a second: median, least and most of the windows, which take turns."""
    found: dict[str, list[float]] = {name: [] for name in calls}
    for call in calls.values():
        call()
    for _ in range(ROUNDS):
        for name, call in calls.items():
            begun, count = time.perf_counter(), 0
            while not count or time.perf_counter() - begun < WINDOW_SECONDS:
                call()
                count += 1
            found[name].append(count / (time.perf_counter() - begun))
    return {name: [median(rate), min(rate), max(rate)] for name, rate in found.items()}


def of_networks() -> dict[str, Any]:
    """Frames/s of acting and of training steps."""
    row: dict[str, Any] = {}
    for network in NETWORKS:
        images = np.random.default_rng(0).integers(0, 256, (max(TRAINED, *FORWARD), *ATARI.shape), np.uint8)
        for name, frames in (*((f"forward {n}", n) for n in FORWARD), (f"training step {TRAINED}", TRAINED)):
            make = training_step if name.startswith("training") else forward
            calls = {
                way: compiled(how, *make(network, how[1], images[:frames])) for way, how in ways().items()
            }
            row[f"{network} {name}"] = {
                way: [round(rate * frames) for rate in found] for way, found in rates(calls).items()
            }
            print(f"{network:<8} {name:<18}", row[f"{network} {name}"], flush=True)
    return row


def forward(network: str, dtype: str, images: Any) -> tuple[Any, ...]:
    """A function, and its inputs."""
    torso = build_torso(Network(network, compute_dtype=dtype), ATARI)
    return torso.apply, torso.init(jax.random.key(0), images[:1]), jnp.asarray(images)


def training_step(network: str, dtype: str, images: Any) -> tuple[Any, ...]:
    """A function, and its inputs; it returns weights that are a step further."""
    apply, weights, batch = forward(network, dtype, images)

    def step(weights: Any, images: Any) -> Any:
        gradient = jax.grad(lambda weights: (apply(weights, images) ** 2).mean())(weights)
        return jax.tree.map(lambda weight, down: weight - 1e-3 * down, weights, gradient)

    return step, weights, batch


def of_layers() -> dict[str, Any]:
    """Microseconds a frame of the gradients of each layer: lax's own, Seedbed's on XLA, and oneDNN's."""
    row: dict[str, Any] = {}
    for name, (image, side, stride, features, padding) in LAYERS.items():
        keys = jax.random.split(jax.random.key(0), 2)
        images = jax.random.normal(keys[0], (TRAINED, *image))
        kernel = jax.random.normal(keys[1], (side, side, image[-1], features))

        def plain(images: Any, kernel: Any, stride: int = stride, padding: Padding = padding) -> Any:
            return lax.conv_general_dilated(
                images, kernel, (stride, stride), padding, dimension_numbers=("NHWC", "HWIO", "NHWC")
            )

        def ours(images: Any, kernel: Any, stride: int = stride, padding: Padding = padding) -> Any:
            return convolve(images, kernel, jnp.zeros(kernel.shape[-1]), stride, padding)

        calls = {"lax": compiled(("xla", "float32"), *gradients(plain, images, kernel, name))}
        for way, (switch, dtype) in ways().items():
            inputs = images.astype(dtype), kernel
            calls[way] = compiled((switch, dtype), *gradients(ours, *inputs, name))
        row[name] = {
            way: [round(1e6 / rate / TRAINED, 1) for rate in found] for way, found in rates(calls).items()
        }
        print(f"{name}: {row[name]} microseconds a frame", flush=True)
    return row


def gradients(convolution: Callable[..., jax.Array], images: Any, kernel: Any, name: str) -> tuple[Any, ...]:
    """A function of kernel and images, and its inputs; the images of a network's first layer need no gradient."""
    towards = jnp.ones(jax.eval_shape(convolution, images, kernel).shape, images.dtype)

    def pull(images: Any, kernel: Any, towards: Any) -> Any:
        of_images, of_kernel = jax.vjp(convolution, images, kernel)[1](towards)
        return of_kernel if name.endswith(" 1") else (of_images, of_kernel)

    return pull, images, kernel, towards


def of_loops() -> dict[str, Any]:
    """Frames/s of training steps, one after the other and in a loop of one program."""
    row: dict[str, Any] = {}
    images = np.random.default_rng(0).integers(0, 256, (LOOPED, *ATARI.shape), np.uint8)
    for network in NETWORKS[:1] if SMOKE else NETWORKS[:2]:
        calls: Calls = {}
        for way, how in ways().items():
            step, weights, batch = training_step(network, how[1], images)

            def loop(weights: Any, batch: Any, step: Callable[..., Any] = step) -> Any:
                return lax.scan(lambda w, _: (step(w, batch), None), weights, None, length=STEPS)[0]

            once = compiled(how, step, weights, batch)
            calls[way] = lambda once=once: [once() for _ in range(STEPS)]
            calls[f"{way}, in a loop"] = compiled(how, loop, weights, batch)
        found = rates(calls)
        row[network] = {way: [round(rate * LOOPED * STEPS) for rate in found[way]] for way in calls}
        print(network, row[network], flush=True)
    return row


@contextlib.contextmanager
def core_taken() -> Iterator[None]:
    """Something else computes all the time, on the last core."""
    program = f"import os\nos.sched_setaffinity(0, {{{max(os.sched_getaffinity(0))}}})\nwhile True: pass"
    busy = subprocess.Popen([sys.executable, "-c", program])
    try:
        yield
    finally:
        busy.kill()
        busy.wait()


SURROUNDINGS: dict[str, Callable[[], contextlib.AbstractContextManager[None]]] = {
    "free": contextlib.nullcontext,
    "one core taken": core_taken,
}


def of_a_taken_core() -> dict[str, Any]:
    """Frames/s of a training step where all cores are free, and where one is taken."""
    row: dict[str, Any] = {}
    images = np.random.default_rng(0).integers(0, 256, (TRAINED, *ATARI.shape), np.uint8)
    for network in NETWORKS[:1]:
        calls = {way: compiled(how, *training_step(network, how[1], images)) for way, how in ways().items()}
        for name, around in SURROUNDINGS.items():
            with around():
                found = rates(calls)
            row[f"{network}, {name}"] = {
                way: [round(rate * TRAINED) for rate in few] for way, few in found.items()
            }
            print(f"{network}, {name}", row[f"{network}, {name}"], flush=True)
    return row


def of_runs() -> dict[str, Any]:
    """Agent steps a second of whole runs, in turn."""
    row: dict[str, Any] = {}
    for network, flags in RUNS.items():
        for name, around in SURROUNDINGS.items():
            if name != "free" and network != "nature":
                continue
            found: dict[str, list[int]] = {way: [] for way in ways()}
            for _ in range(1 if SMOKE else 3):
                for way, (switch, dtype) in ways().items():
                    os.environ[library.SWITCH] = switch
                    with around():
                        rate = seedbed(f"{flags} --compute-dtype {dtype}", 5.0 if SMOKE else RUN_SECONDS)
                    found[way].append(round(rate))
                    print(f"{network}, {name}, {way}: {rate:.0f} steps/s", flush=True)
            os.environ[library.SWITCH] = "auto"
            row[f"{network}, {name}"] = found
    return row


KINDS: dict[str, tuple[str, Callable[[], dict[str, Any]]]] = {
    "--layers": ("microseconds_a_frame", of_layers),
    "--loops": ("frames_per_second_in_loops", of_loops),
    "--taken": ("frames_per_second_beside_others", of_a_taken_core),
    "--runs": ("agent_steps_per_second", of_runs),
}


def main() -> None:
    measured_on = provenance()
    unit, measure = next(
        (KINDS[word] for word in sys.argv if word in KINDS), ("frames_per_second", of_networks)
    )
    row: dict[str, Any] = {unit: measure()}
    if unit != "agent_steps_per_second":
        row |= {"frames": LOOPED if unit.endswith("loops") else TRAINED, "rounds": ROUNDS}
    if not SMOKE:
        keep("convolutions.jsonl", {**row, **measured_on})


if __name__ == "__main__":
    restart_tuned()
    main()
