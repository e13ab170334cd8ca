"""Ablations: a preset's recipe on a task, and the same with one of its choices taken back.

``.venv/bin/python benchmarks/ablations.py [--seeds 0 1 2] [--only NAME …] [--runs FOLDER]`` runs each recipe of
``benchmarks/results/ablations.toml`` that has no row yet, and ``tools/ablations_page.py`` writes docs/ablations.md from
the rows.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

HERE = Path(__file__).parent
RESULTS = HERE / "results"


def recipes() -> Iterator[tuple[str, str, list[str]]]:
    """The name of each row, its environment, and the flags of ``seedbed train``."""
    for task in tomllib.loads((RESULTS / "ablations.toml").read_text())["task"]:
        flags = task["flags"].split()
        yield task["name"], task["env"], flags
        for each in task["without"]:
            yield f"{task['name']}-{each['name']}", task["env"], [*flags, *each["flags"].split()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", nargs="+", default=["0", "1", "2"])
    parser.add_argument("--only", nargs="+", default=[], help="beginnings of names")
    parser.add_argument("--runs", default=None, help="as of learning.py")
    given = parser.parse_args()
    rows = (RESULTS / "learning.jsonl").read_text().splitlines()
    have = {json.loads(row)["name"] for row in rows}
    for name, env, flags in recipes():
        if name in have or (given.only and not name.startswith(tuple(given.only))):
            continue
        print(name, flush=True)
        kept = ["--runs", given.runs] if given.runs else []
        words = [name, env, "--seeds", *given.seeds, "--eval", "100", "--no-curve", *kept, "--", *flags]
        subprocess.run([sys.executable, str(HERE / "learning.py"), *words], check=True)


if __name__ == "__main__":
    main()
