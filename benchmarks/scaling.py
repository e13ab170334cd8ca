"""Steps a second against the number of environments, on this machine: where more of them stop making it faster.

``.venv/bin/python benchmarks/scaling.py [ENV] [--counts 64 256 …] [-- FLAGS of seedbed train]`` runs Anakin with each
count in turn, by PPO unless the flags name another agent, and appends a row to ``benchmarks/results/scaling.jsonl``.
With ``--arch sebulba`` the counts are environments of each actor thread. No run has a preset, which might end it early.
"""

from __future__ import annotations

import argparse
import sys
from statistics import median

from side_by_side import in_turn, keep, measured_on, split

from seedbed.cli.train import configuration
from seedbed.config.resolve import to_json
from seedbed.errors import ConfigError

COUNTED = {"anakin": "batch_size", "sebulba": "envs_per_actor"}
COUNTS = [2**power for power in range(6, 17, 2)]


def read(words: list[str]) -> tuple[argparse.Namespace, list[str]]:
    """The script's own arguments, and the flags of ``seedbed train``."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("env", nargs="?", default="gymnax:CartPole-v1")
    parser.add_argument("--arch", choices=COUNTED, default="anakin")
    parser.add_argument("--counts", type=int, nargs="+", default=COUNTS)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--minutes", type=float, default=0.5)
    own, flags = split(words)
    return parser.parse_args(own), flags


def main() -> None:
    given, more = read(sys.argv[1:])
    flags = " ".join([given.env, "--arch", given.arch, "--agent", "ppo", "--preset", "none", *more])
    settings = to_json(configuration(flags.split()))  # wrong flags are named before anything is timed
    del settings[COUNTED[given.arch]]
    counted = f"{flags} --{COUNTED[given.arch].replace('_', '-')}"
    machine = measured_on()
    commands = {str(count): f"{counted} {count}" for count in given.counts}
    found = in_turn(commands, given.rounds, 60 * given.minutes)
    row = {
        "command": f"seedbed train {counted} COUNT",
        "steps_per_second": found,
        "medians": {count: median(rates) for count, rates in found.items()},
        "settings": settings,
        **machine,
    }
    keep("scaling.jsonl", row)
    print(f"{'environments':>12} {'steps/s':>14}   slowest to fastest")
    for count, rates in found.items():
        print(f"{int(count):>12,} {median(rates):>14,.0f}   {min(rates):,.0f} to {max(rates):,.0f}")


if __name__ == "__main__":
    try:
        main()
    except ConfigError as error:
        raise SystemExit(str(error)) from error
