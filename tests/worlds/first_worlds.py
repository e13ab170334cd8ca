"""Worlds that do to their process, or return, what they should not: ``first_worlds:NAME``."""

from __future__ import annotations

import argparse
import atexit
import os
import signal
import sys
import tempfile
import threading
import time
from typing import Any

import gymnasium
import numpy as np

from seedbed.envs.toys import TOYS


class World(gymnasium.Env[Any, Any]):
    """Shows nothing for a moment; subclasses change one thing each."""

    observation_space = gymnasium.spaces.Box(0, 1, (1,), np.float32)
    action_space: Any = gymnasium.spaces.Discrete(2)
    reward: Any = 0.0
    terminated: Any = False
    truncated: Any = False

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> Any:
        return np.zeros(1, np.float32), self.reward, self.terminated, self.truncated, {}


def one(**attributes: Any) -> type[World]:
    return type("Changed", (World,), attributes)


OLD = one(step=lambda self, action: (np.zeros(1, np.float32), 0.0, False, {}))
LONE = one(step=lambda self, action: np.zeros(1, np.float32))
OLD_RESET = one(reset=lambda self: np.zeros(1, np.float32))
NO_SEED = one(reset=lambda self, options=None: (np.zeros(1, np.float32), {}))
NO_INFO = one(reset=lambda self, *, seed=None, options=None: np.zeros(1, np.float32))
SEEDED_BY_MISTAKE = one(reset=lambda self, *, seed=None, options=None: 1 + "1")  # a TypeError of its own
ONE = one(reward=np.ones(1), terminated=np.zeros(1, bool))
PAIR = one(reward=np.ones(2))
NONE = one(reward=None)
TEXT = one(reward="1.0")
NEITHER = one(terminated=None)
BOTH = one(truncated=np.zeros(2, bool))
NUMPY = one(reward=np.float64(1), terminated=np.bool_(False), truncated=0)


LONG = one(step=lambda self, action: (np.zeros(1, np.float32), 0.0, False, False, {}, None))
# A wrapper unpacks what a step returns.
gymnasium.register("Old-v0", OLD, max_episode_steps=9)
gymnasium.register("Long-v0", LONG, max_episode_steps=9)


def _unpacks(self: Any, action: Any) -> Any:
    _, _, _, _, _ = (1, 2)  # a mistake of its own
    return action


OWN_MISTAKE = one(step=_unpacks)


class Masked(World):
    """Allows the third action alone."""

    observation_space = gymnasium.spaces.Dict(  # type: ignore[assignment]
        action_mask=gymnasium.spaces.MultiBinary(3), seen=gymnasium.spaces.Box(0, 1, (1,), np.float32)
    )
    action_space = gymnasium.spaces.Discrete(3)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return {"action_mask": np.array([0, 0, 1], np.int8), "seen": np.zeros(1, np.float32)}, {}

    def step(self, action: Any) -> Any:
        assert action == 2
        return self.reset()[0], 0.0, False, False, {}


class Far(World):
    """Takes numbers that are not near 0."""

    action_space = gymnasium.spaces.Box(np.array([2, -9], np.float32), np.array([3, -8], np.float32))

    def step(self, action: Any) -> Any:
        assert self.action_space.contains(action)
        return super().step(action)


def exits(said: Any = None) -> World:
    sys.exit(said)


def exits_at_once() -> World:
    os._exit(0)


def crashes() -> World:
    print("the engine is on fire", flush=True)
    os.kill(os.getpid(), signal.SIGSEGV)
    return World()


def crashes_at_the_end() -> World:
    atexit.register(os.kill, os.getpid(), signal.SIGKILL)
    return World()


def reads_the_command_line() -> World:
    argparse.ArgumentParser().parse_args()
    return World()


def talks() -> World:
    atexit.register(print, "Thank you for flying with us.")
    print("licence found", file=sys.stderr)
    return World()


def leaves_a_thread() -> World:
    threading.Thread(target=threading.Event().wait).start()
    return World()


def goes_away() -> World:
    os.chdir(tempfile.mkdtemp())
    return World()


def minds_signals() -> World:
    signal.signal(signal.SIGALRM, signal.SIG_IGN)
    return World()


def hangs(moment: str) -> World:
    def wait(*_: Any, **__: Any) -> Any:
        time.sleep(10_000)

    return wait() if moment == "made" else one(**{moment: wait})()


class Wide(TOYS["toy:catch"]):  # type: ignore[misc,name-defined]
    """A toy whose rewards are columns."""

    def receive(self) -> Any:
        step = super().receive()
        return step._replace(reward=step.reward[:, None])


def wide(num_envs: int) -> Wide:
    return Wide("first_worlds:wide", num_envs)


def columns(num_envs: int) -> Any:
    env = gymnasium.make_vec("CartPole-v1", num_envs)
    step = env.step
    env.step = lambda action: tuple(  # type: ignore[method-assign]
        value[:, None] if place == 1 else value for place, value in enumerate(step(action))
    )
    return env


def no_seed(num_envs: int) -> Any:
    env = gymnasium.make_vec("CartPole-v1", num_envs)
    return type("NoSeed", (type(env),), {"reset": lambda self: (np.zeros((num_envs, 4), np.float32), {})})(
        num_envs
    )


def giving(num_envs: int, place: int, value: Any) -> Any:
    env = gymnasium.make_vec("CartPole-v1", num_envs)
    step = env.step
    env.step = lambda action: tuple(  # type: ignore[method-assign]
        [value] * num_envs if at == place else part for at, part in enumerate(step(action))
    )
    return env


def words_for_rewards(num_envs: int) -> Any:
    return giving(num_envs, 1, "1.0")


def half_an_end(num_envs: int) -> Any:
    return giving(num_envs, 2, 0.5)


def no_end(num_envs: int) -> Any:
    return giving(num_envs, 3, None)


class Telling(World):
    """Ends every third step, and says each time how it went: the actions that were 1."""

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.time = 0
        return np.zeros(1, np.float32), {"time": -1}

    def step(self, action: Any) -> Any:
        self.time += 1
        info = {"time": self.time, "way": np.zeros(self.time), "engine": {"fuel": 0.5}, "name": "x"}
        return np.zeros(1, np.float32), 1.0, self.time == 3, False, info


def telling_vector(num_envs: int) -> Any:
    return gymnasium.vector.SyncVectorEnv([one_telling] * num_envs, autoreset_mode="NextStep")


def one_telling() -> Any:
    env = Telling()
    step = env.step
    env.step = lambda action: tuple(  # type: ignore[method-assign,assignment]
        {name: value for name, value in part.items() if name != "way"} if isinstance(part, dict) else part
        for part in step(action)
    )
    return env
