"""Plans: arithmetic of use, bound, price and bytes; changes; and the number of actors for a wanted rate."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hand_made import compiled, costs, local, machine, served

from seedbed.architectures.program import Program
from seedbed.errors import ConfigError
from seedbed.planning.costs import Served
from seedbed.planning.machines import Machine
from seedbed.planning.plan import Plan, Request, plan, scaled_to
from seedbed.planning.report import compared, lines, shown


def request(program: Program, *machines: Machine, **given: Any) -> Request:
    return Request(program, costs(**given), machines or (machine(),), frames_per_step=4.0)


def test_a_price_is_hours_times_frames() -> None:
    # 1,000 steps/s are 4,000 frames/s, so 10^9 frames take 69.4 h.
    made = plan(request(compiled(), machine(price=7.2), play=1e-3))
    assert made.frames_per_second == pytest.approx(4_000, rel=1e-2)
    assert made.price_per_hour == 7.2
    assert made.price_of_billion_frames == pytest.approx(7.2 * 1e9 / 4_000 / 3600, rel=1e-2)
    both = plan(request(served(8, 4), machine(price=2.0), Machine(8, count=3, price=1.0)))
    assert both.price_per_hour == 5.0


def test_hosts_multiply_everything_but_the_updates() -> None:
    one = plan(request(local(4, 4)))
    two = plan(request(replace(local(4, 4), hosts=2)))
    assert two.steps_per_second == pytest.approx(2 * one.steps_per_second)
    assert two.frames_per_second == pytest.approx(4 * two.steps_per_second)
    assert two.updates_per_second == one.updates_per_second
    priced = plan(request(replace(local(4, 4), hosts=2), machine(price=1.5)))
    assert priced.price_per_hour == 3.0


def test_a_resource_is_full_at_its_limit() -> None:
    # An accelerator that is busy for 0.25 ms of a step's time would make 4,000 of them.
    made = plan(request(served(4, 4, batch=4), machine(2), act=1e-3))
    found = {each.name: each for each in made.resources}
    assert found["accelerator 0"].limit == pytest.approx(4_000, rel=2e-2)
    assert found["cores"].limit == pytest.approx(2_000, rel=2e-2)
    assert made.bound == "cores"
    assert [each.use for each in made.resources] == sorted(
        (each.use for each in made.resources), reverse=True
    )


def test_a_thread_that_waits_for_a_device_is_not_the_bound() -> None:
    # The acting thread waits for a call of 10 ms, and has 0.1 ms of its own for each of four messages.
    work = {"shm": Served(message=1e-4, row=0.0, sent=0.0, delay=0.0)}
    made = plan(request(served(64, 4, batch=16), act=10e-3, served=work), moves=False)
    assert made.resources[0].name == "acting thread"
    assert {each.name: each.use for each in made.resources}["accelerator 0"] == pytest.approx(
        10 / 10.4, abs=2e-2
    )
    assert made.bound == "accelerator 0"
    assert plan(request(served(1, 4), act=2e-3)).bound is None


def test_bytes_are_those_of_the_program() -> None:
    made = plan(request(served(4, 4)))
    up, down = made.flows
    assert (up.source, up.to, down.source, down.to) == ("actor", "learner", "learner", "actor")
    assert up.bytes_per_second == pytest.approx(100 * made.steps_per_second)
    assert down.bytes_per_second == pytest.approx(4 * made.steps_per_second)
    up, down = plan(made_of := request(local(4, 4))).flows
    rate = plan(made_of)
    assert up.bytes_per_second == pytest.approx(1000 * rate.steps_per_second / 10)
    assert down.bytes_per_second == pytest.approx(500 * rate.updates_per_second * 4), "to each of 4 actors"


def test_changes_that_help_are_told_the_best_first() -> None:
    crowded = request(served(32, 4, batch=4), machine(4), act=1e-6)
    (best, *others) = plan(crowded, served(64, 4, batch=4)).moves
    assert (best.change, best.times) == ("twice the cores", pytest.approx(2.0, rel=5e-2))
    assert not others
    idle = plan(request(served(1, 4), act=1e-3), served(2, 4))
    assert [move.change for move in idle.moves] == ["twice the actors", "accelerators twice as fast"]
    assert idle.moves[0].times == pytest.approx(2.0, rel=5e-2)


def scaled(target: float, **given: Any) -> tuple[int, Plan]:
    found = scaled_to(target, lambda times: request(local(times, 4, steps=40.0), **given))
    return found.times, found.plan


def test_actors_are_multiplied_until_there_are_enough() -> None:
    # An actor makes 4 steps in 5 ms.
    times, made = scaled(3_900)
    assert times == 5
    assert made.steps_per_second == pytest.approx(4_000, rel=1e-2)
    assert scaled(100)[0] == 1


def test_a_rate_that_no_actors_reach_is_refused_with_the_bound() -> None:
    with pytest.raises(
        ConfigError, match=r"10,000 steps/s are not reached by more actors: .* bound by accelerator 0"
    ):
        scaled(10_000, train=1e-3)


def test_a_rate_that_the_last_doubling_reaches_is_reached() -> None:
    rates = {
        times: plan(request(local(times, 4, steps=40.0), train=1e-3)).steps_per_second
        for times in (1, 2, 4, 8, 16)
    }
    # The first doubling that is not worth telling of, and a rate between the two.
    before = next(times for times in rates if rates[2 * times] < 1.03 * rates[times])
    assert rates[before] < rates[2 * before]
    between = (rates[before] + rates[2 * before]) / 2
    times, made = scaled(between, train=1e-3)
    assert times <= 2 * before and made.steps_per_second >= between


def test_costs_of_accelerators_are_for_machines_with_accelerators() -> None:
    with pytest.raises(
        ConfigError, match=r"timed on an accelerator .* has none: time the stages on a machine like it"
    ):
        plan(request(local(), machine(accelerators=0)))
    with pytest.raises(ConfigError, match=r"timed on CPU cores alone .* has 2 accelerators"):
        plan(request(local(), accelerators=0))


def test_everything_beyond_the_timed_sizes_is_told() -> None:
    one_size = {"cores": replace(costs().act["cores"], points=((2, 1e-3),))}
    made = plan(Request(local(2, 4), replace(costs(), act=one_size), (machine(),)))
    assert any("4 rows takes its proportion of a timed one (2 rows)" in each for each in made.assumed)
    assert made.source == "a machine of round numbers"


def test_a_plan_is_text_and_json() -> None:
    made = plan(request(served(4, 4, batch=4), machine(2, price=1.0), act=1e-3), served(8, 4))
    text = "\n".join(lines(made))
    for needed in (
        "agent steps/s",
        "<- the bound",
        "10^9 frames, at 1 an hour",
        "actor to learner",
        "twice the cores",
        "1 learner, 4 actors",
    ):
        assert needed in text, needed
    assert json.loads(json.dumps(made.to_json()))["bound"] == "cores"
    table = "\n".join(compared({"seed": made, "a3c": "it cannot be planned"}))
    assert f"{made.steps_per_second:,.0f}" in table
    assert "it cannot be planned" in table


def test_bytes_are_shown_in_the_largest_unit() -> None:
    assert [shown(n) for n in (12, 1_200, 3.4e6, 5e9)] == ["12 B/s", "1.2 kB/s", "3.4 MB/s", "5.0 GB/s"]
