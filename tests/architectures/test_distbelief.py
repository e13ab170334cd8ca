"""DistBelief, end to end: replicas share a data set, compute what one optimizer does, and go on where they were."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import jax
import numpy as np
import optax
import psutil
import pytest
from harness import Command, alive, balanced, flags, refusal, rows, summary, thorough, tiny, until
from small_runs import params, write_catch

import seedbed
from seedbed.envs.make import spec_of
from seedbed.errors import DatasetError
from seedbed.launch.build import build_agent
from seedbed.launch.train import resume, train
from seedbed.learning.checkpoint import load_latest
from seedbed.replay.dataset import Dataset
from seedbed.seeding import key

BC: dict[str, Any] = {"agent": "bc", "arch": "distbelief", "batch_size": 4}
STEPS_A_BATCH = 4 * 5


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_catch(tmp_path_factory.mktemp("data") / "set")


def settings(data: Path, **changes: Any) -> dict[str, Any]:
    return {**BC, "dataset": str(data), "actors": 2, **changes}


@pytest.mark.parametrize("shards", [*thorough(1), 3])
def test_one_replica_computes_what_the_optimizer_does(data: Path, shards: int, tmp_path: Path) -> None:
    config = tiny(
        "toy:catch", tmp_path / "run", **settings(data, actors=1, shards=shards, frames=10 * STEPS_A_BATCH)
    )
    done = train(config).to_json()
    # One in ten transitions leads into a new episode, and is no step: an eleventh batch is needed, or a twelfth.
    updates = done["weights_version"]
    assert 11 <= updates <= 12
    assert done["steps_trained"] == done["steps_received"] == updates * STEPS_A_BATCH
    assert 10 * STEPS_A_BATCH <= done["agent_steps"] == done["steps_trained"] - done["steps_resets"]
    assert balanced(done)
    agent = build_agent(config, spec_of("toy:catch"))
    begin, _ = jax.random.split(key(config.seed, "learner"))
    weights = agent.init(begin)
    state = agent.optimizer.init(weights)
    batches = Dataset.open(data).shard(0, 1).batches(agent.data, agent.initial_state, seed=config.seed)
    resets = 0
    for batch in islice(batches, updates):
        resets += int(batch.timestep.first[-agent.data.unroll_length :].sum())
        gradient, _ = jax.grad(agent.loss, has_aux=True)(weights, None, batch, jax.random.key(0))
        changes, state = agent.optimizer.update(agent.clip(gradient), state, weights)
        weights = optax.apply_updates(weights, changes)
    assert resets == done["steps_resets"]
    ours = params(tmp_path / "run")
    for path, leaf in jax.tree_util.tree_flatten_with_path(weights)[0]:
        name = "params/" + jax.tree_util.keystr(path, simple=True, separator="/")
        np.testing.assert_allclose(ours[name], leaf, rtol=1e-4, atol=1e-6, err_msg=name)


def test_replicas_learn_and_go_on_where_they_were(data: Path, tmp_path: Path) -> None:
    chosen = settings(
        data, shards=2, learning_rate=1e-2, optimizer="adagrad", n_push=2, n_fetch=2, warm_start=5
    )
    first = train(tiny("toy:catch", tmp_path / "run", **chosen, frames=1600)).to_json()
    assert first["agent_steps"] >= 1600
    assert balanced(first)
    kept = load_latest(tmp_path / "run/checkpoints").meta
    assert kept["positions"].keys() == {"0", "1"}
    here = [kept["positions"][index]["unrolls"] for index in ("0", "1")]
    assert here[0][1] == here[1][0], "each has its own part"
    before = [_read(kept["positions"][index]) for index in ("0", "1")]
    again = resume(str(tmp_path / "run"), frames=2400).to_json()
    assert again["agent_steps"] >= 2400
    after = [
        _read(load_latest(tmp_path / "run/checkpoints").meta["positions"][index]) for index in ("0", "1")
    ]
    assert all(b < a for b, a in zip(before, after, strict=True))
    accuracies = [row["loss/accuracy"] for row in rows(tmp_path / "run") if "loss/accuracy" in row]
    assert accuracies[-1] == 1.0
    assert seedbed.evaluate(tmp_path / "run", episodes=3).count == 3
    with pytest.raises(DatasetError, match="the number of replicas that the run had"):
        resume(str(tmp_path / "run"), frames=3000, actors=3)


def _read(position: dict[str, Any]) -> int:
    first, last = position["unrolls"]
    return int(position["epoch"]) * (last - first) + int(position["taken"])


def test_the_first_replica_goes_on_until_the_others_can_begin(data: Path, tmp_path: Path) -> None:
    # Its share is of four gradients.
    chosen = settings(data, warm_start=10, n_push=2, frames=8 * STEPS_A_BATCH)
    done = train(tiny("toy:catch", tmp_path / "run", **chosen)).to_json()
    assert done["weights_version"] >= 10
    assert balanced(done)


@pytest.mark.thorough
@pytest.mark.slow
def test_at_first_one_replica_learns_alone(data: Path, tmp_path: Path) -> None:
    words = flags("toy:catch", "run", **settings(data), warm_start=10**9, frames=10**9)
    with Command(*words, cwd=tmp_path) as command:

        def updates() -> float:
            found = rows(tmp_path / "run")
            return found[-1].get("updates", 0) if found else 0

        until(lambda: updates() > 50, "the first replica to learn")
        command.interrupt()
        assert command.wait() == 0, command.output
    positions = load_latest(tmp_path / "run/checkpoints").meta["positions"]
    assert _read(positions["0"]) > 50
    assert "1" not in positions or _read(positions["1"]) == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "patience"),
    [(psutil.Process.kill, {}), *thorough((psutil.Process.suspend, {"env_timeout": 5}))],
)
def test_a_replica_that_dies_or_stands_still_is_replaced(
    fault: Callable[[psutil.Process], None], patience: dict[str, int], data: Path, tmp_path: Path
) -> None:
    words = flags("toy:catch", "run", **settings(data), frames=10**9, **patience)
    with Command(*words, cwd=tmp_path) as command:

        def updates() -> float:
            found = rows(tmp_path / "run")
            return found[-1].get("updates", 0) if found else 0

        until(lambda: updates() > 100, "the replicas to learn")
        fault(next(iter(command.actors())))
        until(lambda: "restart 1 of 3" in command.output, "the replica to be replaced")
        before = updates()
        until(lambda: updates() > before + 100, "the run to go on")
        command.interrupt()
        assert command.wait() == 0, command.output
        assert not [p for p in command.family() if alive(p)]
    left = summary(tmp_path / "run")
    assert left["actor_restarts"] == 1
    assert balanced(left)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"agent": "a2c"}, "learn from a data set, and from nothing that the agent does"),
        ({"dataset": None}, "add --dataset DIR"),
        ({"deterministic": True}, "replicas race"),
        ({"transport": "inproc"}, "use --transport shm or --transport grpc"),
        ({"envs_per_actor": 8}, "envs_per_actor is a setting of"),
        ({"lag": 2}, "lag is a setting of"),
        ({"arch": "seed", "agent": "vtrace"}, "is a setting of distbelief"),
    ],
)
def test_what_does_not_go_with_it_is_refused_with_the_reason(
    changes: dict[str, Any], said: str, data: Path, tmp_path: Path
) -> None:
    assert said in str(refusal(lambda: tiny("toy:catch", tmp_path, **settings(data, **changes))))


def test_a_data_set_that_will_not_do_is_refused_before_anything_is_started(
    data: Path, tmp_path: Path
) -> None:
    for chosen, env, said in [
        (settings(tmp_path / "none"), "toy:catch", "is not a data set"),
        (settings(data), "CartPole-v1", "another environment"),
        (settings(data, unroll_length=10_000), "toy:catch", "collect more frames"),
    ]:
        with pytest.raises(DatasetError, match=said):
            train(tiny(env, tmp_path / "run", **chosen))
        assert not (tmp_path / "run").exists()
