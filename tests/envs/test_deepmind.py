"""Environments of DeepMind's interface: what becomes of their specs, ends and seeds; and that they are learned."""

from __future__ import annotations

import importlib.util
import os
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import seedbed
from seedbed.envs.make import make, spec_of
from seedbed.errors import ConfigError, EnvironmentFault
from seedbed.testing.environments import check_environment, record, sample_actions
from seedbed.types import leaves

MINE = "dm_env:deepmind_worlds"
HERE = str(Path(__file__).parents[1])
# bsuite's own where it is installed, and the same tasks in small where it is not.
BSUITE = importlib.util.find_spec("bsuite") is not None
CATCH = "dm_env:bsuite.environments.catch:Catch" if BSUITE else f"{MINE}:Catch"
MEMORY = "dm_env:bsuite.environments.memory_chain:MemoryChain" if BSUITE else f"{MINE}:MemoryChain"


@pytest.mark.parametrize(
    ("env_id", "options"),
    [
        (CATCH, {}),
        (MEMORY, {"memory_length": 3}),
        (f"{MINE}:Catch", {"rows": 6}),
        (f"{MINE}:MemoryChain", {}),
        (f"{MINE}:Walled", {"columns": 3}),
        (f"{MINE}:shows", {"observation": "nested"}),
    ],
)
def test_the_contract(env_id: str, options: dict[str, Any]) -> None:
    check_environment(lambda n: make(env_id, n, options), steps=60)


def test_a_mask_is_one() -> None:
    mask = spec_of(f"{MINE}:Walled").action_mask
    assert mask is not None and mask.shape == (3,)


SHOWN = {
    "array": {"": ("float32", (3,), (), ())},
    "scalar": {"": ("float32", (), (), ())},
    "bytes": {"": ("uint8", (8, 8, 3), (), ())},
    "truth": {"": ("bool", (2,), (), ())},
    "bounded": {"": ("float32", (2,), (-1, 0), (1, 5))},
    "whole": {"": ("int32", (2,), (-3,), (9,))},
    "nested": {
        "parts/0": ("int32", (), (), ()),
        "parts/1": ("bool", (1,), (), ()),
        "position": ("float32", (2,), (), ()),
    },
    "choice": {"": ("int32", (), (), ())},
}


@pytest.mark.parametrize("observation", SHOWN)
def test_specs_of_observations(observation: str) -> None:
    spec = spec_of(f"{MINE}:shows", {"observation": observation})
    found = {path: (leaf.dtype, leaf.shape, leaf.low, leaf.high) for path, leaf in leaves(spec.observation)}
    assert found == SHOWN[observation]
    check_environment(lambda n: make(f"{MINE}:shows", n, {"observation": observation}), num_envs=2, steps=10)


@pytest.mark.parametrize(
    ("action", "num_values", "low", "high"),
    [
        ("reals", (), (-1, 2), (1, 3)),
        ("choice", (3,), (), ()),
        ("whole", (3,), (), ()),
        ("several", (2, 3), (), ()),
        ("free", (), (-np.inf, -np.inf), (np.inf, np.inf)),
    ],
)
def test_specs_of_actions(action: str, num_values: Any, low: Any, high: Any) -> None:
    spec = spec_of(f"{MINE}:takes", {"action": action}).action
    assert (spec.num_values, spec.low, spec.high) == (num_values, low, high)
    # The world itself says whether an action is one of its own.
    check_environment(lambda n: make(f"{MINE}:takes", n, {"action": action}), num_envs=2, steps=10)


REFUSED = [
    ("shows", {"observation": "text"}, "observation is of StringArray"),
    ("shows", {"observation": "deep text"}, "observation a is of StringArray"),
    ("takes", {"action": "dict"}, "actions of 2 parts are not supported: let the factory return"),
    ("takes", {"action": "endless"}, "have no bounds: a dm_env.specs.BoundedArray is needed"),
    ("takes", {"action": "text"}, "action is of StringArray"),
    ("nothing", {}, "returned a object; it must return a dm_env.Environment (no reset, step"),
    ("the_same", {}, "returned the same object twice"),
    ("Catch", {"row": 3}, "did you mean rows"),
    ("Cach", {}, "did you mean Catch"),
]


