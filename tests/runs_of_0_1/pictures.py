"""A task whose observation is a small picture and a board, both of bytes: say which half of the board is full."""

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete


class Pictures(gymnasium.Env):
    observation_space = Dict(
        {"picture": Box(0, 255, (12, 12, 3), np.uint8), "board": Box(0, 1, (4, 4), np.uint8)}
    )
    action_space = Discrete(2)

    def _show(self):
        board = np.zeros((4, 4), np.uint8)
        self._half = int(self.np_random.integers(2))
        board[2 * self._half : 2 * self._half + 2] = 1
        return {"picture": self.np_random.integers(0, 256, (12, 12, 3), dtype=np.uint8), "board": board}

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self._steps = 0
        return self._show(), {}

    def step(self, action):
        reward = float(action == self._half)
        self._steps += 1
        return self._show(), reward, self._steps == 8, False, {}
