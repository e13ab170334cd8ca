"""Whole runs under action masks: under no architecture, and with no agent, a locked door is ever tried.

``toy:doors`` refuses a forbidden action, which ends the run; under Anakin its twin does.

An agent's own functions keep to masks by themselves: ``tests/agents/test_masks.py`` asks every one. A mask's way to
them depends on the architecture, and on the memory that batches come from. So each architecture runs with each kind of
memory that it has, and its agents take turns.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from harness import TESTS, shortened, thorough, tiny
from small_runs import ENVS, STEPS, params, run

import seedbed
from seedbed.config.resolve import configure, flat
from seedbed.config.settings import RunConfig
from seedbed.envs.make import spec_of
from seedbed.errors import ConfigError
from seedbed.launch.build import build_agent
from seedbed.launch.compatibility import table_of_pairs

pytestmark = pytest.mark.slow


def memory_of(agent: str) -> tuple[bool, bool] | None:
    """Whether its batches come from a replay, and begin before what is trained on; None if it takes no choices."""
    try:
        data = build_agent(configure("toy:doors", agent=agent, preset="none"), spec_of("toy:doors")).data
    except ConfigError as error:
        assert "continuous" in str(error), error
        return None
    return data.replay is not None, data.overlap > 0


AGENTS: dict[tuple[str, tuple[bool, bool]], list[str]] = {}
"""The agents of each architecture and memory."""
for _agent, _row in table_of_pairs().items():
    _memory = None if _agent == "bc" else memory_of(_agent)
    for _arch, _reason in _row.items():
        if _memory is not None and _reason is None:
            AGENTS.setdefault((_arch, _memory), []).append(_agent)


def in_turn() -> Iterator[tuple[str, str]]:
    """One agent and its architecture of each row of ``AGENTS``: the one that has had the fewest turns."""
    turns: Counter[str] = Counter()
    for (arch, _), agents in AGENTS.items():
        agent = min(agents, key=lambda agent: turns[agent])
        turns[agent] += 1
        yield agent, arch


PAIRS = list(in_turn())
SMALL = {
    "transport": "inproc",
    "replay_min_size": 60,
    "replay_size": 200,
    "burn_in": 2,
    "forward_servers": 1,
    "epsilon_base": 0.9,
}


@pytest.fixture(autouse=True)
def worlds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(TESTS / "envs"))


def small(env: str, folder: Path, **settings: Any) -> RunConfig:
    """A short run, with those of ``SMALL`` that its agent and its architecture have."""
    known = flat(RunConfig(agent=settings["agent"], arch=settings["arch"]))
    ours = {name: value for name, value in SMALL.items() if name in known}
    if settings["agent"] == "muzero":  # Windows that a short unroll has room for.
        ours |= {"unroll_steps": 2, "n_step": 2, "simulations": 4}
    if settings["arch"] == "gorila":  # Its workers are processes.
        ours["transport"] = "shm"
    return tiny(env, folder, **ours, **settings)


def test_every_agent_and_architecture_has_a_run() -> None:
    agents = {agent for row in AGENTS.values() for agent in row}
    assert {agent for agent, _ in PAIRS} == agents > {"vtrace", "dqn", "r2d2", "muzero"}
    assert {arch for _, arch in PAIRS} == {arch for arch, _ in AGENTS} >= {"seed", "anakin", "gorila", "a3c"}


FIRST = [
    pair
    for pair in PAIRS
    if pair
    not in {("pqn", "a2c"), ("dqn", "seed"), ("r2d2", "sebulba"), ("muzero", "gorila"), ("muzero", "anakin")}
]


@pytest.mark.parametrize(("agent", "arch"), shortened(PAIRS, FIRST))
def test_no_locked_door_is_tried_anywhere(agent: str, arch: str, tmp_path: Path) -> None:
    env = "on_device_worlds:strict_doors" if arch == "anakin" else "toy:doors"
    config = small(env, tmp_path / "run", agent=agent, arch=arch, frames=400)
    done = seedbed.train(config).to_json()
    assert done["stopped_because"] == "400 frames spent"
    assert done["weights_version"] > 0 and done["skipped_updates"] == 0 and done["episodes"] > 10
    assert done.get("actor_restarts", 0) == 0


@pytest.mark.thorough
@pytest.mark.parametrize("agent", ["ppo", *thorough("dqn")])
def test_nor_in_evaluation_in_videos_and_in_data_sets(agent: str, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    # Explores so much that an action by chance that looked at no mask would be among the first.
    more = {"epsilon_evaluation": 1.0} if agent == "dqn" else {}
    seedbed.train(small("toy:doors", folder, agent=agent, arch="seed", frames=200, **more))
    for greedy in (False, True):
        assert seedbed.evaluate(folder, episodes=40, greedy=greedy).count == 48
    assert seedbed.record(folder).stat().st_size > 0
    found = seedbed.collect(folder, frames=300, out=tmp_path / "data")
    cloned = seedbed.train(
        tiny(
            "toy:doors",
            tmp_path / "clone",
            agent="bc",
            arch="distbelief",
            dataset=str(found.path),
            frames=200,
        )
    )
    assert cloned.weights_version > 0
    assert seedbed.evaluate(tmp_path / "clone", episodes=20).count == 32


@pytest.mark.parametrize("agent", ["vtrace", *thorough("ppo", "a2c")])
def test_under_masks_the_same_agent_computes_the_same_everywhere(agent: str, tmp_path: Path) -> None:
    settings = {
        "env": "toy:doors",
        "agent": agent,
        "frames": 4 * ENVS * STEPS,
        **({} if agent == "a2c" else {"reuse": 2, "minibatches": 2}),
    }
    served = {"transport": "inproc", "actors": 1, "envs_per_actor": ENVS, "lag": 0}
    elsewhere: dict[str, dict[str, Any]] = {
        "seed": served,
        "impala": served,
        "rapid": served,
        "sebulba": {"actors": 2, "envs_per_actor": ENVS // 2, "lag": 0},
        "a2c": {},
    }
    program, ours = run(tmp_path / "anakin", **settings), params(tmp_path / "anakin")
    for arch, placed in elsewhere.items():
        other = run(tmp_path / arch, **{**settings, "arch": arch, **placed})
        assert program.weights_version == other.weights_version > 4, arch
        assert program.agent_steps == other.agent_steps and program.episodes == other.episodes > 20, arch
        theirs = params(tmp_path / arch)
        for leaf, array in ours.items():
            np.testing.assert_allclose(array, theirs[leaf], rtol=1e-4, atol=1e-5, err_msg=f"{arch} {leaf}")


@pytest.mark.thorough
@pytest.mark.parametrize(("agent", "settings"), [("ppo", {}), *thorough(("dqn", {"eval_envs": 4}))])
def test_the_way_through_the_rooms_is_found(agent: str, settings: dict[str, Any], tmp_path: Path) -> None:
    config = seedbed.configure(
        "toy:doors",
        agent=agent,
        run_dir=str(tmp_path / "run"),
        video=False,
        frames=100_000,
        until_return=7.5,
        **settings,
    )
    done = seedbed.train(config).to_json()
    # Of the doors that are allowed one in four leads on: a policy at random gets 0.4.
    assert done["best_mean_return"] >= 7.5, done
