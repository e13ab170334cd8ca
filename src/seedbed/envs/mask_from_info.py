"""Action masks that an environment keeps in ``info``, as Gymnasium's Taxi does, shown where agents look for them.

In a factory of your own: ``return MaskFromInfo(gymnasium.make("Taxi-v4"))``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from seedbed.envs.spaces import action_codec
from seedbed.types import ACTION_MASK


class MaskFromInfo(gymnasium.Wrapper[Any, Any, Any, Any]):
    """An environment that shows ``info["action_mask"]`` as a leaf of its observation.

    An observation that is no dict stands at ``observation`` beside it. A tuple of masks, one for each choice, becomes
    one. Where ``info`` has none nothing is allowed, which only final observations may show.
    """

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        super().__init__(env)
        spec, _ = action_codec(env.action_space, type(env.unwrapped).__name__)
        self._count = sum(spec.num_values)
        shown = env.observation_space
        parts = shown.spaces if isinstance(shown, spaces.Dict) else {"observation": shown}
        self.observation_space = spaces.Dict({**parts, ACTION_MASK: spaces.MultiBinary(self._count)})

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Resets it."""
        observation, info = self.env.reset(seed=seed, options=options)
        return self._with_mask(observation, info), info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Steps it."""
        observation, reward, terminated, truncated, info = self.env.step(action)
        return self._with_mask(observation, info), reward, terminated, truncated, info

    def _with_mask(self, observation: Any, info: Mapping[str, Any]) -> dict[str, Any]:
        parts = observation if isinstance(observation, Mapping) else {"observation": observation}
        found = info.get(ACTION_MASK)
        mask = np.zeros(self._count) if found is None else np.hstack(found)
        return {**parts, ACTION_MASK: mask.astype(np.int8)}
