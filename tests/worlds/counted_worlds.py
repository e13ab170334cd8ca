"""Environments whose steps, seeds or ends are looked at, as ``counted_worlds:name``."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np


class _World(gymnasium.Env[Any, Any]):
    """Episodes of ``length`` steps with a reward of 1 each; None: without an end."""

    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, length: int | None) -> None:
        self.render_mode = "rgb_array"
        self._length = length
        self._time = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, Any]:
        super().reset(seed=seed)
        self._time = 0
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._time += 1
        return np.zeros(2, np.float32), 1.0, self._time == self._length, False, {}

    def render(self) -> Any:
        return np.zeros((32, 32, 3), np.uint8)


class _Seeds(_World):
    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, Any]:
        if seed is not None:
            with Path(os.environ["WORLD_LOG"]).open("a") as file:
                file.write(f"{json.dumps(seed)}\n")
        return super().reset(seed=seed)


class _OneEndless(_World):
    """The third of its kind has no end; those beside it have episodes of four steps."""

    made = 0

    def __init__(self) -> None:
        super().__init__(None if type(self).made == 2 else 4)
        type(self).made += 1


def seeds() -> _World:
    return _Seeds(10)


def endless() -> _World:
    return _World(None)


def one_endless() -> _World:
    return _OneEndless()
