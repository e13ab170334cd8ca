"""The script that times more and more environments; what it runs is played here."""

import importlib
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from seedbed.errors import ConfigError


@pytest.fixture
def scaling(results: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    script = importlib.import_module("scaling")
    monkeypatch.setattr(script, "measured_on", lambda: {"commit": "abc"})
    return script


def run(script: Any, monkeypatch: pytest.MonkeyPatch, *words: str) -> list[tuple[str, float]]:
    """The flags and seconds of everything that the script runs; the second round is twice as fast."""
    ran: list[tuple[str, float]] = []

    def seedbed(flags: str, seconds: float) -> float:
        ran.append((flags, seconds))
        return float(flags.rsplit(maxsplit=1)[-1]) * (1 if len(ran) <= 2 else 2)

    monkeypatch.setattr(importlib.import_module("side_by_side"), "seedbed", seedbed)
    monkeypatch.setattr(sys, "argv", ["scaling.py", *words])
    script.main()
    return ran


def test_counts_take_turns_and_a_row_has_their_medians(
    scaling: Any, results: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran = run(scaling, monkeypatch, "--counts", "64", "256", "--rounds", "2", "--minutes", "0.1")
    flags = "gymnax:CartPole-v1 --arch anakin --agent ppo --preset none --batch-size"
    assert ran == [(f"{flags} {count}", 6.0) for count in (64, 256, 64, 256)]
    row = json.loads((results / "scaling.jsonl").read_text())
    assert row["steps_per_second"] == {"64": [64, 128], "256": [256, 512]}
    assert (row["medians"], row["commit"]) == ({"64": 96, "256": 384}, "abc")
    assert row["settings"]["agent"] == "ppo"
    assert "batch_size" not in row["settings"]


def test_sebulba_counts_the_environments_of_a_thread_and_flags_may_say_otherwise(
    scaling: Any, results: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["CartPole-v1", "--arch", "sebulba", "--counts", "8", "--rounds", "1", "--", "--agent", "vtrace"]
    ((flags, _),) = run(scaling, monkeypatch, *words)
    assert flags.endswith("--agent vtrace --envs-per-actor 8")
    assert json.loads((results / "scaling.jsonl").read_text())["settings"]["agent"] == "vtrace"


def test_wrong_flags_are_named_before_anything_runs(scaling: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="--actros"):
        run(scaling, monkeypatch, "--", "--actros", "2")
