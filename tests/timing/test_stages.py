"""The bench's arithmetic, and one whole bench on a toy."""

import contextlib
import json
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
from harness import Command, alive, thorough, until, words_of

from seedbed.cli.main import main
from seedbed.config.resolve import configure
from seedbed.config.settings import RunConfig
from seedbed.errors import RunFailed
from seedbed.timing import stages
from seedbed.timing.stages import _steady, bound


def test_the_bound_adds_the_times_of_stages_that_share_the_cores() -> None:
    assert bound(8050, 15000, 3165, shared=True) == pytest.approx(1 / (1 / 8050 + 1 / 15000 + 1 / 3165))
    assert bound(1000, 1e9, 500, shared=True) == pytest.approx(1000 / 3)


def test_the_bound_is_the_slower_side_where_an_accelerator_works_beside_the_cores() -> None:
    assert bound(1000, 1e4, 1e4, shared=False) == 1000
    assert bound(1e6, 1e4, 1e4, shared=False) == pytest.approx(5000)


def test_what_rows_of_the_start_tell_is_not_the_whole() -> None:
    rows = [
        {"seconds": seconds, "rate": rate}
        for seconds, rate in [(0.5, 3), (1, 40), (2, 90), (10, 700), (20, 710)]
    ]
    assert [row["rate"] for row in _steady(rows)] == [700, 710]


def test_a_whole_run_whose_actors_start_slowly_gets_more_time(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[float] = []
    config = configure("toy:catch", agent="vtrace")

    def finished(config: RunConfig) -> tuple[dict[str, Any], list[dict[str, float]]]:
        given.append(60 * config.stop.minutes)
        rate = 100.0 if given[-1] >= enough else None
        return {"agent_steps_per_second": rate, "policy_lag_mean": 0.0}, [{"seconds": given[-1]}]

    monkeypatch.setattr(stages, "finished_run", finished)
    for enough, wanted in ((10.0, [15.0]), (80.0, [15.0, 90.0]), (91.0, [15.0, 90.0])):
        given.clear()
        with contextlib.nullcontext() if enough <= 90.0 else pytest.raises(RunFailed, match="within 90 s"):
            summary, rows = stages.whole_run(config, 15.0)
            assert summary["agent_steps_per_second"] == 100.0 and rows == [{"seconds": given[-1]}]
        assert given == pytest.approx(wanted)


SERVED = (
    "environment",
    "transport shm",
    "transport tcp",
    "inference",
    "crowded inference",
    "join",
    "learner",
    "whole",
)
STAGES = {
    "seed": SERVED,
    "impala": SERVED,
    "rapid": SERVED,
    "sebulba": ("environment", "inference", "crowded inference", "learner", "whole"),
    "a2c": ("environment", "inference", "learner", "whole"),
    "anakin": ("acting", "learner", "whole"),
}


@pytest.mark.slow
@pytest.mark.parametrize("arch", ["sebulba", *thorough("seed", "rapid", "impala", "a2c", "anakin")])
def test_bench_prints_every_stage_and_appends_a_row(
    arch: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    results = tmp_path / "results.jsonl"
    env = "gymnax:CartPole-v1" if arch == "anakin" else "toy:catch"
    command = ["bench", env, "--arch", arch, "--seconds", "0.6", "--results", str(results)]
    with pytest.raises(SystemExit) as stop:
        main(command)
    assert stop.value.code == 0
    printed = capfd.readouterr().out
    row = json.loads(results.read_text())
    assert row["stages"].keys() >= set(STAGES[arch])
    assert arch in ("seed", "impala", "rapid", "a2c") or row["stages"].keys() == set(STAGES[arch])
    for stage in STAGES[arch]:
        assert stage in printed
        assert row["stages"][stage]["steps_per_second"] > 0
    in_bound = ("environment", "acting", "inference", "learner")
    parts = [1 / row["stages"][name]["steps_per_second"] for name in STAGES[arch] if name in in_bound]
    policies = [stage for name, stage in row["stages"].items() if "inference" in name]
    assert all(stage["rows"] and stage["device"] for stage in policies)
    assert row["stages"]["learner"]["cores"] > 0
    assert row["bound_steps_per_second"] == pytest.approx(1 / sum(parts))
    assert row["bottleneck"] in STAGES[arch]
    assert {"command", "commit", "machine", "versions", "settings", "efficiency"} <= set(row)


@pytest.mark.parametrize(
    "flags",
    [
        ("--seeds", "2"),
        ("--sweep", "learning_rate=1e-3,1e-4"),
        ("--hosts", "2"),
        ("--arch", "sebulba", "--inference-devices", "0", "1"),
    ],
)
def test_bench_times_one_agent_on_one_host_and_one_device_that_acts(
    flags: tuple[str, ...], capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["bench", "gymnax:CartPole-v1", "--arch", "anakin", *flags])
    assert stop.value.code == 2
    assert "seedbed: bench times one" in capfd.readouterr().err


BENCH = """
import sys
from seedbed.cli.main import main
from seedbed.timing import stages

if sys.argv[1] == "train_once":  # the stages before it are left out
    stages._timed = lambda *_: (1.0, {"learner": 1.0})
main(["bench", *sys.argv[2:]])
"""


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGKILL, *thorough(signal.SIGTERM)])
@pytest.mark.parametrize("stage", ["step_environment", "train_once"])
def test_what_bench_has_started_ends_with_it(stage: str, how: signal.Signals, tmp_path: Path) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    # Minutes of each stage: nothing that it starts would end by itself.
    words = [stage, "toy:catch", "--transport", "shm", "--seconds", "60", "--results", "results.jsonl"]
    command = [sys.executable, "-c", BENCH]
    with Command(*words, cwd=tmp_path, command=command, TMPDIR=str(scratch)) as bench:

        def reached() -> bool:
            assert alive(bench.process), bench.output
            working = any(stage in " ".join(words_of(process)) for process in bench.family())
            return working and (stage != "train_once" or bool(bench.actors()))

        until(reached, stage)
        bench.process.send_signal(how)
        status = bench.wait()
        until(lambda: not any(map(alive, bench.family())), "the end of all that it started", timeout=60)
    assert status == (130 if how == signal.SIGTERM else -how)
    assert how == signal.SIGKILL or not list(scratch.glob("seedbed-bench-*"))
