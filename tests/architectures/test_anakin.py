"""Anakin: that it computes what SEED computes, is exact, resumes and refuses what does not fit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from harness import Command, balanced, checkpoints, learned, on_four_devices, rows, summary, thorough
from small_runs import AGENTS, ENVS, STEPS, frames_of, run

import seedbed
from seedbed.architectures.anakin import Anakin
from seedbed.config.resolve import configure
from seedbed.errors import ConfigError, RunFailed
from seedbed.launch.train import resume, train


def test_how_many_batches_a_call_has_changes_nothing(tmp_path: Path) -> None:
    # Deterministic: calls have all the batches that they may have, however long they take.
    digests = [
        run(tmp_path / str(count), batches_per_call=count, deterministic=True).params_sha256
        for count in (1, 4, 100)
    ]
    assert len(set(digests)) == 1


def test_metrics_are_means_over_a_call(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"agent": "ppo", "reuse": 1, "minibatches": 1, "deterministic": True}
    singly, told = tmp_path / "singly", []
    for batches in (1, 2, 3):
        if batches == 1:
            run(singly, batches, batches_per_call=1, **settings)
        else:
            resume(str(singly), frames=frames_of(batches))
        told.append(rows(singly)[-1])
    run(tmp_path / "together", 3, batches_per_call=3, **settings)
    together = rows(tmp_path / "together")[-1]
    for name in ("loss/total", "loss/entropy", "loss/gradient_norm"):
        assert together[name] == pytest.approx(np.mean([row[name] for row in told]), rel=1e-5), name
    assert together["skipped_updates"] == 0


@pytest.mark.parametrize("name", ["vtrace lstm", *thorough("ppo")])
def test_a_run_in_two_parts_is_the_whole_run(name: str, tmp_path: Path) -> None:
    whole = run(tmp_path / "whole", 8, **AGENTS[name])
    run(tmp_path / "parts", 5, **AGENTS[name])
    again = resume(str(tmp_path / "parts"), frames=frames_of(8))
    told = [each.to_json() for each in (again, whole)]
    for each in told:
        for varies in ("run_dir", "command", "seconds", "agent_steps_per_second", "best_mean_return"):
            del each[varies]
    assert told[0] == told[1]
    assert len(checkpoints(tmp_path / "parts")) == 2
    assert rows(tmp_path / "parts")[-1]["steps_trained"] == 8 * ENVS * STEPS
    for change in ({"batch_size": 2 * ENVS}, {"env_options": ("max_steps_in_episode=7",)}):
        with pytest.raises(ConfigError, match=r"was .* and is .* now: a resumed run goes on in its worlds"):
            resume(str(tmp_path / "parts"), frames=100 * ENVS * STEPS, **change)
    with pytest.raises(ConfigError, match="arch was anakin and is seed now"):
        resume(str(tmp_path / "parts"), arch="seed")


REPLAY: dict[str, Any] = {
    "agent": "r2d2",
    "lstm": 8,
    "burn_in": 3,
    "head_size": 8,
    "target_period": 5,
    "replay_min_size": 2 * ENVS * STEPS,
    "replay_size": 4 * ENVS * STEPS,
    "replay_ratio": 2.0,
}


def test_with_a_replay_a_run_in_two_parts_is_the_whole_run(tmp_path: Path) -> None:
    whole = run(tmp_path / "whole", 6, **REPLAY).to_json()
    first = run(tmp_path / "parts", 4, **REPLAY).to_json()
    again = resume(str(tmp_path / "parts"), frames=frames_of(6)).to_json()
    assert 0 < first["weights_version"] < again["weights_version"]
    for told in (whole, again):
        assert balanced(told)
        assert min(told["steps_trained"], told["steps_dropped"], told["steps_queued"]) > 0
    for name in (
        "params_sha256",
        "agent_steps",
        "episodes",
        "mean_return",
        "policy_lag_mean",
        "policy_lag_max",
    ):
        assert again[name] == whole[name], name
    assert again["steps_trained"] == whole["steps_trained"]
    with pytest.raises(ConfigError, match=r"number of environments \(--batch-size\) was 8 and is 16 now"):
        resume(str(tmp_path / "parts"), frames=frames_of(9), envs=16, replay_ratio=1.0)


SHARED = """
import json, sys
from pathlib import Path
from harness import balanced
from small_runs import run
from test_anakin import REPLAY

