"""Sebulba beside SEED in one process, on this machine: Breakout from pixels, Nature CNN, one pass over each frame.

``.venv/bin/python benchmarks/architectures.py`` runs the two in turn and appends a row to
``benchmarks/results/architectures.jsonl``.
"""

from __future__ import annotations

import argparse
from statistics import median

from side_by_side import in_turn, keep, measured_on

GAME = "ALE/Breakout-v5 --network nature"
PLACES = {
    "sebulba": "--arch sebulba --actors 2 --envs-per-actor 16",
    "seed": "--arch seed --transport inproc --actors 1 --envs-per-actor 32",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=25.0)
    given = parser.parse_args()
    machine = measured_on()
    found = in_turn(
        {place: f"{GAME} {flags}" for place, flags in PLACES.items()}, given.rounds, given.seconds
    )
    row = {
        "commands": {place: f"seedbed train {GAME} {flags}" for place, flags in PLACES.items()},
        "steps_per_second": found,
        "medians": {place: median(rates) for place, rates in found.items()},
        **machine,
    }
    keep("architectures.jsonl", row)
    print(row["medians"])


if __name__ == "__main__":
    main()
