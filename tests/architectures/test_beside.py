"""IMPALA and Ape-X: the policy beside the environments computes what central inference computes."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from harness import MUZERO, balanced, thorough, tiny, until
from small_runs import params

from seedbed.errors import ConfigError
from seedbed.launch.train import resume, train
from seedbed.learning.learner import Learner
from seedbed.learning.loop import LearnerLoop
from seedbed.learning.memory import ReplayMemory
from seedbed.replay.replay import Replay
from seedbed.serving.unroll_service import UnrollService

IMPALA: dict[str, Any] = {"arch": "impala", "batch_size": 4, "lstm": 8}
REPLAY: dict[str, Any] = {
    "head_size": 8,
    "target_period": 5,
    "replay_size": 120,
    "replay_min_size": 40,
}
DQN = {**REPLAY, "agent": "dqn", "batch_size": 15, "eval_envs": 2}
R2D2 = {**REPLAY, "agent": "r2d2", "lstm": 8, "burn_in": 3, "batch_size": 4, "replay_ratio": 1.0}
SAC = {
    "env": "Pendulum-v1",
    "agent": "sac",
    "batch_size": 20,
    "replay_size": 120,
    "replay_min_size": 40,
    "replay_ratio": 1.0,
    "priority_exponent": 0.6,
}
FRAMES_A_ROUND = 2 * 4 * 5  # actors, environments, steps: see harness.TINY


SAMPLING = {
    "dqn": DQN,
    "r2d2": R2D2,
    "sac": SAC,
    "muzero": {**MUZERO, "batch_size": 20, "replay_size": 120, "replay_min_size": 40},
}


@pytest.mark.parametrize(
    ("name", "lag"),
    [
        ("r2d2", 1),
        *thorough(("dqn", 0), ("dqn", 1), ("r2d2", 0), ("sac", 0), ("sac", 1), ("muzero", 0)),
    ],
)
def test_apex_in_lockstep_computes_what_seed_does(
    name: str, lag: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The priorities that actors have computed, and those computed at the learner, too."""
    settings = SAMPLING[name]
    # A search scales differences of values up, and with them what batches of other sizes are rounded to.
    digits = {"rtol": 1e-4, "atol": 1e-5 if name == "muzero" else 1e-6}
    first: list[np.ndarray[Any, Any]] = []
    offer = Replay.offer

    def watch(self: Replay, unroll: Any, streams: Any, end: int, priorities: Any) -> Any:
        first.append(np.array(priorities))
        return offer(self, unroll, streams, end, priorities)

    monkeypatch.setattr(Replay, "offer", watch)
    runs, given = {}, {}
    for arch in ("seed", "apex"):
        placed = {"arch": arch, "transport": "inproc", "lag": lag, "frames": 8 * FRAMES_A_ROUND}
        config = tiny(**{"env": "toy:catch", "folder": tmp_path / arch, **settings, **placed})
        runs[arch] = train(config).to_json()
        given[arch], first[:] = list(first), []
    for count in ("agent_steps", "weights_version", "policy_lag_mean", "policy_lag_max") if lag == 0 else ():
        assert runs["seed"][count] == runs["apex"][count], count
    assert runs["apex"]["weights_version"] > 3
    both = min(len(given["seed"]), len(given["apex"]))
    assert both > 20
    for ours, theirs in zip(given["seed"][:both], given["apex"][:both], strict=True):
        np.testing.assert_allclose(ours, theirs, **digits)
    if lag == 0:
        ours, theirs = params(tmp_path / "seed"), params(tmp_path / "apex")
        for leaf, array in ours.items():
            np.testing.assert_allclose(array, theirs[leaf], **digits, err_msg=leaf)


@pytest.mark.slow
@pytest.mark.parametrize("settings", [IMPALA, *thorough({**DQN, "arch": "apex"})], ids=["impala", "apex"])
def test_every_carrier_gives_the_same_bits(settings: dict[str, Any], tmp_path: Path) -> None:
    told = []
    for carrier in ("inproc", "shm", "grpc"):
        config = tiny(
            *("toy:catch", tmp_path / carrier),
            **settings,
            transport=carrier,
            lag=0,
            frames=10 * FRAMES_A_ROUND,
        )
        run = train(config).to_json()
        told.append(
            {name: run[name] for name in ("params_sha256", "weights_version", "agent_steps", "episodes")}
        )
    assert told[0] == told[1] == told[2]
    assert told[0]["weights_version"] > 5


