"""A trained policy, loaded without an environment."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from harness import MUZERO
from untrained import untrained

import seedbed
from seedbed.acting.unrolls import step_arrays
from seedbed.config.resolve import replace
from seedbed.config.variants import VALUES_OF_BEST
from seedbed.envs.make import spec_of
from seedbed.errors import CheckpointError, ConfigError, SpecError
from seedbed.evaluation.observations import batch_of
from seedbed.evaluation.player import Player
from seedbed.evaluation.policy import Policy, PolicyState
from seedbed.launch.folder import RunFolder
from seedbed.learning.checkpoint import Checkpoint
from seedbed.types import ArraySpec, map_leaves

PICTURES = {"env_options": ("cell_pixels=8",), "network": "nature"}
RUNS: dict[str, tuple[str, dict[str, Any]]] = {
    "vtrace": ("toy:catch", {"agent": "vtrace"}),
    "pictures": ("toy:catch", {"agent": "vtrace", **PICTURES}),
    "remembers": (
        "toy:memory",
        {"agent": "ppo", "lstm": 8, "previous_action": True, "previous_reward": True},
    ),
    "continuous": ("Pendulum-v1", {"agent": "ppo", "normalize_observations": True}),
    "values": ("toy:catch", {"agent": "dqn"}),
    "normalized": ("toy:catch", {"agent": "pqn", **PICTURES, "previous_action": True}),
    "masks": ("toy:doors", {"agent": "vtrace"}),
    "masked values": ("toy:doors", {"agent": "dqn"}),
    "sequences": ("toy:memory", {"agent": "r2d2", "lstm": 8, "burn_in": 2}),
    "bounded": ("Pendulum-v1", {"agent": "sac", "normalize_observations": True}),
    "cloned": ("toy:catch", {"agent": "bc", "lstm": 8}),
    "search": ("toy:doors", MUZERO),
}
"""Environment and settings of runs, by a name of what is shown."""


def run(tmp_path: Path, name: str) -> Path:
    env, settings = RUNS[name]
    return untrained(env, tmp_path / name, **settings)


@pytest.mark.parametrize("name", RUNS)
def test_a_batch_is_decided_as_in_evaluation(name: str, tmp_path: Path) -> None:
    folder = run(tmp_path, name)
    player = Player(folder, greedy=True)
    environment = player.make(3)
    policy, state = seedbed.load(folder, greedy=True), None
    for (timestep, output), _ in zip(player.play(environment, 5), range(30), strict=False):
        shown = map_leaves(np.array, timestep.observation)
        action, state = policy.act(shown, state, reward=timestep.reward.copy(), first=timestep.first.copy())
        expected = policy.within(np.asarray(output.action))
        np.testing.assert_array_equal(action, expected)
        assert action.dtype == policy.action_spec.dtype
    environment.close()


def test_one_environment_is_decided_as_a_batch_of_one_and_states_are_kept_apart(tmp_path: Path) -> None:
    policy = seedbed.load(run(tmp_path, "remembers"), greedy=True)
    observations = np.random.default_rng(0).normal(size=(6, *policy.observation_spec.shape))
    alone: PolicyState | None = None
    batch: PolicyState | None = None
    for observation in observations.astype(np.float32):
        action, alone = policy.act(observation, alone, reward=1.0)
        both, batch = policy.act(np.stack([observation, -observation]), batch, reward=[1.0, 0.5])
        assert action.shape == () and both.shape == (2,)
        assert action == both[0]
    assert alone is not None and batch is not None and alone.step == batch.step == 6
    again, _ = policy.act(observations[0].astype(np.float32), alone, first=True, reward=7.0)
    begun, _ = policy.act(observations[0].astype(np.float32))
    assert again == begun, "an episode that begins forgets state and reward"


def test_draws_are_those_of_the_policy_and_follow_the_seed(tmp_path: Path) -> None:
    folder = run(tmp_path, "vtrace")
    observation = np.zeros((4_000, *seedbed.load(folder).observation_spec.shape), np.float32)

    def drawn(seed: int) -> Any:
        return seedbed.load(folder, seed=seed).act(observation)[0]

    policy = seedbed.load(folder)
    state = policy.agent.initial_state(1)
    step = [array[:1] for array in step_arrays(Player(folder).make(1).reset(0))]
    step[0] = observation[:1]
    logits = policy.decide(jax.random.split(jax.random.key(0), 1), step, state)[0].record["policy"][0]
    shares = np.bincount(drawn(1), minlength=3) / len(observation)
    np.testing.assert_allclose(shares, jax.nn.softmax(logits), atol=0.03)
    np.testing.assert_array_equal(drawn(1), drawn(1))
    assert (drawn(1) != drawn(2)).any()


def test_every_episode_has_draws_of_its_own(tmp_path: Path) -> None:
    folder = run(tmp_path, "vtrace")
    policy = seedbed.load(folder, seed=1)
    observation = np.zeros(policy.observation_spec.shape, np.float32)

    def episode(policy: Any) -> list[int]:
        state, taken = None, []
        for _ in range(30):
            action, state = policy.act(observation, state)
            taken.append(int(action))
        return taken

    episodes = [episode(policy) for _ in range(3)]
    assert len(set(map(tuple, episodes))) == 3
    assert len({int(policy.act(observation)[0]) for _ in range(60)}) > 1, "without a state, too"
    again = seedbed.load(folder, seed=1)
    assert [episode(again) for _ in range(3)] == episodes


def test_no_draw_is_a_forbidden_action(tmp_path: Path) -> None:
    policy, random = seedbed.load(run(tmp_path, "masks")), np.random.default_rng(2)
    mask = random.random((2_000, 5)) < 0.4
    action, _ = policy.act({"room": np.zeros((2_000, 8), np.float32), "action_mask": mask})
    some = mask.any(axis=1)
    assert 0 < (~some).sum() < 500
    assert mask[some, action[some]].all()
    assert np.bincount(action, minlength=5).all()


def test_no_environment_is_made_and_no_library_of_environments_imported(tmp_path: Path) -> None:
    folder = untrained("worlds_of_mine:World", tmp_path / "run", like="toy:catch", agent="vtrace")
    program = (
        "import sys, numpy, seedbed\n"
        f"policy = seedbed.load({str(folder)!r})\n"
        "policy.act(numpy.zeros(policy.observation_spec.shape, numpy.float32))\n"
        "heavy = {'gymnasium', 'ale_py', 'pygame'}\n"
        "print(sorted(heavy & {*sys.modules}))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "[]", done.stderr


@pytest.mark.parametrize(
    ("shown", "says"),
    [
        (np.zeros(3, np.float32), r"observation is float32\[3\], needed is float32\[10, 5\]"),
        (np.zeros((0, 10, 5), np.float32), r"float32\[0, 10, 5\]"),
        (np.zeros((2, 2, 10, 5), np.float32), r"float32\[2, 2, 10, 5\]"),
        (np.full((10, 5), "x"), "not those of float32"),
        ({"board": np.zeros((10, 5))}, r"observation is object|needed is"),
    ],
)
def test_an_observation_that_does_not_fit_is_refused(shown: Any, says: str, tmp_path: Path) -> None:
    policy = seedbed.load(run(tmp_path, "vtrace"))
    with pytest.raises(SpecError, match=says):
        policy.act(shown)


@pytest.mark.parametrize(
    ("shown", "spec", "says"),
    [
        (
            5,
            ArraySpec((), "int32", (3,)),
            "values from 5 to 5, and needed are choices from 0 to 2: subtract the start",
        ),
        (
            [[0, 2], [1, -1]],
            ArraySpec((2,), "int32", (3, 2)),
            r"from -1 to 2, and needed are choices from 0 to 2, 1:",
        ),
        ([1.0, 1e300], ArraySpec((2,), "float32"), "numbers that are beyond float32"),
        ([300], ArraySpec((1,), "uint8"), "numbers that uint8 does not have"),
    ],
)
def test_numbers_that_would_become_others_are_refused(shown: Any, spec: ArraySpec, says: str) -> None:
    with pytest.raises(SpecError, match=says):
        batch_of(shown, spec)


@pytest.mark.parametrize(
    ("shown", "spec"),
    [
        (2, ArraySpec((), "int32", (3,))),
        ([[0, 1], [2, 0]], ArraySpec((2,), "int32", (3, 2))),
        ([1.0, np.inf], ArraySpec((2,), "float32")),
    ],
)
def test_numbers_that_stay_the_same_are_taken(shown: Any, spec: ArraySpec) -> None:
    (array,), batch = batch_of(np.array(shown), spec)
    np.testing.assert_array_equal(array if batch else array[0], shown)


def test_other_batches_than_the_state_and_missing_rewards_are_refused(tmp_path: Path) -> None:
    policy = seedbed.load(run(tmp_path, "remembers"))
    observation = np.zeros((2, *policy.observation_spec.shape), np.float32)
    _, state = policy.act(observation)
    with pytest.raises(SpecError, match=r"act\(\.\.\., reward=\.\.\.\)"):
        policy.act(observation, state)
    with pytest.raises(SpecError, match="of 1 environments, and the state of 2"):
        policy.act(observation[:1], state, reward=0.0)


def test_what_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="not a run folder"):
        seedbed.load(tmp_path)
    folder = run(tmp_path, "vtrace")
    (folder / "spec.json").write_text("[]")
    with pytest.raises(ConfigError, match=r"spec\.json is damaged"):
        seedbed.load(folder)
    for file in (folder / "checkpoints").glob("*/train.safetensors"):
        file.write_bytes(b"")
    (folder / "spec.json").unlink()
    with pytest.raises(CheckpointError, match=r"no checkpoint .* is intact"):
        seedbed.load(folder)


def test_the_best_of_several_agents_decides_with_its_own_values(tmp_path: Path) -> None:
    """A search reads its discount: what another agent of the sweep has learned is decided by that one's number."""
    settings: dict[str, Any] = {**MUZERO, "simulations": 16}
    folder = RunFolder.open(untrained("toy:catch", tmp_path / "run", **settings))
    checkpoint, spec = folder.newest(), spec_of("toy:catch")
    swept = dataclasses.replace(checkpoint, meta={**checkpoint.meta, VALUES_OF_BEST: {"discount": 0.1}})
    config = folder.config(None)
    shown = np.random.default_rng(0).normal(size=(256, *spec.observation.shape)).astype(np.float32)

    def actions(discount: float, checkpoint: Checkpoint) -> Any:
        policy = Policy(replace(config, discount=discount), spec, checkpoint, greedy=True)
        return policy.act(shown)[0]

    own, base = actions(0.1, checkpoint), actions(0.99, checkpoint)
    assert (own != base).any(), "the discount decides"
    np.testing.assert_array_equal(actions(0.99, swept), own)
