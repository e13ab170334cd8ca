"""Streams whose every step says whose it is and which, so that a window that mixes two of them gives itself away."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from seedbed.types import DataPlan, ReplayPlan, TimeStep, Unroll


def number(stream: Any, step: Any, salt: int) -> Any:
    """A number in [0, 2**31) for each stream and step, unlike all others; arrays are broadcast."""
    mixed = np.asarray(stream, np.uint64) * np.uint64(0x9E3779B97F4A7C15) + np.asarray(step, np.uint64)
    mixed = (mixed ^ (mixed >> np.uint64(29))) * np.uint64(0xBF58476D1CE4E5B9) + np.uint64(salt)
    mixed = (mixed ^ (mixed >> np.uint64(32))) * np.uint64(0x94D049BB133111EB)
    return mixed >> np.uint64(33)


def stretch(streams: Sequence[int], end: int, length: int, lives: Sequence[int] | None = None) -> Unroll:
    """The unroll ``[length + 1, B, ...]`` that ends with step ``end``; a stream's ``lives`` change its content."""
    row = np.asarray(streams, np.int64) + 1000 * np.asarray(lives or [0] * len(streams))
    step = end - length + np.arange(length + 1)[:, None] + 1000
    drawn = number(row, step, 1)
    first = drawn % 5 == 0
    ended = (drawn % 7 == 0) & ~first
    who = np.stack(np.broadcast_arrays(row, step), axis=-1)
    frame = (drawn[..., None] >> np.arange(0, 24, 8, dtype=np.uint64)).astype(np.uint8)
    decided = number(row, step[:-1], 2)
    return Unroll(
        timestep=TimeStep(
            {"who": who, "frame": frame}, drawn.astype(np.float32), ended, ended & (drawn % 2 == 0), first
        ),
        action=(decided % 18).astype(np.int32),
        record={"q": {"values": np.stack([decided, decided + 1], axis=-1).astype(np.float32)}},
        state={"h": number(row, step[0], 3).astype(np.float32)[:, None] * np.ones(4, np.float32)},
        version=(decided % 1000).astype(np.int32),
    )


def example(plan: DataPlan) -> Unroll:
    """What its unrolls look like, of one environment, with nothing in it."""
    unroll = stretch([0], 0, plan.overlap + plan.unroll_length)
    zeros = np.zeros_like
    step = unroll.timestep
    return Unroll(
        TimeStep({name: zeros(x) for name, x in step.observation.items()}, *map(zeros, step[1:])),
        zeros(unroll.action),
        {"q": {"values": zeros(unroll.record["q"]["values"])}},
        {"h": zeros(unroll.state["h"])},
        zeros(unroll.version),
    )


def plan_of(
    kind: str,
    *,
    length: int,
    overlap: int,
    capacity: int,
    min_size: int = 1,
    ratio: float | None = None,
    start: int = 0,
    **exponents: float,
) -> DataPlan:
    """A plan of ``"sequences"`` or ``"transitions"``."""
    window = overlap + (length if kind == "sequences" else 1)
    replay = ReplayPlan(capacity, min_size, ratio, window, min(start, window - 1), **exponents)
    return DataPlan(length, batch_size=4, overlap=overlap, replay=replay)


def arrays(unroll: Unroll, *, weight: bool = False) -> dict[str, NDArray[Any]]:
    """All arrays of an unroll of this kind, by name."""
    step = unroll.timestep
    named = {**step.observation, **dict(zip(step._fields[1:], step[1:], strict=True))}
    named |= {"action": unroll.action, "q": unroll.record["q"]["values"], "version": unroll.version}
    named["h"] = unroll.state["h"]
    return named | ({"weight": unroll.weight} if weight else {})


def column(unroll: Unroll, row: int) -> dict[str, NDArray[Any]]:
    """One environment of it."""
    return {name: x[row] if name == "h" else x[:, row] for name, x in arrays(unroll).items()}


def window_of(unroll: Unroll, row: int, last: int, window: int) -> dict[str, NDArray[Any]]:
    """A copy of the window of one environment that ends at step ``last`` of the unroll; its state is left out."""
    decided = {"action", "q", "version"}
    return {
        name: x[last - window : last + (name not in decided)].copy()
        for name, x in column(unroll, row).items()
        if name != "h"
    }
