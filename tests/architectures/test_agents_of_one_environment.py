"""Runs in which several agents have one environment: the same wherever they stand, with books of agents alone."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from harness import Command, simulated, thorough
from small_runs import params, run

import seedbed
from seedbed.cli import eval as eval_command
from seedbed.config.resolve import configure
from seedbed.errors import ConfigError, SpecError
from seedbed.evaluation.collect import collect
from seedbed.evaluation.player import evaluate, record
from seedbed.launch.train import resume

AGENTS = ("stays", "dies", "comes")
SCRIPTED, MEETING = "pettingzoo:parallel_worlds:Scripted", "pettingzoo:parallel_worlds:Meeting"
ROWS, STEPS, BATCHES = 12, 6, 6
SMALL: dict[str, Any] = {"batch_size": ROWS, "unroll_length": STEPS, "lstm": 8}
SERVED = {"transport": "inproc", "actors": 1, "envs_per_actor": ROWS, "lag": 0}
ELSEWHERE = {
    "impala": {**SERVED, "arch": "impala"},
    "sebulba": {"arch": "sebulba", "actors": 2, "envs_per_actor": ROWS // 2, "lag": 0},
}


def of(folder: Path, **settings: Any) -> Any:
    # Five, two and two of the six decisions of three agents are carried out, in each unroll.
    frames = (BATCHES - 1) * ROWS * STEPS // 2 + 1
    return run(folder, **{"env": SCRIPTED, "arch": "seed", "frames": frames, **SMALL, **SERVED, **settings})


@pytest.mark.parametrize("policies", ["own", *thorough("shared")])
def test_agents_of_one_environment_compute_the_same_everywhere(tmp_path: Path, policies: str) -> None:
    seed = of(tmp_path / "seed", policies=policies)
    ours = params(tmp_path / "seed")
    for leaf, array in ours.items():
        assert policies == "shared" or array.shape[0] == len(AGENTS), leaf
    # An unroll is an episode and the reset after it: 9 of 18 decisions are carried out, and 3 episodes end.
    assert seed.weights_version == BATCHES
    assert seed.more["steps_received"] == BATCHES * ROWS * STEPS
    assert seed.agent_steps == BATCHES * ROWS * STEPS // 2
    assert seed.episodes == BATCHES * ROWS
    assert seed.mean_return == pytest.approx((15 + 20 + 200) / 3)
    for arch, placed in ELSEWHERE.items():
        settings = {"env": SCRIPTED, "frames": (BATCHES - 1) * ROWS * STEPS // 2 + 1, **SMALL, **placed}
        other = run(tmp_path / arch, **settings, policies=policies)
        for name in ("weights_version", "agent_steps", "episodes", "mean_return"):
            assert getattr(other, name) == getattr(seed, name), (arch, name)
        theirs = params(tmp_path / arch)
        for leaf, array in ours.items():
            np.testing.assert_allclose(array, theirs[leaf], rtol=1e-4, atol=1e-5, err_msg=f"{arch} {leaf}")


@pytest.mark.parametrize("policies", thorough("own", "shared"))
def test_games_of_two_are_the_same_in_one_program(tmp_path: Path, policies: str) -> None:
    game: dict[str, Any] = {"env": "pgx:tic_tac_toe", "policies": policies, "frames": 300}
    settings = {**game, "batch_size": 8, "unroll_length": 6}
    seed = run(tmp_path / "seed", **{**settings, **SERVED, "arch": "seed", "envs_per_actor": 8})
    anakin = run(tmp_path / "anakin", **settings, arch="anakin")
    assert seed.episodes == anakin.episodes > 20
    assert seed.agent_steps == anakin.agent_steps
    theirs = params(tmp_path / "anakin")
    for leaf, array in params(tmp_path / "seed").items():
        np.testing.assert_allclose(array, theirs[leaf], rtol=1e-4, atol=1e-5, err_msg=leaf)


_ON_DEVICES = """
import sys
from pathlib import Path
from small_runs import run

for name, devices in (("one", (0,)), ("two", (0, 1)), ("four", (0, 1, 2, 3))):
    run(Path(sys.argv[1]) / name, env="pgx:tic_tac_toe", policies="own", training_devices=devices, batch_size=8,
        unroll_length=6, frames=300, arch="seed", transport="inproc", actors=1, envs_per_actor=8, lag=0)
