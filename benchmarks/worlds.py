"""Environments of nobody's list, to learn in without a preset: a point that has to go somewhere, and a game of MinAtar.

They need Gymnasium and NumPy alone (``breakout`` the package ``minatar``), so that other systems may be given them.
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

_STEPS = 60
_NEAR = 0.1


class PointReach(gymnasium.Env[Any, Any]):
    """A point in a square is pushed towards a goal, by a force in two axes, until it is there.

    It sees its position, its velocity and the goal; a step costs the distance, and the goal is worth 5. One that does
    nothing gets about -64, one at random -95, and one that goes straight 1.6.
    """

    observation_space: spaces.Space[Any] = spaces.Box(-2, 2, (6,), np.float32)
    action_space = spaces.Box(-1, 1, (2,), np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._position, self._goal = self.np_random.uniform(-1, 1, (2, 2))
        self._velocity, self._steps = np.zeros(2), 0
        return self._seen(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._velocity = np.clip(0.8 * self._velocity + 0.08 * np.clip(action, -1, 1), -1, 1)
        self._position = np.clip(self._position + self._velocity, -2, 2)
        self._steps += 1
        distance = float(np.linalg.norm(self._goal - self._position))
        there = distance < _NEAR
        return self._seen(), 5.0 * there - distance, there, self._steps >= _STEPS, {}

    def _seen(self) -> Any:
        return np.concatenate([self._position, self._velocity, self._goal]).astype(np.float32)


class NestedReach(PointReach):
    """The same, whose observations are a dict: where the goal is from here, and the velocity."""

    observation_space = spaces.Dict(
        {"way": spaces.Box(-4, 4, (2,), np.float32), "velocity": spaces.Box(-1, 1, (2,), np.float32)}
    )

    def _seen(self) -> Any:
        way = self._goal - self._position
        return {"way": way.astype(np.float32), "velocity": self._velocity.astype(np.float32)}


def breakout() -> Any:
    """Breakout of MinAtar, ten by ten, in four channels."""
    from minatar.gym import BaseEnv

    return BaseEnv("breakout", use_minimal_action_set=True)
