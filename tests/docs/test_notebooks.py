"""The notebooks run from above to below, and are kept without what they have printed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from harness import shortened

NOTEBOOKS = sorted((Path(__file__).parents[2] / "examples" / "notebooks").glob("*.ipynb"))
FIRST = [path for path in NOTEBOOKS if path.stem == "laptop"]


def cells(path: Path) -> list[dict[str, Any]]:
    return [{**cell, "source": "".join(cell["source"])} for cell in json.loads(path.read_text())["cells"]]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_begins_with_its_title_and_keeps_no_outputs(path: Path) -> None:
    first, *_ = shown = cells(path)
    assert first["cell_type"] == "markdown" and first["source"].startswith("# ")
    for cell in shown:
        if cell["cell_type"] == "code":
            assert cell["outputs"] == [] and cell["execution_count"] is None
            compile(cell["source"], path.name, "exec")


@pytest.mark.slow
@pytest.mark.parametrize("path", shortened(NOTEBOOKS, FIRST), ids=lambda path: path.stem)
def test_a_notebook_runs(path: Path, tmp_path: Path) -> None:
    """In one process, cell after cell, as a kernel runs them (decision 91)."""
    program = "\n".join(cell["source"] for cell in cells(path) if cell["cell_type"] == "code")
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        env={**os.environ, "MPLBACKEND": "agg"},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert all((run / "summary.json").exists() for run in (tmp_path / "runs").iterdir())
    assert "learner ended with 0" in done.stdout or "several" not in path.stem


def test_there_are_three() -> None:
    assert [path.stem for path in NOTEBOOKS] == ["laptop", "own_environment_and_agent", "several_machines"]
