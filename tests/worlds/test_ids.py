"""Ids of environments, row by row: as they are typed in a folder with a module, and what is made or said."""

import sys
from collections.abc import Iterator
from pathlib import Path

import gymnasium
import pytest

from seedbed.envs.make import spec_of
from seedbed.errors import ConfigError

WORLD = """
import gymnasium
from gymnasium.envs.classic_control import CartPoleEnv


class Sides(CartPoleEnv):
    pass


gymnasium.register("Mine/Sides-v0", Sides)
gymnasium.register("Mine/Sides-v10", lambda **options: CartPoleEnv())
gymnasium.register("Mine/Sides-v9", Sides)
"""
CALLED = """
import gymnasium


def register_all():
    gymnasium.register("Called-v0", "gymnasium.envs.classic_control:CartPoleEnv")
"""


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    (tmp_path / "id_worlds.py").write_text(WORLD)
    (tmp_path / "called_worlds.py").write_text(CALLED)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path])
    yield
    for env_id in ("Mine/Sides-v0", "Mine/Sides-v9", "Mine/Sides-v10", "Called-v0"):
        gymnasium.registry.pop(env_id, None)
    for module in ("id_worlds", "called_worlds"):
        sys.modules.pop(module, None)


@pytest.mark.parametrize(
    "env_id",
    ["id_worlds:Mine/Sides-v0", "id_worlds:Mine/Sides", "id_worlds:Sides", "CartPole", "CartPole-v1"],
)
def test_an_id_that_is_made(env_id: str) -> None:
    spec = spec_of(env_id)
    assert (spec.id, spec.observation.shape) == (env_id, (4,))


def test_the_newest_version_is_made_where_none_is_given() -> None:
    spec_of("id_worlds:Mine/Sides")  # v10 takes any option, and the others take none
    with pytest.raises(ConfigError, match="unknown option"):
        spec_of("id_worlds:Mine/Sides-v9", {"speed": 1})
    assert spec_of("id_worlds:Mine/Sides", {"speed": 1}).observation.shape == (4,)


UNKNOWN = [
    (
        "id_worlds:Mine/Side-v0",
        "unknown environment of id_worlds 'Mine/Side-v0': did you mean Mine/Sides-v0 or Mine/Sides-v10 or Mine",
    ),
    ("id_worlds:Xyz-v0", "of id_worlds 'Xyz-v0': known are Mine/Sides-v0, Mine/Sides-v10, Mine/Sides-v9"),
    (
        "called_worlds:Called-v0",
        "If it does so by a call, write a factory, for instance in my_world.py, and give my_world",
    ),
    ("no_worlds:Called-v0", "module 'no_worlds' cannot be imported"),
    ("CartPole-v9", "did you mean CartPole-v1"),
    ("Cart Pole", "did you mean CartPole-v1"),
    ("pong", "did you mean ALE/Pong-v5?"),
    ("cartpole", "did you mean CartPole-v1 or CartPole-v0"),
    ("ANT-V9", "did you mean Ant-v5"),
    ("qbert-v0", "did you mean ALE/Qbert-v5?"),
    ("MiniGrid-Empty-5x5-v0", "the package minigrid: install it, and write minigrid:MiniGrid-Empty-5x5-v0"),
    ("highway-fast-v0", "the package highway-env: install it, and write highway_env:highway-fast-v0"),
    ("FlappyBird-v0", "flappy_bird_gymnasium:FlappyBird-v0"),
    ("PointMaze_UMaze-v3", "gymnasium_robotics:PointMaze_UMaze-v3"),
    ("gym_pusht/PushT-v0", "gym_pusht:gym_pusht/PushT-v0"),
    ("minecart-v0", "mo_gymnasium:minecart-v0"),
]


@pytest.mark.parametrize(("env_id", "words"), UNKNOWN, ids=[row[0] for row in UNKNOWN])
def test_an_id_that_there_is_not(env_id: str, words: str) -> None:
    for _ in range(2):  # also where the module was imported before
        with pytest.raises(ConfigError) as error:
            spec_of(env_id)
        assert words in str(error.value)
        assert "\n" not in str(error.value)


def test_the_factory_that_is_advised_works(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as error:
        spec_of("called_worlds:Called-v0")
    advised = str(error.value).partition("as the environment: ")[2].replace("REGISTER", "register_all")
    (tmp_path / "my_world.py").write_text("\n".join(advised.split("; ")))
    assert spec_of("my_world:make").observation.shape == (4,)
    sys.modules.pop("my_world")
