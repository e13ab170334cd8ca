"""Anakin beside PureJaxRL on this machine: PPO with the same environments, network, sizes, epochs and minibatches.

``.venv/bin/python benchmarks/anakin.py PYTHON_OF_THE_PEER CHECKOUT`` runs the two in turn on CartPole and on MinAtar's
Breakout and appends a row for each number of environments to ``benchmarks/results/peers.jsonl``; what the peer needs
stands in ``benchmarks/peers/purejaxrl_ppo.py``. ``--network shared`` has one body of two layers for policy and value on
both sides; ``own``, a network for each, is what both have by themselves.
"""

from __future__ import annotations

import argparse
from statistics import median
from typing import Any

from side_by_side import keep, measured_on, peers_line, seedbed

STEPS, EPOCHS, MINIBATCHES = 128, 4, 8
# Environments on two cores, and updates of the peer in one call there (a few seconds of them).
WORK = {"CartPole-v1": (512, 10), "Breakout-MinAtar": (1024, 3)}


def flags(env: str, envs: int, network: str) -> str:
    return (
        f"gymnax:{env} --arch anakin --agent ppo --preset none --network mlp --hidden 64 64 "
        f"--value-network {network} --batch-size {envs} --unroll-length {STEPS} --reuse {EPOCHS} "
        f"--minibatches {MINIBATCHES}"
    )


def peer(given: argparse.Namespace, env: str, envs: int, updates: int) -> dict[str, Any]:
    words = ["--checkout", given.checkout, "--env", env, "--envs", str(envs), "--updates", str(updates)]
    return peers_line(given.python, "purejaxrl_ppo.py", *words, *["--shared"] * (given.network == "shared"))


def compared(given: argparse.Namespace, env: str, envs: int, updates: int) -> dict[str, Any]:
    """Runs the two in turn; returns the row."""
    machine, versions = measured_on(), {}
    ours: list[float] = []
    theirs: list[float] = []
    for _ in range(given.rounds):
        ours.append(seedbed(flags(env, envs, given.network), given.seconds))
        told = peer(given, env, envs, updates)
        theirs.append(told["steps_per_second"])
        versions = told["versions"]
        print(f"{env}, {envs}: seedbed {ours[-1]:,.0f} steps/s, PureJaxRL {theirs[-1]:,.0f}", flush=True)
    ratio = round(median(ours) / median(theirs), 2)
    print(f"{env}, {envs} environments: {ratio} times PureJaxRL", flush=True)
    return {
        "peer": f"PureJaxRL's PPO, {env}, {envs} environments, {given.network} network",
        "peer_versions": versions,
        "command": f"seedbed train {flags(env, envs, given.network)}",
        "seedbed": [round(rate) for rate in ours],
        "theirs": [round(rate) for rate in theirs],
        "ratio": ratio,
        **machine,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("python")
    parser.add_argument("checkout")
    parser.add_argument("--env", choices=WORK, nargs="+", default=list(WORK))
    parser.add_argument("--envs", type=int, nargs="+", help="numbers of environments; those for two cores")
    parser.add_argument("--updates", type=int, help="of the peer in one call; those for two cores")
    parser.add_argument("--network", choices=("own", "shared"), default="own")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=20.0)
    given = parser.parse_args()
    for env in given.env:
        envs, updates = WORK[env]
        for number in given.envs or [envs]:
            keep("peers.jsonl", compared(given, env, number, given.updates or updates))


if __name__ == "__main__":
    main()
