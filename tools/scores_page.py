"""Writes docs/scores.md from the rows of learning and the published figures; with ``--check`` it only compares.

The published figures, with the rows that stand beside them, are in ``benchmarks/results/published.toml``.
"""

from __future__ import annotations

import json
import statistics
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from scipy import stats
from wrap_pages import wrapped

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "scores.md"
RESULTS = ROOT / "benchmarks" / "results"
ZOO = ROOT / "zoo"
HEAD = """\
# Scores beside published ones

<!-- Written by tools/scores_page.py from benchmarks/results/learning.jsonl and published.toml; do not edit. -->

*In eval* is the mean return of 100 episodes that `seedbed eval` plays after training, with actions drawn from the
policy (of a value network nearly always the best ones) or, where it says *greedy*, the most likely ones, as the source
of the published figure has them; *in training* is that of the last 100 episodes of training,
which is what most published figures are. Of several seeds it is the mean over them, with the 95% interval of that mean
(Student's t, wide for few seeds) and the mean of every seed. Where a task is to be solved, the median of the steps
until then stands there, with the fewest and the most. Published figures are as their sources give them: the number
behind ± is a deviation, over seeds or over the episodes of one run. *Reached* compares with the goal of this project,
in eval.

No seed is left out, and none that stands here was used to choose a setting. Minutes are of runs that shared one core
with each other. The commands make one seed; `benchmarks/learning.py NAME ENV --seeds 0 1 2 --eval 100 -- FLAGS` makes
the row. Policies that are in the repository are named by their folder in `zoo`: see [trained
policies](trained.md#policies-that-come-along).

| task | by | in eval | in training | reached | published | frames a seed | minutes a seed | command |
|---|---|---|---|---|---|---|---|---|
"""


def rows() -> dict[str, dict[str, Any]]:
    """The newest row of each name."""
    lines = (RESULTS / "learning.jsonl").read_text().splitlines()
    return {row["name"]: row for row in map(json.loads, lines)}


def scores() -> list[dict[str, Any]]:
    """The published figures, in the order of the page."""
    found: list[dict[str, Any]] = tomllib.loads((RESULTS / "published.toml").read_text())["score"]
    return found


def interval(values: Sequence[float]) -> tuple[float, float] | None:
    """The 95% interval of a mean, by Student's t; None for one value."""
    if len(values) < 2:
        return None
    error = statistics.stdev(values) / len(values) ** 0.5
    half = float(stats.t.ppf(0.975, len(values) - 1)) * error
    mean = statistics.mean(values)
    return mean - half, mean + half


def several(values: Sequence[float]) -> str:
    """The mean over seeds, its interval, and each seed's value, in words."""
    mean, around = number(statistics.mean(values)), interval(values)
    if around is None:
        return f"{mean} (one seed)"
    return f"{mean} ({number(around[0])} to {number(around[1])}; {', '.join(map(number, values))})"


def steps(row: dict[str, Any]) -> list[int]:
    """The steps of each seed that reached its mean return."""
    return [run["agent_steps"] for run in row["runs"] if run["stopped_because"].startswith("mean return")]


def ours(score: dict[str, Any], row: dict[str, Any]) -> tuple[str, str, bool]:
    """Our figures in eval and in training, in words, and whether the goal is reached."""
    if score["measure"] == "return":
        played = [run["eval"]["mean"] for run in row["runs"]]
        trained = several([run["mean_return"] for run in row["runs"]])
        how = ", greedy" if all(run["eval"].get("greedy") for run in row["runs"]) else ""
        return several(played) + how, trained, statistics.mean(played) >= score["goal"]
    reached, every = steps(row), len(row["runs"])
    if not reached:
        return "", f"none of {every} seeds", False
    median = statistics.median(reached)
    spread = f"{median:,.0f} steps ({min(reached):,} to {max(reached):,}), {len(reached)} of {every} seeds"
    return "", spread, median <= score["goal"] and len(reached) == every


def number(value: float) -> str:
    """A figure of four digits or so."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.1f}"


def published(score: dict[str, Any]) -> str:
    """The published figure and its source."""
    return f"{score['published']} ({score['source']})"


def line(score: dict[str, Any], row: dict[str, Any]) -> str:
    """A line of the table."""
    played, trained, reached = ours(score, row)
    frames = statistics.median(run["env_frames"] for run in row["runs"])
    minutes = statistics.median(run["seconds"] for run in row["runs"]) / 60
    direction = "at most" if score["measure"] == "steps" else "at least"
    verdict = f"{'yes' if reached else '**no**'} ({direction} {score['goal']:,})"
    name = f", `zoo/{score['row']}`" if (ZOO / score["row"]).is_dir() else ""
    return (
        f"| {score['task']} | {score['by']}{name} | {played} | {trained} | {verdict} "
        f"| {published(score)} "
        f"| {frames:,.0f} | {minutes:.1f} | `{score.get('command', row['command'])}` |\n"
    )


def page() -> str:
    """The whole page."""
    kept = rows()
    lines = [line(score, kept[score["row"]]) for score in scores() if score["row"] in kept]
    missing = [
        f"* {score['task']}, by {score['by']}: {score.get('missing', 'not run yet')}. Published: {published(score)}.\n"
        for score in scores()
        if score["row"] not in kept
    ]
    rest = "\n## Without a row\n\n" + "".join(missing) if missing else ""
    return wrapped(HEAD + "".join(lines) + rest)


def main() -> None:
    if "--check" not in sys.argv:
        PAGE.write_text(page())
    elif PAGE.read_text() != page():
        sys.exit("docs/scores.md is out of date: run .venv/bin/python tools/scores_page.py")


if __name__ == "__main__":
    main()
