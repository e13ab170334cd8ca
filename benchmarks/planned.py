"""Predicts runs and makes them, on a quiet machine: a row with both for each, in ``results/planned.jsonl``.

``.venv/bin/python benchmarks/planned.py [NAME …] [--seconds S]`` runs ``seedbed bench`` for each case (stages alone,
then the whole, and the served path under central inference), plans the run from these rows alone, and appends
``name``, ``measured`` and ``predicted`` steps/s, lag and the plan. ``tools/plan_page.py`` shows them in docs/plan.md.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from side_by_side import SEEDBED, keep

_BREAKOUT = "ALE/Breakout-v5 --preset none --network nature"
_CARTPOLE = "CartPole-v1 --preset none"
_MINATAR = "gymnax:Breakout-MinAtar --preset none"
CASES = {
    "breakout seed 2 x 16": f"{_BREAKOUT} --agent vtrace --arch seed --actors 2 --envs-per-actor 16",
    "breakout seed 1 x 32": f"{_BREAKOUT} --agent vtrace --arch seed --actors 1 --envs-per-actor 32",
    "breakout seed 4 x 2": f"{_BREAKOUT} --agent vtrace --arch seed --actors 4 --envs-per-actor 2",
    "breakout impala 2 x 16": f"{_BREAKOUT} --agent vtrace --arch impala --actors 2 --envs-per-actor 16",
    "breakout apex 2 x 16": f"{_BREAKOUT} --agent dqn --arch apex --actors 2 --envs-per-actor 16 --replay-size 20000 "
    "--replay-min-size 1000",
    "breakout sebulba 2 x 16": f"{_BREAKOUT} --agent vtrace --arch sebulba --actors 2 --envs-per-actor 16",
    "cartpole seed 2 x 32": f"{_CARTPOLE} --agent vtrace --arch seed --actors 2 --envs-per-actor 32",
    "cartpole seed 1 x 64": f"{_CARTPOLE} --agent vtrace --arch seed --actors 1 --envs-per-actor 64",
    "cartpole impala 2 x 32": f"{_CARTPOLE} --agent vtrace --arch impala --actors 2 --envs-per-actor 32",
    "cartpole sebulba 2 x 16": f"{_CARTPOLE} --agent vtrace --arch sebulba --actors 2 --envs-per-actor 16",
    "minatar seed 2 x 64": f"{_MINATAR} --agent vtrace --arch seed --actors 2 --envs-per-actor 64",
    "minatar impala 2 x 16": f"{_MINATAR} --agent vtrace --arch impala --actors 2 --envs-per-actor 16",
}
"""Flags of each run, by name."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", default=list(CASES))
    parser.add_argument("--seconds", type=float, default=3.0)
    given = parser.parse_args()
    if unknown := set(given.names) - set(CASES):
        raise SystemExit(f"no such case: {', '.join(sorted(unknown))}; there are {', '.join(CASES)}")
    print(f"{'run':<26} {'measured':>10} {'predicted':>10}")
    for name in given.names:
        row = compared(name, CASES[name], given.seconds)
        keep("planned.jsonl", row)
        off = row["predicted"] / row["measured"] - 1
        print(f"{name:<26} {row['measured']:>10,.0f} {row['predicted']:>10,.0f} {off:>+7.0%}", flush=True)


def compared(name: str, flags: str, seconds: float) -> dict[str, Any]:
    """Times the stages and the whole of a run, and plans it from the stages."""
    words = flags.split()
    with tempfile.TemporaryDirectory(prefix="seedbed-planned-") as scratch:
        costs = Path(scratch) / "costs.jsonl"
        timed = ["--seconds", str(seconds), "--results", str(costs)]
        if "seed" in words:
            _seedbed("bench", *words, *timed, "--serve", "--transport", "shm")
        _seedbed("bench", *words, *timed)
        plan = json.loads(_seedbed("plan", *words, "--costs", str(costs), "--json"))
        row = json.loads(costs.read_text().splitlines()[-1])
    (made,) = plan.values()
    return {
        "name": name,
        "command": f"seedbed bench {flags}",
        "measured": row["stages"]["whole"]["steps_per_second"],
        "predicted": made["steps_per_second"],
        "bound_of_bench": row["bound_steps_per_second"],
        "told": row["stages"]["whole"]["about"],
        "plan": made,
        **{part: row[part] for part in ("stages", "settings", "time", "machine", "commit", "versions")},
    }


def _seedbed(*words: str) -> str:
    """The output of a command."""
    return subprocess.run([*SEEDBED, *words], stdout=subprocess.PIPE, text=True, check=True).stdout


if __name__ == "__main__":
    main()
