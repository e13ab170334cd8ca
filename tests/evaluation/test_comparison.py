"""Comparisons of runs whose curves are made by hand."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest

from seedbed.cli.main import main
from seedbed.errors import ConfigError
from seedbed.evaluation.comparison import compare, draw, returns_at, table
from seedbed.metrics.sinks import JsonLines


def a_run(folder: Path, slope: float, *, frames: int = 1000, speed: float = 10.0, **settings: Any) -> Path:
    """A run of a line: its return at ``n`` frames is ``slope * n``, and it has ``speed`` frames a second."""
    folder.mkdir(parents=True)
    record = {"env": "toy:catch", "arch": "seed", "agent": "ppo", "seed": 0, "learning_rate": 0.1, **settings}
    (folder / "config.json").write_text(json.dumps(record))
    sink = JsonLines(folder / "metrics.jsonl")
    for n in range(0, frames + 1, 100):
        row = {"agent_steps": n / 2, "env_frames": n, "seconds": n / speed, "mean_return": slope * n}
        sink.write(row)
    sink.close()
    return folder


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """Of each of two agents four runs: ppo's slopes are 1 to 4, dqn's 2.5 to 5.5 and it is ten times slower."""
    for seed in range(4):
        a_run(tmp_path / "runs" / f"ppo-{seed}", 1.0 + seed, seed=seed)
        slow = a_run(tmp_path / "runs" / "of dqn" / f"{seed}", 2.5 + seed, seed=seed, speed=1.0, agent="dqn")
        assert slow.is_dir()
    return tmp_path / "runs"


def test_the_figures_by_hand(runs: Path) -> None:
    found = compare([runs])
    assert (found.frames, found.seconds, found.env, found.notes) == (1000, 100, "toy:catch", ())
    best, other = found.groups
    assert [group.name for group in found.groups] == ["dqn", "ppo"]
    # The middle two of four: slopes 3.5 and 4.5, 2 and 3.
    assert (best.at_frames.value, other.at_frames.value) == pytest.approx((4000, 2500))
    # After 100 s dqn has 100 frames.
    assert (best.at_seconds.value, other.at_seconds.value) == pytest.approx((400, 2500))
    assert (best.steps_per_second, other.steps_per_second) == pytest.approx((0.5, 5.0))
    assert best.at_frames.low < 4000 < best.at_frames.high
    # dqn's 2.5 wins against two of ppo's four, 3.5 against three, 4.5 and 5.5 against all.
    assert best.better_than["ppo"].value == pytest.approx(13 / 16)
    assert other.better_than["dqn"].value == pytest.approx(3 / 16)


def test_agents_side_by_side_are_compared_and_nothing_that_a_run_names_is_imported(tmp_path: Path) -> None:
    run = a_run(tmp_path / "run", 1.0, agent="nowhere:AGENT", seeds=2, sweep=["entropy-cost=0.1,0.2"], seed=5)
    for index in range(4):
        own = a_run(tmp_path / f"of {index}", 1.0 + index)
        (run / "variants" / str(index)).mkdir(parents=True)
        own.joinpath("metrics.jsonl").rename(run / "variants" / str(index) / "metrics.jsonl")
    found = compare([run], by=("entropy_cost",))
    assert {group.name: group.at_frames.value for group in found.groups} == {
        "entropy_cost 0.1": pytest.approx(1500),
        "entropy_cost 0.2": pytest.approx(3500),
    }
    for damaged in ({"sweep": ["entropy_cost"]}, {"sweep": [3]}, {"seeds": "many"}):
        record = json.loads((run / "config.json").read_text())
        (run / "config.json").write_text(json.dumps({**record, **damaged}))
        with pytest.raises(ConfigError, match="no run is left"):
            compare([run])
        (run / "config.json").write_text(json.dumps(record))


def test_one_agent_of_a_sweep_has_the_curve_of_the_run(tmp_path: Path) -> None:
    a_run(tmp_path / "one", 1.0, sweep=["learning_rate=log:1e-4..1e-2"], draws=1)
    a_run(tmp_path / "another", 2.0, sweep=["learning_rate=0.5"])
    (group,) = compare([tmp_path]).groups
    assert len(group.curves) == 2


def test_runs_that_cannot_be_compared_are_named(runs: Path) -> None:
    a_run(runs / "elsewhere", 1.0, env="toy:bandit")
    a_run(runs / "short", 99.0, frames=300, seed=9)
    a_run(runs / "none", 1.0).joinpath("metrics.jsonl").write_text("")
    a_run(runs / "torn", 1.0).joinpath("metrics.jsonl").write_text("[]\n{}\n")
    a_run(runs / "other rate", 2.5, learning_rate=0.01)
    found = compare([runs])
    said = "\n".join(found.notes)
    assert "elsewhere: its environment is toy:bandit, and most runs have toy:catch" in said
    assert "short: it has 300 frames, and half of the runs have 1,000 or more" in said
    assert "none, in which no episode has ended" in said
    assert "torn" in said and "not a row of metrics" in said
    assert "ppo: its runs differ in learning_rate (0.01, 0.1); --by learning_rate divides them" in said
    assert sum(len(group.curves) for group in found.groups) == 9
    by_rate = compare([runs], ["agent", "learning-rate"])
    assert {group.name for group in by_rate.groups} == {
        *("ppo, learning_rate 0.1", "ppo, learning_rate 0.01", "dqn, learning_rate 0.1")
    }
    by_env = compare([runs], ["env"])
    assert {group.name for group in by_env.groups} == {"toy:catch", "toy:bandit"}
    assert by_env.env == ""
    assert not any(group.better_than for group in by_env.groups), "their returns are of different kinds"
    a_run(runs / "a third", 1.0, env="toy:memory", agent="a2c")
    with pytest.raises(ConfigError, match=r"no environment is common to all groups: .*a2c has toy:memory"):
        compare([runs], scales=["toy:catch=0..1", "toy:memory=0..1"])


def test_several_environments_are_scaled_and_resampled_by_task(runs: Path) -> None:
    for seed in range(4):
        a_run(runs / f"bandit-{seed}", (1.0 + seed) / 1e4, env="toy:bandit", seed=seed)
    scales = ["toy:catch=0..5000", "toy:bandit=0..0.5"]
    alone = compare([runs], scales=scales)
    # dqn has no run of the bandit: it would be ranked by the other task, beside both of ppo.
    assert {curve.task for group in alone.groups for curve in group.curves} == {"toy:catch"}
    assert sum("bandit, in which not every group has a run" in note for note in alone.notes) == 4
    for seed in range(4):
        a_run(runs / f"dqn-bandit-{seed}", (2.5 + seed) / 1e4, env="toy:bandit", seed=seed, agent="dqn")
    found = compare([runs], scales=scales)
    assert not any("left out" in note for note in found.notes)
    ppo = next(group for group in found.groups if group.name == "ppo")
    # Both tasks have 0.2, 0.4, 0.6, 0.8: the middle four of eight are 0.4 and 0.6, twice each.
    assert ppo.at_frames.value == pytest.approx(0.5)
    assert {curve.task for curve in ppo.curves} == {"toy:catch", "toy:bandit"}
    assert ppo.better_than["dqn"].value == pytest.approx(3 / 16), "over both tasks"
    by_env = compare([runs], ["env"], scales)
    assert len(by_env.groups) == 2 and not by_env.groups[0].better_than, (
        "no run of one is better than of another"
    )
    with pytest.raises(ConfigError, match=r"no run is left.*no --scale is given for it"):
        compare([runs], scales=["toy:other=0..1"])
    for bad in ("toy:catch", "toy:catch=3..1", "=0..1", "toy:catch=0..x"):
        with pytest.raises(ConfigError, match=r"write ENV=LOW\.\.HIGH"):
            compare([runs], scales=[bad])


def test_values_that_differ_in_their_last_digit_are_different_groups(tmp_path: Path) -> None:
    for seed in (20240101, 20240102):
        a_run(tmp_path / str(seed), float(seed - 20240100), seed=seed, learning_rate=seed / 1e9)
    assert {group.name for group in compare([tmp_path], ["seed"]).groups} == {
        "seed 20240101",
        "seed 20240102",
    }
    (note,) = compare([tmp_path]).notes
    assert "learning_rate (0.020240101, 0.020240102)" in note


def test_a_return_is_read_between_rows(runs: Path) -> None:
    curves = compare([runs]).groups[0].curves
    assert returns_at(curves[:1], 150, lambda curve: curve.frames) == pytest.approx([2.5 * 150])


def test_wrong_paths_and_names_are_refused(runs: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is no run folder and holds none"):
        compare([tmp_path / "nowhere"])
    with pytest.raises(ConfigError, match=r"unknown setting 'learning_rat': did you mean learning_rate\?"):
        compare([runs], ["learning_rat"])


def test_the_tables_and_the_picture(runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = compare([runs])
    lines = table(found).splitlines()
    assert lines[0].startswith("| group | runs | return at 1,000 frames | return at 100 s | steps/s |")
    assert lines[2].startswith("| dqn | 4 | 4000 (") and "0.81 (" in lines[2]
    assert len({line.count("|") for line in lines}) == 1
    (first, _) = csv.DictReader(table(found, "csv").splitlines())
    assert (first["group"], float(first["better_than ppo"])) == ("dqn", pytest.approx(13 / 16))
    draw(found, tmp_path / "curves.png")
    assert (tmp_path / "curves.png").stat().st_size > 10_000
    with pytest.raises(ConfigError, match="cannot draw"):
        draw(found, tmp_path)
    with pytest.raises(SystemExit) as stop:
        main(["compare", str(runs), "--by", "agent,seed", "--format", "csv"])
    assert stop.value.code == 0
    assert len(capsys.readouterr().out.splitlines()) == 9
