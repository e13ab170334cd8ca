"""Sebulba beside SEED in one process, on this machine: Breakout from pixels, Nature CNN, one pass over each frame.

``.venv/bin/python benchmarks/architectures.py`` runs the two in turn and appends a row to
``benchmarks/results/architectures.jsonl``.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

from orchard.launch.bench import provenance

HERE = Path(__file__).parent
GAME = "ALE/Breakout-v5 --network nature --no-video --json"
PLACES = {
    "sebulba": "--arch sebulba --actors 2 --envs-per-actor 16",
    "seed": "--arch seed --transport inproc --actors 1 --envs-per-actor 32",
}


def steps_a_second(place: str, seconds: float) -> float:
    with tempfile.TemporaryDirectory(prefix="orchard-architectures-") as scratch:
        command = [
            str(Path(sys.executable).parent / "orchard"),
            "train",
            *GAME.split(),
            *PLACES[place].split(),
        ]
        command += ["--minutes", str(seconds / 60), "--run-dir", f"{scratch}/run"]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return float(json.loads(done.stdout.strip().splitlines()[-1])["agent_steps_per_second"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=25.0)
    given = parser.parse_args()
    measured_on = provenance()
    found: dict[str, list[float]] = {place: [] for place in PLACES}
    for _ in range(given.rounds):
        for place, rates in found.items():
            rates.append(round(steps_a_second(place, given.seconds)))
            print(f"{place} {rates[-1]:,.0f} steps/s", flush=True)
    row = {
        "commands": {place: f"orchard train {GAME} {flags}" for place, flags in PLACES.items()},
        "steps_per_second": found,
        "medians": {place: median(rates) for place, rates in found.items()},
        **measured_on,
    }
    with (HERE / "results" / "architectures.jsonl").open("a") as file:
        file.write(json.dumps(row) + "\n")
    print(row["medians"])


if __name__ == "__main__":
    main()