@pytest.mark.parametrize(("factory", "options", "words"), REFUSED)
def test_what_cannot_be_taken(factory: str, options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError) as error:
        make(f"{MINE}:{factory}", 2, options)
    assert words in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(("discount", "terminated"), [(0.0, True), (1.0, False), (0.9, False)])
def test_the_discount_tells_a_termination_from_a_truncation(discount: float, terminated: bool) -> None:
    with closing(make(f"{MINE}:ends", 1, {"discount": discount})) as env:
        steps = record(env, 1, sample_actions(env.spec.action, 1, 10, 1)).steps
    ends = [(bool(step.terminated[0]), bool(step.truncated[0]), bool(step.first[0])) for step in steps]
    last = (terminated, not terminated, False)
    within, first = (False, False, False), (False, False, True)
    assert ends == [first, within, within, within, last] * 2 + [first]


@pytest.mark.parametrize("discount", [float("nan"), None, -0.5, 1.5, float("inf"), "x", [0.5, 0.5]])
def test_a_last_discount_that_is_none_is_a_fault(discount: Any) -> None:
    with closing(make(f"{MINE}:ends", 2, {"discount": discount}, first=4)) as env:
        env.reset(1)
        with pytest.raises(
            EnvironmentFault, match=r"environment 4: the discount .* must be a number from 0 "
        ):
            for _ in range(4):
                env.send(np.zeros(2, np.int32))
                env.receive()


@pytest.mark.parametrize("reward", [None, [1.0, 2.0]])
def test_a_reward_that_is_no_number_is_a_fault(reward: Any) -> None:
    with closing(make(f"{MINE}:rewards", 1, {"reward": reward})) as env:
        env.reset(1)
        env.send(np.zeros(1, np.int32))
        with pytest.raises(EnvironmentFault, match="step\\(\\) gave the reward as"):
            env.receive()


def test_each_environment_is_closed_once() -> None:
    import deepmind_worlds

    deepmind_worlds.the_same().closed = 0
    for closed in (1, 2):  # it is free again
        with closing(make(f"{MINE}:the_same", 1)):
            pass
        assert deepmind_worlds.the_same().closed == closed


def test_those_that_were_made_are_closed_if_another_cannot_be() -> None:
    import deepmind_worlds

    deepmind_worlds.the_same().closed = 0
    with pytest.raises(ConfigError, match="the same object twice"):
        make(f"{MINE}:the_same", 2)
    assert deepmind_worlds.the_same().closed == 1


def test_a_picture_is_that_of_the_physics() -> None:
    with closing(make(f"{MINE}:Drawn", 2, render=True)) as env:
        env.reset(1)
        assert env.render().shape == (240, 320, 3)
        assert env.render()[0, 0, 0] == 1
    with (
        closing(make(f"{MINE}:Catch", 2, render=True)) as env,
        pytest.raises(EnvironmentFault, match="gives no picture"),
    ):
        env.reset(1)
        env.render()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("env_id", "settings"),
    [
        (CATCH, {"preset": "catch", "transport": "shm", "until_return": 0.95, "frames": 300_000}),
        (
            MEMORY,
            {
                "preset": "memory",
                "env_options": {"memory_length": 3},
                "lstm": 32,
                "until_return": 0.95,
                "frames": 100_000,
            },
        ),
    ],
    ids=["catch", "memory"],
)
def test_bsuites_tasks_are_learned(
    env_id: str, settings: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([HERE, os.environ.get("PYTHONPATH", "")]))
    config = seedbed.configure(env_id, run_dir=str(tmp_path / "run"), video=False, **settings)
    summary = seedbed.train(config).to_json()
    assert summary["best_mean_return"] >= 0.95, summary
