"""Sebulba, end to end: exact, resumed, audited, and ended by its cause when a thread fails."""

from __future__ import annotations

import itertools
import os
import signal
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from harness import (
    Command,
    balanced,
    checkpoints,
    flags,
    learned,
    on_four_devices,
    rows,
    shortened,
    summary,
    thorough,
    tiny,
)

import seedbed
from seedbed.acting.actor_threads import seed_of
from seedbed.acting.assignment import Assignment
from seedbed.acting.inference import row_keys
from seedbed.acting.rollout import Rollout
from seedbed.cli.train import configuration
from seedbed.envs.interface import Environment
from seedbed.envs.make import make, spec_of
from seedbed.envs.seeds import environment_seeds
from seedbed.errors import ConfigError, RunFailed
from seedbed.launch.train import resume, train
from seedbed.learning.learner import Learner
from seedbed.metrics.reports import Summary
from seedbed.priority import niceness_beside
from seedbed.seeding import key
from seedbed.types import Unroll

FRAMES_A_ROUND = 2 * 4 * 5  # threads, environments, steps: see harness.TINY
CASES: dict[str, dict[str, Any]] = {
    "cartpole": {"env": "CartPole-v1"},
    "catch lstm lag 1": {"env": "toy:catch", "lstm": 8, "batch_size": 4, "lag": 1},
    "catch ppo": {
        "env": "toy:catch",
        "agent": "ppo",
        "batch_size": 4,
        "unroll_length": 5,
        "reuse": 2,
        "minibatches": 2,
    },
    # Unrolls overlap, old steps are overwritten, and two environments only evaluate.
    "memory r2d2 lag 1": {
        "env": "toy:memory",
        "agent": "r2d2",
        "lstm": 8,
        "burn_in": 3,
        "batch_size": 3,
        "head_size": 8,
        "target_period": 5,
        "replay_size": 120,
        "replay_min_size": 40,
        "replay_ratio": 1.0,
        "eval_envs": 2,
        "lag": 1,
    },
}
# Overwritten, too, and on the device.
CASES["memory r2d2 device"] = {**CASES["memory r2d2 lag 1"], "lag": 0, "replay_on": "device"}
FIRST = ("catch lstm lag 1",)
TOLD = ("params_sha256", "weights_version", "agent_steps", "episodes", "mean_return", "best_mean_return")
TOLD += ("policy_lag_mean", "policy_lag_max", "steps_trained", "steps_open", "steps_queued", "steps_dropped")


@pytest.fixture
def worlds(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1] / "faults"))
    import worlds

    worlds.released.clear()
    yield
    worlds.released.set()


def sebulba(env: str, folder: Path, **settings: Any) -> Summary:
    return train(tiny(env, folder, arch="sebulba", **settings))


def outcome(run: Summary) -> dict[str, Any]:
    values = run.to_json()
    return {name: values[name] for name in TOLD}


