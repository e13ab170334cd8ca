"""The script that compares gradients in two dtypes."""

import importlib
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from harness import tiny

import seedbed


@pytest.fixture
def rounding(results: Path) -> Any:
    return importlib.import_module("rounding")


def test_the_cosine_of_an_angle(rounding: Any) -> None:
    one = np.array([3.0, 4.0])
    assert rounding.cosine(one, 2 * one) == pytest.approx(1)
    assert rounding.cosine(one, np.array([-4.0, 3.0])) == pytest.approx(0)
    assert rounding.cosine(one, np.array([3.0, 0.0])) == pytest.approx(0.6)


@pytest.mark.thorough
@pytest.mark.slow
def test_dtypes_agree_more_than_halves_do(
    rounding: Any, results: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On the network of the test and the game of the benchmark, hardly trained."""
    seedbed.train(tiny("ALE/Pong-v5", tmp_path / "run", network="small", agent="ppo", frames=800))
    monkeypatch.setattr(sys, "argv", ["rounding.py", str(tmp_path / "run"), "--steps", "20"])
    rounding.main()
    cosines = json.loads((results / "rounding.jsonl").read_text())["cosines"]
    of_dtypes, of_halves = cosines.values()
    assert of_halves < of_dtypes <= 1 and of_dtypes > 0.9
