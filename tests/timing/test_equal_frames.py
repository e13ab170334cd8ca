"""Which runs are made for equal frames, and what is told of them."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from seedbed.cli.main import main
from seedbed.config.resolve import configure
from seedbed.config.settings import RunConfig
from seedbed.envs.make import spec_of
from seedbed.errors import ConfigError, RunFailed
from seedbed.registry import ARCHITECTURES
from seedbed.timing import equal_frames
from seedbed.timing.equal_frames import Ran, compare_all, pairs, ran, table


def described(env: str, **settings: Any) -> dict[str, set[str]]:
    """The agents of every architecture."""
    found: dict[str, set[str]] = {}
    for pair in pairs(configure(env, **{"frames": 1000, **settings}), spec_of(env)):
        found.setdefault(pair.arch, set()).add(pair.agent)
    return found


def test_every_pair_is_run_that_goes_together_as_its_preset_has_it() -> None:
    # A2C learns from its newest weights, which CartPole's preset sees to wherever there is a choice.
    found = described("gymnax:CartPole-v1")
    assert found.keys() == set(ARCHITECTURES.names) - {"distbelief"}
    assert found["apex"] == found["gorila"] == {"dqn", "r2d2", "muzero"}
    assert found["a3c"] == {"a2c"}
    assert {"vtrace", "ppo"} <= found["rapid"] <= {"vtrace", "ppo", "a2c", "pqn"}
    assert found["anakin"] == {"vtrace", "ppo", "a2c", "pqn", "dqn", "r2d2", "muzero"}
    assert "anakin" not in described("CartPole-v1"), "it is no JAX function"


def test_what_is_given_is_given_to_every_run_that_has_it() -> None:
    config = configure("gymnax:CartPole-v1", frames=5000, seed=4, entropy_cost=0.5, until_return=100.0)
    found = pairs(config, spec_of("gymnax:CartPole-v1"))
    assert {pair.config.stop.frames for pair in found} == {5000}
    assert {pair.config.stop.until_return for pair in found} == {None}
    assert {pair.config.seed for pair in found} == {4}
    costs = {pair.agent: getattr(pair.config.settings, "entropy_cost", None) for pair in found}
    assert costs == {
        "vtrace": 0.5,
        "ppo": 0.5,
        "a2c": 0.5,
        "dqn": None,
        "pqn": None,
        "r2d2": None,
        "muzero": None,
    }
    assert {pair.config.placement.publish_updates for pair in found if pair.arch == "rapid"} >= {16}


def test_equal_frames_have_to_be_given() -> None:
    with pytest.raises(ConfigError, match="add --frames N"):
        described("toy:catch", frames=None)


def test_what_a_run_took_is_told_of_all_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    summary = {
        "env_frames": 4000,
        "agent_steps": 1000,
        "agent_steps_per_second": 50.0,
        "seconds": 20.0,
        "policy_lag_mean": 3.0,
        "mean_return": 7.0,
    }
    rows: list[dict[str, float]] = [{"cpu_seconds": 3.0}, {"cpu_seconds": 8.0}]
    monkeypatch.setattr(equal_frames, "finished_run", lambda config: (summary, rows))
    config = configure("toy:catch")
    assert ran(config) == Ran(20.0, 200.0, 2000.0, None, 3.0, 7.0)
    rows[0]["gradient_staleness_mean"], rows[1]["gradient_staleness_mean"] = 1.0, 2.0
    rows[1] |= {"bytes_from_actors": 6000.0, "bytes_to_actors": 2000.0}
    assert ran(config) == Ran(20.0, 200.0, 2000.0, 2.0, 1.5, 7.0)
    told = {"agent": "a", "arch": "b", **asdict(Ran(20.0, 1234.5, 2000.0, None, 3.0, None))}
    assert table({"pairs": [told]}).split("\n")[2] == "| b | a | 1,234 | 2,000 | – | 3.0 | – | 20 |"


@pytest.mark.thorough
def test_a_run_that_fails_does_not_cost_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(config: RunConfig) -> Ran:
        if config.arch == "apex":
            raise RunFailed("no room")
        return Ran(1.0, 1.0, 1.0, None, None, 1.0)

    monkeypatch.setattr(equal_frames, "ran", run)
    failed = []
    row = compare_all(
        configure("toy:catch", frames=100),
        lambda pair, ran: failed.append(pair.arch) if isinstance(ran, RunFailed) else None,
    )
    assert set(failed) == {"apex"}
    assert {each["arch"] for each in row["pairs"]} >= {"seed", "gorila", "rapid"}
    monkeypatch.setattr(equal_frames, "ran", lambda config: (_ for _ in ()).throw(RunFailed("no room")))
    with pytest.raises(RunFailed, match="no run of the comparison"):
        compare_all(configure("toy:catch", frames=100), lambda pair, ran: None)


@pytest.mark.thorough
@pytest.mark.slow
def test_all_of_them_are_compared_by_one_command(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(equal_frames, "AGENTS", SimpleNamespace(names=("ppo", "dqn")))
    monkeypatch.setattr(equal_frames, "ARCHITECTURES", SimpleNamespace(names=("seed", "rapid", "gorila")))
    results = tmp_path / "rows.jsonl"
    with pytest.raises(SystemExit) as stop:
        main(["bench", "toy:catch", "--compare", "all", "--frames", "3000", "--results", str(results)])
    assert stop.value.code == 0, capfd.readouterr()
    row = json.loads(results.read_text())
    printed = capfd.readouterr().out
    assert [(each["arch"], each["agent"]) for each in row["pairs"]] == [
        ("seed", "ppo"),
        ("seed", "dqn"),
        ("rapid", "ppo"),
        ("gorila", "dqn"),
    ]
    for each in row["pairs"]:
        assert each["cpu_seconds"] > 0 and each["bytes_per_frame"] > 10
        assert each["mean_return"] is not None
        assert f"| {each['arch']} | {each['agent']} |" in printed
