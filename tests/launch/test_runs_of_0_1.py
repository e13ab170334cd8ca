"""Runs, checkpoints and data sets that version 0.1 wrote, when the project was called Orchard, still open.

``tests/runs_of_0_1`` was written by ``orchard train`` and ``orchard collect``; ``expected.json`` has what the policies
of 0.1 recorded at the first step of three environments (seed 5).
"""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from harness import TESTS

import seedbed
from seedbed.evaluation.player import Player
from seedbed.replay.dataset import Dataset

OF_0_1 = TESTS / "runs_of_0_1"
EXPECTED = json.loads((OF_0_1 / "expected.json").read_text())


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    shutil.copytree(OF_0_1, tmp_path / "runs")
    monkeypatch.syspath_prepend(str(OF_0_1))  # pictures.py
    monkeypatch.chdir(tmp_path / "runs")
    return tmp_path / "runs"


@pytest.mark.parametrize("run", EXPECTED)
def test_the_policy_decides_as_it_did(run: str, runs: Path) -> None:
    player = Player(runs / run, trust=["pictures:Pictures"])
    environment = player.make(3)
    _, output = next(player.play(environment, 5))
    assert set(output.record) == set(EXPECTED[run])
    for name, value in EXPECTED[run].items():
        np.testing.assert_allclose(output.record[name], value, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("run", EXPECTED)
def test_a_run_is_resumed_where_it_stopped(run: str, runs: Path) -> None:
    before = json.loads((runs / run / "summary.json").read_text())
    frames = before["env_frames"] + 500
    after = seedbed.resume(str(runs / run), frames=frames, trust=["pictures:Pictures"]).to_json()
    assert after["env_frames"] >= frames
    assert after["weights_version"] > before["weights_version"]
    steps = [
        json.loads(line)["env_frames"] for line in (runs / run / "metrics.jsonl").read_text().splitlines()
    ]
    assert steps == sorted(steps), "the rows go on where those of 0.1 end"


@pytest.mark.parametrize(("run", "transitions"), [("vtrace", 400), ("pictures", 80)])
def test_a_data_set_opens(run: str, transitions: int, runs: Path) -> None:
    dataset = Dataset.open(runs / run / "dataset")
    assert dataset.about["transitions"] == transitions
    assert dataset.read(0, 0, 3)["reward"].shape == (3,)
