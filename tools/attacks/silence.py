"""Processes that stand still: SIGSTOP, which no process can prepare for."""

from __future__ import annotations

import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness import Command, alive, balanced, flags, learned, rows, summary, until, words_of
from small_runs import write_catch

from attacks.kills import RUNS
from attacks.table import Scene, attack

LEARNERS = ("seed", "seed grpc", "impala", "apex", "rapid", "gorila", "distbelief")
"""Runs, whose actors, workers and servers wait for their learner in different ways."""
LISTENING = ("seed", "impala", "apex")
"""Architectures whose actors may come from elsewhere."""
STOPPED_SECONDS = 75.0
"""Longer than the network's keepalive (20 s) and the limit of a hanging environment (60 s)."""


@attack(
    "SIGSTOP",
    "a process of the run is stopped: an actor by each carrier and of apex, a worker, a replica, a shard, a "
    "forward-pass server, the guard",
    "noticed within 30 s by default and replaced, the others go on; the guard costs nothing",
)
def stopped(scene: Scene) -> None:
    """One stopped process of each role."""
    victims = [("seed", "actor-0"), ("seed grpc", "actor-0"), ("seed", "guard.py")]
    victims += [("rapid", "forward-server-0"), ("gorila", "worker-0"), ("gorila", "shard-0")]
    victims += [("distbelief", "replica-0"), ("apex", "actor-0")]
    for name, role in victims[: 1 if scene.scale.briefly else None]:
        scene.say(f"{role} of {name}")
        place = scene.folder / f"{name}-{role}".replace(" ", "-")
        place.mkdir()
        words = flags("toy:catch", "run", **_settings(name, place))
        with Command(*words, cwd=place) as learner:
            learned(place / "run")
            victim = next(
                one for one in learner.family() if any(role in word for word in words_of(one)) and alive(one)
            )
            victim.suspend()
            begin = time.monotonic()
            if role != "guard.py":
                until(lambda victim=victim: not alive(victim), f"{role} of {name} to be missed", 60)
                seconds = time.monotonic() - begin
                assert seconds < 30, f"{role} of {name} was missed after {seconds:.0f} s"
                scene.notes.append(f"{role} of {name} after {seconds:.0f} s")
                learner.says("was stopped by a signal")
            before = learned(place / "run")
            until(lambda before=before, place=place: learned(place / "run") > before, "training to go on")
            learner.interrupt()
            assert learner.wait() == 0, learner.output
            family = learner.family()
            until(lambda family=family: not any(map(alive, family)), "everything to end", 30)
        assert balanced(summary(place / "run"))
        scene.times += 1


@attack(
    "SIGSTOP of learners",
    "the learners of several runs stand still for longer than any limit, and are continued (SIGCONT); where it can, an "
    "actor from elsewhere has joined",
    "nobody is blamed or restarted, the actor from elsewhere comes back, they learn on, the books balance",
)
def stopped_learners(scene: Scene) -> None:
    """Learners that stand still cannot know that it was they who did."""
    with ExitStack() as stack:
        runs = []
        for name in LEARNERS[: 1 if scene.scale.briefly else None]:
            runs.append(_begun(scene, stack, name))
            runs[-1].learner.process.suspend()
        time.sleep(5 if scene.scale.briefly else STOPPED_SECONDS)
        for each in runs:
            scene.say(f"the learner of {each.name} goes on")
            each.learner.process.resume()
            _goes_on(each)
            scene.times += 1


@dataclass(frozen=True)
class _Run:
    """A run that learns.

    Attributes:
      others: the actors from elsewhere.
      own: processes that the learner has started.
    """

    name: str
    place: Path
    learner: Command
    others: list[Command]
    own: set[Any]


def _begun(scene: Scene, stack: ExitStack, name: str) -> _Run:
    place = scene.folder / name.replace(" ", "-")
    place.mkdir()
    settings, others = _settings(name, place), []
    listens = name.split(maxsplit=1)[0] in LISTENING
    if listens:
        settings |= {"listen": ("127.0.0.1:0",), "max_envs": 64}
    learner = stack.enter_context(Command(*flags("toy:catch", "run", **settings), cwd=place))
    if listens:
        pasted = learner.pasted()
        others.append(stack.enter_context(Command(*pasted, cwd=place)))
        until(lambda: _told(place, "actors") == 3, "the actor from elsewhere to join")
    learned(place / "run")
    return _Run(name, place, learner, others, set(learner.family()))


def _goes_on(run: _Run) -> None:
    before = _told(run.place, "updates")
    until(lambda: _told(run.place, "updates") > before + 10, f"training of {run.name} to go on")
    if run.others:
        until(lambda: _told(run.place, "actors") == 3, f"the actor from elsewhere to come back to {run.name}")
    assert run.learner.family() == run.own, run.learner.output
    assert "restart" not in run.learner.output, run.learner.output
    run.learner.interrupt()
    assert run.learner.wait() == 0, run.learner.output
    for other in run.others:
        other.interrupt()  # it would wait for the run to be resumed
        assert other.wait() == 0, other.output
    until(lambda: not any(map(alive, run.own)), "everything to end", 30)
    assert balanced(summary(run.place / "run"))


def _told(place: Path, name: str) -> float:
    """The value in the last row of metrics; 0 before there is one."""
    told = rows(place / "run")
    return float(told[-1][name]) if told else 0.0


def _settings(name: str, place: Path) -> dict[str, Any]:
    settings = {"arch": name.split(maxsplit=1)[0], **RUNS[name]}
    if name == "distbelief":
        return {**settings, "dataset": str(write_catch(place / "data"))}
    return {**settings, "frames": 10**9}
