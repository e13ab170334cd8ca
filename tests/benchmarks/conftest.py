"""What the tests of the scripts in ``benchmarks`` need."""

import importlib
from pathlib import Path

import pytest


@pytest.fixture
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Makes the scripts importable, and has them write their rows into this folder."""
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
    monkeypatch.setattr(importlib.import_module("side_by_side"), "RESULTS", tmp_path)
    return tmp_path
