"""The bench's arithmetic, and one whole bench on a toy."""

import json
from pathlib import Path

import pytest

from orchard.cli.main import main
from orchard.launch.bench import bound


def test_the_bound_adds_the_times_of_stages_that_share_the_cores() -> None:
    assert bound(8050, 15000, 3165, shared=True) == pytest.approx(1 / (1 / 8050 + 1 / 15000 + 1 / 3165))
    assert bound(1000, 1e9, 500, shared=True) == pytest.approx(1000 / 3)


def test_the_bound_is_the_slower_side_where_an_accelerator_works_beside_the_cores() -> None:
    assert bound(1000, 1e4, 1e4, shared=False) == 1000
    assert bound(1e6, 1e4, 1e4, shared=False) == pytest.approx(5000)


STAGES = {
    "seed": ("environment", "transport shm", "transport tcp", "inference", "learner", "whole"),
    "sebulba": ("environment", "inference", "learner", "whole"),
    "a2c": ("environment", "inference", "learner", "whole"),
    "anakin": ("acting", "learner", "whole"),
}


@pytest.mark.slow
@pytest.mark.parametrize("arch", STAGES)
def test_bench_prints_every_stage_and_appends_a_row(
    arch: str, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # The command would start itself anew with another allocator, and "itself" is pytest here.
    monkeypatch.setenv("ORCHARD_ALLOCATOR", "off")
    results = tmp_path / "results.jsonl"
    env = "gymnax:CartPole-v1" if arch == "anakin" else "toy:catch"
    command = ["bench", env, "--arch", arch, "--seconds", "0.6", "--results", str(results)]
    with pytest.raises(SystemExit) as stop:
        main(command)
    assert stop.value.code == 0
    printed = capfd.readouterr().out
    row = json.loads(results.read_text())
    assert row["stages"].keys() >= set(STAGES[arch])
    assert arch == "seed" or row["stages"].keys() == set(STAGES[arch])
    for stage in STAGES[arch]:
        assert stage in printed
        assert row["stages"][stage]["steps_per_second"] > 0
    parts = [1 / row["stages"][name]["steps_per_second"] for name in STAGES[arch] if " " not in name][:-1]
    assert row["bound_steps_per_second"] == pytest.approx(1 / sum(parts))
    assert row["bottleneck"] in STAGES[arch]
    assert {"command", "commit", "machine", "versions", "settings", "efficiency"} <= set(row)


@pytest.mark.parametrize(
    "flags", [("--seeds", "2"), ("--sweep", "learning_rate=1e-3,1e-4"), ("--hosts", "2")]
)
def test_bench_times_one_agent_on_one_host(
    flags: tuple[str, ...], capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ORCHARD_ALLOCATOR", "off")
    with pytest.raises(SystemExit) as stop:
        main(["bench", "gymnax:CartPole-v1", "--arch", "anakin", *flags])
    assert stop.value.code == 2
    assert "orchard: bench times one" in capfd.readouterr().err
