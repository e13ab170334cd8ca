"""Processes that stand still: SIGSTOP, which no process can prepare for."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from harness import Command, alive, balanced, flags, learned, summary, until, words_of
from small_runs import write_catch

from attacks.kills import RUNS
from attacks.table import Scene, attack


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


def _settings(name: str, place: Path) -> dict[str, Any]:
    settings = {"arch": name.split(maxsplit=1)[0], **RUNS[name]}
    if name == "distbelief":
        return {**settings, "dataset": str(write_catch(place / "data"))}
    return {**settings, "frames": 10**9}
