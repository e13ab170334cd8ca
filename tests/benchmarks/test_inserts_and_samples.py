"""The benchmark of the replay measures what it says."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest


@pytest.mark.parametrize("kind", ["sequences", "transitions"])
def test_a_small_replay_is_measured(kind: str, results: Path) -> None:
    script = importlib.import_module("inserts_and_samples")
    found = script.measure(kind, gigabytes=0.05, seconds=0.05)
    assert found["transitions"] * found["bytes_per_step"] == pytest.approx(0.05e9, rel=0.3)
    for name in ("inserted_steps_per_second", "sampled_items_per_second", "sample_gb_per_second"):
        assert found[name] > 0
    # A frame of 84 x 84 bytes, kept once.
    assert 84 * 84 < found["bytes_per_step"] < 84 * 84 * 1.05
