"""Deterministic mode, end to end: the same bits by every carrier, and after an interruption at any moment."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from harness import MUZERO, Command, alive, checkpoints, flags, shortened, simulated, summary, tiny, until

from seedbed.acting.lag_control import ExactControl
from seedbed.launch.build import build_agent, build_spec
from seedbed.launch.train import resume, train
from seedbed.learning.loop import LearnerLoop
from seedbed.metrics.reports import Summary
from seedbed.serving.inference_service import InferenceService
from seedbed.types import Unroll
from seedbed.weights.store import WeightStore

FRAMES_A_ROUND = 2 * 4 * 5  # actors, environments, steps: see harness.TINY
CASES: dict[str, dict[str, Any]] = {
    "cartpole": {"env": "CartPole-v1"},
    "cartpole lag 1": {"env": "CartPole-v1", "lag": 1},
    "catch lstm": {"env": "toy:catch", "lstm": 8, "batch_size": 4},
    "catch lstm lag 1": {"env": "toy:catch", "lstm": 8, "batch_size": 4, "lag": 1},
    "catch reuse": {"env": "toy:catch", "batch_size": 4, "reuse": 2},
    "catch ppo": {
        "env": "toy:catch",
        "agent": "ppo",
        "batch_size": 4,
        "unroll_length": 5,
        "reuse": 2,
        "minibatches": 2,
        "target_kl": 0.01,
        "normalize_observations": True,
        "scale_rewards": True,
    },
    # Old steps are overwritten, the first round only fills the replay, and two environments only evaluate.
    "catch dqn": {
        "env": "toy:catch",
        "agent": "dqn",
        "batch_size": 15,
        "head_size": 8,
        "target_period": 5,
        "replay_size": 120,
        "replay_min_size": 40,
        "eval_envs": 2,
        "anneal_to_zero": True,
    },
    # Each environment explores by a share of its own, which sinks while the run lasts.
    "catch pqn": {
        "env": "toy:catch",
        "agent": "pqn",
        "batch_size": 4,
        "unroll_length": 5,
        "reuse": 2,
        "minibatches": 4,
        "epsilon_steps": 400,
        "epsilon_exponent": 3.0,
    },
    # Actions are uniform in the first rounds; observations are normalized by what was learned from.
    "pendulum sac": {
        "env": "Pendulum-v1",
        "agent": "sac",
        "batch_size": 20,
        "replay_size": 120,
        "replay_min_size": 80,
        "replay_ratio": 1.0,
        "priority_exponent": 0.6,
        "normalize_observations": True,
    },
    # The search's results are in the replay.
    "catch muzero": {
        "env": "toy:catch",
        **MUZERO,
        "batch_size": 20,
        "replay_size": 120,
        "replay_min_size": 40,
    },
    "memory r2d2 lag 1": {
        "env": "toy:memory",
        "agent": "r2d2",
        "lstm": 8,
        "burn_in": 3,
        "batch_size": 4,
        "head_size": 8,
        "target_period": 5,
        "replay_size": 120,
        "replay_min_size": 40,
        "replay_ratio": 1.0,
        "lag": 1,
    },
    "pong": {
        "env": "ALE/Pong-v5",
        "network": "small",
        "actors": 1,
        "envs_per_actor": 2,
        "batch_size": 2,
        "unroll_length": 10,
    },
}
ALIKE = ("cartpole lag 1", "catch lstm", "catch reuse", "pong")
"""Cases whose kinds others are of too."""


def outcome(run: Summary) -> dict[str, Any]:
    """What must be the same, whatever happened on the way."""
    values = run.to_json()
    names = [name for name in values if name.startswith("steps_")]
    names += ["params_sha256", "weights_version", "agent_steps", "env_frames", "episodes"]
    names += ["mean_return", "best_mean_return", "policy_lag_mean", "policy_lag_max", "stopped_because"]
    return {name: values[name] for name in names}


@contextmanager
def ctrl_c_at(decision: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Sends SIGINT when inference is asked for the ``decision``-th time: somewhere in the middle of an unroll."""
    left = [decision]
    original = InferenceService._serve

    def serve(self: InferenceService, lanes: Any) -> None:
        left[0] -= 1
        if left[0] == 0:
            os.kill(os.getpid(), signal.SIGINT)
        original(self, lanes)

    with monkeypatch.context() as patch:
        patch.setattr(InferenceService, "_serve", serve)
        yield
    assert left[0] <= 0, "the run ended before the interruption"


