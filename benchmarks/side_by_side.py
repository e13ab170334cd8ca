"""What the benchmarks share that run commands in turn and compare them."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"


def last_line(*command: str) -> dict[str, Any]:
    """Runs a command; the JSON object that is its last line."""
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def orchard(flags: str, seconds: float) -> float:
    """Agent steps a second, in steady state, of ``orchard train`` with these flags."""
    with tempfile.TemporaryDirectory(prefix="orchard-side-by-side-") as scratch:
        command = [
            str(Path(sys.executable).parent / "orchard"),
            "train",
            *flags.split(),
            "--no-video",
            "--json",
        ]
        summary = last_line(*command, "--minutes", str(seconds / 60), "--run-dir", f"{scratch}/run")
    return float(summary["agent_steps_per_second"])


def keep(file: str, row: dict[str, Any]) -> None:
    """Appends a row to a file of results."""
    with (RESULTS / file).open("a") as results:
        results.write(json.dumps(row) + "\n")
