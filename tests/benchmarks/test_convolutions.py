"""The benchmark of convolutions measures what it says."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

import pytest

from seedbed.nets.cpu import library


@pytest.fixture
def script(results: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The script, told to try everything for a moment."""
    monkeypatch.setattr(sys, "argv", ["convolutions.py", "--smoke"])
    monkeypatch.setenv(library.SWITCH, "auto")
    return importlib.reload(importlib.import_module("convolutions"))


def test_every_way_is_timed_outside_of_a_loop_and_inside(script: Any) -> None:
    (row,) = script.of_loops().values()
    ways = ["xla", *(f"onednn {dtype}" for dtype in library.find().dtypes)]
    assert set(row) == {*ways, *(f"{way}, in a loop" for way in ways)}
    assert all(0 < least <= median <= most for median, least, most in row.values())


def test_a_core_is_taken_and_given_back(script: Any) -> None:
    with script.core_taken():
        pass
    names = [name for name, _ in script.KINDS.values()]
    assert len(set(names)) == len(names)
