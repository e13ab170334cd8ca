"""The watchdog of an actor, tick by tick, and an actor that ends itself."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import psutil
import pytest
from harness import PATIENCE, Command, alive, flags, until

from seedbed.acting.watchdog import Watchdog
from seedbed.cli.status import Status
from seedbed.envs.make import make


def dog(seconds: float = 2.0) -> Watchdog:
    """A watchdog that is not started: each call of ``tick`` is one of its seconds."""
    return Watchdog(seconds, lambda: None, tick=1.0)


def test_a_call_that_takes_too_many_ticks_is_late() -> None:
    watch = dog()
    with watch:
        # The first tick may come at once; then there is one more than whole seconds allow.
        assert [watch.tick() for _ in range(6)] == [False] * 4 + [True] * 2
    assert not watch.tick(), "it has returned"


def test_many_short_calls_are_never_late() -> None:
    watch = dog()
    for _ in range(20):
        with watch:
            assert not watch.tick()
            assert not watch.tick()
    assert not watch.tick()
    with pytest.raises(ValueError, match="failed"), watch:
        raise ValueError("failed")
    assert not any(watch.tick() for _ in range(20)), "a call that raised has returned"


def test_it_says_once_that_a_call_is_late_and_nothing_after_its_end() -> None:
    late = threading.Event()
    watch = Watchdog(0.01, late.set, tick=0.005).start()
    with watch:
        assert late.wait(PATIENCE)
    never = Watchdog(0.0, lambda: pytest.fail("it was closed"), tick=0.005)
    never.close()
    with never:
        never.start()
        never._thread.join(PATIENCE)


def test_every_call_of_an_environment_is_watched() -> None:
    calls: list[str] = []

    class Recording:
        def __enter__(self) -> None:
            calls.append("begun")

        def __exit__(self, *_: object) -> None:
            calls.append("ended")

    environment = make("toy:catch", 2)
    environment.watch = Recording()
    environment.reset(0)
    environment.send([0, 0])
    environment.receive()
    environment.close()
    assert calls == ["begun", "ended"] * 4


HANGING = """
import subprocess, time, gymnasium, numpy
class World(gymnasium.Env):
    '''It starts a process, and hangs at its tenth step if it was told to.'''
    observation_space = gymnasium.spaces.Box(-1, 1, (3,), numpy.float32)
    action_space = gymnasium.spaces.Discrete(2)
    def __init__(self):
        import os
        self.hangs = "HANGS" in os.environ
        self.child = subprocess.Popen(["sleep", "777"]) if self.hangs else None
        self.steps = 0
    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.observation_space.sample(), {}
    def step(self, action):
        self.steps += 1
        while self.hangs and self.steps > 10:
            time.sleep(1)
        return self.observation_space.sample(), 1.0, self.steps % 20 == 0, False, {}
"""


@pytest.mark.slow
def test_an_actor_from_elsewhere_whose_environment_hangs_ends_itself(tmp_path: Path) -> None:
    (tmp_path / "worlds_here.py").write_text(HANGING)
    words = flags(
        "worlds_here:World", "run", actors=0, listen=("127.0.0.1:0",), env_timeout=1.0, frames=10**9
    )
    path = {"PYTHONPATH": os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])}
    with Command(*words, cwd=tmp_path, **path) as learner:
        line = learner.pasted()
        with Command(*line, cwd=tmp_path, HANGS="1", **path) as actor:
            children = until(
                lambda: [child for child in actor.family() if "777" in child.cmdline()],
                "a child of the world",
            )
            assert actor.wait() == Status.FAULT, actor.output
            assert "its environments (worlds_here:World) did not return within 7 s" in actor.last_line
            psutil.wait_procs(children, PATIENCE)
            assert not any(map(alive, children))
        assert alive(learner.process), "the run goes on without it"