@contextmanager
def ctrl_c_at(decision: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Sends SIGINT when a thread's policy is asked for the ``decision``-th time."""
    left = [decision]
    original = Rollout.act

    def act(self: Rollout, *arguments: Any) -> Any:
        left[0] -= 1
        if left[0] == 0:
            os.kill(os.getpid(), signal.SIGINT)
        return original(self, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(Rollout, "act", act)
        yield
    assert left[0] <= 0, "the run ended before the interruption"


@pytest.mark.parametrize("case", shortened(CASES, FIRST))
def test_interrupted_and_resumed_is_the_same_as_never_interrupted(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {**CASES[case], "deterministic": True, "frames": 14 * FRAMES_A_ROUND}
    env = settings.pop("env")
    whole = outcome(sebulba(env, tmp_path / "whole", **settings))
    with ctrl_c_at(50, monkeypatch):
        first = sebulba(env, tmp_path / "parts", **settings)
    assert first.stopped_because == "interrupted"
    assert 0 < first.weights_version < whole["weights_version"]
    assert checkpoints(tmp_path / "parts")
    assert outcome(resume(str(tmp_path / "parts"))) == whole
    assert outcome(sebulba(env, tmp_path / "other", **settings, seed=1)) != whole


def test_freely_every_step_is_trained_once_and_the_lag_is_small(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken: list[np.ndarray[Any, Any]] = []
    gather = Learner.gather

    def watch(self: Learner, unrolls: list[Unroll]) -> Unroll:
        batch = gather(self, unrolls)
        taken.append(np.asarray(batch.timestep.observation))
        return batch

    threads = itertools.count()

    def make_numbered(env: str, envs: int, options: Sequence[str]) -> Environment:
        return make(env, envs, (*options, f"first_index={100 * next(threads)}"))

    monkeypatch.setattr(Learner, "gather", watch)
    monkeypatch.setattr("seedbed.acting.actor_threads.make", make_numbered)
    run = sebulba("toy:count", tmp_path / "run", actors=3, batch_size=6, frames=40 * 30).to_json()
    assert balanced(run)
    assert run["steps_dropped"] == 0
    assert run["transport"] == "none"
    # Each of its 12 environments counts its episodes and steps: no transition comes twice.
    seen = [tuple(row) for batch in taken for row in batch[:-1].reshape(-1, batch.shape[-1]).tolist()]
    assert len(seen) == len(taken) * 5 * 6 >= run["steps_trained"]
    assert len(set(seen)) == len(seen)
    row = rows(tmp_path / "run")[-1]
    assert row["actors"] == 3
    # The last row may come when nobody has acted since the row before.
    assert {row["batch_fill"] for row in rows(tmp_path / "run") if "batch_fill" in row} == {1.0}
    # What waits in the queue, is being prepared, or is being acted on by three threads; a thread that the machine
    # leaves waiting in the middle of an unroll may be further behind.
    assert 0 < run["policy_lag_mean"] <= 8


def test_what_was_trained_goes_on_with_new_episodes_and_is_evaluated(tmp_path: Path) -> None:
    first = sebulba("CartPole-v1", tmp_path / "run", frames=2000)
    again = resume(str(tmp_path / "run"), frames=3000)
    assert again.weights_version > first.weights_version
    assert balanced(again.to_json())
    assert seedbed.evaluate(tmp_path / "run", episodes=3).count == 3


@pytest.mark.usefixtures("worlds")
def test_a_thread_that_fails_ends_a_run_with_an_exact_lag(tmp_path: Path) -> None:
    with pytest.raises(
        RunFailed, match=r"actor \d: EnvironmentFault: worlds:raising .*the world has ended.*log: "
    ):
        sebulba("worlds:raising", tmp_path / "run", lag=0)
    assert "the world has ended" in (tmp_path / "run/logs/learner.log").read_text()
    left = summary(tmp_path / "run")
    assert left["stopped_because"].startswith("failed: actor")
    assert checkpoints(tmp_path / "run"), "what was learned before"


@pytest.mark.usefixtures("worlds")
def test_a_thread_that_fails_is_replaced_within_a_bound(tmp_path: Path) -> None:
    with pytest.raises(RunFailed, match="it was the same before its restart"):
        sebulba("worlds:raising", tmp_path / "run", actors=1, batch_size=4, actor_restarts=1)
    left = summary(tmp_path / "run")
    assert left["actor_restarts"] == 1
    assert balanced(left)
    # Stepped 30 times and then 30 times: the step that raised was decided, and its unroll was open.
    assert left["agent_steps"] == 2 * 30 * 4
    assert left["steps_dropped"] == 2 * 5 * 4


@pytest.mark.usefixtures("worlds")
@pytest.mark.parametrize("lag", [0, *thorough("free")])
def test_environments_that_hang_end_the_run(lag: int | str, tmp_path: Path) -> None:
    with pytest.raises(
        RunFailed, match=r"actor \d: its environments \(worlds:hanging\) took more than \d+ s"
    ):
        sebulba("worlds:hanging", tmp_path / "run", lag=lag, env_timeout=1.0)


@pytest.mark.skipif(not hasattr(os, "SCHED_IDLE"), reason="this system has no such class")
@pytest.mark.parametrize(
    ("niceness", "platform", "idle"),
    [(None, "cpu", False), *thorough((0, "gpu", False)), (20, "cpu", True), (None, "gpu", True)],
)
def test_threads_of_environments_step_aside_and_those_that_decide_do_not(
    niceness: int | None, platform: str, idle: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inherited: list[int] = []  # by threads that environments start
    deciding: set[int] = set()

    def made(*arguments: Any) -> Environment:
        thread = threading.Thread(target=lambda: inherited.append(os.sched_getscheduler(0)))
        thread.start()
        thread.join()
        return make(*arguments)

    def acts(self: Rollout, *arguments: Any) -> Any:
        deciding.add(os.sched_getscheduler(0))
        return act(self, *arguments)

    act = Rollout.act
    monkeypatch.setattr("seedbed.acting.actor_threads.make", made)
    monkeypatch.setattr(Rollout, "act", acts)
    monkeypatch.setattr("seedbed.architectures.sebulba.niceness_beside", lambda _: niceness_beside(platform))
    train(tiny("toy:catch", tmp_path / "run", arch="sebulba", frames=100, actor_niceness=niceness))
    assert inherited == [os.SCHED_IDLE if idle else os.SCHED_OTHER] * 2
    assert deciding == {os.SCHED_OTHER}


def test_all_environments_of_all_threads_on_all_hosts_differ() -> None:
    threads, envs, hosts = 4, 16, 3
    spec = spec_of("toy:catch", {})
    seeds, keys = [], []
    for host in range(hosts):
        assignment = Assignment("toy:catch", {}, spec, threads, envs, 0, 5, "", host=host, hosts=hosts)
        slots = np.array([assignment.slot_number(slot) for slot in range(threads * envs)], np.int32)
        for epoch in range(3):
            for index in range(threads):
                seed = seed_of(assignment.seed, assignment.actor_number(index), epoch)
                seeds += environment_seeds(seed, envs).tolist()
            for step in range(2):
                each = row_keys(
                    key(0, "acting"), slots, np.full_like(slots, epoch), np.full_like(slots, step)
                )
                keys += map(tuple, jax.random.key_data(each).tolist())
    assert len(set(seeds)) == len(seeds) == hosts * threads * 3 * envs
    assert len(set(keys)) == len(keys) == hosts * threads * 3 * 2 * envs


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"transport": "grpc"}, "transport is a setting of"),
        ({"listen": ("127.0.0.1:0",)}, "listen is a setting of seed, impala and apex"),
        ({"batches_per_call": 2}, "batches_per_call is a setting of anakin"),
        ({"actors": 0}, "actors is 0, but only the run's own threads act"),
        ({"inference_devices": (0, 1, 2)}, "actors is 2, so of 3 devices that act some have no thread"),
        ({"inference_devices": (0, 7)}, "inference device 7 does not exist"),
        ({"training_devices": (7,)}, "training device 7 does not exist"),
        ({"lag": 0, "batch_size": 6}, "the 8 environments must be a multiple of the batch size 6"),
        ({"agent": "a2c", "lag": "free"}, "the lag is free: add --lag 0"),
        (
            {"agent": "a2c", "lag": 0, "batch_size": 4},
            "8 environments are more than a batch of 4.*Use --batch-size 8",
        ),
    ],
)
def test_what_does_not_fit_is_refused(settings: dict[str, Any], says: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=says):
        sebulba("CartPole-v1", tmp_path / "run", **settings)
    assert not (tmp_path / "run").exists()


def test_devices_have_the_names_of_the_report_too() -> None:
    words = ["CartPole-v1", "--actor-devices", "0,1", "--learner-devices=2,3"]
    placed = configuration(words).placement
    assert (placed.inference_devices, placed.training_devices) == ((0, 1), (2, 3))


@pytest.mark.slow
def test_ctrl_c_leaves_a_checkpoint_that_goes_on(tmp_path: Path) -> None:
    words = flags("CartPole-v1", "run", arch="sebulba")
    with Command(*words, cwd=tmp_path) as learner:
        learned(tmp_path / "run")
        learner.interrupt()
        assert learner.wait() == 0, learner.output
        assert "stopped: interrupted" in learner.output
    reached = int(checkpoints(tmp_path / "run")[-1].name)
    assert resume(str(tmp_path / "run"), minutes=1e-6).weights_version >= reached > 0


PROGRAM = """
import json, sys
from pathlib import Path
import jax
from small_runs import params, run

assert len(jax.devices()) == 4
apart = {"inference_devices": (0, 1), "training_devices": (2, 3)}
for name, place in (("one", {}), ("apart", apart)):
    done = run(
        Path(sys.argv[1]) / name,
        arch="sebulba", lag=0, actors=4, envs_per_actor=2, agent="ppo", reuse=2, minibatches=2, **place,
    )
    told = {key: leaf.ravel().tolist() for key, leaf in params(Path(sys.argv[1]) / name).items()}
    print("told", json.dumps([done.episodes, done.mean_return, told]))
"""


def test_devices_that_act_and_devices_that_learn_compute_what_one_does(tmp_path: Path) -> None:
    one, apart = on_four_devices(PROGRAM, str(tmp_path))
    assert one[:2] == apart[:2]
    for leaf in one[2]:
        np.testing.assert_allclose(apart[2][leaf], one[2][leaf], rtol=1e-4, atol=1e-5, err_msg=leaf)