for name, devices, seeds in (("one", (0,), 1), ("four", (0, 1, 2, 3), 2)):
    done = run(Path(sys.argv[1]) / name, training_devices=devices, seeds=seeds, **REPLAY).to_json()
    assert balanced(done), done
    print("told", json.dumps([done["weights_version"], done["steps_received"], done["steps_trained"]]))
"""


@pytest.mark.slow
def test_devices_and_agents_have_a_replay_each(tmp_path: Path) -> None:
    """Of their shares of the environments; what is sampled differs, and how much does not."""
    one, four = on_four_devices(SHARED, str(tmp_path), beside=Path(__file__).parent)
    assert four[0] == one[0] > 0
    assert four[1] == one[1]
    assert 0.5 < four[2] / one[2] < 2


def test_what_was_trained_is_evaluated_and_recorded(tmp_path: Path) -> None:
    run(tmp_path / "run")
    assert seedbed.evaluate(tmp_path / "run", episodes=3).count == 3
    video = seedbed.record(tmp_path / "run")
    assert Path(video).stat().st_size > 1000


def test_memory_does_not_grow_and_a_call_gives_back_what_it_took(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    count, book = Anakin._count, Anakin._book
    taken: list[Any] = []
    held: list[tuple[int, int]] = []

    def before(self: Anakin) -> int:
        taken[:] = jax.tree.leaves(self._carry)
        return count(self)

    def after(self: Anakin, *counted: Any) -> None:
        assert all(leaf.is_deleted() for leaf in taken), "a buffer was not donated"
        alive = [leaf for leaf in jax.live_arrays() if not leaf.is_deleted()]
        held.append((len(alive), sum(leaf.nbytes for leaf in alive)))
        book(self, *counted)

    monkeypatch.setattr(Anakin, "_count", before)
    monkeypatch.setattr(Anakin, "_book", after)
    run(tmp_path / "run", 30, agent="ppo", deterministic=True, batches_per_call=2)
    # Two batches a call: 30 of them, and two to six more for decisions that only reset, which are no frames.
    assert 15 <= len(held) <= 18
    # The least of several: the numbers that a row tells are held for a moment longer than others.
    assert min(held[-6:]) <= min(held[2:8])


UNEQUAL = """
import json, sys
from pathlib import Path
from small_runs import run
from seedbed.errors import ConfigError

for arch, placed in {"anakin": {}, "sebulba": {"actors": 1, "envs_per_actor": 6}}.items():
    try:
        run(Path(sys.argv[1]) / arch, arch=arch, batch_size=6, training_devices=(0, 1, 2, 3), **placed)
    except ConfigError as error:
        print("told", json.dumps(str(error)))
