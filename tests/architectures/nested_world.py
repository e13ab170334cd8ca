"""A world for tests/architectures/test_worlds.py, in a file of its own: actors import it."""

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces


class Nested(gymnasium.Env[Any, Any]):
    """Nested dict observations, and three choices at once; paid for repeating what is shown."""

    observation_space = spaces.Dict(
        {
            "clock": spaces.Box(0, 1, (1,), np.float32),
            "seen": spaces.Dict({"goal": spaces.MultiDiscrete([2, 3, 4]), "room": spaces.Discrete(5)}),
        }
    )
    action_space = spaces.MultiDiscrete([2, 3, 4])

    def _shown(self) -> dict[str, Any]:
        self.goal = self.np_random.integers(0, [2, 3, 4])
        clock = np.array([self.time / 10], np.float32)
        return {"clock": clock, "seen": {"goal": self.goal, "room": int(self.time % 5)}}

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.time = 0
        return self._shown(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert self.action_space.contains(action), action
        reward = float((action == self.goal).mean())
        self.time += 1
        return self._shown(), reward, self.time == 10, False, {}
