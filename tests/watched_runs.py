"""Run folders that are made by hand, as a run of this very process leaves them."""

from __future__ import annotations

import json
import os
import socket
import time
from pathlib import Path
from typing import Any

import psutil
from harness import tiny

from seedbed.launch.folder import RunFolder
from seedbed.metrics.sinks import JsonLines

NOW: dict[str, Any] = {"agent_steps": 5000, "agent_steps_per_second": 400, "updates": 9, "learner_busy": 0.9}


def a_run(folder: Path, rows: list[dict[str, float]] | None = None) -> RunFolder:
    """A run of this very process, as its folder tells it."""
    made = RunFolder.create(tiny("toy:catch", folder))
    sink = JsonLines(made.metrics)
    for row in rows or [{"seconds": 1, "mean_return": 0.5, **NOW}]:
        sink.write(row)
    process = psutil.Process()
    live = {
        "machine": socket.gethostname(),
        "pid": process.pid,
        "begun": process.create_time(),
        "cores": 2,
        "instances": [
            {"role": "actor", "index": 0, "state": "running", "restarts": 0, "fault": None, "log": "a"},
            {"role": "actor", "index": 1, "state": "starting", "restarts": 2, "fault": "killed", "log": "b"},
        ],
    }
    made.live.write_text(json.dumps(live))
    return made


def ended(run: RunFolder, why: str) -> None:
    run.summary.write_text(json.dumps({"stopped_because": why}))
    os.utime(run.summary, (time.time() + 5, time.time() + 5))
