"""The script that has environments learned by Seedbed and by a peer, each as it comes."""

from __future__ import annotations

import importlib
import itertools
import json
import sys
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture
def script(results: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    found = importlib.import_module("out_of_the_box")
    monkeypatch.chdir(found.HERE)  # where the script goes
    return found


def test_both_are_run_with_every_seed_and_what_an_interrupted_call_has_made_is_kept(
    script: Any, results: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[str] = []

    def run(who: str, env: str, frames: int, seed: int, score: float) -> dict[str, Any]:
        made.append(f"{who} {seed}")
        if who == "theirs" and made.count("theirs 1") == 1 and seed == 1:
            raise KeyboardInterrupt
        assert (env, frames) == ("Acrobot-v1", 300_000)
        return {"eval": score - seed, "frames": frames, "seconds": 7, "versions": {"peer": "1"}}

    looks = itertools.count()
    monkeypatch.setattr(script, "measured_on", lambda: {"commit": f"c{next(looks)}"})
    monkeypatch.setattr(script, "ours", lambda env, frames, seed: run("ours", env, frames, seed, -80.0))
    monkeypatch.setattr(
        script, "theirs", lambda _, env, frames, seed: run("theirs", env, frames, seed, -90.0)
    )
    words = ["out_of_the_box.py", "python", "--tasks", "Acrobot", "--runs", str(tmp_path / "kept")]
    monkeypatch.setattr(sys, "argv", words)
    with pytest.raises(KeyboardInterrupt):
        script.main()
    assert made == ["ours 0", "theirs 0", "ours 1", "theirs 1"]
    assert not (results / "peers.jsonl").exists()
    script.main()
    assert made[4:] == ["theirs 1", "ours 2", "theirs 2"]
    (row,) = map(json.loads, (results / "peers.jsonl").read_text().splitlines())
    assert (row["seedbed"], row["theirs"]) == ([-80.0, -81.0, -82.0], [-90.0, -91.0, -92.0])
    assert row["seconds"] == {"seedbed": [7] * 3, "theirs": [7] * 3}
    # Looks: at the first call, with both of seed 0, with ours of seed 1; at the second call, with theirs of seed 1, ….
    assert (row["commits"], row["commit"]) == (["c1", "c3", "c6"], "c4")
    assert row["peer_versions"] == {"peer": "1"} and "--preset general --frames 300000" in row["command"]
