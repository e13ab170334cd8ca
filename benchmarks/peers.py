"""Seedbed beside the fastest peer on this machine: Breakout from pixels, Nature CNN, one pass over each frame.

``.venv/bin/python benchmarks/peers.py PYTHON_OF_THE_PEER`` runs the two in turn, Seedbed in float32 and with
convolutions in bfloat16, and appends a row to ``benchmarks/results/peers.jsonl``; what the peer needs stands in
``benchmarks/peers/sb3_a2c.py``.
"""

from __future__ import annotations

import argparse
from statistics import median

from side_by_side import keep, measured_on, peers_line, seedbed

FLAGS = "ALE/Breakout-v5 --network nature --actors 2 --envs-per-actor 32"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("python")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=45.0)
    arguments = parser.parse_args()
    machine = measured_on()
    ours: dict[str, list[float]] = {dtype: [] for dtype in ("float32", "bfloat16")}
    theirs, versions = [], {}
    for _ in range(arguments.rounds):
        for dtype, rates in ours.items():
            rates.append(seedbed(f"{FLAGS} --compute-dtype {dtype}", arguments.seconds))
            print(f"seedbed, {dtype}: {rates[-1]:.0f} steps/s", flush=True)
        peer = peers_line(arguments.python, "sb3_a2c.py", "--seconds", str(arguments.seconds))
        theirs.append(peer["steps_per_second"])
        versions = peer["versions"]
        print(f"Stable-Baselines3 A2C: {theirs[-1]:.0f} steps/s", flush=True)
    ratios = {dtype: round(median(rates) / median(theirs), 2) for dtype, rates in ours.items()}
    print(f"medians, in times of the peer's {median(theirs):.0f} steps/s: {ratios}")
    row = {
        "peer": "Stable-Baselines3 A2C, 32 environments in one process",
        "peer_versions": versions,
        "command": f"seedbed train {FLAGS}",
        "seedbed": {dtype: [round(rate) for rate in rates] for dtype, rates in ours.items()},
        "theirs": [round(rate) for rate in theirs],
        "ratio": ratios,
        **machine,
    }
    keep("peers.jsonl", row)


if __name__ == "__main__":
    main()