"""


@pytest.mark.thorough
@pytest.mark.slow
def test_policies_of_agents_are_trained_on_several_devices_as_on_one(tmp_path: Path) -> None:
    command = [sys.executable, "-c", _ON_DEVICES, str(tmp_path)]
    with Command(cwd=tmp_path, command=command, **simulated(4)) as runs:
        assert runs.wait() == 0, runs.output
    ours = params(tmp_path / "one")
    for name in ("two", "four"):
        theirs = params(tmp_path / name)
        for leaf, array in ours.items():
            np.testing.assert_allclose(array, theirs[leaf], rtol=1e-4, atol=1e-5, err_msg=f"{name} {leaf}")


@pytest.mark.slow
def test_games_in_one_program_go_on_as_they_stood(tmp_path: Path) -> None:
    settings = {"env": "pgx:tic_tac_toe", "arch": "anakin", "batch_size": 8, "unroll_length": 6, "lstm": 4}
    whole = run(tmp_path / "whole", **settings, frames=300)
    run(tmp_path / "parts", **settings, frames=120)
    parts = resume(tmp_path / "parts", frames=300)
    assert parts.episodes == whole.episodes
    theirs = params(tmp_path / "parts")
    for leaf, array in params(tmp_path / "whole").items():
        np.testing.assert_array_equal(array, theirs[leaf], err_msg=leaf)


def test_a_device_has_whole_games(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="3 rows are no whole number of environments"):
        run(tmp_path / "run", env="pgx:tic_tac_toe", arch="anakin", batch_size=3, unroll_length=6, frames=40)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("policies", "agent"), [("own", "dqn"), ("shared", "r2d2"), *thorough(("shared", "dqn"), ("own", "r2d2"))]
)
def test_a_replay_is_earned_by_the_agents_that_are_there(tmp_path: Path, policies: str, agent: str) -> None:
    replay = {
        "policies": policies,
        "agent": agent,
        **({"lstm": 0} if agent == "dqn" else {"burn_in": 0}),
        "replay_min_size": 36,
        "replay_size": 600,
        "replay_ratio": 1.0,
    }
    seed = of(tmp_path / "seed", **replay, head_size=8)
    ape = of(tmp_path / "apex", **replay, head_size=8, arch="apex")
    assert seed.weights_version > 0
    ours, theirs = params(tmp_path / "seed"), params(tmp_path / "apex")
    for leaf, array in ours.items():
        np.testing.assert_allclose(array, theirs[leaf], rtol=1e-4, atol=1e-5, err_msg=leaf)
    assert ape.agent_steps == seed.agent_steps
    # Half of what was decided is of agents that were not there; no item begins with it, but sequences may hold it.
    received = seed.more["steps_received"]
    assert 0 < seed.more["steps_trained"] <= (seed.agent_steps if agent == "dqn" else received)
    assert seed.agent_steps < 0.6 * received


@pytest.mark.parametrize("policies", ["own", *thorough("shared")])
def test_a_run_goes_on_with_its_agents_as_they_stood(tmp_path: Path, policies: str) -> None:
    whole = of(tmp_path / "whole", deterministic=True, policies=policies)
    of(tmp_path / "parts", deterministic=True, policies=policies, frames=2 * ROWS * STEPS // 2 + 1)
    resume(tmp_path / "parts", frames=(BATCHES - 1) * ROWS * STEPS // 2 + 1)
    ours, theirs = params(tmp_path / "whole"), params(tmp_path / "parts")
    assert whole.weights_version == BATCHES
    assert {name: array.tolist() for name, array in ours.items()} == {
        name: array.tolist() for name, array in theirs.items()
    }


def test_a_run_is_played_and_recorded_with_all_its_agents(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "run"
    of(folder, frames=40)
    found = evaluate(folder, episodes=7)
    # One row each for the agents of three environments, each with one episode.
    assert found.count == 9 and found.cut == 0
    assert found.agents == {"stays": 15.0, "dies": 20.0, "comes": 200.0}
    cut = evaluate(folder, episodes=3, max_steps=2)
    # Who comes at step 3 is not waited for, and has no mean.
    assert cut.agents == {"stays": 3.0, "dies": 20.0} and cut.count == 2

    eval_command.run([str(folder), "--episodes", "3"])
    assert "mean of each agent: stays 15, dies 20, comes 200" in capsys.readouterr().out
    eval_command.run([str(folder), "--episodes", "3", "--json"])
    assert json.loads(capsys.readouterr().out)["agents"] == found.agents
    told = collect(folder, frames=60, out=tmp_path / "data").about
    assert told["mean_return"] == pytest.approx((15 + 20 + 200) / 3)


@pytest.mark.thorough
def test_a_picture_of_all_agents_is_recorded(tmp_path: Path) -> None:
    of(tmp_path / "run", env=MEETING, frames=40)
    assert record(tmp_path / "run").stat().st_size > 0


def test_rows_that_are_no_whole_number_of_environments_are_refused_at_the_start(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no whole number of environments"):
        of(tmp_path / "run", envs_per_actor=8)


@pytest.mark.thorough
@pytest.mark.slow
def test_a_policy_for_each_agent_is_played_kept_and_taken_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(Path(__file__).parents[1])  # whence processes import the world
    folder = tmp_path / "run"
    of(folder, frames=40, policies="own")
    assert evaluate(folder, episodes=3).agents == {"stays": 15.0, "dies": 20.0, "comes": 200.0}
    eval_command.run([str(folder), "--episodes", "3"])
    assert "mean of each agent: stays 15, dies 20, comes 200" in capsys.readouterr().out
    # A policy that was loaded decides for the agent that an observation names.
    policy = seedbed.load(folder)
    seen = {"observation": np.ones((2, 2), np.float32), "agent_index": np.array([1, 0], np.int32)}
    action, state = policy.act(seen)
    assert action.shape == (2,)
    policy.act(seen, state)
    with pytest.raises(SpecError, match="agent_index"):
        policy.act({"observation": seen["observation"]})
    # What it has done can be learned from, by policies of their own again.
    data = collect(folder, frames=60, out=tmp_path / "data").path
    cloning = {"agent": "bc", "arch": "distbelief", "dataset": str(data), "batch_size": 4, "unroll_length": 4}
    cloned = run(tmp_path / "bc", env=SCRIPTED, policies="own", frames=200, **cloning)
    assert cloned.weights_version > 0
    begun = of(tmp_path / "begun", frames=40, policies="own", init_from=str(folder))
    assert begun.weights_version > 0
    with pytest.raises(ConfigError, match=r"policies are of .*, and those of this run are one for all"):
        of(tmp_path / "other", frames=40, init_from=str(folder))


def test_agents_of_a_kind_share_a_policy_and_are_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(Path(__file__).parents[1])
    crew = {"env": "pettingzoo:parallel_worlds:Crew", "envs_per_actor": 12, "batch_size": 12, "frames": 200}
    kind = of(tmp_path / "run", **crew, policies="kind")
    told = capsys.readouterr().out
    assert "one policy for answerer_0, answerer_1" in told.replace(" and ", ", ")
    assert "one policy for caller_0" in told and "agent_index: tells which of 3 agents it is" in told
    assert kind.weights_version > 0
    assert {len(leaf) for name, leaf in params(tmp_path / "run").items()} == {2}
    assert set(evaluate(tmp_path / "run", episodes=3).agents) == {"answerer_0", "caller_0", "answerer_1"}
    own = {"env": "pettingzoo:parallel_worlds:Unmarked", "envs_per_actor": 8, "batch_size": 8, "frames": 40}
    of(tmp_path / "own", **own, policies="own")
    with pytest.raises(ConfigError, match=r"policies are of caller.*, and those of this run are of answerer"):
        of(tmp_path / "begun", **crew, policies="kind", init_from=str(tmp_path / "own"))


def test_policies_of_their_own_are_for_environments_of_several_agents() -> None:
    with pytest.raises(ConfigError, match="policies is own, and CartPole-v1 has one agent"):
        configure("CartPole-v1", policies="own")


@pytest.mark.thorough
def test_frozen_versions_are_of_all_policies(tmp_path: Path) -> None:
    pool = {"opponents": 2, "opponents_every": 2, "opponents_share": 0.5}
    nim = {"env": "pettingzoo:parallel_worlds:Nim", "policies": "own", "envs_per_actor": 8, "batch_size": 8}
    summary = of(tmp_path / "run", **nim, **pool, frames=300, lstm=0, deterministic=True)
    assert summary.more["opponents"] == 2 and summary.more["steps_opponents"] > 0
    of(tmp_path / "parts", **nim, **pool, frames=150, lstm=0, deterministic=True)
    resume(tmp_path / "parts", frames=300)
    ours, theirs = params(tmp_path / "run"), params(tmp_path / "parts")
    assert {name: array.tolist() for name, array in ours.items()} == {
        name: array.tolist() for name, array in theirs.items()
    }
