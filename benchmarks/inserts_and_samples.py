"""Times the replay on this machine: inserts and samples of Atari's frames, beside what its memory can copy at all.

``.venv/bin/python benchmarks/inserts_and_samples.py [--seconds 5] [--gigabytes 2]`` prints a line a measurement and
appends a row to ``benchmarks/results/replay.jsonl`` (not with ``--no-row``). Sequences are those of R2D2 (80
transitions and 40 to warm up), transitions those of DQN with three steps and a stack of four frames.
"""

from __future__ import annotations

import argparse
import itertools
import json
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import psutil
from side_by_side import keep, measured_on

from seedbed.replay.replay import Replay, bytes_per_step
from seedbed.types import DataPlan, ReplayPlan, TimeStep, Unroll, leaves

FRAME = (84, 84)
ENVS = 32
PLANS = {
    # T, overlap, window, first transition that is trained on, items in a batch.
    "sequences": (80, 40, 120, 40, 64),
    "transitions": (20, 6, 7, 3, 512),
}


def unroll_of(length: int, rows: int, random: np.random.Generator) -> Unroll:
    steps, decisions = (length + 1, rows), (length, rows)
    flags = np.zeros(steps, bool)
    return Unroll(
        TimeStep(
            random.integers(0, 256, (*steps, *FRAME), np.uint8),
            np.zeros(steps, np.float32),
            flags,
            flags,
            flags,
        ),
        action=np.zeros(decisions, np.int32),
        record={"value": np.zeros(decisions, np.float32)},
        state={"h": np.zeros((rows, 512), np.float32), "c": np.zeros((rows, 512), np.float32)},
        version=np.zeros(decisions, np.int32),
    )


def plan_of(kind: str, gigabytes: float) -> DataPlan:
    length, overlap, window, start, batch = PLANS[kind]
    capacity = int(gigabytes * 1e9 / np.prod(FRAME)) // length * length
    replay = ReplayPlan(capacity, 1, None, window, start, priority_exponent=0.6, importance_exponent=0.4)
    return DataPlan(length, batch, overlap=overlap, replay=replay)


def rate(work: Callable[[], object], seconds: float) -> float:
    """How often a second it can be done."""
    work()
    begun, done = time.perf_counter(), 0
    while time.perf_counter() < begun + seconds:
        work()
        done += 1
    return done / (time.perf_counter() - begun)


def copies(seconds: float) -> float:
    """GB/s of a plain copy that is larger than any cache, counted once (not once read and once written)."""
    source = np.ones(256 << 20, np.uint8)
    target = np.empty_like(source)
    return rate(lambda: np.copyto(target, source), seconds) * source.nbytes / 1e9


def measure(kind: str, gigabytes: float, seconds: float) -> dict[str, Any]:
    plan = plan_of(kind, gigabytes)
    random = np.random.default_rng(0)
    length, streams = plan.unroll_length, np.arange(ENVS)
    unroll = unroll_of(plan.overlap + length, ENVS, random)
    example = unroll_of(plan.overlap + length, 1, random)
    empty = psutil.Process().memory_info().rss
    replay = Replay(plan, example, batch_size=plan.batch_size, largest_insert=ENVS * length, seed=0)
    ends = itertools.count(plan.overlap + length, length)

    def insert() -> None:
        replay.offer(unroll, streams, next(ends))

    def sample() -> None:
        taken = replay.take(0.0)
        assert taken is not None
        replay.update(taken.items, taken.generations, random.random(plan.batch_size))

    while replay.fill < 1:
        insert()
    held = psutil.Process().memory_info().rss - empty
    taken = replay.take(0.0)
    assert taken is not None
    shown = sum(x.nbytes for _, x in leaves(taken.unroll.timestep._asdict()))
    inserts = rate(insert, seconds)
    samples = rate(sample, seconds)
    steps = ENVS * length
    return {
        "inserted_steps_per_second": round(inserts * steps),
        "insert_gb_per_second": round(inserts * steps * bytes_per_step(plan, example) / 1e9, 3),
        "sampled_items_per_second": round(samples * plan.batch_size),
        "sample_gb_per_second": round(samples * shown / 1e9, 3),
        "bytes_per_step": round(bytes_per_step(plan, example), 1),
        "bytes_per_step_measured": round(held / replay.capacity, 1),
        "transitions": replay.capacity,
    }


def read(words: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--seconds", type=float, default=5.0, help="of each measurement")
    parser.add_argument("--gigabytes", type=float, default=2.0, help="of frames that each replay holds")
    parser.add_argument("--no-row", action="store_true", help="print only")
    return parser.parse_args(words)


def main() -> None:
    given = read()
    row = measured_on()
    result: dict[str, Any] = {"copy_gb_per_second": round(copies(given.seconds), 3)}
    print(json.dumps(result), flush=True)
    for kind in PLANS:
        result[kind] = measure(kind, given.gigabytes, given.seconds)
        print(json.dumps({kind: result[kind]}), flush=True)
    if not given.no_row:
        keep("replay.jsonl", {**result, "seconds": given.seconds, "gigabytes": given.gigabytes, **row})


if __name__ == "__main__":
    main()
