"""Anakin beside PureJaxRL on this machine: PPO with the same environments, sizes, epochs and minibatches.

``.venv/bin/python benchmarks/anakin.py PYTHON_OF_THE_PEER CHECKOUT`` runs the two in turn on CartPole and on MinAtar's
Breakout and appends a row for each to ``benchmarks/results/peers.jsonl``; what the peer needs stands in
``benchmarks/peers/purejaxrl_ppo.py``.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from statistics import median
from typing import Any

from side_by_side import keep, last_line, measured_on, seedbed

HERE = Path(__file__).parent
STEPS, EPOCHS, MINIBATCHES = 128, 4, 8
# Environments, updates of the peer in one call (a few seconds of them), and seconds of Seedbed.
WORK = {"CartPole-v1": (512, 10), "Breakout-MinAtar": (1024, 3)}


def flags(env: str, envs: int) -> str:
    return (
        f"gymnax:{env} --arch anakin --agent ppo --preset none --network mlp --hidden 64 64 --lag 0 "
        f"--batch-size {envs} --unroll-length {STEPS} --reuse {EPOCHS} --minibatches {MINIBATCHES}"
    )


def peer(given: argparse.Namespace, env: str, envs: int, updates: int, *, shared: bool) -> dict[str, Any]:
    command = [given.python, str(HERE / "peers" / "purejaxrl_ppo.py"), "--checkout", given.checkout]
    command += ["--env", env, "--envs", str(envs), "--updates", str(updates)]
    return last_line(*command, *["--shared"] * shared)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("python")
    parser.add_argument("checkout")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=20.0)
    given = parser.parse_args()
    for env, (envs, updates) in WORK.items():
        machine = measured_on()
        ours, versions = [], {}
        theirs: dict[str, list[float]] = {"own": [], "shared": []}
        for _ in range(given.rounds):
            ours.append(seedbed(flags(env, envs), given.seconds))
            for network, rates in theirs.items():
                told = peer(given, env, envs, updates, shared=network == "shared")
                rates.append(told["steps_per_second"])
                versions = told["versions"]
            print(
                f"{env}: seedbed {ours[-1]:,.0f} steps/s, PureJaxRL {theirs['own'][-1]:,.0f}, "
                f"with one network {theirs['shared'][-1]:,.0f}",
                flush=True,
            )
        ratios = {network: round(median(ours) / median(rates), 2) for network, rates in theirs.items()}
        print(f"{env}: {ratios['own']} times PureJaxRL, {ratios['shared']} times with one network")
        row = {
            "peer": f"PureJaxRL's PPO, {env}, {envs} environments",
            "peer_versions": versions,
            "command": f"seedbed train {flags(env, envs)}",
            "seedbed": [round(rate) for rate in ours],
            "theirs": [round(rate) for rate in theirs["own"]],
            "ratio": ratios["own"],
            "theirs_with_one_network": [round(rate) for rate in theirs["shared"]],
            "ratio_with_one_network": ratios["shared"],
            **machine,
        }
        keep("peers.jsonl", row)


if __name__ == "__main__":
    main()
