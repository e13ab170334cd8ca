import sys

import numpy as np
import pytest

from seedbed.envs.make import make
from seedbed.errors import ConfigError, EnvironmentFault
from seedbed.testing.environments import check_environment

WORLD = """
import gymnasium
import numpy as np
from gymnasium import spaces


class Nested(gymnasium.Env):
    '''A dict of arrays to look at, a pair of choices to make; ends in a random number of steps.'''

    metadata = {"render_modes": ["rgb_array"]}

    def __init__(self, size=2, render_mode=None, fault=None):
        self.render_mode, self.fault = render_mode, fault
        self.observation_space = spaces.Dict({
            "vector": spaces.Box(0, 1, (size,), np.float64),
            "pair": spaces.Tuple((spaces.Discrete(4, start=1), spaces.MultiBinary(2))),
        })
        self.action_space = spaces.MultiDiscrete([3, 2], start=[1, 0])

    def look(self):
        return {
            "vector": self.np_random.random(self.observation_space["vector"].shape),
            "pair": (1 + self.steps % 4, self.np_random.integers(0, 2, 2, dtype=np.int8)),
        }

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return self.look(), {}

    def step(self, action):
        assert self.action_space.contains(action), action
        if self.fault:
            raise ValueError("the world\\nis broken")
        self.steps += 1
        over = bool(self.np_random.random() < 0.2)
        return self.look(), float(action.sum()), over, self.steps == 4, {}

    def render(self):
        return np.zeros((5, 6, 3), np.uint8)


def vector(num_envs, mode="NEXT_STEP"):
    from gymnasium.vector import AutoresetMode, SyncVectorEnv
    return SyncVectorEnv([Nested] * num_envs, autoreset_mode=AutoresetMode[mode])


def fixed():
    return vector(3)


def ours(num_envs):
    from seedbed.envs.toys import Count
    return Count("mine", num_envs)


def nothing():
    return 5


class Gyms:
    def reset(self):
        return np.zeros(1)

    def step(self, action):
        return np.zeros(1), 0.0, False, {}


def anything(**options):
    return Nested(**options)


number = 3
"""


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    """A current directory with a module ``my_world``, as a user has it."""
    (tmp_path / "my_world.py").write_text(WORLD)
    (tmp_path / "broken_world.py").write_text("import a_package_that_is_missing")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [p for p in sys.path if p])
    yield
    sys.modules.pop("my_world", None)


@pytest.mark.parametrize("factory", ["Nested", "vector", "fixed", "ours", "anything"])
def test_own_environments_keep_the_rules(factory):
    check_environment(lambda n: make(f"my_world:{factory}", n), steps=60)


def test_options_reach_the_factory():
    assert make("my_world:Nested", 2, {"size": 5}).spec.observation["vector"].shape == (5,)
    assert make("my_world:anything", 2, {"size": 5}).spec.observation["vector"].shape == (5,)


def test_pictures_are_asked_for():
    env = make("my_world:Nested", 2, render=True)
    env.reset(0)
    assert env.render().shape == (5, 6, 3)


def test_a_fault_names_environment_method_and_cause_in_one_line():
    env = make("my_world:Nested", 2, {"fault": True})
    env.reset(0)
    env.send(np.zeros((2, 2), np.int32))
    with pytest.raises(EnvironmentFault) as error:
        env.receive()
    assert str(error.value) == "my_world:Nested failed in receive(): ValueError: the world is broken"
    assert isinstance(error.value.__cause__, ValueError)


@pytest.mark.parametrize(
    ("env_id", "options", "line"),
    [
        ("nowhere:make", {}, "module 'nowhere' cannot be imported: ModuleNotFoundError.*looked in"),
        ("broken_world:make", {}, "ModuleNotFoundError: No module named 'a_package_that_is_missing'"),
        ("my_world.py:Nested", {}, "write my_world:Nested, in the folder of my_world.py"),
        ("./worlds/my_world.py:Nested", {}, "write my_world:Nested, in the folder of my_world.py"),
        ("__main__:Nowhere", {}, "write Nowhere to a file"),
        ("my_world:Nestd", {}, "unknown name in my_world 'Nestd': did you mean Nested"),
        ("my_world:number", {}, "number is a int; it must be a function or a class"),
        ("my_world:nothing", {}, r"returned a int; it must return a gymnasium.Env.*close\)$"),
        (
            "my_world:Gyms",
            {},
            "no spec, .*as environments of gym had before Gymnasium: .* returns two values",
        ),
        ("my_world:Nested", {"sise": 3}, "unknown option of my_world:Nested 'sise': did you mean size"),
        ("my_world:fixed", {}, "returned a batch of 3 environments; 2 are needed"),
        ("my_world:vector", {"mode": "SAME_STEP"}, "autoreset mode SameStep; Seedbed needs NextStep"),
    ],
)
def test_what_cannot_be_made_says_why(env_id, options, line):
    with pytest.raises(ConfigError, match=line):
        make(env_id, 2, options)
