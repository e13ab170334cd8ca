"""Runs on two machines with networks of their own, joined by a cable that is pulled: no engine, no loopback between."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
from harness import (
    SEEDBED,
    SLEEPY,
    Command,
    balanced,
    checkpoints,
    flags,
    learned,
    learns_on,
    summary,
    thorough,
    until,
)
from machines import Cable, Machine, two_machines

from seedbed.cli.status import Status

pytestmark = pytest.mark.slow


@pytest.fixture
def machines() -> Iterator[tuple[Machine, Machine, Cable]]:
    with two_machines() as made:
        yield made


@pytest.mark.thorough
def test_an_actor_from_elsewhere_waits_for_its_learner_and_comes_back_when_the_cable_is_plugged(
    machines: tuple[Machine, Machine, Cable], tmp_path: Path
) -> None:
    here, there, cable = machines
    for folder in (tmp_path / "here", tmp_path / "there"):
        folder.mkdir()
        (folder / "sleepy.py").write_text(SLEEPY)
    words = flags("sleepy:World", "run", frames=10**9, actors=1, listen=f"{here.address}:7000")
    with Command(*words, cwd=tmp_path / "here", command=here.within(SEEDBED)) as learner:
        told = next(line for line in learner.says(" --join ").splitlines() if " --join " in line)
        command = shlex.split(told.partition("seedbed ")[2])
        with Command(*command, cwd=tmp_path / "there", command=there.within(SEEDBED)) as actor:
            learner.says("actor 1 joined from elsewhere")
            learned(tmp_path / "here/run")
            cable.pull()
            learner.says("actor 1 left")
            actor.says("waiting for it to come back")
            learns_on(tmp_path / "here/run", "updates without it")
            cable.plug()
            until(lambda: learner.output.count("actor 1 joined from elsewhere") == 2, "the actor, again")
            learner.interrupt()
            assert learner.wait() == Status.OVER, learner.output
            actor.says("coming again")
    found = summary(tmp_path / "here/run")
    assert balanced(found), "the unrolls that were open there are dropped, if any were"
    assert "Traceback" not in learner.output + actor.output


HOSTS = {
    "sebulba": ("CartPole-v1", {"actors": 1, "envs_per_actor": 8}),
    "anakin": ("gymnax:CartPole-v1", {}),
    "seed": ("CartPole-v1", {"actors": 1, "envs_per_actor": 8}),
}


@pytest.mark.parametrize("arch", ["sebulba", *thorough("anakin", "seed")])
def test_hosts_train_across_the_cable_and_save_when_it_is_pulled(
    arch: str, machines: tuple[Machine, Machine, Cable], tmp_path: Path
) -> None:
    here, there, cable = machines
    env, settings = HOSTS[arch]
    shared = {"agent": "vtrace", "arch": arch, "hosts": 2, "batch_size": 16, "host_timeout": 10.0}
    words = flags(env, "run", **shared, **settings, frames=10**9, coordinator=f"{here.address}:7100")
    (tmp_path / "here").mkdir()
    (tmp_path / "there").mkdir()
    with Command(*words, cwd=tmp_path / "here", command=here.within(SEEDBED)) as first:
        joins = first.says("SEEDBED_JOIN=").split("SEEDBED_JOIN=")[1].split()[0]
        with Command(
            *words, "--host", "1", cwd=tmp_path / "there", command=there.within(SEEDBED), SEEDBED_JOIN=joins
        ) as second:
            learned(tmp_path / "here/run")
            cable.pull()
            for host in (first, second):
                assert host.wait() == Status.FAILED, host.output
                assert "is gone" in host.last_line and host.last_line.startswith("seedbed: host "), (
                    host.last_line
                )
    found = summary(tmp_path / "here/run")
    assert balanced(found)
    assert int(checkpoints(tmp_path / "here/run")[-1].name) == found["weights_version"] > 0
    for machine in (here, there):
        until(lambda machine=machine: not machine.processes(), "the end of all")
