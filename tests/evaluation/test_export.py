"""A policy in a file for programs without Seedbed: it decides as the policy does."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from untrained import untrained

import seedbed
from seedbed.errors import ConfigError
from seedbed.evaluation.export import FORMATS, function_of
from seedbed.evaluation.policy import Policy
from seedbed.types import ArraySpec, leaves, rebuild

RUNS: dict[str, tuple[str, dict[str, Any]]] = {
    "mlp": ("toy:catch", {"agent": "vtrace"}),
    "pictures": ("toy:catch", {"agent": "vtrace", "env_options": ("cell_pixels=8",), "network": "nature"}),
    "deep": ("toy:catch", {"agent": "a2c", "env_options": ("cell_pixels=8",), "network": "deep", "lstm": 8}),
    "tiny": ("toy:catch", {"agent": "dqn", "env_options": ("cell_pixels=2",), "network": "tiny"}),
    "memory": ("toy:memory", {"agent": "ppo", "lstm": 8, "previous_action": True, "previous_reward": True}),
    "continuous": ("Pendulum-v1", {"agent": "ppo", "normalize_observations": True}),
    "values": ("toy:catch", {"agent": "dqn"}),
    "sequences": ("toy:memory", {"agent": "r2d2", "lstm": 8, "burn_in": 2}),
    "stack": ("ALE/Pong-v5", {"agent": "vtrace", "network": "tiny"}),
}
"""Environment and settings of runs, by a name of what is shown."""
STEPS, BATCH = 20, 50
"""1,000 observations."""

Call = Callable[[list[Any]], list[Any]]


def opened(path: Path) -> Call:
    """The function in a file."""
    if path.suffix == ".stablehlo":
        call = jax.export.deserialize(bytearray(path.read_bytes())).call
        return lambda arrays: [np.asarray(x) for x in call(*arrays)]
    import onnxruntime

    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    names = [one.name for one in session.get_inputs()]
    return lambda arrays: session.run(None, dict(zip(names, arrays, strict=True)))


def shown(spec: Any, random: np.random.Generator) -> Any:
    """A batch of observations, drawn at random."""

    def draw(leaf: ArraySpec) -> Any:
        low, high = (np.clip(bound, -9, 255) for bound in leaf.bounds)
        drawn = random.uniform(low, high, (BATCH, *leaf.shape))
        return (drawn if np.dtype(leaf.dtype).kind == "f" else np.round(drawn)).astype(leaf.dtype)

    return rebuild(spec, [draw(leaf) for _, leaf in leaves(spec)])


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("name", RUNS)
def test_it_decides_as_the_policy_does(name: str, form: str, tmp_path: Path) -> None:
    env, settings = RUNS[name]
    folder = untrained(env, tmp_path / "run", **settings)
    call = opened(seedbed.export(folder, format=form))
    policy = seedbed.load(folder, greedy=True)
    arrays = function_of(policy).example(BATCH)
    steps, random = len(arrays) - len(leaves(policy.agent.initial_state(1))), np.random.default_rng(1)
    state, alike = None, []
    for step in range(STEPS):
        observation, reward = shown(policy.observation_spec, random), random.normal(size=BATCH).astype("float32")
        first = random.random(BATCH) < 0.2 if step else np.ones(BATCH, bool)
        action, state = policy.act(observation, state, reward=reward, first=first)
        arrays[:steps] = [*(leaf for _, leaf in leaves(observation)), reward, first]
        exported, *after = call(arrays)
        arrays[steps:] = after
        assert exported.dtype == action.dtype and exported.shape == action.shape
        for (path, mine), theirs in zip(leaves(state.agent), after, strict=True):
            np.testing.assert_allclose(np.asarray(mine), theirs, atol=1e-4, err_msg=path)
        near = np.isclose(exported, action, atol=1e-4)
        alike.append(near if action.ndim == 1 else near.all(-1))
        # Where two actions are as good as each other they go on with different states.
        arrays[steps:] = [np.asarray(leaf) for _, leaf in leaves(state.agent)]
    assert np.mean(alike) >= 0.999
