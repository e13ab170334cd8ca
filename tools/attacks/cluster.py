"""Chaos on a cluster of several nodes: actors, what starts them, machines and the learner are lost at random."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import psutil
from harness import SLEEPY, Command, alive, balanced, flags, rows, summary, until
from raylets import Actors, Nodes, ours, pids, two_nodes

from attacks.kills import REPLAY, rows_are_balanced
from attacks.table import Impossible, Scene, attack
from seedbed.cli.status import Status

RUNS: dict[str, dict[str, Any]] = {"seed": {}, "apex": {**REPLAY, "arch": "apex"}}
"""Settings by run."""
AWAY_SECONDS = (0.0, 8.0)
"""Seconds until a lost machine is replaced: before and after the engine has missed it."""


def _one_run(name: str) -> None:
    @attack(
        f"cluster {name}",
        f"a run under {name} on two nodes of Ray loses, at random and for minutes, an actor, the process of the "
        "engine that holds one, a node, or the learner, which is begun again (kill -9)",
        "it learns on after each, books balance in every row, nothing is left",
    )
    def cluster(scene: Scene) -> None:
        if find_spec("ray") is None:
            raise Impossible("Ray is not installed")
        (scene.folder / "sleepy.py").write_text(SLEEPY)
        settings = {"frames": 10**9, "begin_or_resume": True, "checkpoint_minutes": 0.02, **RUNS[name]}
        words = flags("sleepy:World", "run", on="ray", actor_restarts=1000, **settings)
        with two_nodes() as nodes, ExitStack() as sessions:
            Chaos(scene, nodes, words, sessions).rage()


for _name in RUNS:
    _one_run(_name)


class Chaos:
    """Losses, one after another, until there were as many as the scale asks for.

    Args:
      scene: the attack's.
      nodes: the cluster.
      words: arguments of ``seedbed`` for the run.
      sessions: ends every session of the run that is still there.
    """

    def __init__(self, scene: Scene, nodes: Nodes, words: list[str], sessions: ExitStack) -> None:
        self._scene = scene
        self._nodes = nodes
        self._words = words
        self._sessions = sessions
        self._folder: Path = scene.folder / "run"
        self._actor = Actors(self._folder)
        self._kinds: dict[str, Callable[[], None]] = {
            "an actor": self._lose_an_actor,
            "the engine's process of an actor": self._lose_its_holder,
            "a node": self._lose_a_node,
            "the learner": self._lose_the_learner,
        }
        self._lost: dict[str, int] = {}

    def rage(self) -> None:
        """Loses all of it, ends the run, and looks at what is left."""
        kinds = list(self._kinds)
        count = max(self._scene.scale.kills, len(kinds))
        self._begin()
        for number in range(count):
            time.sleep(self._scene.chance.uniform(0.0, 3.0))
            # Each kind once before chance decides.
            kind = kinds[number] if number < len(kinds) else self._scene.chance.choice(kinds)
            self._scene.say(f"{kind} is lost ({count - number} left)")
            self._kinds[kind]()
            self._until_it_learns()
            self._lost[kind] = self._lost.get(kind, 0) + 1
            self._scene.times += 1
        self._driver.interrupt()
        assert self._driver.wait() in (Status.OVER, Status.EXECUTE_AGAIN), self._driver.output
        assert "Traceback" not in self._driver.output, self._driver.output
        until(lambda: not ours(self._folder), "the end of all")
        rows_are_balanced(self._folder)
        assert balanced(summary(self._folder)), summary(self._folder)
        self._scene.notes.append(", ".join(f"{times} of {kind}" for kind, times in self._lost.items()))

    def _begin(self) -> None:
        self._driver = self._sessions.enter_context(Command(*self._words, cwd=self._scene.folder))
        self._until_it_learns()

    def _until_it_learns(self) -> None:
        """Waits for both actors, and for an update after that."""

        def placed() -> bool:
            assert alive(self._driver.process), f"it ended:\n{self._driver.output}"
            return all(self._actor(index) for index in (0, 1))

        until(placed, "both actors")
        before = len(rows(self._folder))

        def more() -> bool:
            assert alive(self._driver.process), f"it ended:\n{self._driver.output}"
            told = rows(self._folder)[before:]
            return any(later["updates"] > told[0]["updates"] for later in told)

        until(more, "training to go on")

    def _lose_the_learner(self) -> None:
        self._driver.process.kill()
        self._driver.wait()
        until(lambda: not ours(self._folder), "the end of what it had placed")
        self._begin()

    def _one_of_both(self) -> psutil.Process:
        index = self._scene.chance.choice((0, 1))
        return until(lambda: self._actor(index), f"actor {index}")

    def _lose_an_actor(self) -> None:
        actor = self._one_of_both()
        actor.kill()
        _until_it_ends(actor)

    def _lose_its_holder(self) -> None:
        actor = self._one_of_both()
        actor.parent().kill()
        _until_it_ends(actor)

    def _lose_a_node(self) -> None:
        far = [
            actor
            for index in (0, 1)
            if (actor := self._actor(index)) and self._actor.raylet_of(index) in pids(self._nodes.other)
        ]
        self._nodes.lose_the_other()
        for actor in far:
            _until_it_ends(actor)
        time.sleep(self._scene.chance.uniform(*AWAY_SECONDS))
        self._nodes.find_another()


def _until_it_ends(actor: psutil.Process) -> None:
    until(lambda: not alive(actor), "the end of the actor")
