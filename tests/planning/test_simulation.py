"""Simulated runs beside hand-made numbers, and in limits where the answer is known."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hand_made import compiled, costs, local, machine, served, threads

from seedbed.architectures.program import Program, Role
from seedbed.errors import ConfigError
from seedbed.planning.costs import Costs, Served
from seedbed.planning.machines import Machine
from seedbed.planning.simulation import Found, Simulation


def simulated(program: Program, found: Costs, *machines: Machine, carrier: str = "shm") -> Found:
    return Simulation(program, found, machines or (machine(),), carrier).run()


def rate(*given: Any, **more: Any) -> float:
    return simulated(*given, **more).steps_per_second


def test_one_lane_takes_turns_between_stepping_and_acting() -> None:
    # 4 environments take 4 ms, their actions 2 ms.
    found = simulated(served(1, 4), costs(act=2e-3))
    assert found.steps_per_second == pytest.approx(4 / 6e-3, rel=1e-3)
    assert found.wait == pytest.approx(2e-3, rel=1e-3)
    assert found.use["accelerator 0"] == pytest.approx(2 / 6, rel=1e-3)
    assert rate(local(1, 4), costs(act=2e-3)) == pytest.approx(4 / 6e-3, rel=1e-3)


def test_every_part_of_a_message_is_in_a_lanes_way() -> None:
    work = Served(message=1e-3, row=0.5e-3, sent=2e-3, delay=3e-3)
    found = costs(act=1e-3, served={"shm": work})
    # Stepping 4, sending 2, travel 3, arrival 1 + 4 * 0.5, acting 1, travel 3.
    assert rate(served(1, 4), found) == pytest.approx(4 / 16e-3, rel=1e-3)


def test_two_lanes_of_an_actor_step_while_the_other_acts() -> None:
    # A batch is one lane; each is stepped for 4 ms while the other acts for 4 ms.
    assert rate(served(1, 4, lanes=2, batch=4), costs(act=4e-3)) == pytest.approx(8 / 8e-3, rel=1e-2)
    # A call of 6 ms is the bound then.
    found = simulated(served(1, 4, lanes=2, batch=4), costs(act=6e-3))
    assert found.steps_per_second == pytest.approx(4 / 6e-3, rel=1e-2)
    assert found.use["acting thread"] == pytest.approx(1.0, abs=1e-2)


def test_environments_in_python_wait_for_one_another_in_a_process() -> None:
    quick = costs(act=0.0)
    assert rate(served(1, 4, lanes=2, batch=4), quick) == pytest.approx(2_000, rel=1e-2)
    held = replace(quick, own_threads=False)
    assert rate(served(1, 4, lanes=2, batch=4), held) == pytest.approx(1_000, rel=1e-2)
    assert rate(served(2, 4, batch=4), held) == pytest.approx(2_000, rel=1e-2), (
        "of another process they do not"
    )
    assert rate(threads(2, 4), held) == pytest.approx(1_000, rel=1e-2), "all threads share one interpreter"
    assert rate(threads(2, 4), quick) == pytest.approx(2_000, rel=1e-2)


@pytest.mark.parametrize("program", [served(32, 4, batch=4), local(32, 4), threads(32, 4)])
def test_few_cores_are_the_bound(program: Program) -> None:
    found = simulated(program, costs(act=1e-6), machine(4))
    assert found.steps_per_second == pytest.approx(4 / 1e-3, rel=2e-2)
    assert found.use["cores"] == pytest.approx(1.0, abs=1e-2)


def test_with_plenty_of_cores_the_accelerator_is_the_bound() -> None:
    # Calls of 16 rows at 10 ms, and nothing else takes longer.
    for actors in (64, 128):
        found = simulated(served(actors, 4, batch=16), costs(act=10e-3))
        assert found.steps_per_second == pytest.approx(16 / 10e-3, rel=2e-2)
        assert found.use["accelerator 0"] == pytest.approx(1.0, abs=2e-2)
        assert found.batch_fill == pytest.approx(1.0, abs=2e-2)


def test_the_learner_is_the_bound_where_its_updates_take_longest() -> None:
    for program in (served(8, 4), local(8, 4), threads(8, 4)):
        assert rate(program, costs(act=1e-6, train=2e-3)) == pytest.approx(500, rel=2e-2)


def test_twice_the_accelerators_train_twice_as_fast() -> None:
    slow = costs(act=1e-6, train=2e-3)
    assert rate(local(8, 4, devices=(0, 1)), slow) == pytest.approx(1_000, rel=2e-2)
    faster = machine(accelerator_speed=2.0)
    assert rate(local(8, 4), slow, faster) == pytest.approx(1_000, rel=2e-2)


def test_one_device_that_acts_and_trains_does_both_by_turns() -> None:
    # An agent step takes 1 ms / 16 for acting and 1 ms for training.
    program = served(32, 4, batch=16, devices=(0,))
    expected = 1 / (1e-3 / 16 + 1e-3)
    assert rate(program, costs(act=1e-3, train=1e-3)) == pytest.approx(expected, rel=3e-2)


def test_twice_the_machines_make_twice_the_steps_until_the_bound() -> None:
    head = machine(8)
    found = costs(act=1e-3)
    rates = [
        rate(served(8 * n, 4, lanes=2, batch=16), found, head, Machine(4, count=n)) for n in (1, 2, 4, 8)
    ]
    assert rates[1] / rates[0] == pytest.approx(2, rel=3e-2)
    assert rates[2] / rates[0] == pytest.approx(4, rel=3e-2)
    assert rates[3] == pytest.approx(16 / 1e-3, rel=3e-2), (
        "16 rows a millisecond are the most that is acted for"
    )


def test_a_network_without_cost_is_no_network() -> None:
    program, found = served(8, 4, batch=4), costs(act=1e-4)
    far = rate(program, found, machine(), machine(accelerators=0, network=1e9))
    assert far == pytest.approx(rate(program, found), rel=1e-2)


def test_the_link_of_the_head_is_the_bound_where_bytes_are_many() -> None:
    # 100 bytes a step over 80 kbit/s, which are 10 kB/s.
    found = simulated(served(8, 4), costs(act=1e-6), machine(network=80e-6), machine())
    assert found.steps_per_second == pytest.approx(100, rel=2e-2)
    assert found.use["link of the head, in"] == pytest.approx(1.0, abs=1e-2)


@pytest.mark.parametrize("program", [served(4, 4, lag=0), local(4, 4, lag=0)])
def test_without_lag_acting_and_learning_take_turns(program: Program) -> None:
    # A round of 10 steps takes 50 ms, and its update 160 ms.
    found = simulated(program, costs(act=1e-3, train=1e-3))
    assert found.steps_per_second == pytest.approx(160 / 210e-3, rel=1e-2)
    assert found.lag == 0.0


def test_with_a_lag_of_one_round_they_overlap() -> None:
    found = simulated(local(4, 4, lag=1), costs(act=1e-3, train=1e-3))
    assert found.steps_per_second == pytest.approx(160 / 160e-3, rel=1e-2)
    assert found.lag == pytest.approx(1.0, abs=1e-2)


def test_a_program_of_the_device_acts_and_learns_by_turns() -> None:
    found = simulated(compiled(8), costs(play=1e-3, train=3e-3))
    assert found.steps_per_second == pytest.approx(1 / 4e-3, rel=1e-2)
    assert found.use["accelerator 0"] == pytest.approx(1.0, abs=1e-2)


def test_lag_is_the_updates_between_acting_and_training() -> None:
    # Four lanes, one at a time a batch: three updates by the others while one acts with the weights of its beginning.
    assert simulated(local(4, 4, steps=40.0), costs(act=1e-4)).lag == pytest.approx(3.0, abs=0.1)
    # Central inference acts with the newest weights at every step, so on the average with half of that.
    assert simulated(served(4, 4, steps=40.0), costs(act=1e-4)).lag == pytest.approx(1.5, abs=0.3)
    # A learner that is the bound has all that may wait before it, besides the unrolls that are acted.
    slow = simulated(local(4, 4, steps=40.0, waiting=5.0), costs(act=1e-6, step=1e-6, train=1e-2))
    assert slow.lag > 5.0


def test_a_partial_batch_waits_for_its_time() -> None:
    # One of two lanes would fill half a batch: it waits until the other comes, or 3 ms.
    program = served(2, 4, batch=8)
    head = replace(program["learner"], acts=replace(program["learner"].acts, wait=3e-3))
    waiting = Program((head, program["actor"]))
    assert simulated(waiting, costs()).batch_fill == pytest.approx(1.0, abs=0.05)


def test_calls_wait_for_a_core_where_there_is_a_crowd() -> None:
    alone = rate(served(1, 4), costs(act=2e-3, crowded=4e-3), machine(8))
    assert alone == pytest.approx(4 / 6e-3, rel=1e-2), "nobody else is there while it acts"
    # One core is always taken where 32 threads step on it.
    waits = [simulated(threads(32, 4), costs(crowded=late), machine(1)).wait for late in (0.0, 4e-3)]
    assert waits[1] - waits[0] == pytest.approx(4e-3, rel=0.1)


def test_parts_that_no_role_declares_are_named() -> None:
    program = Program((Role("head", 1), Role("worker", 4)), head="head")
    with pytest.raises(ConfigError, match=r"cannot be planned: of its roles \(head, worker\) none declares"):
        Simulation(program, costs(), (machine(),), "shm")


def test_missing_costs_and_devices_are_named() -> None:
    with pytest.raises(ConfigError, match="the costs lack the stage 'environment'"):
        simulated(served(), costs(step=None))
    with pytest.raises(ConfigError, match="the costs lack the stage 'learner'"):
        simulated(served(), costs(train=None))
    with pytest.raises(ConfigError, match="the costs lack the stage 'acting'"):
        simulated(compiled(), costs())
    accelerated = replace(costs(), act={"accelerator": costs().act["accelerator"]})
    with pytest.raises(ConfigError, match=r"runs on CPU cores here, .* with actors that run the policy"):
        simulated(local(), accelerated)
    with pytest.raises(ConfigError, match="uses device 1, and the machine has 1 accelerators"):
        simulated(served(), costs(), machine(accelerators=1))


def test_a_batch_that_is_larger_than_a_round_comes_all_the_same() -> None:
    assert rate(local(1, 1, steps=25.0, lag=0), costs(act=1e-3)) == pytest.approx(1 / 2e-3, rel=1e-2)


def test_the_same_run_has_the_same_plan() -> None:
    noisy = costs(spread=0.3)
    assert simulated(served(8, 4, batch=16), noisy) == simulated(served(8, 4, batch=16), noisy)
