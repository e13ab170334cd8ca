"""Gorila, end to end: one worker is DQN, several share what they learn, and whatever is killed comes back."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from harness import (
    Command,
    alive,
    balanced,
    checkpoints,
    flags,
    refusal,
    rows,
    sockets,
    summary,
    thorough,
    tiny,
    until,
    words_of,
)
from small_runs import params

import seedbed
from seedbed.errors import RunFailed
from seedbed.launch.train import resume, train
from seedbed.learning.checkpoint import load_latest
from seedbed.parameter_server.pushing import Outliers

DQN: dict[str, Any] = {
    "agent": "dqn",
    "head_size": 8,
    "target_period": 5,
    "replay_size": 120,
    "replay_min_size": 40,
    "batch_size": 15,
}
GORILA = {**DQN, "arch": "gorila"}


@pytest.mark.parametrize("shards", [3, *thorough(1)])
def test_one_worker_in_lockstep_computes_what_seed_does(shards: int, tmp_path: Path) -> None:
    """Acting, replay, sampling, priorities, target: all but who applies the gradient is the same."""
    settings = {**DQN, "lag": 0, "actors": 1, "envs_per_actor": 8, "eval_envs": 2, "frames": 12 * 8 * 5}
    theirs = train(tiny("toy:catch", tmp_path / "seed", **settings, transport="inproc")).to_json()
    ours = train(
        tiny("toy:catch", tmp_path / "gorila", **{**settings, "arch": "gorila", "shards": shards})
    ).to_json()
    assert ours["weights_version"] == theirs["weights_version"] > 20
    assert ours["agent_steps"] == theirs["agent_steps"]
    assert ours["mean_return"] == theirs["mean_return"]
    assert balanced(ours)
    one, other = params(tmp_path / "gorila"), params(tmp_path / "seed")
    assert one.keys() == other.keys()
    for leaf, array in one.items():
        np.testing.assert_allclose(array, other[leaf], rtol=1e-4, atol=1e-5, err_msg=leaf)
    told = rows(tmp_path / "gorila")
    assert max(row.get("gradient_staleness_max", 0) for row in told) == 0


@pytest.mark.parametrize("transport", ["grpc", *thorough("shm")])
def test_workers_share_what_they_learn_and_go_on_after_a_stop(transport: str, tmp_path: Path) -> None:
    settings = {**GORILA, "shards": 2, "transport": transport, "replay_ratio": 2.0}
    first = train(tiny("toy:catch", tmp_path / "run", **settings, frames=1500)).to_json()
    assert balanced(first)
    assert first["agent_steps"] >= 1500
    assert first["weights_version"] > 50
    assert first["episodes"] > 0
    row = rows(tmp_path / "run")[-1]
    assert row["skipped_updates"] == 0
    assert max(row.get("gradient_staleness_max", 0) for row in rows(tmp_path / "run")) >= 1
    kept = load_latest(tmp_path / "run/checkpoints")
    assert kept.meta["shard_versions"] == [first["weights_version"]] * 2
    again = resume(str(tmp_path / "run"), frames=2500, shards=3).to_json()
    assert again["weights_version"] > first["weights_version"]
    assert again["agent_steps"] >= 2500
    assert balanced(again)
    assert seedbed.evaluate(tmp_path / "run", episodes=3).count == 3
    # Nothing is left to do, and nothing is started for it.
    once_more = resume(str(tmp_path / "run")).to_json()
    assert once_more["params_sha256"] == again["params_sha256"]
    assert once_more["weights_version"] == again["weights_version"]
    assert not sockets(tmp_path / "run"), "shards end when they are told"


@pytest.mark.thorough
def test_gradients_that_are_too_stale_are_dropped(tmp_path: Path) -> None:
    run = train(
        tiny(
            "toy:catch", tmp_path / "run", **GORILA, actors=3, max_staleness=0, replay_ratio=4.0, frames=3000
        )
    ).to_json()
    row = rows(tmp_path / "run")[-1]
    assert row["gradients_dropped"] > 0
    assert balanced(run)


def updates(folder: Path) -> float:
    """Gradients so far of the run in the folder."""
    told = rows(folder / "run")
    return told[-1].get("updates", 0) if told else 0


def shard_processes(command: Command) -> list[Any]:
    return [p for p in command.family() if alive(p) and any("shard-" in word for word in words_of(p))]


@pytest.mark.slow
def test_a_worker_and_a_shard_are_killed_and_the_run_goes_on(tmp_path: Path) -> None:
    words = flags(
        *("toy:catch", "run"),
        **GORILA,
        shards=2,
        frames=10**9,
        shard_snapshot_seconds=0.2,
        checkpoint_minutes=0.02,
    )
    with Command(*words, cwd=tmp_path) as command:
        until(lambda: updates(tmp_path) > 50, "the workers to learn")
        next(p for p in command.actors()).kill()
        until(lambda: "restart 1 of 3" in command.output, "the worker to be replaced")
        before = updates(tmp_path)
        until(lambda: updates(tmp_path) > before + 50, "the run to go on")
        shard_processes(command)[0].kill()
        until(lambda: "goes on from its snapshot of version" in command.output, "the shard to come back")
        before = updates(tmp_path)
        until(lambda: updates(tmp_path) > before + 50, "the run to go on")
        command.interrupt()
        assert command.wait() == 0, command.output
        assert not [p for p in command.family() if alive(p)]
    assert "the others have come to" in command.output
    left = summary(tmp_path / "run")
    assert left["actor_restarts"] == 2
    assert balanced(left)
    assert all(np.isfinite(leaf).all() for leaf in params(tmp_path / "run").values())
    # Each shard has a version of its own, by chance the same; the one that came back has gone on from its snapshot.
    versions = load_latest(tmp_path / "run/checkpoints").meta["shard_versions"]
    told = re.search(r"goes on from its snapshot of version (\d+)", command.output)
    assert told is not None and len(versions) == 2 and min(versions) > int(told[1])


@pytest.mark.slow
def test_a_worker_and_a_shard_that_stand_still_are_replaced(tmp_path: Path) -> None:
    """Stopped processes do not die, and give no sign of life."""
    words = flags(
        "toy:catch", "run", **GORILA, shards=2, frames=10**9, env_timeout=15, shard_snapshot_seconds=0.2
    )
    with Command(*words, cwd=tmp_path) as command:
        until(lambda: updates(tmp_path) > 50, "the workers to learn")
        next(p for p in command.actors()).suspend()
        until(lambda: "its process was stopped by a signal" in command.output, "the worker to be missed")
        until(lambda: "restart 1 of 3" in command.output, "the worker to be replaced")
        shard_processes(command)[0].suspend()
        until(lambda: "goes on from its snapshot of version" in command.output, "the shard to come back")
        before = updates(tmp_path)
        until(lambda: updates(tmp_path) > before + 50, "the run to go on")
        command.interrupt()
        assert command.wait() == 0, command.output
        assert not [p for p in command.family() if alive(p)]
    assert balanced(summary(tmp_path / "run"))


@pytest.mark.thorough
@pytest.mark.slow
def test_a_shard_that_dies_too_often_ends_the_run_with_its_cause(tmp_path: Path) -> None:
    words = flags("toy:catch", "run", **GORILA, shards=2, frames=10**9, actor_restarts=0)
    with Command(*words, cwd=tmp_path) as command:
        until(lambda: updates(tmp_path) > 20, "learning")
        shard_processes(command)[0].kill()
        assert command.wait() == 1, command.output
        assert not [p for p in command.family() if alive(p)]
    assert "killed by signal 9" in command.last_line
    left = summary(tmp_path / "run")
    assert left["stopped_because"].startswith("failed: shard ")
    assert balanced(left)
    assert checkpoints(tmp_path / "run")


@pytest.mark.thorough
@pytest.mark.slow
def test_a_run_that_is_killed_takes_its_processes_along_and_can_be_resumed(tmp_path: Path) -> None:
    words = flags("toy:catch", "run", **GORILA, shards=2, frames=10**9, checkpoint_minutes=0.01)
    with Command(*words, cwd=tmp_path) as command:
        until(lambda: checkpoints(tmp_path / "run"), "a checkpoint")
        family = command.family()
        os.kill(command.process.pid, signal.SIGKILL)
        until(lambda: not [p for p in family if alive(p)], "all processes to end")
    version = load_latest(tmp_path / "run/checkpoints").step
    again = resume(str(tmp_path / "run"), frames=summary_steps(tmp_path) + 500).to_json()
    assert again["weights_version"] > version
    assert balanced(again)


def summary_steps(folder: Path) -> int:
    return int(load_latest(folder / "run/checkpoints").meta["ledgers"][0]["received"])


@pytest.mark.thorough
def test_environments_that_fail_end_the_run_within_a_bound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = str(Path(__file__).parents[1] / "faults")
    monkeypatch.syspath_prepend(here)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([here, os.environ.get("PYTHONPATH", "")]))
    with pytest.raises(
        RunFailed, match=r"worker 0: .*the world has ended.*it was the same before its restart"
    ):
        train(tiny("worlds:raising", tmp_path / "run", **GORILA, actors=1, actor_restarts=1))
    assert balanced(summary(tmp_path / "run"))
    assert "the world has ended" in (tmp_path / "run/logs/worker-0.log").read_text()


def test_a_loss_is_an_outlier_if_it_is_far_above_those_before() -> None:
    outliers = Outliers(3.0)
    random = np.random.default_rng(0)
    ordinary = random.normal(10.0, 1.0, 500)
    assert not any(outliers.is_one(loss) for loss in ordinary[:100])
    found = [outliers.is_one(loss) for loss in ordinary[100:]]
    assert sum(found) < 10
    assert outliers.is_one(16.0)
    assert not outliers.is_one(0.0), "small losses are none"
    # What stays high is the new ordinary.
    assert sum(outliers.is_one(100.0) for _ in range(500)) < 50
    assert not any(Outliers(None).is_one(loss) for loss in [1.0] * 200 + [1e9])


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"agent": "vtrace"}, "it has no replay"),
        ({"deterministic": True}, "workers race"),
        ({"transport": "inproc"}, "use --transport shm or --transport grpc"),
        ({"actors": 0, "eval_envs": 0}, "give one or more"),
        ({"listen": ("127.0.0.1:0",)}, "listen is a setting of seed, impala and apex"),
        ({"actors": 2, "eval_envs": 3}, "use --eval-envs 4"),
        ({"epsilon_steps": 300}, "or --epsilon-steps 0 (it is 300)"),
        ({"training_devices": (1,)}, "training_devices is a setting of"),
        ({"arch": "seed", "outlier_deviations": 3.0}, "is a setting of distbelief and gorila"),
        ({"arch": "seed", "shards": 3}, "is a setting of distbelief, gorila and a3c"),
    ],
)
def test_what_does_not_go_with_it_is_refused_with_the_reason(
    settings: dict[str, Any], said: str, tmp_path: Path
) -> None:
    chosen = {"arch": "gorila", **({} if "agent" in settings else DQN), **settings}
    assert said in str(refusal(lambda: tiny("toy:catch", tmp_path, **chosen)))


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({}, "its target parameters follow every update"),
        ({"target_rate": 1.0, "target_period": 50}, "sac keeps numbers of whole batches"),
    ],
)
def test_an_agent_that_is_more_than_gradients_is_refused(
    settings: dict[str, Any], says: str, tmp_path: Path
) -> None:
    found = refusal(lambda: tiny("Pendulum-v1", tmp_path, arch="gorila", agent="sac", **settings))
    assert found is not None and says in found and "--arch seed" in found
