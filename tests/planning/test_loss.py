"""The loss of a run beside its stages, which a plan of another run takes over."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from seedbed.architectures.program import Program
from seedbed.cli import program
from seedbed.config.resolve import configure, to_json
from seedbed.config.settings import RunConfig
from seedbed.launch.build import Trials
from seedbed.planning import loss
from seedbed.planning.costs import costs_of
from seedbed.planning.loss import with_loss
from seedbed.planning.machines import Machine
from seedbed.planning.plan import Plan, Request, plan

MACHINE = {"processor": "A", "cores": 2, "devices": ["cpu"]}


_trials: Trials = {}


def declared(config: RunConfig) -> Program:
    """The program of a run, whose environment is tried once for all tests."""
    return program.declared(config, _trials)


@pytest.fixture(autouse=True, scope="module")
def _each_run_is_simulated_once() -> Iterator[None]:
    """Rows that differ in the speed of their whole run alone have one simulation."""
    known: dict[str, float] = {}
    simulate = loss._simulated

    def simulated(config: Any, rows: Any, declare: Any) -> float:
        stages = [{**row, "stages": {**row["stages"], "whole": None}} for row in rows]
        key = json.dumps([to_json(config), stages])
        if key not in known:
            known[key] = simulate(config, rows, declare)
        return known[key]

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(loss, "_simulated", simulated)
        yield


def stage(rate: float, about: str = "") -> dict[str, Any]:
    return {"steps_per_second": rate, "about": about}


def config(arch: str = "seed", **changes: Any) -> Any:
    given = {"preset": "none", "network": "mlp", "hidden": (16,), "agent": "vtrace", **changes}
    return configure("CartPole-v1", arch=arch, **given)


def row(run: Any, whole: float | None, **changes: Any) -> dict[str, Any]:
    stages = {
        "environment": stage(20_000.0, "2 processes of 16 environments, random actions"),
        "inference": stage(8_000.0, "batches of 16 on cpu"),
        "learner": stage(5_000.0, "batches of 8 unrolls of 20 on 1 device(s)"),
        **({} if whole is None else {"whole": stage(whole, run.arch)}),
    }
    return {"stages": stages, "settings": to_json(run), "machine": MACHINE, "commit": "c", **changes}


def plans(rows: list[dict[str, Any]], run: Any, *machines: Machine) -> list[Plan]:
    """The plans from the stages alone, and with the loss."""
    costs = costs_of(rows, run)
    return [
        plan(Request(declared(run), each, machines or (Machine(2, price=3.0),), "shm"), moves=False)
        for each in (costs, with_loss(costs, rows, run, declared))
    ]


def speed(rows: list[dict[str, Any]], run: Any) -> tuple[float, float, tuple[str, ...]]:
    """Steps a second from the stages alone, and as planned; and the assumptions."""
    alone, made = plans(rows, run)
    return alone.steps_per_second, made.steps_per_second, made.assumed


def test_a_run_that_was_timed_is_planned_as_it_was_and_another_with_its_loss() -> None:
    alone, made, assumed = speed([row(config(), 1_000.0)], config())
    assert alone > 1_100 and made == pytest.approx(1_000.0)
    lost = (
        f"a run makes {1 - 1_000 / alone:.0%} less than its stages allow, as a run under seed with vtrace did"
    )
    assert lost in assumed
    share = made / alone
    alone, made, _ = speed([row(config(), 1_000.0)], config(actors=1, envs_per_actor=4))
    assert made == pytest.approx(share * alone)


def test_the_median_over_the_rows_of_the_architecture_counts_or_over_all() -> None:
    shares = [0.9, 0.5, 0.8]
    alone = speed([row(config(), None)], config())[0]
    rows = [row(config(), share * alone) for share in shares]
    assert speed(rows, config())[1] == pytest.approx(0.8 * alone)
    older = [row(config(), 0.1 * alone)] * 9
    assert speed([*older, *[rows[0]] * 8], config())[1] == pytest.approx(0.9 * alone), "the newest eight"
    own = speed([row(config("impala"), 700.0)], config("impala"))
    assert speed([*rows, row(config("impala"), 700.0)], config("impala"))[1] == pytest.approx(own[1])
    _, _, assumed = speed(rows, config("sebulba"))
    assert "20% less than its stages allow, as 3 runs under seed with vtrace did" in " ".join(assumed)


@pytest.mark.parametrize(
    "other",
    [
        row(config(), 10.0, machine={**MACHINE, "processor": "B"}),
        row(config(hidden=(32,)), 10.0),
        row(configure("Acrobot-v1", preset="none", agent="vtrace"), 10.0),
        {**row(config(), 10.0), "settings": {"env": "CartPole-v1", "agent": "vtrace", "unheard_of": 1}},
        row(config("a3c", agent="a2c"), 10.0),
        row(config(), None),
        row(config(), 0.0),
        {**row(config(), 10.0), "settings": {**to_json(config()), "agent": "no_such_module:AGENT"}},
        {**row(config(), 10.0), "settings": None},
    ],
)
def test_runs_of_other_machines_and_networks_say_nothing(other: dict[str, Any]) -> None:
    alone, made, assumed = speed([other, row(config(), None)], config())
    assert made == alone
    assert "a run loses nothing beside its stages; no row with the stage 'whole' can be compared" in assumed


def test_one_of_another_agent_says_how_much_is_lost() -> None:
    rows = [row(config(agent="ppo", lag="free"), 500.0), row(config(), None)]
    alone, made, assumed = speed(rows, config())
    assert made < 0.6 * alone and "with ppo did" in " ".join(assumed)


def test_what_is_lost_is_no_work_of_a_resource() -> None:
    alone, made = plans([row(config(), 1_000.0)], config())
    share = made.steps_per_second / alone.steps_per_second
    assert made.bound == alone.bound == "cores"
    assert made.updates_per_second == pytest.approx(share * alone.updates_per_second)
    assert made.action_wait == pytest.approx(alone.action_wait / share)
    for one, other in zip(alone.resources, made.resources, strict=True):
        assert (other.use, other.limit) == (pytest.approx(share * one.use), pytest.approx(one.limit))


@pytest.mark.parametrize("machine", [Machine(4), Machine(2, speed=2.0), Machine(2, count=2)])
def test_other_machines_than_the_timed_one_lose_nothing_and_that_is_said(machine: Machine) -> None:
    alone, made = plans([row(config(), 1_000.0)], config(), machine)
    assert made.steps_per_second == alone.steps_per_second
    assert "a run loses nothing beside its stages; on the timed machine a run under seed" in " ".join(
        made.assumed
    )


def test_a_run_may_be_faster_than_its_stages_said() -> None:
    alone, made, assumed = speed([row(config(), 5_000.0)], config())
    assert made == pytest.approx(5_000.0) and made > alone
    assert "more than its stages allow" in " ".join(assumed)
