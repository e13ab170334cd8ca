"""Costs, from rows of this version and of earlier ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from seedbed.config.resolve import configure
from seedbed.errors import ConfigError
from seedbed.planning.costs import ASSUMED_SERVED, Curve, costs_of, read_rows

MACHINE = {"processor": "A", "cores": 4, "devices": ["cpu"]}
SETTINGS = {"env": "CartPole-v1", "agent": "vtrace", "network": "mlp", "hidden": [16], "batch_size": 8}


def stage(rate: float, about: str = "", **more: Any) -> dict[str, Any]:
    return {"steps_per_second": rate, "about": about, **more}


def row(**changes: Any) -> dict[str, Any]:
    stages = {
        "environment": stage(2_000.0, "4 processes of 16 environments, random actions"),
        "inference": stage(8_000.0, "batches of 16 on cpu"),
        "learner": stage(500.0, "batches of 8 unrolls of 20 on 1 device(s)"),
    }
    return {"stages": stages, "settings": SETTINGS, "machine": MACHINE, "commit": "c", **changes}


def config(**changes: Any) -> Any:
    given = {"preset": "none", "network": "mlp", "hidden": (16,), "batch_size": 8, **changes}
    return configure("CartPole-v1", **given)


def test_a_call_between_two_sizes_is_on_the_line_between_them() -> None:
    curve = Curve(((4, 1.0), (8, 3.0)))
    assert [curve.at(rows) for rows in (4, 6, 8)] == [1.0, 2.0, 3.0]
    assert curve.at(1) == 1.0, "a small call takes as long as the smallest that was timed"
    assert curve.at(16) == 6.0
    assert Curve(((8, 3.0),)).at(4) == 1.5, "of one size the others take their proportion"
    assert [curve.covers(rows) for rows in (3, 4, 8, 9)] == [False, True, True, False]


def test_costs_are_seconds_of_what_was_timed() -> None:
    costs = costs_of([row()], config())
    assert costs.step == 4 / 2_000, "four processes, so a core makes 500 a second"
    assert costs.act["cores"].points == ((16, 16 / 8_000),)
    assert costs.train == 1 / 500
    assert (costs.act_threads, costs.train_threads) == (4.0, 4.0)
    assert not costs.own_threads
    assert costs.served == ASSUMED_SERVED
    assert (costs.cores, costs.accelerators) == (4.0, 0)
    assert any("keep all 4 cores" in each for each in costs.assumed)
    assert any("crowded inference" in each for each in costs.assumed)


def test_rows_of_other_sizes_lie_beside_one_another() -> None:
    small = row()
    small["stages"] = {
        **small["stages"],
        "inference": stage(4_000.0, "batches of 4 on cpu", rows=4, device="cpu", cores=1.5),
    }
    large = row()
    large["stages"] = {
        **large["stages"],
        "inference": stage(8_000.0, "batches of 16 on cpu", rows=16, device="cpu", cores=2.5),
    }
    for rows in ([large, small], [small, large]):
        costs = costs_of(rows, config())
        assert costs.act["cores"].points == ((4, 1e-3), (16, 2e-3))
        assert costs.act_threads == 2.5, "of the largest call"


def test_rows_of_this_version_leave_less_to_assume() -> None:
    new = row()
    new["stages"] |= {
        "inference": stage(8_000.0, rows=16, device="cpu", cores=1.5),
        "inference 4": stage(4_000.0, rows=4, device="cpu", cores=1.2),
        "crowded inference": stage(2_000.0, rows=16, device="cpu", cores=1.0, crowd=4),
        "learner": stage(500.0, cores=2.5),
        "join": stage(50_000.0),
    }
    served = {"shm": {"message": 1e-5, "row": 1e-6, "sent": 2e-5, "delay": 3e-5}}
    costs = costs_of([new, {"served": served, "machine": MACHINE}], config())
    assert costs.act["cores"].points == ((4, 1e-3), (16, 2e-3))
    # Beside 4 others on 4 cores a call that keeps 1.5 busy has 4/5.5 of its time alone.
    assert costs.crowded == pytest.approx(8e-3 - 2e-3 * 5.5 / 4)
    assert (costs.act_threads, costs.train_threads, costs.join) == (1.5, 2.5, 1 / 50_000)
    assert costs.served["shm"].message == 1e-5
    assert costs.assumed == ()


def test_rows_of_other_runs_and_machines_do_not_count() -> None:
    other_machine = row(machine={**MACHINE, "cores": 64})
    other_network = row(settings={**SETTINGS, "network": "tiny"})
    faster = row()
    faster["stages"] = {**faster["stages"], "learner": stage(1_000.0)}
    costs = costs_of([other_machine, faster, other_network, row(stages={"whole": stage(1.0)})], config())
    assert costs.train == 1 / 1_000
    assert costs.cores == 4.0
    accelerated = row(machine={**MACHINE, "devices": ["GPU"]})
    accelerated["stages"] = {**accelerated["stages"], "inference": stage(8_000.0, "batches of 16 on GPU")}
    assert costs_of([row(), accelerated], config()).act.keys() == {"accelerator"}


def test_a_file_without_the_run_says_what_it_has() -> None:
    with pytest.raises(
        ConfigError, match=r"no costs of CartPole-v1 .* agent ppo: its rows are of agent vtrace"
    ):
        costs_of([row()], config(agent="ppo"))
    with pytest.raises(
        ConfigError, match=r"its rows are of hidden .16.; time them: seedbed bench CartPole-v1"
    ):
        costs_of([row()], config(hidden=(32,)))
    with pytest.raises(ConfigError, match="nor of any other run"):
        costs_of([{"compared": []}], config())


def test_a_damaged_row_is_named() -> None:
    for stages in ({"learner": {}}, {"learner": stage(0.0)}, {"inference": stage(1.0, "as always")}):
        with pytest.raises(ConfigError, match="a row of the costs is damaged"):
            costs_of([row(stages=stages)], config())


def test_settings_that_differ_are_assumed_not_to_matter() -> None:
    costs = costs_of([row()], config(batch_size=16))
    assert any("batch_size 16 as with 8" in each for each in costs.assumed)


def test_every_pass_over_a_step_costs_as_much() -> None:
    timed = row(settings={**SETTINGS, "reuse": 2})
    costs = costs_of([timed], config(reuse=6))
    assert costs.train == pytest.approx(3 / 500)
    assert any("training 3 times as often" in each for each in costs.assumed)


def test_a_file_is_read_line_by_line(tmp_path: Path) -> None:
    file = tmp_path / "bench.jsonl"
    with pytest.raises(ConfigError, match="cannot be read"):
        read_rows(file)
    file.write_text('{"a": 1}\n\n{"b": 2}\n')
    assert read_rows(file) == [{"a": 1}, {"b": 2}]
    file.write_text('{"a": 1}\n{"b"\n')
    with pytest.raises(ConfigError, match="line 2 is no JSON"):
        read_rows(file)
    file.write_text("[1]\n")
    with pytest.raises(ConfigError, match="line 1 is no JSON object"):
        read_rows(file)
