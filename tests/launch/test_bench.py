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


@pytest.mark.slow
def test_bench_prints_every_stage_and_appends_a_row(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # The command would start itself anew with another allocator, and "itself" is pytest here.
    monkeypatch.setenv("ORCHARD_ALLOCATOR", "off")
    results = tmp_path / "results.jsonl"
    command = ["bench", "toy:catch", "--seconds", "0.2", "--results", str(results)]
    with pytest.raises(SystemExit) as stop:
        main(command)
    assert stop.value.code == 0
    printed = capfd.readouterr().out
    row = json.loads(results.read_text())
    for stage in ("environment", "transport shm", "transport tcp", "inference", "learner", "whole"):
        assert stage in printed
        assert row["stages"][stage]["steps_per_second"] > 0
    assert row["bottleneck"] in ("environment", "inference", "learner")
    assert {"command", "commit", "machine", "versions", "settings", "efficiency"} <= set(row)