@pytest.mark.slow
def test_every_carrier_gives_the_same_bits(tmp_path: Path) -> None:
    settings = {"deterministic": True, "lstm": 8, "batch_size": 4, "frames": 12 * FRAMES_A_ROUND}
    by_carrier = {
        carrier: outcome(train(tiny("toy:catch", tmp_path / carrier, transport=carrier, **settings)))
        for carrier in ("inproc", "shm", "grpc")
    }
    assert by_carrier["shm"] == by_carrier["inproc"]
    assert by_carrier["grpc"] == by_carrier["inproc"]
    # Two updates a round; the frames were spent by the acting of the last round's first half. One decision in ten only
    # resets and is no frame, so it takes 14 rounds where 12 would have done.
    assert by_carrier["shm"]["weights_version"] == 27
    other = train(tiny("toy:catch", tmp_path / "other", transport="inproc", seed=1, **settings))
    assert other.params_sha256 != by_carrier["shm"]["params_sha256"]


@pytest.mark.slow
@pytest.mark.parametrize("case", shortened(CASES, set(CASES).difference(ALIKE)))
def test_interrupted_and_resumed_is_the_same_as_never_interrupted(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {"transport": "inproc", **CASES[case], "deterministic": True, "frames": 14 * FRAMES_A_ROUND}
    if case == "pong":
        settings["frames"] = 6 * 2 * 10 * 4
    env = settings.pop("env")
    whole = outcome(train(tiny(env, tmp_path / "whole", **settings)))
    broken = tmp_path / "broken"
    with ctrl_c_at(33, monkeypatch):
        first = train(tiny(env, broken, **settings))
    assert first.stopped_because == "interrupted"
    assert 0 < first.weights_version < whole["weights_version"]
    assert checkpoints(broken)
    if case != "pong":
        with ctrl_c_at(29, monkeypatch):
            assert resume(str(broken)).stopped_because == "interrupted"
    assert outcome(resume(str(broken))) == whole
    again = resume(str(broken))
    assert outcome(again) == whole, "a run that is over does not train on"


@pytest.mark.slow
def test_killed_and_resumed_is_the_same_as_never_killed(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"deterministic": True, "lstm": 8, "lag": 1}
    folder = tmp_path / "killed"
    shared = Path("/dev/shm")
    before = set(shared.iterdir())
    forever = flags("CartPole-v1", "killed", frames=10**9, checkpoint_minutes=1e-6, **settings)
    with Command(*forever, cwd=tmp_path) as learner:
        until(lambda: len(checkpoints(folder)) == 3, "three checkpoints")
        actors = learner.actors()
        learner.process.kill()
        learner.wait()
        until(lambda: not any(map(alive, actors)), "the actors to die with their learner")
    assert len(actors) == 2
    # What another test has there goes with it.
    left = set(shared.iterdir()) - before
    until(lambda: not any(path.exists() for path in left), "shared memory to be given back")
    reached = int(checkpoints(folder)[-1].name)
    assert reached >= 3
    frames = (reached + 10) * FRAMES_A_ROUND
    after = outcome(resume(str(folder), frames=frames))
    assert after == outcome(train(tiny("CartPole-v1", tmp_path / "whole", frames=frames, **settings)))


@pytest.mark.slow
def test_an_unroll_replayed_with_its_weights_gives_what_was_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tiny(
        "CartPole-v1", tmp_path / "run", lstm=8, actors=1, batch_size=4, lag=1, transport="inproc", frames=200
    )
    unrolls: list[Unroll] = []
    weights: dict[int, Any] = {}
    hand_over, publish = ExactControl.hand_over, WeightStore.publish

    def keep_unroll(self: ExactControl, lane: Any) -> bool:
        unrolls.append(lane.outbox)
        return hand_over(self, lane)

    def keep_weights(self: WeightStore, params: Any, version: int) -> None:
        weights[version] = params
        publish(self, params, version)

    monkeypatch.setattr(ExactControl, "hand_over", keep_unroll)
    monkeypatch.setattr(WeightStore, "publish", keep_weights)
    train(config)
    agent = build_agent(config, build_spec(config))
    act = jax.jit(agent.act)
    assert len(unrolls) >= 16
    assert any(unroll.timestep.first[1:].any() for unroll in unrolls), "no episode ended inside an unroll"
    for unroll in unrolls:
        state = unroll.state
        for t in range(unroll.action.shape[0]):
            (version,) = set(unroll.version[t].tolist())
            step = jax.tree.map(lambda x, t=t: x[t], unroll.timestep)
            keys = jax.random.split(jax.random.key(0), unroll.action.shape[1])
            output, state = act(weights[version], keys, step, state)
            for replayed, recorded in zip(
                jax.tree.leaves(output.record), jax.tree.leaves(unroll.record), strict=True
            ):
                np.testing.assert_array_equal(replayed, recorded[t])


@pytest.mark.slow
@pytest.mark.parametrize("lag", [0, 2])
def test_an_exact_lag_is_exact(lag: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lags: list[set[int]] = []
    learn = LearnerLoop._train

    def record(self: LearnerLoop, unroll: Any, batch: Any) -> Any:
        lags.append(set((self.version - batch.version).reshape(-1).tolist()))
        return learn(self, unroll, batch)

    monkeypatch.setattr(LearnerLoop, "_train", record)
    # "free" and deterministic is lag 0
    run = train(tiny("toy:catch", tmp_path / "run", lag=lag, transport="inproc", frames=10 * FRAMES_A_ROUND))
    assert len(lags) >= 8
    assert lags == [{min(update, lag)} for update in range(len(lags))]
    assert run.policy_lag_max == lag


DEVICES = """
import json, sys
from harness import tiny
from pathlib import Path
from seedbed.launch.train import train

import jax
from seedbed.learning.loop import LearnerLoop

def ids(tree):
    return sorted(device.id for device in jax.tree.leaves(tree)[0].devices())

places = {}
close = LearnerLoop.close
def look_and_close(self):
    services = self.source.registry.services
    workers = range(len(services))
    places[running[-1]] = {
        "train": ids(self.learner.state.params),
        "act": [ids(self._store.newest(i).params) for i in workers],
        "full": [worker.inference.largest for worker in services],
    }
    close(self)
LearnerLoop.close = look_and_close

folder = Path(sys.argv[1])
running = []
def run(name, **settings):
    running.append(name)
    return train(tiny("toy:catch", folder / name, frames=480, batch_size=6, envs_per_actor=6, **settings))

split = run("split", inference_devices=(0,), training_devices=(1, 2, 3))
two = [run(f"two{i}", inference_devices=(0, 1), training_devices=(2,), deterministic=True, lstm=8) for i in range(2)]
idle = run("idle", inference_devices=(0, 1), actors=1, deterministic=True)
free = run("free", inference_devices=(0, 1), training_devices=(2,))
print(json.dumps([places, *[summary.to_json() for summary in (split, *two, idle, free)]]))
"""


@pytest.mark.thorough
@pytest.mark.slow
def test_devices_are_split_between_acting_and_training(tmp_path: Path) -> None:
    command = [sys.executable, "-c", DEVICES, str(tmp_path)]
    with Command(cwd=tmp_path, command=command, **simulated(4)) as learner:
        assert learner.wait() == 0, learner.output
        places, split, one, other, idle, free = json.loads(learner.last_line)
    assert places["split"] == {"train": [1, 2, 3], "act": [[0]], "full": [6]}
    assert places["two0"] == {"train": [2], "act": [[0], [1]], "full": [3, 3]}
    # Half of the environments of a device, not of the run: a batch is full when one half of its actor waits.
    assert places["free"] == {"train": [2], "act": [[0], [1]], "full": [3, 3]}
    assert free["weights_version"] >= 10
    assert split["weights_version"] >= 10
    assert one["params_sha256"] == other["params_sha256"]
    # 9 rounds of two updates, the last one not needed: one decision in ten only resets, and is no frame.
    assert one["weights_version"] == 17
    assert idle["weights_version"] == 18
    assert summary(tmp_path / "split")["stopped_because"] == "480 frames spent"


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"deterministic": True, "batch_size": 3}, "multiple of the batch size"),
        ({"deterministic": True, "actors": 0}, "actors"),
        ({"training_devices": (7,)}, "does not exist"),
        ({"envs_per_actor": 3}, "halves"),
    ],
)
def test_what_cannot_run_is_refused_and_leaves_no_folder(
    settings: dict[str, Any], words: str, tmp_path: Path
) -> None:
    from seedbed.errors import ConfigError

    with pytest.raises(ConfigError, match=words):
        train(tiny("toy:catch", tmp_path / "run", **settings))
    assert not (tmp_path / "run").exists()
