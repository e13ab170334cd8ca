"""Two commits beside each other on this machine: the same command in turn, A B B A A B ….

``.venv/bin/python benchmarks/commits.py OTHER [--rounds 5] [--seconds 30] [--here FLAGS] -- FLAGS`` runs ``seedbed
train FLAGS`` out of the folder OTHER (a checkout of the other commit, by ``git worktree add``) and out of this one,
prints places of unrolls a second (steps and resets), medians and their ratio, and appends a row to
``benchmarks/results/commits.jsonl``.
``--here`` are flags for this commit alone: settings that the other one does not have.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path
from statistics import median

from side_by_side import keep, last_line, measured_on, split

HERE = Path(__file__).parent.parent
PROGRAM = "import sys; from {package}.cli.main import main; main(sys.argv[1:])"


def rate(checkout: Path, flags: list[str], seconds: float) -> float:
    """Places of unrolls a second, in steady state, of ``train`` with these flags by a checkout's package of any name.

    They are steps, and the decisions that only reset an environment: older commits count these as steps.
    """
    os.environ["PYTHONPATH"] = str(checkout / "src")
    (command,) = checkout.glob("src/*/cli/main.py")
    program = PROGRAM.format(package=command.parent.parent.name)
    with tempfile.TemporaryDirectory(prefix="seedbed-commits-") as scratch:
        more = ["--no-video", "--json", "--minutes", str(seconds / 60), "--run-dir", f"{scratch}/run"]
        summary = last_line(sys.executable, "-c", program, "train", *flags, *more)
    steps_per_second = float(summary["agent_steps_per_second"])
    return round(steps_per_second * summary["steps_received"] / summary["agent_steps"])


def main() -> None:
    own, flags = split(sys.argv[1:])
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("other", type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--here", default="")
    given = parser.parse_args(own)
    row = {**measured_on(), "command": " ".join(["seedbed train", *flags]), "here": given.here}
    row["other"] = last_line("git", "-C", str(given.other), "show", "-s", '--format="%h"')
    runs = {"other": (given.other, flags), "this": (HERE, [*flags, *given.here.split()])}
    found: dict[str, list[float]] = {"other": [], "this": []}
    for number in range(given.rounds):
        for name in list(runs)[:: -1 if number % 2 else 1]:
            found[name].append(rate(*runs[name], given.seconds))
            print(f"{name} {found[name][-1]:,.0f} steps/s", flush=True)
    ratio = round(median(found["this"]) / median(found["other"]), 3)
    print(f"this commit makes {ratio} times the steps/s of the other")
    keep("commits.jsonl", {**row, "steps_per_second": found, "ratio": ratio})


if __name__ == "__main__":
    main()
