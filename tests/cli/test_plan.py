"""``seedbed plan`` with files of costs: what it prints, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from seedbed.cli.main import main
from seedbed.launch import build

SETTINGS = {"env": "toy:catch", "agent": "vtrace", "network": "mlp", "hidden": [16]}
FLAGS = ("toy:catch", "--preset", "none", "--agent", "vtrace", "--network", "mlp", "--hidden", "16")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A file with the costs of a machine of two cores, for agents of both kinds."""
    stages: dict[str, Any] = {
        "environment": {
            "steps_per_second": 20_000.0,
            "about": "2 processes of 16 environments, random actions",
        },
        "inference": {"steps_per_second": 40_000.0, "about": "batches of 16 on cpu"},
        "learner": {"steps_per_second": 10_000.0, "about": "batches of 32 unrolls of 20 on 1 device(s)"},
    }
    machine = {"processor": "A", "cores": 2, "devices": ["cpu"]}
    path = tmp_path / "costs.jsonl"
    rows = [
        {"stages": stages, "settings": {**SETTINGS, "agent": agent}, "machine": machine, "commit": "c"}
        for agent in ("vtrace", "dqn")
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def called(capsys: pytest.CaptureFixture[str], *words: str | Path) -> tuple[int, str]:
    with pytest.raises(SystemExit) as stop:
        main(["plan", *map(str, words)])
    told = capsys.readouterr()
    assert isinstance(stop.value.code, int)
    return stop.value.code, told.err if stop.value.code else told.out


def test_a_plan_is_printed_and_drawn(file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    picture = tmp_path / "drawn" / "use.svg"
    status, told = called(
        capsys, *FLAGS, "--costs", file, "--machine", "cores=8,price=2", "--picture", picture
    )
    assert status == 0, told
    for needed in (
        "8 cores: 1 learner, 2 actors",
        "agent steps/s",
        "price of 10^9 frames, at 2 an hour",
        "assumed: ",
    ):
        assert needed in told
    assert "<svg" in picture.read_text()


def test_a_plan_is_json(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, told = called(capsys, *FLAGS, "--costs", file, "--json")
    assert status == 0, told
    made = json.loads(told)["seed"]
    assert 0 < made["steps_per_second"] <= 1 / (1 / 20_000 + 1 / 40_000 + 1 / 10_000) * 1.02
    assert made["bound"] == "cores"
    assert made["machines"] == [{**made["machines"][0], "cores": 2.0, "accelerators": 0}]


def test_architectures_are_compared_each_with_an_agent_that_fits(
    file: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    tried = Mock(side_effect=build.in_a_thread)
    monkeypatch.setattr(build, "in_a_thread", tried)
    status, told = called(capsys, *FLAGS, "--costs", file, "--compare", "seed,impala", "apex", "gorila")
    assert status == 0, told
    for needed in ("seed vtrace", "impala vtrace", "apex dqn"):
        assert needed in told
    assert "gorila" in told
    assert "cannot be planned" in told
    assert tried.call_count == 1, "the environment is made once for all of them"


def test_actors_are_multiplied_for_a_wanted_rate(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = (*FLAGS, "--actors", "1", "--costs", file, "--machine", "cores=64", "--json")
    one = json.loads(called(capsys, *words)[1])["seed"]["steps_per_second"]
    status, told = called(capsys, *words, "--target-steps-per-second", str(1.3 * one))
    assert status == 0, told
    made = json.loads(told)["seed"]
    assert made["instances"]["actor"] == 2
    assert made["steps_per_second"] >= 1.3 * one


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--machine", "64"), "--machine 64: '64' is no name=value"),
        (("--machine", "cores=2,accelerators=1"), "timed on CPU cores alone"),
        (("--hidden", "32"), "its rows are of hidden [16]"),
        (("--arch", "a3c", "--agent", "a2c"), "no costs of toy:catch with this network under the agent a2c"),
        (("--target-steps-per-second", "0"), "has to be more than 0"),
        (("--compare", "seed,impala", "--target-steps-per-second", "5"), "two questions"),
        (("--costs", "nowhere.jsonl"), "cannot be read"),
    ],
)
def test_mistakes_are_named_in_one_line(
    words: tuple[str, ...], said: str, file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status, told = called(capsys, *FLAGS, "--costs", file, *words)
    assert status == 2
    assert said in told
    assert told.count("\n") == 1
