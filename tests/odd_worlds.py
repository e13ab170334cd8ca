"""Worlds whose spaces, or whose observations, are unlike those of most."""

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces


class World(gymnasium.Env[Any, Any]):
    """Shows ``show(random)``, or a sample of its space, and ends one time in twenty."""

    def __init__(self, observations: Any, actions: Any = None, show: Any = None) -> None:
        self.observation_space = observations
        self.action_space = actions or spaces.Discrete(2)
        self._show = show

    def _see(self) -> Any:
        return self.observation_space.sample() if self._show is None else self._show(self.np_random)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        if seed is not None:
            self.observation_space.seed(seed)
        return self._see(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert self.action_space.contains(action), f"{action!r} is not in {self.action_space}"
        return self._see(), 1.0, bool(self.np_random.random() < 0.05), False, {}


def box(low: Any, high: Any, shape: Any, dtype: Any = np.float32) -> spaces.Box:
    return spaces.Box(low, high, shape, dtype)


UNIT = box(-1, 1, (2,))

LIES: dict[str, tuple[Any, Any]] = {
    "shape": (box(-1, 1, (3,)), np.zeros(4, np.float32)),
    "rank": (box(-1, 1, (3,)), np.zeros((1, 3), np.float32)),
    "reals": (box(0, 255, (3,), np.uint8), np.full(3, 0.7)),
    "above": (box(0, 255, (3,), np.uint8), np.full(3, 300, np.int64)),
    "outside": (box(-1, 1, (3,)), np.full(3, 50, np.float32)),
    "board": (box(0, 1, (8, 8, 2), np.uint8), np.full((8, 8, 2), 255, np.uint8)),
    "choice": (spaces.Discrete(3), 3),
    "start": (spaces.Discrete(3, start=2), 1),
    "choices": (spaces.MultiDiscrete([2, 3]), np.array([1, 3])),
    "binary": (spaces.MultiBinary(2), np.array([0, 2], np.int8)),
    "missing": (spaces.Dict(a=UNIT, b=UNIT), {"a": np.zeros(2, np.float32)}),
    "extra": (spaces.Dict(a=UNIT), {"a": np.zeros(2, np.float32), "b": 1}),
    "short": (spaces.Tuple((UNIT, UNIT)), (np.zeros(2, np.float32),)),
    "lists": (box(-1, 1, (3,)), [0.0, 0.0, 0.0]),
    "wide": (box(0, 2**40, (1,), np.int64), np.array([3_000_000_000])),
    "far": (box(-np.inf, np.inf, (1,), np.float64), np.array([1e300])),
    "none": (box(-1, 1, (3,)), None),
    "words": (box(-1, 1, ()), "0.5"),
    "deep": (spaces.Dict(a=spaces.Tuple((UNIT,))), {"a": (np.zeros(3, np.float32),)}),
}


def liar(lie: str = "shape", after: int = 0) -> World:
    """Shows what its space does not declare; before, for ``after`` steps, what it does."""
    space, shown = LIES[lie]
    left = [after]

    def show(random: np.random.Generator) -> Any:
        del random
        left[0] -= 1
        if left[0] < 0:
            return shown
        return np.zeros(space.shape, space.dtype) if isinstance(space, spaces.Box) else space.sample()

    return World(space, show=show)


SPOILT: dict[str, tuple[str, Any]] = {
    "nan reward": ("reward", np.nan),
    "no reward": ("reward", None),
    "infinite reward": ("reward", -np.inf),
    "huge reward": ("reward", 1e38),
    "wide reward": ("reward", 1e39),
    "nan observation": ("b", np.nan),
    "infinite observation": ("b", np.inf),
    "huge observation": ("b", 1e30),
    "wide observation": ("b", 1e39),
}
"""What an environment of :class:`Spoiling` gives in the place of a number, and where."""


class Spoiling(World):
    """Shows a dict of two arrays, and gives something that is no number, or none to learn from, from one step on.

    Args:
      kind: key of ``SPOILT``.
      after: steps before that.
      once: file; of all environments that are told of it, one alone does so.
    """

    def __init__(self, kind: str = "nan reward", after: int = 0, once: str = "") -> None:
        endless = box(-np.inf, np.inf, (2,), np.float64)
        super().__init__(spaces.Dict(a=UNIT, b=endless))
        (self._field, self._value), self._left, self._once = SPOILT[kind], after, once
        self._spoils: bool | None = None

    def _see(self) -> Any:
        spoilt = self._field == "b" and self._is_spoilt()
        second = np.array([0.0, self._value if spoilt else 0.0])
        return {"a": np.zeros(2, np.float32), "b": second}

    def _is_spoilt(self) -> bool:
        self._left -= 1
        if self._left >= 0:
            return False
        if self._spoils is None:
            try:
                self._spoils = not self._once or Path(self._once).open("x").close() is None
            except FileExistsError:
                self._spoils = False
        return self._spoils

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        observation, reward, terminated, truncated, info = super().step(action)
        spoilt = self._field == "reward" and self._is_spoilt()
        return observation, self._value if spoilt else reward, terminated, truncated, info


class Batch(gymnasium.vector.VectorEnv[Any, Any, Any]):
    """Two environments at once, which show ``show`` from the step ``after`` on, and before it what they declare.

    Args:
      space: of one observation.
      show: an observation of both.
      after: steps before that.
      gives: values that ``step`` gives in the place of its own, by their place.
    """

    metadata: dict[str, Any] = {"autoreset_mode": gymnasium.vector.AutoresetMode.NEXT_STEP}  # noqa: RUF012
    num_envs = 2
    single_action_space = spaces.Discrete(2)
    action_space = spaces.MultiDiscrete([2, 2])

    def __init__(self, space: Any = UNIT, show: Any = None, after: int = 0, gives: Any = ()) -> None:
        self.single_observation_space = space
        self.observation_space = gymnasium.vector.utils.batch_space(space, 2)
        self._show = self.observation_space.sample() if show is None else show
        self._left, self._gives = after, dict(gives)

    def _see(self) -> Any:
        self._left -= 1
        return self._show if self._left < 0 else self.observation_space.sample()

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        return self._see(), {}

    def step(self, actions: Any) -> Any:
        values = (self._see(), np.zeros(2), np.zeros(2, bool), np.zeros(2, bool), {})
        return tuple(self._gives.get(place, value) for place, value in enumerate(values))


def clock(start: float = 0.0) -> World:
    """Shows one of two numbers that are 20 apart, far from 0."""
    return World(
        box(-np.inf, np.inf, (1,), np.float64),
        show=lambda random: np.array([start + 20.0 * random.integers(2)]),
    )


class Reading(gymnasium.Env[Any, Any]):
    """Shows numbers, of which one tells which of two actions is right.

    Args:
      dtype, high, size: of the numbers, declared from 0 on.
      shown: up to which they go.
    """

    def __init__(self, dtype: str = "uint8", high: float = 255, size: int = 32, shown: float = 10) -> None:
        self.observation_space = box(0, high, (size,), np.dtype(dtype).type)
        self.action_space = spaces.Discrete(2)
        self._shown = shown

    def _see(self) -> Any:
        numbers = self.np_random.random(self.observation_space.shape) * self._shown
        self._right = int(numbers[0] > self._shown / 2)
        return np.round(numbers).astype(self.observation_space.dtype)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._left = 16
        return self._see(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        reward, self._left = float(action == self._right), self._left - 1
        return self._see(), reward, False, self._left == 0, {}
