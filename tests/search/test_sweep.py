"""Sweeps whose runs are written by a program that trains nothing, and one of real runs."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
from pathlib import Path
from typing import Any

import pytest
from harness import Command, rows, tiny, until

from seedbed.errors import ConfigError, RunFailed
from seedbed.launch.folder import RunFolder
from seedbed.launch.signals import Interruption
from seedbed.search import sweep as module
from seedbed.search.report import draw, table
from seedbed.search.sweep import Plan, Result, plan, sweep
from seedbed.watching.rows import GrowingRows

FAKE = textwrap.dedent(
    """
    import json, os, signal, sys, time
    from pathlib import Path

    settings = json.loads(sys.argv[1])
    folder = Path(settings["run_dir"])
    folder.mkdir(exist_ok=True)
    with open(folder / "begun", "a") as file:
        file.write("x")
    (folder / "config.json").write_text(json.dumps(settings))
    rate = settings["learning_rate"]
    while (folder.parent / "early").exists():
        time.sleep(0.01)  # as while it imports: a signal ends it with a traceback
    ended = []
    signal.signal(signal.SIGINT, lambda *_: ended.append(1))
    if rate > 0.9:
        print("seedbed: no such luck")
        sys.exit(1)
    with open(folder / "metrics.jsonl", "a") as file:
        for part in range(17):
            # The nearer to 0.3, the higher; a run that waits for a signal stands at half of its budget.
            row = {"env_frames": part * settings["frames"] / 16, "mean_return": -abs(rate - 0.3) * part}
            file.write(json.dumps(row) + chr(10))
            file.flush()
            while not ended and part == 8 and (folder.parent / "wait").exists():
                time.sleep(0.01)
            if ended:
                break
            time.sleep(0.05 if part == 8 else 0)
    reason = "interrupted" if ended else "frames are spent"
    (folder / "summary.json").write_text(json.dumps({"stopped_because": reason}))
    """
)


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A sweep's folder, whose runs are of the program above."""
    real = subprocess.Popen

    def popen(command: list[str], **options: Any) -> Any:
        if command[1:3] == ["-m", "seedbed.search.trial"]:
            command = [sys.executable, "-I", "-S", "-c", FAKE, command[3]]
        return real(command, **options)

    monkeypatch.setattr(module.subprocess, "Popen", popen)
    monkeypatch.setattr(module, "_LOOK_SECONDS", 0.02)
    monkeypatch.setattr(module, "_require_fit", lambda config, space: 1.0)
    return tmp_path / "sweep"


def planned(folder: Path, **changes: Any) -> Plan:
    config = tiny("toy:catch", folder, frames=16_000)
    return plan(config, ["learning_rate=0.01..0.8", "entropy_cost=0,0.01"], **{"at_once": 2, **changes})


def states(result: Result) -> set[str]:
    return {one.state for one in result.tried}


def test_a_sweep_finds_the_best_and_goes_on_with_more_trials(fake: Path) -> None:
    said: list[str] = []
    first = sweep(planned(fake, trials=6, by="none"), said.append)
    assert len(first.tried) == 6 and states(first) == {"finished"} and not first.interrupted
    scores = [one.score for one in first.tried]
    assert scores == sorted(scores, reverse=True)
    best = first.tried[0]
    # The mean of a line that ends at -16 * |rate - 0.3|.
    assert best.score == pytest.approx(-8 * abs(best.values["learning_rate"] - 0.3))
    again = sweep(planned(fake, trials=6, by="none"), said.append)
    assert again == first, "nothing is left to do"
    more = sweep(planned(fake, trials=8, by="none", at_once=1), said.append)
    assert len(more.tried) == 8
    rates = [one.values["learning_rate"] for one in more.tried]
    assert len({*rates}) == 8, "a sweep that goes on proposes other values"
    assert any(line.startswith("trial 7 finished: score") for line in said)
    assert table(more).count("| finished |") == 8
    draw(planned(fake), more, fake / "sweep.png")
    assert (fake / "sweep.png").stat().st_size > 10_000


