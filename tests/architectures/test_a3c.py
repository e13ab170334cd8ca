"""A3C, end to end: one thread is A2C, several race, every gradient and every step is accounted for."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from harness import balanced, checkpoints, refusal, rows, summary, thorough
from small_runs import params, run

import seedbed
from seedbed.acting.example import example_unroll
from seedbed.acting.unrolls import Delivery
from seedbed.architectures.a3c import A3CRun, OpenSteps
from seedbed.architectures.interface import Setup
from seedbed.config.resolve import configure
from seedbed.envs.make import spec_of
from seedbed.errors import ConfigError, RunFailed
from seedbed.launch.build import build_agent
from seedbed.launch.train import resume, train
from seedbed.metrics.ledger import Ledger
from seedbed.metrics.reports import Summary

STEPS = 20


@pytest.fixture
def worlds(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1] / "faults"))
    import worlds

    worlds.released.clear()
    yield
    worlds.released.set()


def a3c(env: str, folder: Path, **settings: Any) -> Summary:
    return train(configure(**a3c_settings(env, folder, **settings)))


def a3c_settings(env: str, folder: Path, **settings: Any) -> dict[str, Any]:
    return {
        "env": env,
        "preset": "none",
        "arch": "a3c",
        "agent": "a2c",
        "run_dir": str(folder),
        **({} if settings.get("arch") == "a2c" else {"actors": 2}),
        "batch_size": 2,
        "unroll_length": 5,
        "hidden": (8,),
        "frames": 2000,
        "video": False,
        **settings,
    }


@pytest.mark.parametrize(("lstm", "shards"), [(8, 4), *thorough((0, 1), (0, 4), (8, 1))])
def test_one_thread_computes_what_a2c_does(shards: int, lstm: int, tmp_path: Path) -> None:
    alone = {"agent": "a2c", "batch_size": 1, "lstm": lstm, "frames": STEPS * 10 * 3}
    ours = run(tmp_path / "a3c", arch="a3c", actors=1, shards=shards, **alone)
    theirs = run(tmp_path / "a2c", arch="a2c", **alone)
    # Decisions that only reset are no steps: it takes more updates than steps / 10.
    assert ours.weights_version == theirs.weights_version == ours.more["steps_trained"] / 10 > STEPS * 3
    assert STEPS * 10 * 3 <= ours.agent_steps == theirs.agent_steps < STEPS * 10 * 3 + 10
    assert ours.mean_return == theirs.mean_return
    assert ours.policy_lag_max == theirs.policy_lag_max == 0
    assert balanced(ours.to_json())
    one, other = params(tmp_path / "a3c"), params(tmp_path / "a2c")
    assert one.keys() == other.keys()
    for leaf, array in one.items():
        np.testing.assert_allclose(array, other[leaf], rtol=1e-4, atol=1e-5, err_msg=leaf)


def test_threads_race_and_every_step_is_accounted_for(tmp_path: Path) -> None:
    done = a3c("CartPole-v1", tmp_path / "run", actors=3).to_json()
    # Not one unroll more than asked for, whoever made them; before, decisions that only reset were steps, and these
    # ended with an unroll.
    assert 2000 <= done["agent_steps"] == done["steps_received"] - done["steps_resets"] < 2000 + 10
    assert balanced(done)
    assert done["steps_trained"] + done["steps_open"] + done["steps_dropped"] == done["steps_received"]
    assert done["steps_dropped"] == 0
    assert done["weights_version"] == done["steps_trained"] / 10
    assert done["policy_lag_max"] <= 200
    assert rows(tmp_path / "run")[-1]["gradients_dropped"] == 0


def test_a_run_goes_on_where_it_was(tmp_path: Path) -> None:
    first = a3c("CartPole-v1", tmp_path / "run", frames=1000)
    again = resume(str(tmp_path / "run"), frames=1500)
    for each, frames in ((first, 1000), (again, 1500)):
        # Decisions that only reset are no frames, but places in unrolls.
        assert frames <= each.agent_steps < frames + 10
        assert each.weights_version == each.more["steps_trained"] / 10 > frames / 10
    updates = again.weights_version
    assert balanced(again.to_json())
    kept = params(tmp_path / "run")
    once_more = resume(str(tmp_path / "run"))
    assert (once_more.params_sha256, once_more.weights_version) == (again.params_sha256, updates)
    for leaf, array in params(tmp_path / "run").items():
        np.testing.assert_array_equal(array, kept[leaf])
    assert seedbed.evaluate(tmp_path / "run", episodes=3).count == 3


def test_shards_can_be_more_or_fewer_when_a_run_goes_on(tmp_path: Path) -> None:
    a3c("CartPole-v1", tmp_path / "run", frames=1000, shards=3)
    done = resume(str(tmp_path / "run"), frames=1500, shards=2)
    assert done.weights_version == done.more["steps_trained"] / 10 > 150


@pytest.mark.usefixtures("worlds")
def test_a_thread_that_fails_loses_its_open_work_alone(tmp_path: Path) -> None:
    with pytest.raises(RunFailed, match="it was the same before its restart"):
        a3c("worlds:raising", tmp_path / "run", actors=1, actor_restarts=1)
    left = summary(tmp_path / "run")
    assert balanced(left)
    # Stepped 30 times and then 30 times: the step that raised was decided, and its unroll was open.
    assert left["agent_steps"] == 2 * 30 * 2
    assert left["steps_dropped"] == 2 * 5 * 2
    assert left["weights_version"] == 2 * 5
    assert checkpoints(tmp_path / "run")


def test_gradients_that_are_not_finite_are_skipped_and_end_the_run_if_nothing_else_comes(
    tmp_path: Path,
) -> None:
    too_fast = {"learning_rate": 1e38, "gradient_clip": 0.0, "max_skipped_updates": 3}
    with pytest.raises(RunFailed, match="3 updates in a row"):
        a3c("toy:catch", tmp_path / "run", actors=1, **too_fast)
    left = summary(tmp_path / "run")
    assert left["weights_version"] > 0
    assert left["skipped_updates"] >= 3
    assert all(np.isfinite(leaf).all() for leaf in params(tmp_path / "run").values())


def delivered(run: A3CRun) -> Delivery:
    """A complete unroll, as a thread would bring it."""
    agent, spec = run._agent, run._spec
    run.books.ledger.decide(10)
    run.books.ledger.cut(10)
    return Delivery(example_unroll(agent, spec, agent.data.unroll_length, agent.data.batch_size), [])


def test_what_others_did_meanwhile_is_a_gradients_staleness(tmp_path: Path) -> None:
    config = configure(**a3c_settings("toy:catch", tmp_path, max_staleness=1))
    run = A3CRun(Setup(config, build_agent(config, spec_of("toy:catch")), spec_of("toy:catch")))
    run.open([])
    run.begin()
    for index in range(3):
        weights = run.gate.weights(index, 0, 0)
        assert weights is not None
        assert weights.version == 0
    for index in range(3):
        assert run.gate.pass_on(index, 0, delivered(run))
    # The first is fresh, the second one behind, and the third, two behind, is dropped.
    assert run.version == 2
    assert run.books.policy_lag.maximum == 2
    assert run.books.policy_lag.mean == 1
    meters = run.meters()
    assert meters["gradients_dropped"] == 1
    assert (meters["steps_trained"], meters["steps_dropped"]) == (20, 10)
    weights = run.gate.weights(2, 1, 0)
    assert weights is not None
    assert weights.version == 2
    run.close()
    assert run.gate.weights(0, 1, 0) is None


def test_no_thread_begins_what_would_be_too_much() -> None:
    ledger = Ledger()
    steps = OpenSteps(ledger, 10, 25)
    assert steps.begin(0)
    assert steps.begin(1)
    ledger.decide(3)
    assert steps.begin(2), "30 are more than 25, 20 are not enough"
    assert not steps.begin(3)
    # One fails, and what it had begun is not to come any more: whoever is in its place begins anew.
    ledger.drop(open_steps=3)
    assert steps.begin(1)
    assert not steps.begin(3)
    ledger.decide(27)
    ledger.cut(27)
    assert not steps.begin(0)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"agent": "vtrace"}, "learn once from what they have just done"),
        ({"agent": "ppo", "minibatches": 1}, "use --arch seed, impala, rapid"),
        ({"scale_rewards": True}, "leave it out"),
        ({"deterministic": True}, "threads race"),
        (
            {"lag": 1},
            "lag is a setting of seed, impala, apex, rapid, gorila and sebulba, and the architecture",
        ),
        ({"actors": 0}, "give one or more"),
        ({"listen": ("127.0.0.1:0",)}, "listen is a setting of seed, impala and apex"),
        ({"inference_devices": (0, 1)}, "one device"),
        ({"envs_per_actor": 4}, "envs_per_actor is a setting of seed"),
        ({"stale_gradients": "scale"}, "add --max-staleness"),
        ({"shard_snapshot_seconds": 1.0}, "is a setting of distbelief and gorila"),
        ({"transport": "grpc"}, "transport is a setting of seed"),
        ({"arch": "a2c", "shards": 2}, "shards is a setting of distbelief, gorila and a3c"),
        ({"arch": "seed", "lag": 0, "max_staleness": 2}, "is a setting of distbelief, gorila and a3c"),
    ],
)
def test_what_does_not_go_with_it_is_refused_with_the_reason(
    settings: dict[str, Any], said: str, tmp_path: Path
) -> None:
    assert said in str(refusal(lambda: configure(**a3c_settings("toy:catch", tmp_path, **settings))))


def test_one_host_is_what_it_has(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="hosts is a setting of seed"):
        configure(**a3c_settings("toy:catch", tmp_path, hosts=2))
