"""Environments as if none had a preset of its own, beside Stable-Baselines3's PPO as it comes, at equal steps.

``.venv/bin/python benchmarks/out_of_the_box.py PYTHON_OF_THE_PEER [--tasks CartPole …] [--seeds 0 1 2]`` trains the two
in turn and appends a row for each task to ``benchmarks/results/peers.jsonl``; what the peer needs stands in
``benchmarks/peers/sb3_ppo.py``. Scores are means of 100 episodes after training, by the most likely actions. With
``--runs FOLDER`` what each seed came to is kept there, and a second call makes those that are missing.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import mean
from typing import Any

from side_by_side import SEEDBED, keep, last_line, measured_on, peers_line

HERE = Path(__file__).resolve().parent
TASKS = {
    "CartPole": ("CartPole-v1", 100_000),
    "Acrobot": ("Acrobot-v1", 300_000),
    "Pendulum": ("Pendulum-v1", 200_000),
    "MountainCarContinuous": ("MountainCarContinuous-v0", 200_000),
    "LunarLander": ("LunarLander-v3", 300_000),
    "PointReach": ("worlds:PointReach", 260_000),
    "NestedReach": ("worlds:NestedReach", 260_000),
    "MinAtar": ("worlds:breakout", 500_000),
}
"""Environment and steps by task."""
EPISODES = 100


def ours(env: str, frames: int, seed: int) -> dict[str, Any]:
    """Trains and plays Seedbed with the preset of environments that it does not know, until an end in steps."""
    with tempfile.TemporaryDirectory(prefix="seedbed-box-") as scratch:
        run = str(Path(scratch) / "run")
        words = ["--preset", "general", "--frames", str(frames), "--seed", str(seed), "--run-dir", run]
        trained = last_line(*SEEDBED, "train", env, *words, "--no-video", "--json")
        played = last_line(*SEEDBED, "eval", run, "--episodes", str(EPISODES), "--greedy", "--json")
    return {"eval": played["mean"], "frames": trained["env_frames"], "seconds": round(trained["seconds"])}


def theirs(python: str, env: str, frames: int, seed: int) -> dict[str, Any]:
    """Trains and plays the peer."""
    words = ["--env", env, "--frames", str(frames), "--seed", str(seed), "--episodes", str(EPISODES)]
    return peers_line(python, "sb3_ppo.py", *words)


def kept(folder: Path | None, name: str, make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Returns the result of ``make``, with the machine, or the one that an earlier call has left in the folder."""
    if folder is None:
        return {**make(), "made": measured_on()}
    file = folder / f"{name}.json"
    if not file.exists():
        folder.mkdir(parents=True, exist_ok=True)
        half = file.with_suffix(".half")
        half.write_text(json.dumps({**make(), "made": measured_on()}))
        half.rename(file)
    found: dict[str, Any] = json.loads(file.read_text())
    return found


def compared(given: argparse.Namespace, task: str) -> dict[str, Any]:
    """Runs the two in turn; returns the row."""
    machine, (env, frames) = measured_on(), TASKS[task]
    runs: dict[str, list[dict[str, Any]]] = {"seedbed": [], "theirs": []}
    for seed in given.seeds:
        for name, make in (
            ("seedbed", partial(ours, env, frames, seed)),
            ("theirs", partial(theirs, given.python, env, frames, seed)),
        ):
            runs[name].append(kept(given.runs, f"{task}-{frames}-{seed}-{name}", make))
        told = ", ".join(
            f"{name} {each[-1]['eval']:.1f} ({each[-1]['seconds']} s)" for name, each in runs.items()
        )
        print(f"{task}, seed {seed}: {told}", flush=True)
    means = {name: mean(run["eval"] for run in each) for name, each in runs.items()}
    print(f"{task}: {means['seedbed']:.1f}, {means['theirs']:.1f} by Stable-Baselines3", flush=True)
    return {
        "peer": f"Stable-Baselines3's PPO as it comes, {task}, {frames:,} steps, mean return of {EPISODES} episodes",
        "peer_versions": runs["theirs"][0]["versions"],
        "command": f"seedbed train {env} --preset general --frames {frames}",
        "seedbed": [round(run["eval"], 2) for run in runs["seedbed"]],
        "theirs": [round(run["eval"], 2) for run in runs["theirs"]],
        "seconds": {name: [run["seconds"] for run in each] for name, each in runs.items()},
        "commits": [run["made"]["commit"] for run in runs["seedbed"]],
        **machine,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("python")
    parser.add_argument("--tasks", choices=TASKS, nargs="+", default=list(TASKS))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--runs", type=Path, default=None)
    given = parser.parse_args()
    given.python = str(Path(given.python).absolute())
    given.runs = given.runs and given.runs.absolute()
    os.chdir(HERE)  # whence worlds.py is imported
    for task in given.tasks:
        keep("peers.jsonl", compared(given, task))


if __name__ == "__main__":
    main()
