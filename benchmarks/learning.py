"""Learning evidence: trains with several seeds, draws the curves together, keeps a row.

``.venv/bin/python benchmarks/learning.py NAME ENV [--seeds 0 1 2] [-- FLAGS of seedbed train]`` writes
``docs/curves/NAME.png`` and appends to ``benchmarks/results/learning.jsonl``. With ``--runs FOLDER`` the runs are
kept there, and those that have ended are not run again, if they had the settings that are asked for. With ``--eval N``
each plays N episodes afterwards, by actions that are drawn or, with ``--greedy``, the most likely ones; with
``--no-curve`` nothing is drawn. A run that trains several agents at once (``--seeds 0 -- --seeds 4 --sweep …``) has
drawn its own curve, of all of them.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

from side_by_side import SEEDBED, keep, last_line, measured_on, split

from seedbed.cli.train import configuration
from seedbed.config.resolve import to_json
from seedbed.errors import ConfigError
from seedbed.launch.folder import RunFolder
from seedbed.metrics.reports import draw_curve, read_summary, title
from seedbed.metrics.sinks import read_rows

CURVES = Path(__file__).parent.parent / "docs" / "curves"
KEPT = (
    "seed",
    "seconds",
    "agent_steps",
    "env_frames",
    "agent_steps_per_second",
    "mean_return",
    "best_mean_return",
    "episodes",
    "policy_lag_mean",
    "stopped_because",
    "commit",
)
KEPT_OF_SEVERAL = ("members", "compared")
BESIDE = ("run_dir", "json", "video")
"""Settings in which a run that is reused may differ: they change nothing that is learned."""


def read(words: list[str]) -> tuple[argparse.Namespace, list[str]]:
    """The script's own arguments, and the flags of ``seedbed train``."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name")
    parser.add_argument("env")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--goal", type=float, default=None)
    parser.add_argument("--runs", type=Path, default=None)
    parser.add_argument("--eval", type=int, default=None, metavar="N", dest="episodes")
    parser.add_argument("--greedy", action="store_true")
    parser.add_argument("--no-curve", action="store_false", dest="curve")
    own, flags = split(words)
    given = parser.parse_args(own)
    if given.greedy and given.episodes is None:
        parser.error("--greedy is a way to play: give --eval N")
    return given, flags


def require_same(folder: Path, words: list[str]) -> None:
    """Ends the script if ``folder`` holds a run with other settings than these words of ``seedbed train``."""
    if not RunFolder(folder).begun:
        return
    recorded, now = to_json(RunFolder(folder).config()), to_json(configuration(words))
    for name in dict.fromkeys([*recorded, *now]):
        was, is_now = recorded.get(name), now.get(name)
        if was != is_now and name not in BESIDE:
            raise SystemExit(
                f"{folder} holds a run with {name} {was!r}, and the flags give {is_now!r}: "
                "give the flags of that run, or choose another --runs"
            )


def train(folder: Path, seed: int, words: list[str]) -> dict[str, Any]:
    """The summary of one run; of an earlier one if it has ended in ``folder``."""
    if (written := folder / "summary.json").exists():
        ended = read_summary(written)
        if ended["stopped_because"].startswith(("interrupted", "failed")):
            raise SystemExit(f"{folder} was {ended['stopped_because']}: 'seedbed resume' it, or remove it")
        return ended
    own = ["--seed", str(seed), "--run-dir", str(folder), "--no-video", "--json"]
    return last_line(*SEEDBED, "train", *words, *own)


def memory(rows: list[dict[str, float]]) -> dict[str, list[int]]:
    """Resident megabytes of learner and actors, medians of the quarters of a run: flat if nothing leaks."""
    return {
        name: [
            round(
                median(row.get(name, 0) for row in rows[q * len(rows) // 4 :][: max(1, len(rows) // 4)]) / 1e6
            )
            for q in range(4)
        ]
        for name in ("memory_bytes", "actors_memory_bytes")
    }


def lengths(rows: list[dict[str, float]]) -> dict[str, float | None]:
    """The first and the last mean length of episodes."""
    known = [row["episode_length"] for row in rows if "episode_length" in row] or [None]
    return {"first": known[0], "last": known[-1]}


def kept(folder: Path, summary: dict[str, Any], given: argparse.Namespace) -> dict[str, Any]:
    """What a row has of one run."""
    rows = read_rows(folder / "metrics.jsonl")
    run = {
        **{key: summary[key] for key in KEPT},
        **{key: summary[key] for key in KEPT_OF_SEVERAL if key in summary},
        "episode_length": lengths(rows),
        "megabytes": memory(rows),
    }
    if given.episodes:
        how = ["--episodes", str(given.episodes), *(["--greedy"] if given.greedy else [])]
        run["eval"] = {**last_line(*SEEDBED, "eval", str(folder), *how, "--json"), "greedy": given.greedy}
    return run


def draw(given: argparse.Namespace, folders: list[Path], *, drawn: bool) -> None:
    """The curves of all runs in one picture; the first run's own picture if that is ``drawn`` already."""
    picture = CURVES / f"{given.name}.png"
    picture.parent.mkdir(parents=True, exist_ok=True)
    if drawn:
        shutil.copy(folders[0] / "curve.png", picture)
        return
    # With the options of the environment: a preset may have set one that changes what the returns mean.
    config = RunFolder.open(folders[0]).config()
    heading = title(" ".join([config.env, *config.env_options]), config.arch, config.agent, given.seeds)
    draw_curve({"": [folder / "metrics.jsonl" for folder in folders]}, picture, heading, given.goal)


def evidence(given: argparse.Namespace, flags: list[str], runs: Path) -> dict[str, Any]:
    """The row: every seed's run, made now or taken from ``runs``."""
    words = [given.env, *flags]
    machine = measured_on()
    folders = [runs / f"{given.name}-{seed}" for seed in given.seeds]
    for folder, seed in zip(folders, given.seeds, strict=True):
        require_same(folder, [*words, "--seed", str(seed)])
    summaries = [train(folder, seed, words) for folder, seed in zip(folders, given.seeds, strict=True)]
    if given.curve:
        draw(given, folders, drawn="members" in summaries[0])
    return {
        "name": given.name,
        "command": f"seedbed train {' '.join(words)}",
        "settings": {**to_json(RunFolder(folders[0]).config()), "run_dir": None},
        "runs": [kept(folder, summary, given) for folder, summary in zip(folders, summaries, strict=True)],
        **machine,
    }


def main() -> None:
    given, flags = read(sys.argv[1:])
    with tempfile.TemporaryDirectory(prefix="seedbed-learning-") as scratch:
        try:
            row = evidence(given, flags, given.runs or Path(scratch))
        except ConfigError as error:
            raise SystemExit(str(error)) from error
    keep("learning.jsonl", row)
    for run in row["runs"]:
        print(run)


if __name__ == "__main__":
    main()
