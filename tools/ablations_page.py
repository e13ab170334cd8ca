"""Writes docs/ablations.md from the rows of learning; with ``--check`` it only compares.

The recipes and their choices are in ``benchmarks/results/ablations.toml``; ``benchmarks/ablations.py`` makes the rows.
"""

from __future__ import annotations

import statistics
import sys
import tomllib
from collections.abc import Mapping
from typing import Any

from scores_page import RESULTS, ROOT, rows, several
from wrap_pages import wrapped

PAGE = ROOT / "docs" / "ablations.md"
HEAD = """\
# What each choice is worth

<!-- Written by tools/ablations_page.py from benchmarks/results/learning.jsonl and ablations.toml; do not edit. -->

A recipe, and the same with one of its choices taken back: mean returns of 100 episodes that `seedbed eval` plays after
training with actions drawn from the policy, of each seed; the mean over seeds with its 95% interval (Student's t, wide
for three seeds); and the share of the recipe's mean. Seeds differ by as much as many choices do: read a difference
beside its intervals. Runs shared two cores with each other.

    .venv/bin/python benchmarks/ablations.py
"""


def played(row: Mapping[str, Any]) -> list[float]:
    """Mean return in eval of each seed."""
    return [run["eval"]["mean"] for run in row["runs"]]


def table(task: Mapping[str, Any], kept: Mapping[str, Mapping[str, Any]]) -> str:
    """A section: the recipe's line, then one for each choice that has a row."""
    recipe = statistics.mean(played(kept[task["name"]]))
    lines = [f"| the recipe | {several(played(kept[task['name']]))} | 100% | `{task['flags']}` |\n"]
    for each in task["without"]:
        if (row := kept.get(f"{task['name']}-{each['name']}")) is not None:
            share = statistics.mean(played(row)) / recipe
            lines.append(
                f"| {each['choice']}: {each['instead']} | {several(played(row))} | {share:.0%} "
                f"| `{each['flags']}` |\n"
            )
    return (
        f"\n## {task['title']}\n\nThe recipe (`seedbed train {task['env']}`): {task['recipe']}.\n\n"
        "| choice: instead | in eval | share | flags |\n|---|---|---|---|\n" + "".join(lines)
    )


def page() -> str:
    """The whole page."""
    kept = rows()
    tasks = tomllib.loads((RESULTS / "ablations.toml").read_text())["task"]
    return wrapped(HEAD + "".join(table(task, kept) for task in tasks if task["name"] in kept))


def main() -> None:
    if "--check" not in sys.argv:
        PAGE.write_text(page())
    elif PAGE.read_text() != page():
        sys.exit("docs/ablations.md is out of date: run .venv/bin/python tools/ablations_page.py")


if __name__ == "__main__":
    main()
