"""Exact resumption: what was killed and goes on computes the bits of what was never killed."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from harness import Command, alive, checkpoints, flags, refusal, summary, tiny, until

from attacks.table import Scene, attack
from seedbed.registry import AGENTS, ARCHITECTURES

REPLAY = {
    "batch_size": 20,
    "replay_ratio": 1.0,
    "head_size": 8,
    "target_period": 5,
    "replay_size": 120,
    "replay_min_size": 40,
}
CATCH = {"env": "toy:catch", "batch_size": 4}
PAIRED: dict[str, dict[str, Any]] = {
    "vtrace": {**CATCH, "lstm": 8, "lag": 1},
    "a2c": {**CATCH, "batch_size": 8, "lag": 0},
    "ppo": {**CATCH, "reuse": 2, "minibatches": 2, "normalize_observations": True},
    "pqn": {**CATCH, "reuse": 2, "minibatches": 4, "epsilon_steps": 400},
    "dqn": {**CATCH, **REPLAY},
    "r2d2": {
        "env": "toy:memory",
        **REPLAY,
        "lstm": 8,
        "burn_in": 3,
        "batch_size": 4,
    },
    "sac": {
        "env": "Pendulum-v1",
        "batch_size": 20,
        "replay_size": 120,
        "replay_min_size": 80,
        "replay_ratio": 1.0,
    },
    "muzero": {
        **CATCH,
        "batch_size": 20,
        "unroll_steps": 2,
        "n_step": 2,
        "simulations": 4,
        "reanalyse": 0.5,
        "target_period": 5,
        "replay_size": 120,
        "replay_min_size": 40,
        "replay_ratio": 1.0,
    },
}
"""Settings by agent that use most of what a checkpoint has to hold."""
NOT_PROMISED = ("leave --deterministic out", "does not run under", "learns from a data set")
"""Words of the refusals of pairs that promise nothing."""
WITHOUT_LAG = ("a2c", "a3c", "anakin", "distbelief")
FRAMES = 2400
SAME = ("params_sha256", "weights_version", "agent_steps", "episodes", "mean_return", "best_mean_return")
SAME += ("steps_received", "steps_trained", "steps_queued", "steps_open", "steps_dropped", "stopped_because")


def promised() -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields the pairs that promise it, each with its settings; which they are is asked, not listed."""
    for arch in ARCHITECTURES.names:
        for agent in AGENTS.names:
            settings = settings_of(arch, agent)
            if settings is None:
                continue
            env = settings.pop("env")
            reason = refusal(lambda env=env, settings=settings: tiny(env, Path("nowhere"), **settings))
            if reason is None:
                yield f"{arch} {agent}", {"env": env, **settings}
            elif not any(word in reason for word in NOT_PROMISED):
                raise AssertionError(f"{arch} {agent}: the attack's settings do not fit: {reason}")


def settings_of(arch: str, agent: str) -> dict[str, Any] | None:
    """Returns settings for a pair; None if the agent is not for environments."""
    if agent not in PAIRED:
        return None
    settings = {**PAIRED[agent], "arch": arch, "agent": agent, "deterministic": True}
    if arch == "anakin":
        settings.update(env="gymnax:CartPole-v1" if agent != "sac" else "gymnax:Pendulum-v1", batch_size=8)
    if arch == "a2c":
        settings.update(batch_size=8)
    if arch in WITHOUT_LAG:
        settings.pop("lag", None)
    return settings


@attack(
    "exact resumption",
    "the learner is killed twice at random moments (kill -9) and resumed: every pair that promises it",
    "the bits of a run that was never killed",
)
def killed_at_random(scene: Scene) -> None:
    """Of each pair one whole run, and one that is killed twice."""
    pairs = list(promised())[: scene.scale.pairs]
    assert pairs
    for name, settings in pairs:
        scene.say(name)
        place = scene.folder / name.replace(" ", "-")
        place.mkdir()
        killed_twice(scene, place, name, dict(settings))
    scene.notes.append(f"{len(pairs)} pairs: {', '.join(name for name, _ in pairs)}")