class Held:
    """The process of a run that does nothing but to be ended."""

    stdin = None
    signals = 0

    def send_signal(self, number: int) -> None:
        self.signals += number == signal.SIGINT


@pytest.mark.parametrize(
    ("by", "ends"),
    [
        # The first four have no four before them; the fifth is below the median of 5, 4, 3, 2 at a quarter.
        ("median", {5: 16, 4: 16, 3: 16, 2: 16, 1: 4, 6: 16}),
        # At the first rung: 4 is not in the better half of 5 and 4, and so on.
        ("halving", {5: 16, 4: 1, 3: 1, 2: 1, 1: 1, 6: 16}),
        ("none", {5: 16, 4: 16, 1: 16}),
    ],
)
def test_runs_that_fall_behind_are_stopped_early(fake: Path, by: Any, ends: dict[int, int]) -> None:
    asked = planned(fake, trials=len(ends), by=by)
    fake.mkdir()
    study = module._study(asked)
    running = module._Sweep(asked, study, Interruption(), print)
    for slope, end in ends.items():
        process = Held()
        trial = study.ask({axis.name: axis.distribution() for axis in asked.axes})
        each = module._Running(trial, process, GrowingRows(fake / "none"))  # type: ignore[arg-type]
        for part in range(17):
            each.rows.append({"env_frames": part * 1000, "mean_return": slope * part})
            running._stop_if_behind(each)
            if each.stopped:
                break
        assert (part, each.stopped, process.signals) == (end, end < 16, int(end < 16)), slope
        folder = fake / f"{trial.number:04}"
        folder.mkdir()
        (folder / "summary.json").write_text('{"stopped_because": "frames are spent"}')
        running._tell(each, 0)
    tried = {round(one.score / (8 * one.part)): one for one in module._tried(study)}
    assert {slope: (one.state, one.part) for slope, one in tried.items()} == {
        slope: ("finished" if end == 16 else "stopped", end / 16) for slope, end in ends.items()
    }
    assert next(iter(tried)) == max(ends), "the best comes first"


@pytest.mark.parametrize("moment", ["wait", "early"])
def test_an_interrupted_sweep_saves_its_runs_and_goes_on(fake: Path, moment: str) -> None:
    fake.mkdir()
    (fake / moment).touch()

    def half(number: str) -> bool:
        folder = fake / number
        return len(rows(folder)) >= 9 if moment == "wait" else (folder / "config.json").exists()

    def interrupt() -> None:
        until(lambda: all(map(half, ("0000", "0001"))), "two runs at half of their budget")
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    said: list[str] = []
    result = sweep(planned(fake, trials=3, by="none"), said.append)
    thread.join()
    assert result.interrupted and states(result) == {"open"} and len(result.tried) == 2
    assert "saving 2 open runs; the same command goes on" in said
    assert (fake / "0000" / "summary.json").exists() is (moment == "wait")
    (fake / moment).unlink()
    before = {one.number: one.values for one in result.tried}
    result = sweep(planned(fake, trials=3, by="none"), said.append)
    assert states(result) == {"finished"} and len(result.tried) == 3
    assert all(one.values == before[one.number] for one in result.tried if one.number in before)
    assert (fake / "0000" / "begun").read_text() == "xx", "the same run went on"
    assert "trial 0 goes on" in "\n".join(said)


def every(folder: Path, *over: str, agent: str = "vtrace", **changes: Any) -> Plan:
    config = tiny("toy:catch", folder, frames=16_000, agent=agent)
    return plan(config, over, **{"at_once": 2, "by": "all", **changes})


