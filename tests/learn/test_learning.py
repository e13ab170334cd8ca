"""Agents learn: the smallest tasks that tell a working agent from one that only runs."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from harness import thorough

import seedbed
from seedbed.evaluation.player import evaluate

pytestmark = pytest.mark.slow
FEW: dict[str, object] = {
    "transport": "inproc",
    "actors": 1,
    "envs_per_actor": 16,
    "batch_size": 16,
    "learning_rate": 2e-3,
}
"""Environments of several agents, in this process, with a policy that learns quickly from few of them."""


def learn(env: str, folder: Path, **settings: object) -> dict[str, object]:
    config = seedbed.configure(env, run_dir=str(folder / "run"), video=False, **settings)
    return seedbed.train(config).to_json()


def test_cartpole_is_solved_within_half_a_million_steps(tmp_path: Path) -> None:
    summary = learn("CartPole-v1", tmp_path, frames=500_000)
    assert summary["best_mean_return"] >= 475, summary


@pytest.mark.thorough
def test_population_based_training_leaves_a_range_that_is_too_low(tmp_path: Path) -> None:
    # A random search with the same budget cannot. docs/architectures/anakin.md has three seeds, of which the others
    # gain less (1.03 and 1.2 times).
    best, mean = {}, {}
    for rounds in (None, 2000):
        settings = {"arch": "anakin", "agent": "ppo", "preset": "none", "seed": 2, "draws": 8}
        place = tmp_path / str(rounds)
        drawn = ("learning_rate=log:1e-6..2e-5",)
        done: Any = learn(
            "gymnax:CartPole-v1", place, frames=65_000, sweep=drawn, pbt_frames=rounds, **settings
        )
        returns = [each["mean_return"] for each in done["variants"]]
        best[rounds], mean[rounds] = max(returns), np.mean(returns)
    assert best[2000] > 1.1 * best[None], (best, mean)
    assert mean[2000] > 1.5 * mean[None], (best, mean)


@pytest.mark.parametrize(
    ("agent", "settings"),
    [("ppo", {"correction": "vtrace"}), *thorough(("a2c", {}), ("vtrace", {}))],
    ids=["appo", "a2c", "vtrace"],
)
def test_other_agents_learn_cartpole_too(tmp_path: Path, agent: str, settings: dict[str, Any]) -> None:
    # A policy at random gets about 22. That 475 is reached is recorded in docs/evidence.md.
    summary = learn("CartPole-v1", tmp_path, agent=agent, frames=500_000, until_return=200.0, **settings)
    assert summary["best_mean_return"] >= 200, summary


def test_agents_of_one_environment_learn_to_do_different_things(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(Path(__file__).parents[1])
    env = "pettingzoo:parallel_worlds:Meeting"
    summary = learn(env, tmp_path, agent="ppo", hidden=(64,), frames=60_000, until_return=7.0, **FEW)
    assert summary["best_mean_return"] >= 7.0, summary
    # A policy at random gets 2; one that does not tell the two agents apart 4 at most.
    evaluated = evaluate(tmp_path / "run", episodes=64)
    assert min(evaluated.agents.values()) >= 6.5, evaluated


@pytest.mark.parametrize(
    ("world", "policies"), [("Unmarked", "own"), *thorough(("Unequal", "own"), ("Crew", "kind"))]
)
def test_agents_that_cannot_tell_which_they_are_learn_by_policies_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, world: str, policies: str
) -> None:
    """By a shared policy no more than 4 of 8 is right; or the spaces differ, and there is none."""
    monkeypatch.chdir(Path(__file__).parents[1])
    env = f"pettingzoo:parallel_worlds:{world}"
    learner = {"agent": "ppo", "policies": policies, "hidden": (64,)}
    # A batch has as many rows of each agent, and halves of an actor's environments have whole ones.
    few = {**FEW, "envs_per_actor": 24, "batch_size": 24} if world == "Crew" else FEW
    summary = learn(env, tmp_path, frames=60_000, until_return=7.0, **learner, **few)
    assert summary["best_mean_return"] >= 7.0, summary
    evaluated = evaluate(tmp_path / "run", episodes=64)
    assert min(evaluated.agents.values()) >= 6.5, evaluated


@pytest.mark.thorough
def test_self_play_finds_the_perfect_play_of_nim(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(Path(__file__).parents[1])
    placed = {"transport": "inproc", "actors": 1, "envs_per_actor": 32, "batch_size": 32, "unroll_length": 16}
    learner = {"agent": "ppo", "reuse": 4, "minibatches": 4, "learning_rate": 2e-3, "hidden": (64,)}
    pool = {"opponents": 4, "opponents_every": 200}
    learn("pettingzoo:parallel_worlds:Nim", tmp_path, frames=60_000, **placed, **learner, **pool)
    policy = seedbed.load(tmp_path / "run", greedy=True)
    # Of 4 and 8 stones every move loses.
    for left in (1, 2, 3, 5, 6, 7, 9, 10):
        shown = np.eye(12, dtype=np.float32)[left] + np.eye(12, dtype=np.float32)[11]
        action, _ = policy.act({"left": shown, "action_mask": (np.arange(3) < left).astype(np.int8)})
        assert action + 1 == left % 4, left


def test_catch_is_solved(tmp_path: Path) -> None:
    summary = learn("toy:catch", tmp_path, frames=150_000)
    assert summary["best_mean_return"] >= 0.95, summary


@pytest.mark.parametrize(("lstm", "solved"), [(32, True), *thorough((0, False))])
def test_the_memory_task_is_solved_with_a_memory_and_only_with_one(
    tmp_path: Path, lstm: int, solved: bool
) -> None:
    summary = learn("toy:memory", tmp_path, lstm=lstm, frames=60_000)
    # Without a memory the cue can only be guessed: returns of +1 and -1, whose mean over 100 episodes stays
    # within 5 standard deviations of 0.
    assert (summary["best_mean_return"] >= 0.95) is solved, summary
    assert solved or abs(summary["mean_return"]) < 0.5, summary


def test_dqn_solves_catch(tmp_path: Path) -> None:
    summary = learn("toy:catch", tmp_path, agent="dqn", frames=100_000)
    assert summary["best_mean_return"] >= 0.95, summary


@pytest.mark.parametrize(
    ("env", "settings", "goal"),
    [
        *thorough(("toy:catch", {}, 0.95)),
        ("toy:catch", {"arch": "sebulba", "actors": 1}, 0.95),
        *thorough(("toy:memory", {"lstm": 32}, 0.95)),
        ("gymnax:CartPole-v1", {"arch": "anakin"}, 200.0),
    ],
    ids=["catch", "catch-sebulba", "memory-lstm", "cartpole-anakin"],
)
def test_pqn_learns_without_a_replay(tmp_path: Path, env: str, settings: dict[str, Any], goal: float) -> None:
    frames = 300_000 if goal > 1 else 60_000
    summary = learn(env, tmp_path, agent="pqn", frames=frames, until_return=goal, **settings)
    assert summary["best_mean_return"] >= goal, summary


@pytest.mark.parametrize(("agent", "solved"), [("r2d2", True), *thorough(("dqn", False))])
def test_the_memory_task_is_solved_by_r2d2_and_not_by_dqn(tmp_path: Path, agent: str, solved: bool) -> None:
    summary = learn("toy:memory", tmp_path, agent=agent, frames=60_000)
    assert (summary["best_mean_return"] >= 0.95) is solved, summary
    assert solved or abs(summary["mean_return"]) < 0.5, summary


@pytest.mark.parametrize(
    ("env", "arch", "agent", "goal"),
    [
        ("CartPole-v1", "impala", "vtrace", 475.0),
        ("toy:catch", "apex", "dqn", 0.95),
        *thorough(("toy:memory", "apex", "r2d2", 0.95)),
    ],
)
def test_agents_learn_where_actors_run_the_policy(
    tmp_path: Path, env: str, arch: str, agent: str, goal: float
) -> None:
    summary = learn(env, tmp_path, arch=arch, agent=agent, frames=1_000_000 if arch == "impala" else 150_000)
    assert summary["best_mean_return"] >= goal, summary


def test_an_agent_learns_where_servers_run_the_policy(tmp_path: Path) -> None:
    summary = learn(
        "CartPole-v1",
        tmp_path,
        arch="rapid",
        agent="ppo",
        forward_servers=2,
        frames=500_000,
        until_return=200.0,
    )
    assert summary["best_mean_return"] >= 200, summary


def test_an_agent_with_a_replay_learns_in_one_program(tmp_path: Path) -> None:
    # A policy at random gets about 22; returns include what is explored.
    summary = learn(
        "gymnax:CartPole-v1", tmp_path, arch="anakin", agent="dqn", frames=100_000, until_return=100.0
    )
    assert summary["best_mean_return"] >= 100, summary


@pytest.mark.parametrize(
    ("env", "arch", "agent", "goal"),
    [("CartPole-v1", "a3c", "a2c", 200.0), ("toy:catch", "gorila", "dqn", 0.95)],
)
def test_agents_learn_where_gradients_travel(
    tmp_path: Path, env: str, arch: str, agent: str, goal: float
) -> None:
    # A policy at random gets about 22 and -0.5. That A3C comes to 475 is recorded in docs/evidence.md.
    summary = learn(env, tmp_path, arch=arch, agent=agent, frames=500_000, until_return=goal)
    assert summary["best_mean_return"] >= goal, summary


@pytest.mark.parametrize(
    ("env", "settings", "least"),
    [
        *thorough(("Pendulum-v1", {}, -900)),
        ("gymnax:Pendulum-v1", {"arch": "anakin", "agent": "sac", "preset": "pendulum", "envs": 8}, -1000),
    ],
    ids=["seed", "anakin"],
)
def test_sac_swings_a_pendulum_up(env: str, settings: dict[str, Any], least: float, tmp_path: Path) -> None:
    # The mean is over all 40 episodes, the random ones at the beginning too; the last ones are better than -200.
    small: dict[str, object] = {"hidden": (64, 64), "batch_size": 64, "replay_ratio": 64.0}
    summary = learn(env, tmp_path, frames=8_000, **small, **settings)
    assert summary["agent"] == "sac" and summary["mean_return"] > least, summary


def test_a_continuous_task_improves(tmp_path: Path) -> None:
    # PPO: four seeds of four came to -1000 within 80,000 steps; V-trace needs 250,000 or does not leave chance.
    summary = learn(
        "Pendulum-v1",
        tmp_path,
        preset="none",
        agent="ppo",
        transport="inproc",
        actors=1,
        envs_per_actor=16,
        queue_size=16,
        network="mlp",
        unroll_length=32,
        batch_size=16,
        reuse=8,
        minibatches=4,
        learning_rate=1e-3,
        discount=0.9,
        entropy_cost=0.0,
        normalize_observations=True,
        frames=500_000,
        until_return=-1000,
    )
    # A policy at random gets about -1,250, a good one -200. The budget leaves room for a busy machine.
    assert summary["best_mean_return"] >= -1000, summary
