"""Chaos: processes of a run are killed at random, and the run goes on with balanced books."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from harness import Command, alive, balanced, flags, learned, rows, summary, until, words_of
from small_runs import write_catch

from attacks.table import Scene, attack

REPLAY = {"agent": "dqn", "replay_size": 4000, "replay_min_size": 40, "replay_ratio": 0.5}
RUNS: dict[str, dict[str, Any]] = {
    "seed": {},
    "seed grpc": {"transport": "grpc"},
    "impala": {},
    "rapid": {"agent": "ppo", "lag": "free", "reuse": 2, "minibatches": 2, "forward_servers": 2},
    "apex": REPLAY,
    "gorila": {**REPLAY, "shards": 2},
    "distbelief": {"agent": "bc", "batch_size": 4, "shards": 2},
    "a3c": {"agent": "a2c", "batch_size": 4},
    "sebulba": {},
}
"""Settings by run; its architecture is the first word."""
BETWEEN = (0.0, 3.0)
"""Seconds between the first update after a kill and the next kill."""


def rows_are_balanced(folder: Path) -> None:
    """Raises unless in every row each step is somewhere."""
    told = rows(folder)
    assert told, "no row of metrics"
    wrong = [row for row in told if not balanced(row)]
    assert not wrong, f"{len(wrong)} of {len(told)} rows do not balance, such as {wrong[0]}"


def _one_run(name: str) -> None:
    @attack(
        f"chaos {name}",
        f"random processes of a run under {name} are killed (kill -9), the learner too, which is resumed",
        "it learns on after each, books balance in every row, nothing is left",
    )
    def chaos(scene: Scene) -> None:
        settings = {
            "arch": name.split(maxsplit=1)[0],
            "actor_restarts": 1000,
            "checkpoint_minutes": 0.02,
            **RUNS[name],
        }
        if settings["arch"] == "a3c":
            settings.pop("actor_restarts")
        if name == "distbelief":
            settings.update(dataset=str(write_catch(scene.folder / "data")))
        _kill_again_and_again(scene, flags("toy:catch", "run", **settings))


for _name in RUNS:
    _one_run(_name)


def _kill_again_and_again(scene: Scene, words: list[str]) -> None:
    folder, chance = scene.folder / "run", scene.chance
    shared = set(Path("/dev/shm").iterdir())
    of_learner = 0
    left = scene.scale.kills
    while True:
        with Command(*words, cwd=scene.folder) as learner:
            family = _until_it_learns(learner, folder)
            dead = False
            while left and not dead:
                time.sleep(chance.uniform(*BETWEEN))
                # At least one of the last two kills is the learner's, and about one in four of the others.
                dead = chance.random() < 0.25 or not family or left == 1
                victim = learner.process if dead else chance.choice(sorted(family, key=lambda one: one.pid))
                what = " ".join(words_of(victim)[-1:]).rsplit("/", 1)[-1]
                scene.say(f"{'learner' if dead else what} is killed ({left} left)")
                victim.kill()
                left -= 1
                scene.times += 1
                of_learner += dead
                if dead:
                    learner.wait()
                else:
                    family = _until_it_learns(learner, folder)
            if not dead:
                learner.interrupt()
                assert learner.wait() == 0, learner.output
            everybody = learner.family()
            until(lambda everybody=everybody: not any(map(alive, everybody)), "everything to end", 30)
            if not dead:
                break
        words = ["resume", "run"]
    rows_are_balanced(folder)
    last = summary(folder)
    assert balanced(last), last
    ours = set(Path("/dev/shm").iterdir()) - shared
    until(lambda: not any(path.exists() for path in ours), f"{ours} in /dev/shm to be given back", 60)
    scene.notes.append(f"{of_learner} of the learner")


def _until_it_learns(learner: Command, folder: Path) -> set[Any]:
    """Waits for an update that is later than now; returns the processes of the run but the learner."""
    before = len(rows(folder))

    def more() -> bool:
        assert alive(learner.process), f"it ended:\n{learner.output}"
        told = rows(folder)[before:]
        return any(later["updates"] > told[0]["updates"] for later in told)

    learned(folder)
    until(more, f"training to go on in {learner.output}")
    return {one for one in learner.family() if alive(one)}
