"""Seedbed beside RLlib with several agents in one environment, after the latter's example: CartPoles, PPO.

``.venv/bin/python benchmarks/several_agents.py PYTHON_OF_THE_PEER`` runs the two in turn, with one policy for each
agent and with a shared one, with the example's 30 passes over a batch and with one, and appends a row for each to
``benchmarks/results/peers.jsonl``. Both have two processes of 20 environments with two agents each, two layers of 256,
and as many steps in a batch and a minibatch. What the peer needs stands in ``benchmarks/peers/rllib_ppo.py``.
"""

from __future__ import annotations

import argparse
import os
from itertools import product
from pathlib import Path
from statistics import median

from side_by_side import keep, measured_on, peers_line, seedbed

FLAGS = (
    "pettingzoo:cartpoles:CartPoles --preset none --agent ppo --hidden 256 256 --activation tanh --actors 2"
    " --envs-per-actor 40 --unroll-length 100 --batch-size 80"
)
MINIBATCHES = {"own": 32, "shared": 64}
"""Of 8,000 steps: 250 with two policies, of which each trains on 125, and 125 for one policy; RLlib's have 128."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("python")
    parser.add_argument("--policies", choices=MINIBATCHES, nargs="+", default=[*MINIBATCHES])
    parser.add_argument("--epochs", type=int, nargs="+", default=[30, 1])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=45.0)
    given = parser.parse_args()
    os.environ["PYTHONPATH"] = os.pathsep.join(
        filter(None, [os.environ.get("PYTHONPATH"), str(Path(__file__).resolve().parent)])
    )
    machine = measured_on()
    for policies, epochs in product(given.policies, given.epochs):
        flags = f"{FLAGS} --policies {policies} --reuse {epochs} --minibatches {MINIBATCHES[policies]}"
        words = ("--policies", policies, "--epochs", str(epochs), "--seconds", str(given.seconds))
        ours, theirs, versions = [], [], {}
        for _ in range(given.rounds):
            ours.append(seedbed(flags, given.seconds))
            peer = peers_line(given.python, "rllib_ppo.py", *words)
            theirs.append(peer["steps_per_second"])
            versions = peer["versions"]
            print(f"{policies}, {epochs} epochs: {ours[-1]:,.0f} and {theirs[-1]:,.0f} steps/s", flush=True)
        row = {
            "peer": f"RLlib's PPO, CartPole with two agents, {policies} policies, {epochs} epochs",
            "peer_versions": versions,
            "command": f"seedbed train {flags}",
            "seedbed": [round(rate) for rate in ours],
            "theirs": [round(rate) for rate in theirs],
            "ratio": round(median(ours) / median(theirs), 2),
            **machine,
        }
        keep("peers.jsonl", row)


if __name__ == "__main__":
    main()
