"""The parts of the loop that each architecture declares are those of its settings."""

from __future__ import annotations

import json
from typing import Any

import pytest

from seedbed.architectures.program import Acts, Environments, Program, Trains
from seedbed.cli.program import declared
from seedbed.config.resolve import configure
from seedbed.serving.source import FORWARD_SERVER


def of(arch: str, env: str = "toy:catch", **settings: Any) -> Program:
    given = {"preset": "none", "agent": "vtrace", "batch_size": 8, "unroll_length": 5, **settings}
    return declared(configure(env, arch=arch, **given))


def test_under_seed_the_learner_acts_in_batches_and_trains() -> None:
    program = of("seed", actors=3, envs_per_actor=6, inference_wait_ms=4.0, queue_size=16)
    learner, actor = program["learner"], program["actor"]
    assert learner.acts == Acts(9, 0.004, (0,))
    # Two batches may wait in the queue, and one is made ahead.
    assert learner.trains == Trains(40.0, 5, 1, 3.0, (0,), None)
    assert (learner.steps, actor.acts, actor.trains) == (None, None, None)
    assert actor.steps == Environments(3, 2)


def test_under_impala_actors_act_for_themselves() -> None:
    program = of("impala", envs_per_actor=6)
    assert program["learner"].acts is None
    assert (program["actor"].acts, program["actor"].steps) == (Acts(3), Environments(3, 2))


def test_an_exact_lag_and_a_replay_are_declared() -> None:
    assert of("impala", lag=1, actors=2, envs_per_actor=4)["learner"].trains == Trains(
        40.0, 5, 1, 2.0, (0,), 1
    )
    replay = of("apex", agent="dqn", unroll_length=5, replay_ratio=2.0)["learner"].trains
    assert replay is not None
    assert replay.samples
    # Eight items a batch, each trained on twice.
    assert replay.steps == pytest.approx(4.0, rel=0.5)


def test_under_sebulba_and_anakin_one_process_does_everything() -> None:
    program = of("sebulba", actors=3, envs_per_actor=4)
    assert (program["actor"].steps, program["actor"].acts) == (Environments(4), Acts(4, devices=(0,)))
    assert program["learner"].trains is not None
    head = of("anakin", env="gymnax:CartPole-v1")["learner"]
    assert (head.steps, head.acts) == (Environments(8, compiled=True), Acts(8, devices=(0,)))
    assert head.trains == Trains(40.0, 5, 1, 1.0, (0,), 0)


def test_under_rapid_servers_between_act() -> None:
    program = of("rapid", actors=4, envs_per_actor=4, forward_servers=2)
    assert program[FORWARD_SERVER].acts == Acts(4, 0.002, (0,))
    assert program["learner"].acts is None


@pytest.mark.parametrize("arch", ["seed", "impala", "rapid", "sebulba", "a2c"])
def test_declared_parts_survive_json(arch: str) -> None:
    program = of(arch)
    assert Program.from_json(json.loads(json.dumps(program.to_json()))) == program


def test_programs_of_runs_before_this_are_read() -> None:
    told = of("seed").to_json()
    for role in told["roles"]:
        for part in ("steps", "acts", "trains"):
            del role[part]
    assert Program.from_json(told)["learner"].acts is None
