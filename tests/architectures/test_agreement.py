"""The agreement test: one definition of each agent, wherever it runs.

With a lag of 0 and the same seed, the same agent on the same JAX-native environment computes the same parameters under
every architecture.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from harness import MUZERO, shortened, thorough
from small_runs import AGENTS, ENVS, STEPS, params, run

from seedbed.weights.store import WeightStore

SERVED = {"arch": "seed", "transport": "inproc", "actors": 1, "envs_per_actor": ENVS}
BESIDE = {**SERVED, "arch": "impala"}
# Two threads have the environments of one of SEED's actors with its two halves.
THREADS = {"arch": "sebulba", "actors": 2, "envs_per_actor": ENVS // 2}
BATCHES = 6
HERE = {
    **AGENTS,
    "ppo lstm": {"agent": "ppo", "lstm": 8, "reuse": 2, "minibatches": 2, "normalize_values": True},
    "ppo continuous": {"agent": "ppo", "env": "gymnax:Pendulum-v1", "reuse": 2, "minibatches": 2},
    "ppo corrected": {"agent": "ppo", "correction": "vtrace", "reuse": 2, "minibatches": 2},
    "pqn lstm": {"agent": "pqn", "lstm": 8, "reuse": 2, "minibatches": 2, "epsilon_steps": 300},
    "vtrace continuous": {"agent": "vtrace", "env": "gymnax:Pendulum-v1", "reuse": 2},
    "a2c lstm continuous": {"agent": "a2c", "env": "gymnax:Pendulum-v1", "lstm": 8},
}

FIRST = ("vtrace lstm", "ppo lstm", "pqn lstm", "a2c lstm continuous")
"""One for each agent."""


@pytest.mark.parametrize("name", shortened(HERE, FIRST))
def test_the_same_agent_computes_the_same_everywhere(name: str, tmp_path: Path) -> None:
    elsewhere = {
        "seed": {**SERVED, "lag": 0},
        "impala": {**BESIDE, "lag": 0},
        "rapid": {**BESIDE, "arch": "rapid", "lag": 0},
        "sebulba": {**THREADS, "lag": 0},
        "a2c": {"arch": "a2c"},
    }
    # So short that episodes are cut off by time as well as ended by the pole.
    agent = {**HERE[name], "env_options": ("max_steps_in_episode=15",)}
    program = run(tmp_path / "anakin", BATCHES, **agent)
    ours = params(tmp_path / "anakin")
    for arch, placed in elsewhere.items():
        other = run(tmp_path / arch, BATCHES, **agent, **placed)
        assert program.weights_version == other.weights_version > 0, arch
        # Places in unrolls; fewer of them are steps, since a decision at the end of an episode only resets.
        for each in (program, other):
            assert each.more["steps_received"] == BATCHES * ENVS * STEPS, arch
            assert each.agent_steps == each.more["steps_received"] - each.more["steps_resets"], arch
        assert program.agent_steps == other.agent_steps < BATCHES * ENVS * STEPS, arch
        assert program.episodes == other.episodes > 0, arch
        assert program.mean_return == pytest.approx(other.mean_return, rel=1e-5), arch
        if name != "ppo until too far":  # Anakin counts the passes that were left out.
            assert program.policy_lag_mean == pytest.approx(other.policy_lag_mean), arch
        theirs = params(tmp_path / arch)
        assert ours.keys() == theirs.keys()
        for leaf, array in ours.items():
            np.testing.assert_allclose(array, theirs[leaf], rtol=1e-4, atol=1e-5, err_msg=f"{arch} {leaf}")


REPLAY: dict[str, Any] = {
    "head_size": 8,
    "replay_min_size": 2 * ENVS * STEPS,
    # Old steps are overwritten while the run lasts.
    "replay_size": 3 * ENVS * STEPS,
    "replay_ratio": 2.0,
    "target_period": 5,
    "epsilon_exponent": 2.0,
}
SAMPLING: dict[str, dict[str, Any]] = {
    # Items of three steps, so that unrolls overlap by two.
    "dqn": {**REPLAY, "agent": "dqn", "n_step": 3, "epsilon_steps": 300},
    "r2d2": {**REPLAY, "agent": "r2d2", "lstm": 8, "burn_in": 3},
    "sac": {
        "agent": "sac",
        "env": "gymnax:Pendulum-v1",
        "replay_min_size": 2 * ENVS * STEPS,
        "replay_size": 3 * ENVS * STEPS,
        "replay_ratio": 1.0,
        "priority_exponent": 0.6,
    },
    # Half of each batch is searched again. Unrolls overlap by four.
    "muzero": {
        **MUZERO,
        "reanalyse": 0.5,
        "replay_min_size": 2 * ENVS * STEPS,
        "replay_size": 3 * ENVS * STEPS,
    },
}


@pytest.mark.parametrize("name", SAMPLING)
def test_an_agent_with_a_replay_computes_the_same_wherever_unrolls_come_from(
    name: str, tmp_path: Path
) -> None:
    agent = {"env_options": ("max_steps_in_episode=15",), **SAMPLING[name]}
    elsewhere = {"sebulba": {**THREADS, "lag": 0}, "a2c": {"arch": "a2c"}}
    served = run(tmp_path / "seed", BATCHES, **agent, **SERVED, lag=0)
    ours = params(tmp_path / "seed")
    for arch, placed in elsewhere.items():
        other = run(tmp_path / arch, BATCHES, **agent, **placed)
        assert other.weights_version == served.weights_version >= 4, arch
        assert other.agent_steps == served.agent_steps, arch
        assert other.episodes == served.episodes > 0, arch
        for column in ("steps_trained", "steps_dropped", "steps_queued"):
            assert other.more[column] == served.more[column] > 0, (arch, column)
        assert other.policy_lag_mean == served.policy_lag_mean, arch
        theirs = params(tmp_path / arch)
        assert ours.keys() == theirs.keys()
        for leaf, array in ours.items():
            np.testing.assert_allclose(array, theirs[leaf], rtol=1e-4, atol=1e-5, err_msg=f"{arch} {leaf}")


@pytest.mark.parametrize(
    ("name", "ratio"),
    [("r2d2", 1.0), *thorough(("dqn", 0.1), ("muzero", 0.1))],
)
def test_a_replay_on_the_device_computes_the_same_beside_acting_and_in_one_program(
    name: str, ratio: float, tmp_path: Path
) -> None:
    # One batch a round: of more, threads leave out the last ones of the last round, and a program does not.
    agent = {"env_options": ("max_steps_in_episode=15",), **SAMPLING[name], "replay_ratio": ratio}
    program = run(tmp_path / "anakin", BATCHES + 3, **agent)
    threads = run(tmp_path / "sebulba", BATCHES + 3, **agent, **THREADS, lag=0, replay_on="device")
    assert program.weights_version == threads.weights_version >= 4
    assert program.episodes == threads.episodes > 0
    assert program.mean_return == pytest.approx(threads.mean_return, rel=1e-5)
    assert (program.policy_lag_mean, program.policy_lag_max) == pytest.approx(
        (threads.policy_lag_mean, threads.policy_lag_max)
    )
    for column in ("received", "resets", "trained", "dropped", "queued"):
        assert program.more[f"steps_{column}"] == threads.more[f"steps_{column}"] > 0, column
    ours, theirs = params(tmp_path / "anakin"), params(tmp_path / "sebulba")
    assert ours.keys() == theirs.keys()
    for leaf, array in ours.items():
        np.testing.assert_allclose(array, theirs[leaf], rtol=1e-4, atol=1e-5, err_msg=leaf)


@pytest.mark.parametrize(("lag", "apart"), [(0, 4), ("free", 1)])
def test_in_lockstep_the_weights_after_each_batch_are_published(
    lag: int | str, apart: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    versions = []
    publish = WeightStore.publish

    def watched(store: WeightStore, params: Any, version: int) -> None:
        versions.append(version)
        publish(store, params, version)
        assert len(store._snapshots) <= (2 if lag == 0 else 1)

    monkeypatch.setattr(WeightStore, "publish", watched)
    run(tmp_path / "run", 3, **THREADS, agent="ppo", reuse=2, minibatches=2, lag=lag)
    assert versions == [*range(0, versions[-1] + 1, apart)]
    assert len(versions) > 2


@pytest.mark.parametrize("lag", [*thorough(1), 2])
def test_seed_and_sebulba_lag_alike(lag: int, tmp_path: Path) -> None:
    # Deterministic, so that both end after the same update: acting is ahead, and by how much would be chance.
    settings = {**AGENTS["vtrace lstm"], "lag": lag, "deterministic": True}
    served = run(tmp_path / "seed", BATCHES, **settings, **SERVED)
    threads = run(tmp_path / "sebulba", BATCHES, **settings, **THREADS)
    assert served.weights_version == threads.weights_version >= BATCHES - lag
    assert served.agent_steps == threads.agent_steps
    # The first rounds act with the first weights; from round ``lag`` on, all are behind by ``lag``.
    assert served.policy_lag_mean == threads.policy_lag_mean
    assert served.policy_lag_max == threads.policy_lag_max == lag
    ours, theirs = params(tmp_path / "seed"), params(tmp_path / "sebulba")
    for leaf, array in ours.items():
        np.testing.assert_allclose(array, theirs[leaf], rtol=1e-4, atol=1e-5, err_msg=leaf)
