"""Puts the policy of a score into zoo/NAME, with its card: .venv/bin/python tools/zoo.py NAME RUN.

NAME is a row of ``benchmarks/results/learning.jsonl`` that ``docs/scores.md`` shows, and RUN the folder of one of its
runs. ``--cards`` writes the cards of all policies anew.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Any

from scores_page import ROOT, ZOO, number, published, rows, scores

from seedbed.evaluation.playable import write_playable
from seedbed.launch.folder import RunFolder

LARGEST = 2_000_000
"""Bytes of one policy."""


def card(name: str, row: dict[str, Any], seed: int) -> str:
    """The README of a policy."""
    (score,) = [score for score in scores() if score["row"] == name]
    (run,) = [run for run in row["runs"] if run["seed"] == seed]
    played = run.get("eval")
    lines = [
        f"# {score['task']} by {score['by']}",
        "",
        f"Seed {seed} of the row `{name}`, which `docs/scores.md` shows with its other seeds.",
        "",
        "```sh",
        f"seedbed eval zoo/{name}" + (" --greedy" if played and played.get("greedy") else ""),
        f"{row['command']} --seed {seed}    # makes it anew",
        "```",
        "",
        "| | |",
        "|---|---|",
    ]
    facts = {
        "return in eval": played
        and f"{number(played['mean'])}, interquartile mean {number(played['interquartile_mean'])} "
        f"(95% interval {number(played['low'])} to {number(played['high'])}), {played['count']} episodes",
        "last 100 episodes of training": number(run["mean_return"]),
        "published": published(score),
        "steps of training": f"{run['agent_steps']:,}",
        "seconds of training": f"{run['seconds']:,.0f}",
        "commit": f"`{run.get('commit', row['commit'])}`",
        "settings": "`config.json`",
    }
    lines += [f"| {key} | {value} |" for key, value in facts.items() if value]
    return "\n".join(lines) + "\n"


def put(name: str, run: Path) -> Path:
    """Writes the policy of a run and its card into the zoo, in the place of an earlier one."""
    target = ZOO / name
    shutil.rmtree(target, ignore_errors=True)
    write_playable(run, target)
    size = sum(file.stat().st_size for file in target.rglob("*") if file.is_file())
    if size > LARGEST:
        shutil.rmtree(target)
        raise SystemExit(f"{run} would take {size:,} bytes in the zoo, and {LARGEST:,} are the most")
    write_card(name)
    return target


def write_card(name: str) -> None:
    """Writes the card of a policy that is in the zoo."""
    seed = RunFolder(ZOO / name).config().seed
    (ZOO / name / "README.md").write_text(card(name, rows()[name], seed))


def main() -> None:
    if sys.argv[1:] == ["--cards"]:
        for folder in sorted(path for path in ZOO.iterdir() if path.is_dir()):
            write_card(folder.name)
        return
    name, run = sys.argv[1:]
    print(put(name, Path(run)).relative_to(ROOT))


if __name__ == "__main__":
    main()
