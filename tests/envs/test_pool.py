"""EnvPool's adapter: its logic against a small stand-in, and the real thing where it is installed."""

import os
import subprocess
import sys
from collections import namedtuple
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
from gymnasium import spaces
from harness import thorough

from seedbed.envs.make import make
from seedbed.envs.seeds import environment_seeds
from seedbed.errors import ConfigError
from seedbed.testing.environments import check_environment

CONFIGS = {
    "Screen-v5": {"num_envs": 1, "batch_size": 0, "num_threads": 0, "seed": 42, "max_num_players": 1,
                  "stack_num": 4, "reward_clip": False, "frame_skip": 4, "max_episode_steps": 6},
    "Doom-v1": {"num_envs": 1, "seed": 42, "num_threads": 0, "max_num_players": 1, "stack_num": 4,
                "use_combined_action": False, "max_episode_steps": 6,
                "reward_config": {"KILLS": (1.0, 0.0), "AMMO": (0.1, -0.1)}, "weapon_reward": {0: 0.0, 1: 0.5}},
    "gfootball/pitch-v1": {"num_envs": 1, "seed": 42, "num_threads": 0, "max_num_players": 1, "max_episode_steps": 6},
    "Party-v1": {"num_envs": 1, "seed": 42, "num_threads": 0, "max_num_players": 4},
    "Pack-v2": {"num_envs": 1, "seed": 42, "num_threads": 0, "max_num_players": 1},
    "Wires-v1": {"num_envs": 1, "seed": 42, "num_threads": 0, "max_num_players": 1},
    "Cube-v0": {"num_envs": 1, "seed": 42, "num_threads": 0, "max_num_players": 1},
    "Craft-AutoReset-v1": {"num_envs": 1, "seed": 42, "num_threads": 0, "max_num_players": 1},
}  # fmt: skip

BOXES = {
    "Pack-v2": ([2, 0], [4, 3], (3, 4)),
    "Wires-v1": ([0, 0], [4, 4], (2, 5)),
    "Cube-v0": ([0, 1], [2, 3], None),
}
"""Least and greatest whole numbers of an action, and the shape of its mask, as Jumanji's tasks have them."""


class FakeEnv:
    """Resets one step after an end, as EnvPool does; its reset steps even have rewards."""

    def __init__(self, spec, num_envs, seed):
        assert len(seed) == num_envs
        self.space, self.config, self.n = spec.gymnasium_observation_space, spec.config, num_envs
        self.random = [np.random.default_rng(s) for s in seed]
        self.steps, self.ended, self.closed = np.zeros(num_envs, int), np.zeros(num_envs, bool), False

    def _look(self):
        low, high = 0, 256
        return np.stack([r.integers(low, high, self.space.shape, np.uint8) for r in self.random])

    def reset(self):
        return self._look(), {"env_id": np.arange(self.n)}

    def send(self, action):
        assert action.shape == (self.n,)
        self.action = action

    def recv(self):
        self.steps = np.where(self.ended, 0, self.steps + 1)
        truncated = self.steps >= self.config.max_episode_steps
        terminated = (self.steps > 0) & (np.array([r.random() for r in self.random]) < 0.1)
        self.ended = terminated | truncated
        reward = np.ones(self.n, np.float32)
        return self._look(), reward, terminated, truncated, {"env_id": np.arange(self.n)}

    def render(self, env_ids):
        return np.zeros((1, 8, 9, 3), np.uint8)

    def close(self):
        self.closed = True


class Puzzle:
    """A task whose action is a box of whole numbers: two of them, of which a mask forbids some."""

    def __init__(self, task, num_envs, seed):
        self.low, self.high, self.shape = BOXES[task]
        self.n, self.random = num_envs, [np.random.default_rng(s) for s in seed]
        self.taken = []

    def reset(self):
        self.steps, self.ended = np.zeros(self.n, int), np.zeros(self.n, bool)
        return self._look(), {"env_id": np.arange(self.n)}

    def send(self, action):
        assert action.shape == (self.n, 2) and action.dtype == np.int32, action
        assert (self.low <= action).all() and (action <= self.high).all(), action
        for row, (mask, numbers) in enumerate(zip(self.mask or (), action - self.low, strict=False)):
            allowed = mask[tuple(numbers)] if self.shape == (3, 4) else mask[range(2), numbers].all()
            assert self.ended[row] or allowed, f"{numbers} is forbidden by {mask}"
        self.taken.append(action)

    def recv(self):
        self.steps = np.where(self.ended, 0, self.steps + 1)
        self.ended = self.steps >= 7
        return (
            self._look(),
            np.ones(self.n, np.float32),
            self.ended,
            self.ended & False,
            {"env_id": np.arange(self.n)},
        )

    def close(self):
        pass

    def _look(self):
        seen = {"board": np.stack([r.random(3, np.float32) for r in self.random])}
        self.mask = None
        if self.shape:
            self.mask = [r.integers(0, 2, self.shape, np.int8) for r in self.random]
            for mask in self.mask:
                mask[..., 1] = 1
            seen["action_mask"] = np.stack(self.mask)
        return seen


