from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from seedbed.cli import collect
from seedbed.replay.dataset import Dataset, Decided, write
from seedbed.types import ArraySpec, EnvSpec, TimeStep

SPEC = EnvSpec("test/zeros", ArraySpec((), "float32"), ArraySpec((), "int32", (2,)), frames_per_step=4)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, Any]:
    """What the command has collected, of which only the last words are its own."""
    given: dict[str, Any] = {}

    def collected(run: str, **flags: Any) -> Dataset:
        given.update(run=run, **flags)
        zeros = np.zeros(3, np.float32)
        step = Decided(TimeStep(zeros, zeros, zeros > 0, zeros > 0, zeros > 0), zeros.astype(np.int32), {})
        return write(
            tmp_path / "data",
            SPEC,
            [step] * 101,
            lambda: {"episodes": 7, "mean_return": given.get("mean", 12.3456)},
        )

    monkeypatch.setattr("seedbed.evaluation.collect.collect", collected)
    return given


def test_one_line_tells_what_there_is_now(
    asked: dict[str, Any], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    collect.run(["runs/catch", "--frames", "1200", "--out", "x", "--greedy", "--seed", "5"])
    assert asked == {"run": "runs/catch", "frames": 1200, "out": "x", "greedy": True, "seed": 5, "trust": ()}
    assert capsys.readouterr().out == (
        f"1,200 frames, 7 whole episodes of mean return 12.35: {tmp_path / 'data'}\n"
    )


def test_no_whole_episode_has_no_mean(asked: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    asked["mean"] = None
    collect.run(["runs/catch", "--frames", "1200"])
    assert "7 whole episodes: " in capsys.readouterr().out


@pytest.mark.usefixtures("asked")
def test_programs_are_told_everything(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    collect.run(["runs/catch", "--frames", "1200", "--json"])
    told = json.loads(capsys.readouterr().out)
    assert told["dataset"] == str(tmp_path / "data")
    assert (told["frames"], told["episodes"], told["mean_return"]) == (1200, 7, 12.3456)
    assert EnvSpec.from_json(told["spec"]) == SPEC