def killed_twice(scene: Scene, place: Path, name: str, settings: dict[str, Any]) -> None:
    """Compares a run that was killed twice with one that was not."""
    env = settings.pop("env")
    settings.update(frames=FRAMES, checkpoint_minutes=1e-6, keep_checkpoints=3)
    with Command(*flags(env, "whole", **settings), cwd=place) as whole:
        assert whole.wait() == 0, f"{name}: {whole.output}"
    end = summary(place / "whole")["weights_version"]
    at = sorted(scene.chance.sample(range(1, max(4, end * 3 // 4)), 2))
    words = flags(env, "parts", **settings)
    for version in at:
        with Command(*words, cwd=place) as learner:
            reached(learner, place / "parts", version)
            learner.process.kill()
            learner.wait()
            family = learner.family()
            until(lambda family=family: not any(map(alive, family)), f"{name}: what was started to end", 30)
        scene.times += 1
        words = ["resume", "parts"]
    with Command(*words, cwd=place) as last:
        assert last.wait() == 0, f"{name}: {last.output}"
        assert "damaged" not in last.output, last.output
    compared(name, summary(place / "parts"), summary(place / "whole"))


def reached(learner: Command, folder: Path, version: int) -> None:
    """Waits until there is a checkpoint of a version; fails if the run ends before."""

    def there() -> bool:
        found = checkpoints(folder)
        if found and int(found[-1].name) >= version:
            return True
        assert alive(learner.process), f"it ended before it could be killed:\n{learner.output}"
        return False

    until(there, f"a checkpoint of version {version}")
    assert alive(learner.process), f"it ended before it could be killed:\n{learner.output}"


def compared(name: str, one: dict[str, Any], other: dict[str, Any]) -> None:
    """Raises unless two summaries tell of the same run."""
    different = {key: (one[key], other[key]) for key in SAME if one[key] != other[key]}
    assert not different, f"{name}: {different}"


KILLED_AT = """
import os, signal, sys
import safetensors.numpy
left, place = int(sys.argv.pop(1)), os.sep + "checkpoints"

def step():
    global left
    left -= 1
    if not left:
        os.kill(os.getpid(), signal.SIGKILL)

def hear(event, arguments):
    if event in ("open", "os.mkdir", "os.rename", "os.remove", "os.rmdir") and place in os.fsdecode(
        arguments[0] if isinstance(arguments[0], (str, bytes, os.PathLike)) else ""
    ):
        writes = event != "open" or ".writing-" in os.fsdecode(arguments[0])
        if writes:
            step()

write = safetensors.numpy.save_file

def write_in_two_halves(arrays, path, *rest):
    write(arrays, path, *rest)
    size = os.stat(path).st_size
    half = open(path, "rb").read()
    os.truncate(path, size // 2)
    step()
    with open(path, "wb") as file:
        file.write(half)

sys.addaudithook(hear)
safetensors.numpy.save_file = write_in_two_halves
from seedbed.cli.main import main
main(sys.argv[1:])
"""
"""``seedbed``, killed at the N-th step of writing checkpoints: a folder, a file, half of its bytes, a new name."""


@attack(
    "checkpoint kills",
    "kill -9 in the middle of writing a checkpoint, once at each step of it: folders, half files, hashes, names",
    "the checkpoint before is taken, nothing is called damaged, and the end has the bits of a whole run",
)
def killed_in_the_middle(scene: Scene) -> None:
    """A chain: each session is killed one step further in the writing of its first checkpoint."""
    settings = {
        **PAIRED["dqn"],
        "agent": "dqn",
        "deterministic": True,
        "transport": "inproc",
        "frames": FRAMES,
    }
    settings.update(checkpoint_minutes=1e-6)
    env = settings.pop("env")
    with Command(*flags(env, "whole", **settings), cwd=scene.folder) as whole:
        assert whole.wait() == 0, whole.output
    folder = scene.folder / "parts"
    with Command(*flags(env, "parts", **settings), cwd=scene.folder) as first:
        reached(first, folder, 3)
        first.process.kill()
        first.wait()
    half = 0
    for step in range(1, scene.scale.checkpoint_kills + 1):
        before = int(checkpoints(folder)[-1].name)
        command = [sys.executable, "-c", KILLED_AT, str(step)]
        with Command("resume", "parts", cwd=scene.folder, command=command) as learner:
            assert learner.wait() == -signal.SIGKILL, f"step {step}: {learner.output}"
            assert "damaged" not in learner.output, learner.output
            assert f"weights version {before}" in learner.output, learner.output
        half += any((folder / "checkpoints").glob(".writing-*"))
        assert int(checkpoints(folder)[-1].name) >= before
        scene.times += 1
        scene.say(f"step {step}: {before} -> {checkpoints(folder)[-1].name}")
    assert half >= scene.scale.checkpoint_kills // 3, f"only {half} left a half-written folder"
    with Command("resume", "parts", cwd=scene.folder) as last:
        assert last.wait() == 0, last.output
        assert "damaged" not in last.output, last.output
    assert not list((folder / "checkpoints").glob(".*")), "half-written folders stay"
    compared("parts", summary(folder), summary(scene.folder / "whole"))
    scene.notes.append(f"{half} kills left a half-written folder")
