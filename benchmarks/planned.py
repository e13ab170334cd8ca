"""Predicts runs and makes them, on a quiet machine: a row with both for each, in ``results/planned.jsonl``.

``.venv/bin/python benchmarks/planned.py [NAME …] [--seconds S]`` runs ``seedbed bench`` for each case (stages alone,
then the whole, and the served path under central inference), and plans the run twice: from its own stages alone, and
with the loss of the runs of the same environment that were made before it, never with its own. It appends ``name``,
``measured``, ``alone`` and ``predicted`` steps/s (None where no run came before), lag and the plan.
``tools/plan_page.py`` shows them in docs/plan.md.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import tempfile
from collections.abc import Sequence
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
    print(f"{'run':<26} {'measured':>10} {'alone':>10} {'predicted':>10}")
    before: list[dict[str, Any]] = []
    for name in given.names:
        row, timed = compared(name, CASES[name], given.seconds, before)
        before += timed
        keep("planned.jsonl", row)
        print(
            f"{name:<26} {row['measured']:>10,.0f} {_told(row, 'alone')} {_told(row, 'predicted')}",
            flush=True,
        )


def _told(row: dict[str, Any], name: str) -> str:
    off = "" if row[name] is None else f" {row[name] / row['measured'] - 1:+.0%}"
    return f"{row[name] or 0:>10,.0f}{off:>6}"


def compared(
    name: str, flags: str, seconds: float, before: Sequence[dict[str, Any]]
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Times the stages and the whole of a run, and plans it.

    Returns the row to keep, and the rows of ``seedbed bench`` that later runs are planned with.
    """
    words = flags.split()
    with tempfile.TemporaryDirectory(prefix="seedbed-planned-") as scratch:
        file = Path(scratch) / "costs.jsonl"
        timing = ["--seconds", str(seconds), "--results", str(file)]
        if "seed" in words:
            _seedbed("bench", *words, *timing, "--serve", "--transport", "shm")
        _seedbed("bench", *words, *timing)
        *served, row = timed = [json.loads(line) for line in file.read_text().splitlines()]
        stages = {name: stage for name, stage in row["stages"].items() if name != "whole"}
        own = [*served, {**row, "stages": stages}]
        alone = _plan(words, file, own)
        # Of the same environment and network, as a plan takes it from no other run.
        known = any(
            each.get("stages") and each["settings"]["env"] == row["settings"]["env"] for each in before
        )
        made = _plan(words, file, [*before, *own]) if known else None
    return {
        "name": name,
        "command": f"seedbed bench {flags}",
        "measured": row["stages"]["whole"]["steps_per_second"],
        "alone": alone["steps_per_second"],
        "predicted": made and made["steps_per_second"],
        "bound_of_bench": row["bound_steps_per_second"],
        "told": row["stages"]["whole"]["about"],
        "plan": made or alone,
        "served": {carrier: work for each in served for carrier, work in each["served"].items()},
        **{part: row[part] for part in ("stages", "settings", "time", "machine", "commit", "versions")},
    }, timed


def _plan(words: Sequence[str], file: Path, rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The plan of a run from some rows."""
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    made: dict[str, Any]
    (made,) = json.loads(_seedbed("plan", *words, "--costs", str(file), "--json")).values()
    return made


def _seedbed(*words: str) -> str:
    """The output of a command."""
    return subprocess.run([*SEEDBED, *words], stdout=subprocess.PIPE, text=True, check=True).stdout


if __name__ == "__main__":
    main()