class FakeEnvPool(ModuleType):
    def __init__(self):
        super().__init__("envpool")
        self.made = []

    def list_all_envs(self):
        return list(CONFIGS)

    def make_spec(self, task, **settings):
        settings.pop("render_mode", None)
        config = {**CONFIGS[task], **settings}
        if task in BOXES:
            low, high, shape = BOXES[task]
            seen = {"board": spaces.Box(0, 1, (3,), np.float32)}
            if shape:
                seen["action_mask"] = spaces.Box(0, 1, shape, np.int8)
            return SimpleNamespace(
                config=namedtuple("Config", config)(**config),
                gymnasium_observation_space=spaces.Dict(seen),
                gymnasium_action_space=spaces.Box(
                    np.array(low, np.int32), np.array(high, np.int32), dtype=np.int32
                ),
            )
        shape = (72, 96, 4) if task == "gfootball/pitch-v1" else (config.get("stack_num", 1) * 3, 8, 8)
        raw = "use_combined_action" in config and not config["use_combined_action"]
        return SimpleNamespace(
            config=namedtuple("Config", config)(**config),
            gymnasium_observation_space=spaces.Box(0, 255, shape, np.uint8),
            gymnasium_action_space=spaces.Box(1e-308, 1e308, (3,), np.float64) if raw else spaces.Discrete(5),
        )

    def make(self, task, *, env_type, num_envs, seed, **settings):
        assert env_type == "gymnasium"
        if task in BOXES:
            self.made.append(Puzzle(task, num_envs, seed))
            return self.made[-1]
        env = FakeEnv(self.make_spec(task, **settings), num_envs, seed)
        self.made.append((env, settings))
        return env


@pytest.fixture
def fake(monkeypatch):
    module = FakeEnvPool()
    monkeypatch.setitem(sys.modules, "envpool", module)
    return module


@pytest.mark.parametrize("task", ["Screen-v5", "Doom-v1", "gfootball/pitch-v1"])
def test_a_pool_keeps_the_rules(fake, task):
    check_environment(f"envpool:{task}", steps=60)
    assert all(env.closed for env, _ in fake.made)


@pytest.mark.parametrize(
    ("task", "values", "mask"), [("Pack-v2", (12,), 12), ("Wires-v1", (5, 5), 10), ("Cube-v0", (3, 3), None)]
)
def test_a_box_of_whole_numbers_is_choices_and_its_mask_has_one_axis(fake, task, values, mask):
    check_environment(f"envpool:{task}", steps=60)
    spec = make(f"envpool:{task}", 2).spec
    assert spec.action.num_values == values
    if mask is not None:
        assert spec.observation["action_mask"].shape == (mask,)


