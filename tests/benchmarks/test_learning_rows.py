"""The script that keeps evidence of learning: what a row holds, and which runs it does not take."""

import importlib
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from harness import flags


@pytest.fixture
def learning(results: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The script, which draws beside its rows."""
    script = importlib.import_module("learning")
    monkeypatch.setattr(script, "CURVES", results)
    return script


def run(script: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *own: str, **settings: Any) -> None:
    """The script once, on a tiny run of Catch."""
    _, env, *words = flags("toy:catch", "", frames=400, **settings)
    words = words[: words.index("--run-dir")] + words[words.index("--run-dir") + 2 :]
    given = ["tiny", env, "--seeds", "3", "--runs", str(tmp_path / "runs"), *own, "--", *words]
    monkeypatch.setattr(sys, "argv", ["learning.py", *given])
    script.main()


@pytest.mark.thorough
@pytest.mark.slow
def test_a_row_has_settings_lengths_and_evaluations_and_runs_of_other_settings_are_refused(
    learning: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(learning, tmp_path, monkeypatch, "--eval", "5", "--greedy")
    row = json.loads((tmp_path / "learning.jsonl").read_text())
    assert (row["settings"]["hidden"], row["settings"]["run_dir"]) == ([16], None)
    (one,) = row["runs"]
    assert (one["seed"], one["episode_length"]) == (3, {"first": 9.0, "last": 9.0})
    played = one.pop("eval")
    assert played["count"] >= 5 and played["greedy"]
    assert (tmp_path / "tiny.png").exists()

    # The same runs once more: nothing is trained, and without --eval nothing is played.
    monkeypatch.setattr(learning, "last_line", None)
    run(learning, tmp_path, monkeypatch)
    again = json.loads((tmp_path / "learning.jsonl").read_text().splitlines()[1])
    assert again["runs"] == [one]

    with pytest.raises(
        SystemExit, match=r"tiny-3 holds a run with unroll_length 5, and the flags give 6: give"
    ):
        run(learning, tmp_path, monkeypatch, unroll_length=6)
    assert len((tmp_path / "learning.jsonl").read_text().splitlines()) == 2


def test_lengths_are_the_first_and_the_last_that_are_known(learning: Any) -> None:
    rows = [{"seconds": 0.0}, {"episode_length": 150.0}, {"episode_length": 8.0}, {"seconds": 3.0}]
    assert learning.lengths(rows) == {"first": 150.0, "last": 8.0}
    assert learning.lengths([{"seconds": 0.0}]) == {"first": None, "last": None}


def test_a_way_to_play_needs_episodes(learning: Any, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        learning.read(["tiny", "toy:catch", "--greedy", "--"])
    assert "--greedy is a way to play: give --eval N" in capsys.readouterr().err
