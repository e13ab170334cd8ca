"""Agents learn as a short program does that was written from their papers, at equal settings."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import pytest
import reference_agents as reference
from harness import thorough
from reference_agents import Recipe, Replayed, Soft

import seedbed

pytestmark = pytest.mark.slow

SEEDS = 6
STEPS = (20_480, 40_960)
"""At the first all are still learning; at the second some have learned."""


def package(folder: Path, agent: str, recipe: Recipe, **settings: Any) -> list[list[float]]:
    """The mean returns of the last 100 episodes of each seed, after each number of steps."""
    config = seedbed.configure(
        "gymnax:CartPole-v1",
        preset="none",
        arch="anakin",
        agent=agent,
        network="mlp",
        seeds=SEEDS,
        video=False,
        run_dir=str(folder / "run"),
        frames=STEPS[0],
        **asdict(recipe),
        **settings,
    )
    summaries = [seedbed.train(config), seedbed.resume(str(folder / "run"), frames=STEPS[1])]
    return [[one["mean_return"] for one in summary.to_json()["variants"]] for summary in summaries]


def second_opinion(agent: Callable[..., list[float]], recipe: Any) -> list[list[float]]:
    """The same of the reference."""
    return [[mean(agent(recipe, steps, seed)[-100:]) for seed in range(SEEDS)] for steps in STEPS]


def apart(one: list[float], other: list[float]) -> float:
    """How many standard errors lie between the means of two samples."""
    return abs(mean(one) - mean(other)) / (stdev(one) ** 2 / len(one) + stdev(other) ** 2 / len(other)) ** 0.5


PPO = Recipe()
VTRACE = replace(PPO, reuse=2, minibatches=2)


@pytest.mark.parametrize(
    ("agent", "independent", "recipe", "settings"),
    [
        *thorough(("ppo", reference.ppo, PPO, {})),
        ("vtrace", reference.vtrace, VTRACE, {}),
    ],
    ids=["ppo", "vtrace"],
)
def test_an_agent_learns_as_an_independent_program_does(
    agent: str,
    independent: Callable[..., list[float]],
    recipe: Recipe,
    settings: dict[str, Any],
    tmp_path: Path,
) -> None:
    ours, theirs = package(tmp_path, agent, recipe, **settings), second_opinion(independent, recipe)
    for steps, one, other in zip(STEPS, ours, theirs, strict=True):
        assert apart(one, other) < 3.5, f"after {steps} steps {one}, and the other program {other}"
    # Chance is 22.
    assert min(mean(ours[-1]), mean(theirs[-1])) > 100, f"{ours} and {theirs}"


def by_replay(folder: Path, recipe: Replayed, seed: int, steps: int) -> float:
    """The mean return of DQN's last 100 episodes of all environments, which explore."""
    config = seedbed.configure(
        "CartPole-v1",
        preset="none",
        agent="dqn",
        transport="inproc",
        actors=1,
        envs_per_actor=8,
        lag=0,
        network="mlp",
        n_step=1,
        dueling=False,
        head_size=0,
        replay_size=100_000,
        priority_exponent=0.0,
        importance_exponent=0.0,
        seed=seed,
        video=False,
        run_dir=str(folder),
        frames=steps,
        **asdict(recipe),
    )
    return float(seedbed.train(config).to_json()["mean_return"])


@pytest.mark.thorough
def test_dqn_learns_as_an_independent_program_does(tmp_path: Path) -> None:
    recipe, steps, seeds = Replayed(), 25_600, 4
    ours = [by_replay(tmp_path / str(seed), recipe, seed, steps) for seed in range(seeds)]
    theirs = [mean(reference.dqn(recipe, steps, seed)[-100:]) for seed in range(seeds)]
    assert apart(ours, theirs) < 3.5, f"{ours}, and the other program {theirs}"
    assert min(mean(ours), mean(theirs)) > 60, f"{ours} and {theirs}"


def pendulum(folder: Path, recipe: Soft, seed: int, steps: int) -> float:
    """The mean return of SAC's last 100 episodes, of its first random ones on."""
    config = seedbed.configure(
        "Pendulum-v1",
        preset="none",
        agent="sac",
        transport="inproc",
        actors=1,
        envs_per_actor=4,
        lag=0,
        network="mlp",
        hidden=(64, 64),
        activation="tanh",
        seed=seed,
        video=False,
        run_dir=str(folder),
        frames=steps,
        **asdict(recipe),
    )
    return float(seedbed.train(config).to_json()["mean_return"])


@pytest.mark.thorough
def test_sac_learns_as_an_independent_program_does(tmp_path: Path) -> None:
    recipe, steps, seeds = Soft(), 7_680, 3
    ours = [pendulum(tmp_path / str(seed), recipe, seed, steps) for seed in range(seeds)]
    theirs = [mean(reference.sac(recipe, steps, seed)[-100:]) for seed in range(seeds)]
    assert apart(ours, theirs) < 3.5, f"{ours}, and the other program {theirs}"
    # A policy at random gets about -1,250, in the first episodes of all of these.
    assert min(mean(ours), mean(theirs)) > -1000, f"{ours} and {theirs}"
