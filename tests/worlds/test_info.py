"""What environments say in ``info`` of final steps is in the metrics, under every architecture that has actors."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest
from harness import rows, shortened, thorough, tiny

from seedbed.launch.train import train
from seedbed.metrics.sinks import JsonLines, Row

HERE = str(Path(__file__).parent)
RUNS: list[dict[str, Any]] = [
    {"arch": "seed"},
    {"arch": "seed", "transport": "inproc"},
    {"arch": "impala"},
    {"arch": "rapid", "agent": "ppo"},
    {"arch": "a2c"},
    {"arch": "sebulba"},
    {"arch": "a3c", "agent": "a2c"},
    {"arch": "gorila", "agent": "dqn", "replay_min_size": 40, "replay_size": 120},
]
FIRST = [run for run in RUNS if run["arch"] in ("impala", "a3c")]


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings", shortened(RUNS, FIRST), ids=[" ".join(map(str, run.values())) for run in RUNS]
)
@pytest.mark.parametrize("world", ["Telling", *thorough("telling_vector")])
def test_numbers_of_final_steps_are_metrics(
    world: str, settings: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(HERE)
    monkeypatch.setenv("PYTHONPATH", HERE, prepend=os.pathsep)
    write, interrupted = JsonLines.write, []

    def watch(self: JsonLines, row: Row) -> None:
        write(self, row)
        if any(name.startswith("env/") for name in row) and not interrupted:
            interrupted.append(True)  # a second one would end it at once
            os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(JsonLines, "write", watch)
    train(tiny(f"first_worlds:{world}", tmp_path / "run", minutes=2, **settings))
    told = [{name: row[name] for name in row if name.startswith("env/")} for row in rows(tmp_path / "run")]
    assert {"env/time": 3.0, "env/engine.fuel": 0.5} in told
    assert all(row in ({}, {"env/time": 3.0, "env/engine.fuel": 0.5}) for row in told)