def test_combinations_are_counted_as_their_mask_is(fake):
    env = make("envpool:Pack-v2", 2)
    seen = env.reset(3).observation["action_mask"]
    (puzzle,) = fake.made
    rows = [int(np.flatnonzero(row)[-1]) for row in seen]
    np.testing.assert_array_equal(seen.reshape(2, 3, 4), puzzle.mask)
    env.send(np.array(rows, np.int32))
    env.receive()
    np.testing.assert_array_equal(puzzle.taken[-1], [[2 + row // 4, row % 4] for row in rows])


def test_a_task_that_resets_itself_is_refused_and_the_other_one_named(fake):
    with pytest.raises(ConfigError, match=r"begins its next episode by itself.*: give envpool:Craft-v1"):
        make("envpool:Craft-AutoReset-v1", 1)


def test_one_picture_travels_and_the_stack_is_announced(fake):
    spec = make("envpool:Screen-v5", 1).spec
    assert (spec.observation.shape, spec.frame_stack, spec.frames_per_step) == ((8, 8, 3), 4, 4)
    assert make("envpool:Screen-v5", 1, {"frame_stack": 2, "frame_skip": 1}).spec.frames_per_step == 1
    pitch = make("envpool:gfootball/pitch-v1", 1, {"frame_stack": 4}).spec
    assert (pitch.observation.shape, pitch.frame_stack) == ((72, 96, 4), 4)


def test_footballs_variables_exist_before_its_threads_set_them(fake, monkeypatch):
    names = ("GFOOTBALL_DATA_DIR", "GFOOTBALL_FONT", "MESA_GL_VERSION_OVERRIDE", "MESA_GLSL_VERSION_OVERRIDE")
    for name in names:
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    monkeypatch.setenv("GFOOTBALL_FONT", "mine")
    make("envpool:Screen-v5", 1).reset(0)
    assert not {"GFOOTBALL_DATA_DIR"} & set(os.environ)
    make("envpool:gfootball/pitch-v1", 1).reset(0)
    assert [os.environ[name] for name in names] == ["", "mine", "", ""]


def test_pictures_are_turned_not_reshaped(fake):
    env = make("envpool:Screen-v5", 2)
    shown = env.reset(1).observation
    again = FakeEnv(fake.make_spec("Screen-v5", stack_num=1), 2, environment_seeds(1, 2)).reset()[0]
    np.testing.assert_array_equal(shown, np.moveaxis(again, 1, -1))


def test_settings(fake):
    env = make("envpool:Doom-v1", 1, {"max_episode_steps": 9}, render=True)
    assert env.spec.action.num_values == (5,)
    env.reset(0)
    assert fake.made[-1][1] == {
        "num_threads": 1,
        "use_combined_action": True,
        "max_episode_steps": 9,
        "stack_num": 1,
        "render_mode": "rgb_array",
    }
    assert env.render().shape == (8, 9, 3)


def test_tables_are_changed_in_part(fake):
    options = {"reward_config": {"AMMO": [0, -1]}, "weapon_reward": {"1": -0.01}}
    make("envpool:Doom-v1", 1, options).reset(0)
    settings = fake.made[-1][1]
    assert settings["reward_config"] == {"KILLS": (1.0, 0.0), "AMMO": (0, -1)}
    assert settings["weapon_reward"] == {0: 0.0, 1: -0.01}


@pytest.mark.parametrize(
    ("task", "options", "line"),
    [
        ("Scren-v5", {}, "unknown EnvPool task 'Scren-v5': did you mean Screen-v5"),
        (
            "Screen-v5",
            {"frame_skp": 1},
            "unknown option of envpool:Screen-v5 'frame_skp': did you mean frame_skip",
        ),
        ("Screen-v5", {"stack_num": 1}, "did you mean frame_stack"),
        ("Screen-v5", {"reward_clip": True}, "give --reward-clip 1, which clips in the loss alone"),
        ("Screen-v5", {"seed": 1}, "unknown option of envpool:Screen-v5 'seed'"),
        ("Party-v1", {}, "has several players"),
        ("Doom-v1", {"frame_stack": 0}, "frame_stack is 0"),
        ("Doom-v1", {"weapon_reward": 5}, "weapon_reward is 5: it must be a table"),
        ("Doom-v1", {"weapon_reward": {"2": 5}}, "unknown entry of weapon_reward '2'"),
    ],
)
def test_what_cannot_be_made_says_why(fake, task, options, line):
    with pytest.raises(ConfigError, match=line):
        make(f"envpool:{task}", 1, options)


def test_without_the_extra_the_message_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "envpool", None)
    with pytest.raises(ConfigError, match=r"pip install -c constraints.txt -e '\.\[envpool\]'"):
        make("envpool:Pong-v5", 1)


ONE_OF_EACH_SUITE = (
    "CarRacing-v3",
    "Craftax-Classic-Symbolic-v1",
    "Highway-v0",
    "BinPack-v2",  # Jumanji: a mask of combinations
    "Connector-v3",  # Jumanji: a mask for each choice
    "MarlGrid-1AgentCluttered15x15-v0",
    "AcrobotSwingup-v1",  # dm_control
    "DmcCmuHumanoidRunWalls-v1",
    "Ant-v5",
    "MetaWorld/Assembly-v3",
    "Mjlab-Cartpole-Balance-v0",
    "MyoHandAirplaneFixed-v0",
    "AlohaHandOver-v1",  # Playground
    "FetchReach-v1",
    "BigfishEasy-v0",
    "Catch-v0",
)
PROGRAM = """
import sys

from seedbed.envs.make import make
from seedbed.testing.environments import check_environment

task, options, steps = sys.argv[1], eval(sys.argv[2]), int(sys.argv[3])
check_environment(lambda n: make(f"envpool:{task}", n, options), steps=steps)
"""


@pytest.mark.parametrize(
    ("task", "options", "steps"),
    [
        ("Breakout-v5", {"episodic_life": True}, 120),
        ("MiniGrid-Empty-5x5-v0", {}, 120),
        *thorough(
            ("CartPole-v1", {}, 200),
            ("gfootball/academy_empty_goal_close-v1", {}, 100),
            ("Pendulum-v1", {}, 300),
            ("Pong-v5", {"max_episode_steps": 40}, 90),
            ("Basic-v1", {}, 150),
            *((task, {}, 120) for task in ONE_OF_EACH_SUITE),
        ),
    ],
)
def test_the_real_thing(task, options, steps, tmp_path):
    """In a process of its own: football and VizDoom once took one with them that had played in many worlds before."""
    # There is none for some machines, and some have not the system's libraries; else `make test` installs it.
    pytest.importorskip("envpool", exc_type=ImportError)
    done = subprocess.run(
        [sys.executable, "-X", "faulthandler", "-c", PROGRAM, task, repr(options), str(steps)],
        cwd=tmp_path,  # VizDoom leaves a file where it starts
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"ended with {done.returncode}\n{done.stdout}{done.stderr}"
