"""What the benchmarks share that run ``seedbed`` and keep what it came to."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"
PEERS = Path(__file__).resolve().parent / "peers"
SEEDBED = (sys.executable, "-m", "seedbed")


def split(words: list[str]) -> tuple[list[str], list[str]]:
    """A script's own arguments, and behind ``--`` the flags of ``seedbed train``."""
    end = words.index("--") if "--" in words else len(words)
    return words[:end], words[end + 1 :]


def last_line(*command: str, env: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Runs a command, with these environment variables or its parent's; the JSON object that is its last line."""
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, env=env)
    found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def peers_line(python: str, script: str, *words: str) -> dict[str, Any]:
    """Runs a script of ``peers/`` by the Python of another environment, which is given no package of this one."""
    own = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return last_line(python, str(PEERS / script), *words, env=own)


def seedbed(flags: str, seconds: float) -> float:
    """Agent steps a second, in steady state, of ``seedbed train`` with these flags."""
    with tempfile.TemporaryDirectory(prefix="seedbed-side-by-side-") as scratch:
        command = [*SEEDBED, "train", *flags.split(), "--no-video", "--json"]
        summary = last_line(*command, "--minutes", str(seconds / 60), "--run-dir", f"{scratch}/run")
    if summary["agent_steps_per_second"] is None:
        raise SystemExit(
            f"seedbed train {flags} made no second update within {seconds:g} s: give it more time"
        )
    return float(summary["agent_steps_per_second"])


def in_turn(commands: Mapping[str, str], rounds: int, seconds: float) -> dict[str, list[int]]:
    """Agent steps a second of ``seedbed train`` with each of the flags: one after the other, ``rounds`` times."""
    found: dict[str, list[int]] = {name: [] for name in commands}
    for _ in range(rounds):
        for name, rates in found.items():
            rates.append(round(seedbed(commands[name], seconds)))
            print(f"{name} {rates[-1]:,} steps/s", flush=True)
    return found


def measured_on() -> dict[str, Any]:
    """The machine and the versions; found by another process, since one that has looked at an accelerator keeps it."""
    program = "import json; from seedbed.timing.stages import provenance; print(json.dumps(provenance()))"
    return last_line(sys.executable, "-c", program)


def keep(file: str, row: dict[str, Any]) -> None:
    """Appends a row to a file of results; without the path of this Python, which a remedy in it may name."""
    with (RESULTS / file).open("a") as results:
        results.write(json.dumps(row).replace(sys.executable, "python") + "\n")
