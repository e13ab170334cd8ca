"""Games of MinAtar beside PureJaxRL: what its PPO learns by its own recipe, and what ours has learned by the same.

``.venv/bin/python benchmarks/minatar_scores.py PYTHON_OF_THE_PEER CHECKOUT [--games Asterix …]`` trains the peer for
as many steps as our runs had, three seeds each, and appends a row for each game to ``benchmarks/results/peers.jsonl``.
Ours are the runs of the rows ``minatar-GAME-ppo`` of ``learning.jsonl``; on both sides returns are of the last 100
episodes of training. What the peer needs stands in ``benchmarks/peers/purejaxrl_ppo.py``.
"""

from __future__ import annotations

import argparse
import json
from statistics import mean
from typing import Any

from side_by_side import RESULTS, keep, measured_on, peers_line

GAMES = ("Asterix", "Breakout", "Freeway", "SpaceInvaders")


def ours(game: str) -> dict[str, Any]:
    """The newest row of our runs."""
    rows = map(json.loads, (RESULTS / "learning.jsonl").read_text().splitlines())
    found: dict[str, Any] = [row for row in rows if row["name"] == f"minatar-{game.lower()}-ppo"][-1]
    return found


def compared(given: argparse.Namespace, game: str) -> dict[str, Any]:
    """Trains the peer; returns the row."""
    machine, row = measured_on(), ours(game)
    frames = row["settings"]["frames"]
    words = ["--checkout", given.checkout, "--env", f"{game}-MinAtar", "--frames", str(frames)]
    theirs = []
    for seed in given.seeds:
        theirs.append(peers_line(given.python, "purejaxrl_scores.py", *words, "--seed", str(seed)))
        print(f"{game}, seed {seed}: {theirs[-1]['mean_return']:.1f} by PureJaxRL", flush=True)
    returns = [run["mean_return"] for run in row["runs"]]
    print(
        f"{game}: {mean(returns):.1f} by seedbed, {mean(run['mean_return'] for run in theirs):.1f}",
        flush=True,
    )
    return {
        "peer": f"PureJaxRL's PPO, its own recipe, {game}-MinAtar, mean return after {frames:,} steps",
        "peer_versions": theirs[0]["versions"],
        "command": row["command"],
        "seedbed": [round(value, 2) for value in returns],
        "theirs": [round(run["mean_return"], 2) for run in theirs],
        "theirs_curves": [run["curve"] for run in theirs],
        "ratio": round(mean(returns) / mean(run["mean_return"] for run in theirs), 2),
        **machine,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("python")
    parser.add_argument("checkout")
    parser.add_argument("--games", choices=GAMES, nargs="+", default=list(GAMES))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    given = parser.parse_args()
    for game in given.games:
        keep("peers.jsonl", compared(given, game))


if __name__ == "__main__":
    main()
