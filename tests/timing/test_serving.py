"""The served path with simulated actors: small measurements, over each carrier."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from seedbed.cli.main import main
from seedbed.config.resolve import configure
from seedbed.errors import RunFailed
from seedbed.planning.costs import costs_of
from seedbed.timing.serving import measure

BENCH = ("bench", "toy:catch", "--preset", "none", "--agent", "vtrace", "--arch", "seed", "--serve")


@pytest.mark.parametrize("transport", ["shm", "grpc"])
def test_simulated_actors_are_served(transport: str) -> None:
    config = configure(
        "toy:catch", preset="none", agent="vtrace", actors=3, envs_per_actor=6, transport=transport
    )
    found = measure(config, 0.4)
    # Three environments in each of six lanes; a full batch has three lanes.
    assert found.steps_per_second == pytest.approx(3 * found.messages_per_second)
    assert found.server_us_a_message == pytest.approx(3 * found.server_us_a_row)
    assert 1 <= found.batch <= 3
    assert found.cores * 1e6 == pytest.approx(found.server_us_a_message * found.messages_per_second)
    assert 0 < found.wait_p50 <= found.wait_p99
    # A message does not take longer at the server than it waits for its actions, with three lanes a batch.
    assert found.server_us_a_message / 1e3 <= 6 * found.wait_p99
    assert found.descriptors_an_actor is None or found.descriptors_an_actor >= 1
    assert found.joins_per_second > 0


def test_the_row_has_the_costs_that_a_plan_needs(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    results = tmp_path / "results.jsonl"
    words = ("--transport", "shm", "--actors", "2", "--envs-per-actor", "4", "--seconds", "0.3", "--json")
    with pytest.raises(SystemExit) as stop:
        main([*BENCH, *words, "--results", str(results)])
    assert stop.value.code == 0
    row = json.loads(results.read_text())
    printed = capfd.readouterr().out.splitlines()
    assert json.loads(printed[-1]) == row
    assert "µs a message" in printed[0]
    # With the stages of a bench on this machine it replaces what was assumed.
    stage = {"steps_per_second": 1.0, "about": "batches of 8 on cpu"}
    stages = {"inference": stage, "learner": stage, "environment": {**stage, "about": "1 processes of 2"}}
    costs = costs_of([{**row, "stages": stages, "served": None}, row], configure(**row["settings"]))
    assert costs.served["shm"].sent == pytest.approx(row["serving"]["actor_us_a_message"] / 1e6)
    total = costs.served["shm"].message + 2 * costs.served["shm"].row
    assert total == pytest.approx(row["serving"]["server_us_a_message"] / 1e6)


def test_actors_that_fail_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    config = configure("toy:catch", preset="none", agent="vtrace", actors=1, transport="shm", env_options=())
    monkeypatch.setattr("seedbed.timing.serving.assignment_of", _of_another_run)
    with pytest.raises(RunFailed, match="a process of simulated actors has ended"):
        measure(config, 0.1)


def _of_another_run(config: object, agent: object, spec: object, token: str) -> object:
    from seedbed.architectures.parts import assignment_of

    return assignment_of(config, agent, spec, "another token")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ("--transport", "inproc"),
            "--serve times actors in processes of their own, and transport is inproc",
        ),
        (("--arch", "impala"), "--serve times central inference, and impala has none: use --arch seed"),
        (("--compare", "seed,impala"), "--serve and --compare are two benches"),
        (("--actors", "0", "--listen", "127.0.0.1:0"), "--serve needs actors"),
    ],
)
def test_runs_without_a_served_path_are_refused(
    words: tuple[str, ...], said: str, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stop:
        main([*BENCH, *words])
    assert stop.value.code == 2
    assert said in capfd.readouterr().err
