"""Whole runs on a Ray cluster of two machines, each with a network of its own, whose cable is pulled."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from harness import (
    SEEDBED,
    SLEEPY,
    Command,
    alive,
    balanced,
    checkpoints,
    flags,
    learned,
    learns_on,
    summary,
    until,
    words_of,
)
from machines import HEAD_PORT, Cable, Machine, two_machines
from raylets import Actors

from seedbed.cli.status import Status

pytestmark = [pytest.mark.slow, pytest.mark.thorough]
pytest.importorskip("ray")


@dataclass
class Scene:
    """A run whose learner is on one of two machines, and one actor on each."""

    folder: Path
    learners: Machine
    other: Machine
    cable: Cable
    head: Machine

    def __post_init__(self) -> None:
        (self.folder / "sleepy.py").write_text(SLEEPY)
        self.run = self.folder / "run"
        self.actor = Actors(self.run)

    def driver(self) -> Command:
        """Starts the learner, or has it go on."""
        words = flags("sleepy:World", "run", frames=10**9, on="ray", begin_or_resume=True)
        address = f"{self.head.address}:{HEAD_PORT}"
        return Command(*words, cwd=self.folder, command=self.learners.within(SEEDBED), RAY_ADDRESS=address)

    def node(self, machine: Machine) -> Command:
        """Starts a machine's node of the cluster."""
        head = None if machine is self.head else self.head.address
        return machine.node(self.folder / machine.name, head=head)

    def far(self) -> int:
        """The index of the actor on the other machine."""
        found = {index: until(lambda index=index: self.actor(index), f"actor {index}") for index in (0, 1)}
        there = {process.pid for process in self.other.processes()}
        (far,) = (index for index, process in found.items() if process.pid in there)
        return far

    def learns(self) -> None:
        """Waits for further updates."""
        learns_on(self.run)

    def balances(self) -> None:
        """The books do, and the newest checkpoint is of the last update."""
        found = summary(self.run)
        assert balanced(found), found
        assert int(checkpoints(self.run)[-1].name) == found["weights_version"] > 0

    def is_over(self) -> None:
        """Waits until nothing of the run is left on either machine."""

        def left() -> list[str]:
            here = [each for machine in (self.learners, self.other) for each in machine.processes()]
            named = (" ".join(words_of(each)) for each in here)
            return [words for words in named if "launch.entry" in words or "ray::Bundle" in words]

        until(lambda: not left(), "the end of all")


@pytest.fixture
def machines() -> Iterator[tuple[Machine, Machine, Cable]]:
    with two_machines() as made:
        yield made


def test_an_actor_beyond_a_pulled_cable_is_let_go_and_another_comes_when_its_machine_does(
    machines: tuple[Machine, Machine, Cable], tmp_path: Path
) -> None:
    scene = Scene(tmp_path, *machines, head=machines[0])
    with scene.node(scene.learners), scene.node(scene.other) as node, scene.driver() as driver:
        driver.says("actors 2 of 2 placed")
        learned(scene.run)
        far = scene.far()
        lost, told = scene.actor(far), len(driver.output)
        assert lost is not None
        scene.cable.pull()
        waits = "actors 1 of 2 placed (1 waits for machines)"
        until(lambda: waits in driver.output[told:], "the line that says so")
        scene.learns()
        until(lambda: not alive(lost), "the end of an actor that its learner does not answer")
        scene.learns()

        scene.cable.plug()
        node.wait()  # the engine has given it up, and ends it
        with scene.node(scene.other):  # as whatever keeps a machine's services would start it again
            until(
                lambda: "actors 2 of 2 placed" in driver.output[told:],
                "the actor on the machine that came late",
            )
            assert scene.far() == far
            scene.learns()
            driver.interrupt()
            assert driver.wait() == Status.EXECUTE_AGAIN, driver.output
            scene.is_over()
    scene.balances()
    found = summary(scene.run)
    assert found["actor_restarts"] == 0, "a lost machine is no fault of an actor"
    assert "Traceback" not in driver.output


def test_a_learner_beyond_a_pulled_cable_saves_and_ends_and_the_same_command_goes_on(
    machines: tuple[Machine, Machine, Cable], tmp_path: Path
) -> None:
    scene = Scene(tmp_path, *machines, head=machines[1])
    with scene.node(scene.other):
        with scene.node(scene.learners) as node, scene.driver() as driver:
            driver.says("actors 2 of 2 placed")
            learned(scene.run)
            scene.cable.pull()
            assert driver.wait() == Status.FAILED, driver.output
            assert "the head of the Ray cluster has not answered for" in driver.last_line
            scene.is_over()
            scene.balances()
            node.wait()
        scene.cable.plug()
        with scene.node(scene.learners), scene.driver() as driver:
            driver.says("resumed from")
            driver.says("actors 2 of 2 placed")
            scene.learns()
            driver.interrupt()
            assert driver.wait() == Status.EXECUTE_AGAIN, driver.output
        scene.is_over()
    scene.balances()