@pytest.mark.parametrize("lag", [0, 2])
def test_an_exact_lag_is_exact(lag: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lags: list[set[int]] = []
    learn = LearnerLoop._train

    def record(self: LearnerLoop, unroll: Any, batch: Any) -> Any:
        lags.append(set((self.version - batch.version).reshape(-1).tolist()))
        return learn(self, unroll, batch)

    monkeypatch.setattr(LearnerLoop, "_train", record)
    config = tiny("toy:catch", tmp_path / "run", arch="impala", lag=lag, transport="inproc", frames=400)
    run = train(config)
    assert len(lags) >= 8
    assert lags == [{min(update, lag)} for update in range(len(lags))]
    assert run.policy_lag_max == lag


@pytest.mark.parametrize(
    "settings", [IMPALA, *thorough({**DQN, "arch": "apex", "eval_envs": 0})], ids=["impala", "apex"]
)
def test_actors_wait_for_a_learner_that_stands_still(
    settings: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every lane holds one unroll that was not taken, and its actor nothing more than that."""
    loops: list[Any] = []
    stood: list[int] = []
    update, begin = Learner.update, LearnerLoop.open

    def know(self: LearnerLoop, *addresses: Any) -> list[str]:
        loops.append(self)
        return begin(self, *addresses)

    def stand_still(self: Learner, *given: Any) -> Any:
        if not stood:
            (intake,) = loops[0].source.registry.services
            until(
                lambda: len(intake.lanes) == 4 and all(lane.outbox for lane in intake.lanes),
                "every lane to hold an unroll that finds no room",
            )
            stood.append(loops[0].books.ledger.counts()["received"])
        return update(self, *given)

    monkeypatch.setattr(LearnerLoop, "open", know)
    monkeypatch.setattr(Learner, "update", stand_still)
    run = train(tiny("toy:catch", tmp_path / "run", **settings, transport="inproc", frames=1_600)).to_json()
    # What is learned from and what was prefetched, what the memory takes, and one unroll of each of eight environments.
    taken = 3 * 4 * 5 if settings is IMPALA else 40 + 2 * (15 + 8 * 5) * 2
    assert 0 < stood[0] <= taken + 2 * 8 * (5 + 2)
    assert run["steps_received"] >= 1_600 and balanced(run)


def test_weights_travel_when_they_have_changed_and_once_for_an_actor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[int] = []
    versions: set[int] = set()
    give, tell = UnrollService._pack, UnrollService._tell

    def watch_give(self: UnrollService, weights: Any) -> Any:
        given.append(weights.version)
        return give(self, weights)

    def watch_tell(self: UnrollService, lane: Any) -> None:
        tell(self, lane)
        versions.add(self._told[lane][0])

    monkeypatch.setattr(UnrollService, "_pack", watch_give)
    monkeypatch.setattr(UnrollService, "_tell", watch_tell)
    # A batch is 16 unrolls of each environment: most unrolls begin with weights that are here.
    config = tiny(
        *("toy:catch", tmp_path / "run"), arch="impala", transport="inproc", batch_size=128, frames=5_000
    )
    run = train(config)
    assert run.weights_version >= 5
    # Two actors, each of which fetches a version at most once; the first one before anything was told.
    assert all(given.count(version) <= 2 for version in given)
    assert set(given) <= versions | {0}
    assert 3 * len(given) < run.agent_steps / (4 * 5)


def test_apex_fetches_every_so_many_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told: dict[Any, list[int]] = {}
    given: list[int] = []
    tell, pack = UnrollService._tell, UnrollService._pack

    def watch_tell(self: UnrollService, lane: Any) -> None:
        tell(self, lane)
        told.setdefault(lane, []).append(self._told[lane][1])

    def watch_pack(self: UnrollService, weights: Any) -> Any:
        given.append(weights.version)
        return pack(self, weights)

    monkeypatch.setattr(UnrollService, "_tell", watch_tell)
    monkeypatch.setattr(UnrollService, "_pack", watch_pack)
    config = tiny(
        *("toy:catch", tmp_path / "run"), **DQN, arch="apex", transport="inproc", fetch_steps=20, frames=3_000
    )
    run = train(config)
    changes = 0
    for lane in told.values():
        new = sorted(set(lane))  # at how many of its steps it was told of newer weights
        changes += len(new) - 1
        assert all(later - earlier >= 20 for earlier, later in pairwise(new))
    assert run.weights_version > 100
    assert changes > 10
    # Nothing else travels: the two halves of an actor begin with one snapshot.
    assert len(given) <= changes + 2


def test_a_run_goes_on_with_its_replay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = {**DQN, "arch": "apex", "transport": "inproc", "replay_size": 2_000}
    first = train(tiny("toy:catch", tmp_path / "run", **settings, frames=800)).to_json()
    held: list[float] = []
    restore = ReplayMemory.restore

    def watch(self: ReplayMemory, *arguments: Any) -> int:
        waiting = restore(self, *arguments)
        held.append(self.meters()["replay_transitions"])
        return waiting

    monkeypatch.setattr(ReplayMemory, "restore", watch)
    second = resume(str(tmp_path / "run"), frames=1_200).to_json()
    assert held[0] > 400
    assert balanced(second)
    assert second["weights_version"] > first["weights_version"]


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        (
            {"arch": "impala", "agent": "dqn"},
            "it samples from a replay, .* use --arch seed, apex, gorila, a2c, sebulba or anakin",
        ),
        ({"arch": "apex"}, "it has no replay, .* use --arch seed, impala, rapid, a2c, sebulba or anakin"),
        ({"arch": "impala", "deterministic": True}, "the agent's states are with the actors"),
        (
            {"arch": "impala", "inference_batch": 4},
            "inference_batch is a setting of seed, rapid and gorila",
        ),
        ({"arch": "impala", "inference_devices": (0, 1)}, "inference_devices is a setting of"),
        ({"arch": "impala", "lag": 0, "fetch_steps": 5}, "every unroll has its version"),
        ({"fetch_steps": 5}, "fetch_steps is a setting of impala and apex, and"),
        ({"arch": "impala", "agent": "a2c", "lag": "free"}, "add --lag 0"),
        ({"arch": "impala", "batches_per_call": 2}, "batches_per_call is a setting of anakin"),
    ],
)
def test_what_does_not_go_together_is_refused(settings: dict[str, Any], says: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=says):
        train(tiny("toy:catch", tmp_path / "run", **settings))
    assert not (tmp_path / "run").exists()
