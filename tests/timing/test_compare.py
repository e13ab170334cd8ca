"""What is compared, and one whole comparison on a toy."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from seedbed.cli.main import main
from seedbed.config.resolve import configure
from seedbed.config.settings import RunConfig
from seedbed.envs.make import spec_of
from seedbed.errors import ConfigError, RunFailed
from seedbed.timing import compare
from seedbed.timing.compare import Found, cases, measured, table


def described(env: str, *archs: str, **settings: Any) -> list[tuple[str, str, str]]:
    config = configure(env, **settings)
    return [(case.network, case.agent, case.arch) for case in cases(config, archs, spec_of(env))]


def test_each_agent_runs_where_it_can() -> None:
    found = described("toy:catch", "seed", "impala", "apex")
    assert found == [
        (network, agent, arch)
        for network in ("small", "medium", "large")
        for agent, arch in [("vtrace", "seed"), ("vtrace", "impala"), ("dqn", "seed"), ("dqn", "apex")]
    ]
    assert {agent for _, agent, _ in described("toy:catch", "seed", "impala")} == {"vtrace"}
    assert {agent for _, agent, _ in described("CartPole-v1", "seed", "apex", agent="r2d2")} == {"r2d2"}
    # Whose preset has environments that only evaluate, which the other agent has no use for.
    mixed = described("toy:catch", "seed", "impala", "apex", agent="dqn")
    assert {(agent, arch) for _, agent, arch in mixed} == {
        ("dqn", "seed"),
        ("dqn", "apex"),
        ("vtrace", "seed"),
        ("vtrace", "impala"),
    }


def test_what_is_compared_is_alike_but_for_what_is_compared() -> None:
    config = configure("CartPole-v1", agent="vtrace", actors=3, envs_per_actor=6, seed=5)
    vtrace, impala, dqn, apex = cases(config, ("seed", "impala", "apex"), spec_of("CartPole-v1"))[:4]
    assert vtrace.config.settings == impala.config.settings
    assert dqn.config.settings == apex.config.settings
    for case in (vtrace, impala, dqn, apex):
        place = case.config.placement
        assert (place.actors, place.envs_per_actor, place.transport, case.config.seed) == (3, 6, "inproc", 5)
        assert case.config.net == vtrace.config.net
        assert case.config.stop.frames is None


@pytest.mark.parametrize(
    ("archs", "settings", "says"),
    [
        (("seed", "impal"), {}, "impala"),
        (("seed",), {}, "give two or more"),
        (("impala", "impala"), {}, "give two or more"),
        (("impala", "apex"), {}, "at most one"),
        (("seed", "impala"), {"inference_batch": 3}, "inference_batch is 3, and impala has no such setting"),
    ],
)
def test_what_cannot_be_compared_is_refused(archs: Any, settings: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        described("toy:catch", *archs, **settings)


def test_figures_are_those_of_the_second_half(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [
        {
            "seconds": 10.0,
            "env_frames": 1_000,
            "cpu_seconds": 20.0,
            "bytes_from_actors": 0,
            "bytes_to_actors": 0,
        },
        {
            "seconds": 12.0,
            "env_frames": 3_000,
            "cpu_seconds": 23.0,
            "bytes_from_actors": 8e6,
            "bytes_to_actors": 1e6,
        },
        {
            "seconds": 14.0,
            "env_frames": 5_000,
            "cpu_seconds": 26.0,
            "bytes_from_actors": 1e7,
            "bytes_to_actors": 2e6,
        },
    ]
    for row, wait in zip(rows, (3.0, 1.0, 2.0), strict=True):
        row |= {
            "action_wait_p50": wait,
            "action_wait_p99": 10 * wait,
            "policy_lag_mean": 4.0,
            "learner_busy": 0.5,
        }
    monkeypatch.setattr(compare, "whole_run", lambda config, seconds: ({}, rows))
    found = measured(configure("toy:catch"), 8.0)
    assert found == Found(1_000.0, 1_500.0, 3e6, 2.0, 20.0, 4.0, 1.0, 0.5)
    lines = table({"compared": [{"network": "small", "agent": "a", "arch": "b", **asdict(found)}]}).split(
        "\n"
    )
    assert lines[2] == "| small | a | b | 1,000 | 1,500 | 3.00 | 2.00 | 20.0 | 4.0 | 1.00 | 0.50 |"


def test_a_run_that_fails_does_not_cost_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = Found(1_000.0, 1_500.0, 3e6, 2.0, 20.0, 4.0, 1.0, 0.5)
    told = []

    def run(config: RunConfig, seconds: float) -> Found:
        if config.arch == "impala" and config.net.hidden == (64, 64):
            raise RunFailed("no second update")
        return found

    monkeypatch.setattr(compare, "measured", run)
    config = configure("CartPole-v1", agent="vtrace")
    row = compare.compare(
        config, ["seed", "impala"], 8.0, say=lambda case, shown: told.append((case.name, shown))
    )
    assert [(each["arch"], each["network"]) for each in row["compared"]] == [
        ("seed", "small"),
        *((arch, network) for network in ("medium", "large") for arch in ("seed", "impala")),
    ]
    assert [name for name, shown in told if isinstance(shown, RunFailed)] == ["vtrace impala small"]
    compare.draw(row, tmp_path / "drawn.png")
    assert (tmp_path / "drawn.png").exists()


@pytest.mark.thorough
@pytest.mark.slow
def test_a_comparison_prints_a_table_draws_it_and_appends_a_row(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compare, "DENSE", {"small": {"hidden": (8,)}})
    monkeypatch.setattr(compare, "NETWORKS", {"small": {"network": "tiny"}})
    results, picture = tmp_path / "rows.jsonl", tmp_path / "compared.png"
    command = "bench toy:catch --compare seed,impala,apex --seconds 0.5 --actors 1 --envs-per-actor 4"
    with pytest.raises(SystemExit) as stop:
        main([*command.split(), "--results", str(results), "--picture", str(picture)])
    assert stop.value.code == 0
    printed = capfd.readouterr().out
    row = json.loads(results.read_text())
    assert len(row["compared"]) == 4
    for each in row["compared"]:
        assert each["frames_per_second"] > 0 and each["cpu_seconds"] > 0 and each["bytes_per_second"] > 0
        assert 0 < each["action_wait_p50"] <= each["action_wait_p99"]
        assert f"| {each['network']} | {each['agent']} | {each['arch']} |" in printed
    assert picture.read_bytes().startswith(b"\x89PNG")
