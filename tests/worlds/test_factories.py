"""Worlds that break a rule of the border, row by row: the module, and what is said of it (or None: it trains)."""

import contextlib
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

from seedbed.envs.make import make
from seedbed.errors import ConfigError, SpecError
from seedbed.testing.environments import check_environment

WORLD = """
import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv
from gymnasium.wrappers import TimeLimit


class World(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (2,), np.float32)
    action_space = gymnasium.spaces.Box(-1, 1, (1,), np.float32)

    def __init__(self, size=2):
        self.observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (size,), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.at, self.way = self.np_random.random(self.observation_space.shape).astype(np.float32), 0
        return self.at, {}

    def step(self, action):
        self.at, self.way = self.at + action, self.way + 1
        return self.at, 1.0, bool(self.np_random.random() < 0.2), False, {"way": np.zeros(self.way)}


class Quiet(World):
    def step(self, action):
        return *super().step(action)[:4], {}


THE_WORLD = World()
THE_BATCH = SyncVectorEnv([World, World])


def new():
    return World()


def same():
    return THE_WORLD


def wrapped():
    return TimeLimit(THE_WORLD, 5)


def batch_of_the_same(num_envs):
    return SyncVectorEnv([lambda: THE_WORLD] * num_envs)


def same_batch():
    return THE_BATCH


SIZES = iter([2, 3, 2, 3])


def unequal():
    return World(next(SIZES))


class GoingOn(SyncVectorEnv):
    # Begins no new episode: it goes on behind the end.
    def step(self, actions):
        self._autoreset_envs[:] = False
        return super().step(actions)


def going_on(num_envs, mode="Disabled", says="NextStep"):
    env = GoingOn([Quiet] * num_envs, autoreset_mode=mode)
    env.metadata["autoreset_mode"] = AutoresetMode(says)
    return env


def batch(num_envs, mode="NextStep", says="NextStep"):
    env = SyncVectorEnv([Quiet] * num_envs, autoreset_mode=mode)
    env.metadata["autoreset_mode"] = AutoresetMode(says)
    return env
"""


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A current directory with a module ``factories``."""
    (tmp_path / "factories.py").write_text(WORLD)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield
    sys.modules.pop("factories", None)


def make_closing(env_id: str, num_envs: int) -> contextlib.closing[Any]:
    return contextlib.closing(make(env_id, num_envs))


@pytest.mark.parametrize("factory", ["new", "World", "batch"])
def test_a_factory_that_keeps_the_rules(factory: str) -> None:
    check_environment(f"factories:{factory}", steps=100)


@pytest.mark.parametrize("factory", ["same", "wrapped", "batch_of_the_same"])
def test_the_same_object_twice_is_refused(factory: str) -> None:
    with pytest.raises(
        ConfigError, match="returned the same object twice, and every environment needs one of its own"
    ):
        make(f"factories:{factory}", 2)


@pytest.mark.parametrize("factory", ["same", "wrapped"])
def test_the_same_object_in_both_halves_of_an_actor_is_refused(factory: str) -> None:
    with make_closing(f"factories:{factory}", 1), pytest.raises(ConfigError, match="same object twice"):
        make(f"factories:{factory}", 1)
    make(f"factories:{factory}", 1).close()  # nobody has it any more


def test_the_same_batch_twice_is_refused() -> None:
    with make_closing("factories:same_batch", 2), pytest.raises(ConfigError, match="same object twice"):
        make("factories:same_batch", 2)


def test_a_registered_id_that_gives_the_same_object_is_refused() -> None:
    make("factories:same", 1).close()
    gymnasium.register("TheSame-v0", sys.modules["factories"].same)
    try:
        with pytest.raises(ConfigError, match="TheSame-v0 returned the same object twice"):
            make("TheSame-v0", 2)
    finally:
        gymnasium.registry.pop("TheSame-v0")


def test_a_batch_that_was_dropped_and_not_closed_gives_its_objects_back() -> None:
    make("factories:new", 2)
    make("factories:new", 2).close()


def test_environments_of_one_batch_have_equal_spaces() -> None:
    with pytest.raises(
        (SpecError, ConfigError), match="observations of the environments of one batch differ"
    ):
        make("factories:unequal", 2)


def test_info_that_fits_into_no_array_is_left_out() -> None:
    with make_closing("factories:new", 3) as env:
        env.reset(1)
        for _ in range(20):
            env.send(np.zeros((3, 1), np.float32))
            env.receive()


# -- autoreset ----------------------------------------------------------------------------------------------------

REMEDY = "autoreset_mode='NextStep'"
VECTOR_REMEDY = "vector_kwargs={'autoreset_mode': 'NextStep'}"


@pytest.mark.parametrize("mode", ["SameStep", "Disabled"])
def test_another_mode_is_refused_with_remedies_that_work(mode: str) -> None:
    with pytest.raises(ConfigError, match=f"autoreset mode {mode}; Seedbed needs NextStep") as error:
        make("factories:batch", 2, {"mode": mode, "says": mode})
    assert f"SyncVectorEnv or AsyncVectorEnv {REMEDY}, or gymnasium.make_vec {VECTOR_REMEDY}" in str(
        error.value
    )


def test_the_remedies_work_as_they_are_typed() -> None:
    from gymnasium.vector import SyncVectorEnv

    from seedbed.envs.standard import GymnasiumBatch

    make_one = "lambda: gymnasium.make('CartPole-v1')"
    names = {"gymnasium": gymnasium, "SyncVectorEnv": SyncVectorEnv}
    for text in (
        f"SyncVectorEnv([{make_one}], {REMEDY})",
        f"gymnasium.make_vec('CartPole-v1', 2, 'sync', {VECTOR_REMEDY})",
    ):
        GymnasiumBatch("mine", eval(text, names)).close()


LIES = [
    (
        "batch",
        "SameStep",
        AssertionError,
        "final action rule.*observation differ.*take none (autoreset mode NEXT_STEP)",
    ),
    (
        "batch",
        "Disabled",
        AssertionError,
        "failed in receive(): AssertionError",
    ),  # SyncVectorEnv notices it itself
    ("going_on", "Disabled", AssertionError, "final action rule.*observation differ"),
]


@pytest.mark.parametrize(("factory", "mode", "error", "words"), LIES)
def test_a_lie_about_the_mode_is_noticed(factory: str, mode: str, error: type[Exception], words: str) -> None:
    says = {"mode": mode, "says": "NextStep"}
    with pytest.raises(error, match=re.escape(words).replace(r"\.\*", ".*")):
        check_environment(lambda n: make(f"factories:{factory}", n, says), steps=100)


def test_a_lie_about_the_mode_of_gymnasiums_own_environment_is_noticed() -> None:
    def lying(num_envs: int):
        from gymnasium.vector import AutoresetMode, SyncVectorEnv

        from seedbed.envs.standard import GymnasiumBatch

        env = SyncVectorEnv([lambda: gymnasium.make("CartPole-v1")] * num_envs, autoreset_mode="SameStep")
        env.metadata["autoreset_mode"] = AutoresetMode.NEXT_STEP
        return GymnasiumBatch("lying", env)

    with pytest.raises(AssertionError, match="final action rule"):
        check_environment(lying, steps=200)
