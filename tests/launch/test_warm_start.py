"""Runs that begin with the parameters of another one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from harness import thorough, tiny
from untrained import untrained

from seedbed.envs.make import spec_of
from seedbed.errors import ConfigError
from seedbed.launch.build import build_agent
from seedbed.launch.train import resume, train
from seedbed.launch.warm_start import begun_alike, require_same_policies, warm_started
from seedbed.learning.checkpoint import flatten, load_latest
from seedbed.types import Agent


def agent_of(env: str, folder: Path, **settings: Any) -> Agent:
    return build_agent(tiny(env, folder, **settings), spec_of(env))


def kept(folder: Path) -> dict[str, Any]:
    return load_latest(folder / "checkpoints").leaves("train", "params")


def same(one: dict[str, Any], other: dict[str, Any]) -> list[str]:
    return [name for name in one if np.allclose(one[name], other[name], atol=1e-6)]


def test_all_that_fits_is_taken_and_the_rest_is_named(tmp_path: Path) -> None:
    source = untrained("toy:catch", tmp_path / "source")
    agent, line = warm_started(agent_of("toy:catch", tmp_path / "run"), source)
    begun = {name: np.asarray(leaf) for name, leaf in flatten(agent.init(jax.random.key(5))).items()}
    assert same(kept(source), begun) == [*begun]
    assert (
        line
        == f"begins with {len(begun)} of {len(begun)} arrays of parameters of {source}/checkpoints/000000000000"
    )

    fresh = agent_of("toy:catch", tmp_path / "run", hidden=(16, 7))
    agent, line = warm_started(fresh, source)
    mixed = {name: np.asarray(leaf) for name, leaf in flatten(agent.init(jax.random.key(5))).items()}
    new = flatten(fresh.init(jax.random.key(5)))
    assert line.partition("; these begin anew: ")[2].count("[") == min(4, len(mixed) - len(begun) + 4)
    for name, leaf in mixed.items():
        taken = name in begun and begun[name].shape == leaf.shape
        np.testing.assert_array_equal(leaf, begun[name] if taken else new[name])


@pytest.mark.parametrize(
    ("env", "agent", "entry", "more"),
    [
        ("toy:catch", "pqn", "steps", {}),
        ("toy:catch", "dqn", "steps", {"epsilon_steps": 100}),
        ("toy:catch", "vtrace", "entropy", {"target_entropy": 0.5, "entropy_cost": 0.3}),
        ("Pendulum-v1", "sac", "entropy", {"entropy_cost": 0.3}),
    ],
)
def test_what_a_setting_begins_is_begun_by_this_runs_setting(
    env: str, agent: str, entry: str, more: dict[str, Any], tmp_path: Path
) -> None:
    other = {name: 0.7 if name == "entropy_cost" else value for name, value in more.items()}
    source = untrained(env, tmp_path / "source", agent=agent, **other)
    fresh = agent_of(env, tmp_path / "run", agent=agent, **more)
    warm, line = warm_started(fresh, source)
    root = jax.random.key(5)
    assert warm.init(root)[entry] == fresh.init(root)[entry]
    assert f"these begin anew: {entry} float32[]" in line


def test_an_agent_of_a_population_begins_alike_but_for_what_its_own_setting_begins(tmp_path: Path) -> None:
    def agent(folder: str, **more: Any) -> Agent:
        return agent_of("toy:catch", tmp_path / folder, target_entropy=0.5, **more)

    warm, _ = warm_started(agent("run"), untrained("toy:catch", tmp_path / "source"))
    other = agent("other", entropy_cost=0.7)
    begun, root = begun_alike(other, warm).init(jax.random.key(5)), jax.random.key(5)
    assert begun["entropy"] == other.init(root)["entropy"] != warm.init(root)["entropy"]
    flat, first = flatten(begun), flatten(warm.init(root))
    assert [*flat] == [*first]
    assert same(first, flat) == [name for name in flat if name != "entropy"]


def test_what_has_no_place_in_the_new_run_is_named(tmp_path: Path) -> None:
    source = untrained("Pendulum-v1", tmp_path / "source", agent="ppo", normalize_observations=True)
    _, line = warm_started(agent_of("Pendulum-v1", tmp_path / "run", agent="ppo"), source)
    assert "; these have no place in this run: observations/observation/" in line


def test_a_run_of_which_nothing_fits_and_no_run_are_refused(tmp_path: Path) -> None:
    source = untrained("toy:catch", tmp_path / "source", agent="dqn", hidden=(5,))
    with pytest.raises(ConfigError, match=r"none of its \d+ arrays fits .* --network"):
        warm_started(agent_of("toy:catch", tmp_path / "run"), source)
    with pytest.raises(ConfigError, match="not a run folder"):
        warm_started(agent_of("toy:catch", tmp_path / "run"), tmp_path)


@pytest.mark.parametrize(
    ("arch", "more"),
    [
        ("seed", {"transport": "inproc", "actors": 1}),
        ("anakin", {"sweep": ("entropy_cost=0.01,0.02",)}),
        *thorough(
            ("a3c", {"agent": "a2c"}),
            ("anakin", {}),
            ("gorila", {"agent": "dqn", "actors": 1, "replay_min_size": 20}),
        ),
    ],
)
def test_a_run_begins_with_them_under_any_architecture_and_resumes_without(
    arch: str, more: dict[str, Any], tmp_path: Path
) -> None:
    env = "gymnax:CartPole-v1"
    agent = {name: more[name] for name in ("agent", "replay_min_size") if name in more}
    source = untrained(env, tmp_path / "source", **agent)
    settings = {"learning_rate": 1e-12, "frames": 200, "init_from": str(source), **more}
    summary = train(tiny(env, tmp_path / "run", arch=arch, **settings))
    assert summary.weights_version > 0
    assert same(kept(source), kept(tmp_path / "run")) == [*kept(source)]
    if arch == "seed":
        source.rename(tmp_path / "moved")
        assert resume(str(tmp_path / "run"), frames=400).env_frames >= 400


def test_nothing_is_imported_to_compare_policies(tmp_path: Path) -> None:
    source = untrained("toy:catch", tmp_path / "source")
    record = json.loads((source / "config.json").read_text())
    (source / "config.json").write_text(json.dumps({**record, "env": "no_such_module:World"}))
    config = tiny("toy:catch", tmp_path / "run")
    require_same_policies(config, spec_of("toy:catch"), source)
