from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from seedbed.cli.ending import _next, _seedbed, _side_by_side
from seedbed.config.resolve import configure


def script(folder: Path) -> Path:
    folder.mkdir(parents=True)
    path = folder / "seedbed"
    path.touch(mode=0o755)
    return path


def test_the_next_command_can_be_typed_as_it_stands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    ours, another = script(tmp_path / ".venv/bin"), script(tmp_path / "elsewhere")
    monkeypatch.setattr("sys.argv", [".venv/bin/seedbed", "train"])
    monkeypatch.setenv("PATH", "")
    assert _seedbed() == ".venv/bin/seedbed", "there is none on the PATH"
    monkeypatch.setenv("PATH", str(another.parent))
    assert _seedbed() == ".venv/bin/seedbed", "the one there is another"
    monkeypatch.setenv("PATH", str(ours.parent))
    assert _seedbed() == "seedbed"
    monkeypatch.setattr("sys.argv", ["pytest"])
    assert _seedbed() == "seedbed", "it was called from Python"


@pytest.mark.parametrize(
    ("settings", "over", "command"),
    [
        ({}, True, "eval 'my run'"),
        ({}, False, "resume 'my run'"),
        ({"hosts": 2, "host": 1, "coordinator": "a:1"}, False, "resume . --host 1"),
        ({"env": "foreign:world.json"}, True, "serve 'my run' --listen unix:'my run'/policy.sock"),
        ({"env": "foreign:world.json"}, False, "resume 'my run'"),
    ],
)
def test_the_next_command_is_one_that_works(settings: dict[str, Any], over: bool, command: str) -> None:
    folder = "hosts/1" if "host" in settings else "my run"
    assert _next(configure(**{"env": "toy:catch", **settings}), folder, over) == command


def test_an_interval_is_told_of_several_seeds_and_not_of_one() -> None:
    found = {"interquartile_mean": 172.1, "low": 150.0, "high": 190.0}
    agents = [{"agent": f"agent {number}", "mean_return": 100.0 * number} for number in range(2)]
    values = {
        "variants": agents,
        "agent_steps_per_second": 50.0,
        "compared": {"rate 1": {**found, "count": 1}, "rate 2": {**found, "count": 3}},
        "best_variant": 1,
    }
    assert [*_side_by_side(values)] == [
        "2 agents side by side: the numbers above are of one (means); 100 steps/s together",
        "rate 1: mean return 172.1",
        "rate 2: interquartile mean 172.1, 95% interval 150 to 190 over 3 seeds",
        "the checkpoint plays the best: agent 1, mean return 100",
    ]