"""


def test_a_batch_that_devices_cannot_share_is_refused(tmp_path: Path) -> None:
    says = "a batch of 6 unrolls cannot be shared equally by 4 training devices: use --batch-size 8"
    assert on_four_devices(UNEQUAL, str(tmp_path)) == [says, says]
    assert not list(tmp_path.iterdir())


def test_it_stops_at_its_goal(tmp_path: Path) -> None:
    # Returns of CartPole are 1 a step: 100 episodes of at least 8 steps are there soon.
    done = run(tmp_path / "run", 1000, until_return=8.0)
    assert done.stopped_because.startswith("mean return")
    assert done.agent_steps < 1000 * ENVS * STEPS


@pytest.mark.parametrize(
    ("env", "settings", "says"),
    [
        ("CartPole-v1", {}, "CartPole-v1 is no JAX-native environment"),
        (
            "gymnax:CartPole-v1",
            {"training_devices": (7,)},
            "training device 7 does not exist: .* give --training-devices some of these",
        ),
        ("gymnax:CartPole-v1", {"listen": ("127.0.0.1:0",)}, "listen is a setting of seed, impala and apex"),
        ("gymnax:CartPole-v1", {"envs_per_actor": 64}, "envs_per_actor is a setting of .* is anakin"),
        ("gymnax:CartPole-v1", {"actor_restarts": 1}, "actor_restarts is a setting of .* is anakin"),
        ("gymnax:CartPole-v1", {"lag": 1}, "lag is a setting of .* is anakin"),
        ("gymnax:CartPole-v1", {"envs": 8}, "envs is 8, but .* has no use for it"),
        (
            "gymnax:CartPole-v1",
            {"agent": "dqn", "envs": 3, "replay_ratio": 1.3},
            "they have to be a whole number: use --replay-ratio",
        ),
        ("gymnax:CartPole-v1", {"arch": "a2c", "lag": 1}, "lag is a setting of .* is a2c"),
        (
            "gymnax:CartPole-v1",
            {"arch": "a2c", "transport": "grpc"},
            "transport is a setting of .* is a2c",
        ),
        (
            "gymnax:CartPole-v1",
            {"arch": "seed", "batches_per_call": 2},
            "batches_per_call is a setting of anakin, and",
        ),
    ],
)
def test_what_does_not_fit_is_refused(env: str, settings: dict[str, Any], says: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=says):
        train(configure(env, **{"arch": "anakin", "run_dir": str(tmp_path / "run"), **settings}))
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("seeds", [*thorough(1), 2])
def test_a_world_that_breaks_on_the_device_ends_the_run(
    seeds: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1] / "envs"))
    with pytest.raises(RunFailed, match=r"learner: .*the world has ended.*\(log: "):
        run(tmp_path / "run", 100, env="on_device_worlds:breaking", checkpoint_minutes=1e-9, seeds=seeds)
    assert checkpoints(tmp_path / "run"), "those from before it broke"
    assert "the world has ended" in (tmp_path / "run/logs/learner.log").read_text()
    told = summary(tmp_path / "run")
    assert told["stopped_because"].startswith("failed: learner: ")
    assert told["params_sha256"] == "", "they went with the program that failed"
    assert told.get("compared", {}) == {}, "no episode has ended"


@pytest.mark.slow
def test_ctrl_c_leaves_a_checkpoint_that_goes_on(tmp_path: Path) -> None:
    words = [
        "train",
        "gymnax:CartPole-v1",
        "--arch",
        "anakin",
        "--agent",
        "ppo",
        "--preset",
        "none",
        "--run-dir",
        "run",
        "--no-video",
    ]
    with Command(*words, cwd=tmp_path) as learner:
        learned(tmp_path / "run")
        learner.interrupt()
        assert learner.wait() == 0, learner.output
        assert "stopped: interrupted" in learner.output
    reached = int(checkpoints(tmp_path / "run")[-1].name)
    again = resume(str(tmp_path / "run"), minutes=1e-6)
    assert again.weights_version >= reached > 0


def test_updates_that_are_not_finite_end_the_run(tmp_path: Path) -> None:
    with pytest.raises(RunFailed, match=r"updates in a row .* not finite"):
        run(tmp_path / "run", 100, learning_rate=1e38, gradient_clip=0.0, max_skipped_updates=3)
    assert checkpoints(tmp_path / "run")


@pytest.mark.parametrize(
    ("place", "field"),
    [*thorough((False, "reward")), (True, "observation place")],
    ids=["reward", "observation"],
)
def test_an_environment_on_a_device_that_spoils_updates_is_named(
    place: bool,
    field: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1] / "envs"))
    options = ("after=25", f"place={place}")
    says = rf"the {field} of environment {ENVS - 1} is not finite"
    with pytest.raises(
        RunFailed, match=rf"updates in a row .* walk: {says}, .*mend the environment"
    ) as found:
        run(
            tmp_path / "run",
            100,
            env="on_device_worlds:unpaid",
            env_options=options,
            max_skipped_updates=3,
        )
    assert "--learning-rate" not in str(found.value)
    assert capsys.readouterr().out.count(f"walk: the {field} of environment {ENVS - 1} is not finite") == 1
    left = summary(tmp_path / "run")
    assert left["weights_version"] - left["skipped_updates"] == 2, "what came before was learned from"


PROGRAM = """
import json, sys
from pathlib import Path
import jax
from small_runs import params, run

assert len(jax.devices()) == 4
for name, devices in (("one", (0,)), ("four", (0, 1, 2, 3))):
    done = run(Path(sys.argv[1]) / name, agent="ppo", reuse=2, minibatches=2, training_devices=devices)
    told = {key: leaf.ravel().tolist() for key, leaf in params(Path(sys.argv[1]) / name).items()}
    print("told", json.dumps([done.episodes, done.mean_return, told]))
"""


def test_one_device_and_four_compute_the_same(tmp_path: Path) -> None:
    one, four = on_four_devices(PROGRAM, str(tmp_path))
    assert one[0] == four[0]
    for leaf in one[2]:
        np.testing.assert_allclose(four[2][leaf], one[2][leaf], rtol=1e-4, atol=1e-5, err_msg=leaf)