def test_all_combinations_are_run_once_whatever_they_score(fake: Path) -> None:
    said: list[str] = []
    asked = every(fake, "learning_rate=0.1,0.3,0.5", "seed=0..1")
    assert asked.trials == 6
    first = sweep(every(fake, "learning_rate=0.1,0.3,0.5", "seed=0..1", trials=2), said.append)
    assert [one.values for one in sorted(first.tried, key=lambda one: one.number)] == [
        {"learning_rate": 0.1, "seed": 0},
        {"learning_rate": 0.1, "seed": 1},
    ]
    whole = sweep(asked, said.append)
    assert states(whole) == {"finished"} and len(whole.tried) == 6
    pairs = [(one.values["learning_rate"], one.values["seed"]) for one in whole.tried]
    assert sorted(pairs) == [(rate, seed) for rate in (0.1, 0.3, 0.5) for seed in (0, 1)]
    assert whole.tried[0].values["learning_rate"] == 0.3
    assert sweep(asked, said.append) == whole, "nothing is left to do"
    assert sum("begins" in line for line in said) == 6


def test_numbers_that_are_close_are_different_combinations(fake: Path) -> None:
    result = sweep(every(fake, "seed=20240101..20240105"), lambda line: None)
    assert sorted(one.values["seed"] for one in result.tried) == [*range(20240101, 20240106)]


def test_values_that_do_not_go_together_fail_alone_and_the_sweep_goes_on(fake: Path) -> None:
    said: list[str] = []
    asked = every(fake, "minibatches=1..4", "learning_rate=0.1,0.3", agent="ppo")
    result = sweep(asked, said.append)
    ends = {(one.values["minibatches"], one.state) for one in result.tried}
    assert ends == {(1, "finished"), (2, "finished"), (3, "failed"), (4, "finished")}
    (line, _) = [line for line in said if "cannot be run with minibatches 3" in line]
    assert "minibatches is 3" in line
    assert not (fake / f"{line.split()[1]:0>4}").exists()
    before = len(said)
    assert len(sweep(asked, said.append).tried) == 8 and len(said) == before, "nothing is left to do"


def test_all_combinations_go_on_after_an_interruption(fake: Path) -> None:
    fake.mkdir()
    (fake / "wait").touch()
    asked = every(fake, "learning_rate=0.1,0.3,0.5")

    def interrupt() -> None:
        until(lambda: all(len(rows(fake / name)) >= 9 for name in ("0000", "0001")), "two at half of it")
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    result = sweep(asked, lambda line: None)
    thread.join()
    assert {one.number: one.state for one in result.tried} == {0: "open", 1: "open"}, "and none that waits"
    (fake / "wait").unlink()
    result = sweep(asked, lambda line: None)
    assert states(result) == {"finished"}
    assert sorted(one.values["learning_rate"] for one in result.tried) == [0.1, 0.3, 0.5]


def test_what_cannot_all_be_tried_is_refused(fake: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"over learning_rate: numbers between 0.1 and 0.2 cannot all be tried"
    ):
        every(fake, "learning_rate=0.1..0.2", "seed=0,1")
    with pytest.raises(ConfigError, match="cannot all be tried"):
        every(fake, "learning_rate=0.1..0.2", trials=3)
    with pytest.raises(ConfigError, match="10201 combinations are too many"):
        every(fake, "seed=0..100", "reuse=1..101")
    assert every(fake, "seed=0..3", trials=9).trials == 4, "there are no more"


def test_runs_that_all_fail_end_the_sweep(fake: Path) -> None:
    config = tiny("toy:catch", fake, frames=16_000)
    said: list[str] = []
    with pytest.raises(RunFailed, match="the first 3 runs of the sweep have all failed"):
        sweep(plan(config, ["learning_rate=0.95..0.99"], at_once=1), said.append)
    assert any("failed: seedbed: no such luck (log: " in line for line in said)


