"""Learning evidence: trains with several seeds, draws the curves together, keeps a row.

``.venv/bin/python benchmarks/learning.py NAME ENV [--seeds 0 1 2] [-- FLAGS of orchard train]`` writes
``docs/curves/NAME.png`` and appends to ``benchmarks/results/learning.jsonl``. With ``--runs FOLDER`` the runs are
kept there, and those that have ended are not run again. A run that trains several agents at once (``--seeds 0 --
--seeds 4 --sweep …``) has drawn its own curve, of all of them.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

from orchard.launch.bench import provenance
from orchard.launch.folder import RunFolder
from orchard.metrics.reports import draw_curve, title

ROOT = Path(__file__).parent.parent
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
)
KEPT_OF_SEVERAL = ("members", "compared")


def train(env: str, seed: int, folder: Path, flags: list[str]) -> dict[str, object]:
    """The summary of one run; of an earlier one if it has ended in ``folder``."""
    if (written := folder / "summary.json").exists():
        ended = json.loads(written.read_text())
        if ended["stopped_because"].startswith(("interrupted", "failed")):
            raise SystemExit(f"{folder} was {ended['stopped_because']}: 'orchard resume' it, or remove it")
        return ended
    command = [str(Path(sys.executable).parent / "orchard"), "train", env, *flags]
    command += ["--seed", str(seed), "--run-dir", str(folder), "--no-video", "--json"]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout.strip().splitlines()[-1])


def memory(folder: Path) -> dict[str, list[int]]:
    """Resident megabytes of learner and actors, medians of the quarters of a run: flat if nothing leaks."""
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return {
        name: [
            round(
                median(row.get(name, 0) for row in rows[q * len(rows) // 4 :][: max(1, len(rows) // 4)]) / 1e6
            )
            for q in range(4)
        ]
        for name in ("memory_bytes", "actors_memory_bytes")
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name")
    parser.add_argument("env")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--goal", type=float, default=None)
    parser.add_argument("--runs", type=Path, default=None)
    own, flags = sys.argv[1:], []
    if "--" in own:
        own, flags = own[: own.index("--")], own[own.index("--") + 1 :]
    arguments = parser.parse_args(own)
    measured_on = provenance()
    with tempfile.TemporaryDirectory(prefix="orchard-learning-") as scratch:
        runs = arguments.runs or Path(scratch)
        folders = [runs / f"{arguments.name}-{seed}" for seed in arguments.seeds]
        summaries = [
            train(arguments.env, seed, folder, flags)
            for seed, folder in zip(arguments.seeds, folders, strict=True)
        ]
        picture = ROOT / "docs" / "curves" / f"{arguments.name}.png"
        picture.parent.mkdir(parents=True, exist_ok=True)
        # With the options of the environment: a preset may have set one that changes what the returns mean.
        config = RunFolder.open(folders[0]).config()
        env = " ".join([config.env, *config.env_options])
        heading = title(env, config.arch, config.agent, arguments.seeds)
        if "members" in summaries[0]:
            shutil.copy(folders[0] / "curve.png", picture)
        else:
            draw_curve(
                {"": [folder / "metrics.jsonl" for folder in folders]}, picture, heading, arguments.goal
            )
        ran = [
            {
                **{key: summary[key] for key in KEPT},
                **{key: summary[key] for key in KEPT_OF_SEVERAL if key in summary},
                "megabytes": memory(folder),
            }
            for summary, folder in zip(summaries, folders, strict=True)
        ]
    row = {
        "name": arguments.name,
        "command": f"orchard train {arguments.env} {' '.join(flags)}".strip(),
        "runs": ran,
        **measured_on,
    }
    results = ROOT / "benchmarks" / "results" / "learning.jsonl"
    results.parent.mkdir(parents=True, exist_ok=True)
    with results.open("a") as file:
        file.write(json.dumps(row) + "\n")
    for run in row["runs"]:
        print(run)


if __name__ == "__main__":
    main()
