"""Kills a run that has a large replay, and looks whether anything of its checkpoint is lost.

``.venv/bin/python benchmarks/resume.py [--gigabytes 1.05] [--rounds 3] [--env ALE/Pong-v5]`` trains DQN until its
replay has so much in it, kills it with SIGKILL while its second checkpoint is written, puts the first one into a new
replay, compares the two by a digest of every array, and lets ``seedbed resume`` learn on. It prints what learning
waited for, how long writing and reading took, and appends a row to ``benchmarks/results/resume.jsonl`` (not with
``--no-row``).
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from side_by_side import SEEDBED, keep, measured_on

from seedbed.acting.lag import FreeLag
from seedbed.launch.build import build_agent, build_spec
from seedbed.launch.folder import RunFolder
from seedbed.learning.checkpoint import Checkpoint, load_latest
from seedbed.learning.memory import make_replay
from seedbed.metrics.sinks import read_rows
from seedbed.replay.replay import Replay
from seedbed.seeding import integer

FRAME_BYTES = 84 * 84
PATIENCE = 1200.0


@contextmanager
def started(*words: str) -> Iterator[subprocess.Popen[bytes]]:
    """A command that is killed at the end, whatever happens; its actors end with it."""
    child = subprocess.Popen([*SEEDBED, *words], stdout=subprocess.DEVNULL)
    try:
        yield child
    finally:
        child.send_signal(signal.SIGKILL)
        child.wait()


def until(there: Callable[[], bool], child: subprocess.Popen[bytes], what: str) -> float:
    """Waits until something is there, for seconds that are returned."""
    begun = time.monotonic()
    while not there():
        if child.poll() is not None or time.monotonic() > begun + PATIENCE:
            raise SystemExit(
                f"no {what}: the run ended with {child.poll()} after {time.monotonic() - begun:.0f} s"
            )
        time.sleep(0.05)
    return time.monotonic() - begun


def digests(pieces: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """SHA-256 of every array, whatever the pieces are that it comes in."""
    found: dict[str, Any] = {}
    for piece in pieces:
        for name, array in piece.items():
            found.setdefault(name, hashlib.sha256()).update(
                np.ascontiguousarray(array).reshape(-1).view(np.uint8)
            )
    return {name: one.hexdigest() for name, one in found.items()}


def empty_replay(run: Path) -> Replay:
    """A replay like the run's, with nothing in it."""
    config = RunFolder(run).config()
    spec = build_spec(config)
    agent = build_agent(config, spec)
    place = config.placement
    acting = place.actors * place.envs_per_actor - place.eval_envs
    return make_replay(
        agent,
        spec,
        lag=FreeLag(),
        batch_size=agent.data.batch_size,
        acting=acting,
        largest_insert=place.largest_batch,
        seed=integer(config.seed, "replay", 0),
    )


def train_and_kill(run: Path, env: str, transitions: int) -> list[dict[str, Any]]:
    """Leaves one checkpoint, and a second one that is half written; returns the rows."""
    words = [
        "train",
        env,
        "--agent",
        "dqn",
        "--run-dir",
        str(run),
        "--no-video",
        "--checkpoint-minutes",
        "0.25",
    ]
    words += ["--replay-size", str(transitions), "--replay-min-size", str(transitions - transitions // 50)]
    checkpoints = run / "checkpoints"
    with started(*words) as child:
        until(lambda: any(checkpoints.glob("0*")), child, "first checkpoint")
        until(lambda: any(checkpoints.glob(".writing-*/replay.000003*")), child, "second checkpoint begun")
        os.kill(child.pid, signal.SIGKILL)
        child.wait()
    return list(read_rows(run / "metrics.jsonl"))


def put_back(run: Path) -> tuple[Checkpoint, dict[str, Any]]:
    """Reads the newest checkpoint into a new replay, with how long it took; ends the script if anything differs."""
    replay = empty_replay(run)
    begun = time.monotonic()
    checkpoint = load_latest(run / "checkpoints")
    verified = time.monotonic()
    replay.restore(checkpoint.pieces("replay"), checkpoint.meta["replay"])
    restored = time.monotonic()
    saved, (again, _) = digests(checkpoint.pieces("replay")), replay.snapshot()
    if checkpoint.skipped or digests(again) != saved:
        raise SystemExit(f"what was restored is not what {checkpoint.path} holds {checkpoint.skipped}")
    return checkpoint, {
        "transitions": len(replay),
        "unsampled": replay.unsampled,
        "bytes": sum(file.stat().st_size for file in checkpoint.path.glob("replay.*")),
        "verify_seconds": verified - begun,
        "restore_seconds": restored - verified,
        "digest": hashlib.sha256(json.dumps(saved, sort_keys=True).encode()).hexdigest(),
    }


def go_on(run: Path, checkpoint: Checkpoint, transitions: int) -> float:
    """Resumes the run until it has learned; returns seconds to its first new row."""
    before = len(list(read_rows(run / "metrics.jsonl")))

    def learned() -> bool:
        rows = list(read_rows(run / "metrics.jsonl"))[before:]
        return any(row["updates"] > checkpoint.meta["version"] for row in rows)

    with started("resume", str(run)) as child:
        seconds = until(learned, child, "update after the resumption")
    first = list(read_rows(run / "metrics.jsonl"))[before]
    if first["replay_transitions"] < 0.98 * transitions:
        raise SystemExit(
            f"{transitions} transitions were restored, and {first['replay_transitions']} are there"
        )
    return seconds


def measure(env: str, gigabytes: float) -> dict[str, Any]:
    """One run, its end, and what is there afterwards."""
    transitions = int(gigabytes * 1e9 / FRAME_BYTES)
    with tempfile.TemporaryDirectory(prefix="seedbed-resume-") as scratch:
        run = Path(scratch) / "run"
        rows = train_and_kill(run, env, transitions)
        checkpoint, found = put_back(run)
        written = [row for row in rows if "checkpoint_seconds" in row]
        return {
            **found,
            "pause_seconds": written[0]["checkpoint_pause_seconds"],
            "write_seconds": written[0]["checkpoint_seconds"],
            "resumed_after_seconds": go_on(run, checkpoint, found["transitions"]),
        }


def read(words: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--env", default="ALE/Pong-v5")
    parser.add_argument("--gigabytes", type=float, default=1.05, help="of frames in the replay")
    parser.add_argument("--rounds", type=int, default=3, help="runs; what is told is the median")
    parser.add_argument("--no-row", action="store_true", help="print only")
    return parser.parse_args(words)


def main() -> None:
    given = read()
    rounds = []
    for _ in range(given.rounds):
        rounds.append(measure(given.env, given.gigabytes))
        print(json.dumps(rounds[-1]), flush=True)
    middle = {name: round(median(one[name] for one in rounds), 3) for name in rounds[0] if name != "digest"}
    print(json.dumps({"median": middle}), flush=True)
    if not given.no_row:
        row = {"env": given.env, "gigabytes": given.gigabytes, "median": middle, "rounds": rounds}
        keep("resume.jsonl", {**row, **measured_on()})


if __name__ == "__main__":
    main()
