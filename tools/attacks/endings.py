"""Ends of runs: signals, and streams that are closed or broken."""

from __future__ import annotations

import os
import pty
from pathlib import Path

import psutil
from harness import SEEDBED, Command, alive, balanced, checkpoints, flags, learned, summary, until

from attacks.kills import rows_are_balanced
from attacks.table import Scene, attack

LONG = 10**9
SHORT = 2000


def ended(learner: Command, folder: Path, why: str) -> None:
    """Raises unless a run ended as it should: saved, balanced, without a traceback, and nothing is left of it."""
    assert "Traceback" not in learner.output, learner.output
    family = learner.family()
    until(lambda: not any(map(alive, family)), "everything that it started to end", 30)
    left = summary(folder)
    assert left["stopped_because"] == why, left["stopped_because"]
    assert balanced(left), left
    rows_are_balanced(folder)
    assert int(checkpoints(folder)[-1].name) == left["weights_version"] > 0


@attack(
    "SIGHUP",
    "the terminal is closed while two actors act",
    "a checkpoint, the summary, status 75, nothing is left",
)
def hang_up(scene: Scene) -> None:
    """By the kernel: the other end of a terminal is closed."""
    words = flags("toy:catch", "run", frames=LONG)
    ours, theirs = pty.openpty()
    # `setsid` makes it the leader of a session, whose terminal is opened by it first.
    name = os.ttyname(theirs)
    script = f'exec "$@" <{name} >{name} 2>{name}'
    command = ["sh", "-c", script, "sh", SEEDBED]
    try:
        with Command(*words, cwd=scene.folder, command=command) as learner:
            os.close(theirs)
            learned(scene.folder / "run")
            learner.family()
            os.close(ours)
            ours = -1
            assert learner.wait() == 75
            ended(learner, scene.folder / "run", "interrupted")
        scene.times += 1
    finally:
        if ours >= 0:
            os.close(ours)


SECOND = (0.55, 1.5)
"""Seconds between the two Ctrl-C: within half a second they would count as one (``seedbed.launch.signals``)."""


@attack(
    "two Ctrl-C",
    "a second Ctrl-C, at random moments after the first one, while a run with large weights ends",
    "most end at once with status 130, the others had ended with 0; checkpoints are whole, nothing is left, all can be "
    "resumed",
)
def twice(scene: Scene) -> None:
    """The second comes while the last checkpoint is written, or anything else on the way to the end."""
    begun = words = flags("toy:catch", "run", frames=LONG, hidden=(2048, 2048))
    statuses = []
    for attempt in range(1 if scene.scale.briefly else 4):
        with Command(*words, cwd=scene.folder) as learner:
            before = learned(scene.folder / "run")
            until(lambda before=before: learned(scene.folder / "run") > before, "another update")
            learner.interrupt()
            try:
                learner.process.wait(scene.chance.uniform(*SECOND))
            except psutil.TimeoutExpired:
                learner.interrupt()
            status = learner.wait(30)
            assert status in (0, 130), learner.output
            assert "Traceback" not in learner.output, learner.output
            family = learner.family()
            until(lambda family=family: not any(map(alive, family)), "everything that it started to end", 30)
        statuses.append(status)
        scene.times += 1
        words = ["resume", "run"]
        if not checkpoints(scene.folder / "run"):  # it ended before the first one
            (scene.folder / "run").rename(scene.folder / f"ended-{attempt}")
            words = begun
    hurried = statuses.count(130)
    assert 2 * hurried >= len(statuses), f"statuses {statuses}"
    scene.notes.append(f"{hurried} of {len(statuses)} by status 130")


STREAMS: dict[str, str] = {
    "stdout is closed": 'exec "$@" >&-',
    "all streams are closed": 'exec "$@" <&- >&- 2>&-',
    "stdout is a full disk": 'exec "$@" >/dev/full',
    "stderr is a full disk": 'exec "$@" 2>/dev/full',
    "the reader of stdout has left": '"$@" | true; exit ${PIPESTATUS[0]}',
    "the reader of stdout leaves after a line": '"$@" | head -1; exit ${PIPESTATUS[0]}',
}


@attack(
    "streams",
    "standard streams are closed, full, or nobody reads them",
    "the run goes to its end: status 0, all files there",
)
def streams(scene: Scene) -> None:
    """A short run for each."""
    chosen = list(STREAMS.items())[: 2 if scene.scale.briefly else None]
    for name, script in chosen:
        scene.say(name)
        place = scene.folder / name.replace(" ", "-")
        place.mkdir()
        command = ["bash", "-c", script, "sh", SEEDBED]
        with Command(*flags("toy:catch", "run", frames=SHORT), cwd=place, command=command) as learner:
            status = learner.wait()
            assert status == 0, f"{name}: status {status}: {learner.output} {_log(place)}"
            ended(learner, place / "run", f"{SHORT} frames spent")
            assert (place / "run/curve.png").exists(), f"{name}: no curve"
        scene.times += 1


def _log(place: Path) -> str:
    log = place / "run/logs/learner.log"
    return log.read_text()[-2000:] if log.exists() else "no log"
