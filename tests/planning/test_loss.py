"""The loss of a run beside its stages, which a plan of another run takes over."""

from __future__ import annotations

from typing import Any

import pytest

from seedbed.cli.program import declared
from seedbed.config.resolve import configure, to_json
from seedbed.planning.costs import costs_of
from seedbed.planning.loss import with_loss
from seedbed.planning.machines import Machine
from seedbed.planning.plan import Request, plan

MACHINE = {"processor": "A", "cores": 2, "devices": ["cpu"]}


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


def speed(rows: list[dict[str, Any]], run: Any) -> tuple[float, float, tuple[str, ...]]:
    """Steps a second from the stages alone, and as planned; and the assumptions."""
    rates, costs = [], costs_of(rows, run)
    for each in (costs, costs := with_loss(costs, rows, run, declared)):
        made = plan(Request(declared(run), each, (Machine(2),), "shm"), moves=False)
        rates.append(made.steps_per_second)
    return rates[0], rates[1], costs.assumed


def test_a_run_that_was_timed_is_planned_as_it_was_and_another_with_its_loss() -> None:
    alone, made, assumed = speed([row(config(), 1_000.0)], config())
    assert alone > 1_100 and made == pytest.approx(1_000.0)
    assert f"loses {1 - 1_000 / alone:.0%}, as one under seed with vtrace did" in assumed[-1]
    share = made / alone
    alone, made, _ = speed([row(config(), 1_000.0)], config(actors=1, envs_per_actor=4))
    assert made == pytest.approx(share * alone)


def test_the_rows_of_the_architecture_come_first_and_of_them_the_newest() -> None:
    rows = [row(config("impala"), 900.0), row(config("impala"), 800.0), row(config(), 400.0)]
    assert speed(rows, config("impala"))[1] == pytest.approx(800.0)
    assert speed(rows, config())[1] == pytest.approx(400.0)
    assert "under seed" in speed(rows, config("sebulba"))[2][-1]


@pytest.mark.parametrize(
    "other",
    [
        row(config(), 10.0, machine={**MACHINE, "processor": "B"}),
        row(config(hidden=(32,)), 10.0),
        row(configure("Acrobot-v1", preset="none", agent="vtrace"), 10.0),
        {**row(config(), 10.0), "settings": {"env": "CartPole-v1", "agent": "vtrace", "unheard_of": 1}},
        row(config("a3c", agent="a2c"), 10.0),
        row(config(), None),
    ],
)
def test_runs_of_other_machines_and_networks_say_nothing(other: dict[str, Any]) -> None:
    alone, made, assumed = speed([other, row(config(), None)], config())
    assert made == alone
    assert assumed[-1] == "a run loses nothing beside its stages; no row has the stage 'whole'"


def test_one_of_another_agent_says_how_much_is_lost() -> None:
    rows = [row(config(agent="ppo", lag="free"), 500.0), row(config(), None)]
    alone, made, assumed = speed(rows, config())
    assert made < 0.6 * alone and "with ppo did" in assumed[-1]