def test_another_sweep_or_run_in_the_folder_is_refused(fake: Path, tmp_path: Path) -> None:
    sweep(planned(fake, trials=1), lambda line: None)
    with pytest.raises(ConfigError, match=r"holds another sweep, with other --over"):
        sweep(plan(tiny("toy:catch", fake, frames=16_000), ["learning_rate=0.01..0.7"]), print)
    with pytest.raises(ConfigError, match=r"holds another sweep, with other frames"):
        sweep(plan(tiny("toy:catch", fake, frames=1), ["learning_rate=0.01..0.7"]), print)
    # What another rule has stopped early would count as tried.
    with pytest.raises(ConfigError, match=r"holds another sweep, with other --by: give those of that one"):
        sweep(planned(fake, trials=2, by="halving"), print)
    record = json.loads((fake / "sweep.json").read_text())
    (fake / "sweep.json").write_text(json.dumps({name: record[name] for name in record if name != "by"}))
    assert len(sweep(planned(fake, trials=2, by="halving"), lambda line: None).tried) == 2, (
        "of an earlier version"
    )
    run = RunFolder.create(tiny("toy:catch", tmp_path / "run"))
    with pytest.raises(ConfigError, match="holds a run"):
        sweep(planned(run.path), print)


def test_a_plan_needs_a_limit_and_possible_numbers(fake: Path) -> None:
    with pytest.raises(ConfigError, match="give --frames or --minutes"):
        plan(tiny("toy:catch", fake), ["learning_rate=0.01..0.7"])
    with pytest.raises(ConfigError, match="trials is 0"):
        planned(fake, trials=0)
    with pytest.raises(ConfigError, match="leave --store out of a sweep"):
        plan(tiny("toy:catch", fake, frames=1, store="memory://b"), ["learning_rate=0.01..0.7"])
    config = tiny("toy:catch", fake, frames=16_000)
    unnamed = [
        plan(module.resolve.replace(config, run_dir=None), [f"learning_rate=0.01..{high}"])
        for high in (1, 1, 2)
    ]
    assert unnamed[0].folder == unnamed[1].folder != unnamed[2].folder, (
        "the same sweep finds its folder again"
    )


def test_as_many_runs_at_once_as_this_machine_has_room_for_what_stands_on_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module.limits, "cores", lambda: 16)

    def at_once(**settings: Any) -> int:
        config = tiny("toy:catch", tmp_path, frames=1_000, actors=30, transport="shm", **settings)
        return plan(config, ["learning_rate=0.01..0.8"]).at_once

    assert at_once() == 1
    # Thirty actors are on other machines then; what they push gradients to is on this one.
    assert at_once(on="ray") > 4
    pushing = {"arch": "gorila", "agent": "dqn", "shards": 3, "on": "ray"}
    assert at_once(**pushing) < at_once(on="ray")


def test_ends_with_which_no_run_could_start_are_refused_before_the_first(tmp_path: Path) -> None:
    config = tiny("toy:catch", tmp_path, agent="ppo", frames=1000)
    with pytest.raises(ConfigError, match="minibatches"):
        plan(config, ["minibatches=1,1000000"])
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_a_real_sweep_on_the_command_line(tmp_path: Path) -> None:
    words = [
        *("sweep", "toy:catch", "--preset", "none", "--arch", "seed", "--agent", "vtrace", "--hidden", "16"),
        *(
            "--actors",
            "1",
            "--envs-per-actor",
            "4",
            "--batch-size",
            "4",
            "--unroll-length",
            "5",
            "--transport",
        ),
        *("inproc", "--frames", "1500", "--over", "learning_rate=log:1e-4..1e-2", "--trials", "2"),
        *("--at-once", "1", "--by", "none", "--run-dir", "sweep"),
    ]
    with Command(*words, cwd=tmp_path) as command:
        until(lambda: rows(tmp_path / "sweep" / "0000"), "a row of the first run")
        command.process.kill()
        command.process.wait()
        # It saves by itself when the sweep is gone.
        until((tmp_path / "sweep" / "0000" / "summary.json").exists, "a summary of the run")
    with Command(*words, cwd=tmp_path) as command:
        assert command.wait() == 0, command.output
        assert "trial 0 goes on" in command.output
        assert "best: sweep/000" in command.output
    assert (tmp_path / "sweep" / "sweep.png").exists()
    assert (tmp_path / "sweep" / "trials.md").read_text().count("| finished |") == 2
