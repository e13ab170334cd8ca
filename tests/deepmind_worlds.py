"""Worlds with DeepMind's interface, as ``dm_env:deepmind_worlds:NAME``; the first two are bsuite's, in small."""

from __future__ import annotations

from typing import Any

import dm_env
import numpy as np
from dm_env import specs

ROWS, COLUMNS = 10, 5


class Catch(dm_env.Environment):
    """A ball falls, a paddle at the bottom moves left, stays or moves right: 1 if it catches the ball, -1 if not."""

    def __init__(self, rows: int = ROWS, columns: int = COLUMNS, seed: int | None = None) -> None:
        self._shape, self._random = (rows, columns), np.random.RandomState(seed)

    def reset(self) -> dm_env.TimeStep:
        self._ball = [0, self._random.randint(self._shape[1])]
        self._paddle = self._shape[1] // 2
        return dm_env.restart(self._board())

    def step(self, action: int) -> dm_env.TimeStep:
        self._paddle = int(np.clip(self._paddle + action - 1, 0, self._shape[1] - 1))
        self._ball[0] += 1
        if self._ball[0] < self._shape[0] - 1:
            return dm_env.transition(0.0, self._board())
        return dm_env.termination(1.0 if self._paddle == self._ball[1] else -1.0, self._board())

    def _board(self) -> Any:
        board = np.zeros(self._shape, np.float32)
        board[tuple(self._ball)] = board[-1, self._paddle] = 1.0
        return board

    def observation_spec(self) -> specs.BoundedArray:
        return specs.BoundedArray(self._shape, np.float32, 0, 1, "board")

    def action_spec(self) -> specs.DiscreteArray:
        return specs.DiscreteArray(3, name="action")


class Walled(Catch):
    """Catch whose mask forbids to move into a wall; it fails where that is tried."""

    def step(self, action: int) -> dm_env.TimeStep:
        assert self._allowed()[action], "a forbidden action"
        return super().step(action)

    def _allowed(self) -> Any:
        return np.array([self._paddle > 0, True, self._paddle < self._shape[1] - 1], np.int8)

    def _board(self) -> Any:
        return {"board": super()._board(), "action_mask": self._allowed()}

    def observation_spec(self) -> Any:
        return {
            "board": super().observation_spec(),
            "action_mask": specs.BoundedArray((3,), np.int8, 0, 1, "action_mask"),
        }


class MemoryChain(dm_env.Environment):
    """Shows one bit at the beginning and asks for it at the end: 1 or -1."""

    def __init__(self, memory_length: int = 3, seed: int | None = None) -> None:
        self._length, self._random = memory_length, np.random.RandomState(seed)

    def reset(self) -> dm_env.TimeStep:
        self._time, self._bit = 0, self._random.randint(2)
        return dm_env.restart(self._seen())

    def step(self, action: int) -> dm_env.TimeStep:
        self._time += 1
        if self._time <= self._length:
            return dm_env.transition(0.0, self._seen())
        return dm_env.termination(1.0 if action == self._bit else -1.0, self._seen())

    def _seen(self) -> Any:
        context = 2.0 * self._bit - 1 if self._time == 0 else 0.0
        return np.array([[1 - self._time / self._length, context]], np.float32)

    def observation_spec(self) -> specs.Array:
        return specs.Array((1, 2), np.float32, "observation")

    def action_spec(self) -> specs.DiscreteArray:
        return specs.DiscreteArray(2, name="action")


class World(dm_env.Environment):
    """Shows a sample of its spec for four steps; the last one is a truncation."""

    def __init__(self, observation: Any, action: Any = None, reward: Any = 0.5, last: Any = None) -> None:
        self._specs, self._reward = (observation, action or specs.DiscreteArray(2)), reward
        self._last = last or dm_env.truncation
        self.actions: list[Any] = []
        self.closed = 0

    def reset(self) -> dm_env.TimeStep:
        self._time = 0
        return dm_env.restart(_sample(self._specs[0]))

    def step(self, action: Any) -> dm_env.TimeStep:
        self._time += 1
        self.actions.append(action)
        if not isinstance(self._specs[1], dict | list):
            self._specs[1].validate(np.asarray(action, self._specs[1].dtype))
        make = self._last if self._time == 4 else dm_env.transition
        return make(self._reward, _sample(self._specs[0]))

    def observation_spec(self) -> Any:
        return self._specs[0]

    def action_spec(self) -> Any:
        return self._specs[1]

    def close(self) -> None:
        self.closed += 1


class Drawn(World):
    """Has a picture, as environments of dm_control do."""

    def __init__(self) -> None:
        super().__init__(specs.Array((2,), np.float64))
        self.physics = self

    def render(self, height: int, width: int, camera_id: int) -> Any:
        return np.full((height, width, 3), camera_id + 1, np.uint8)


def _sample(spec: Any) -> Any:
    if isinstance(spec, dict):
        return {key: _sample(part) for key, part in spec.items()}
    if isinstance(spec, list | tuple):
        return [_sample(part) for part in spec]
    return spec.generate_value()


OBSERVATIONS: dict[str, Any] = {
    "array": specs.Array((3,), np.float64),
    "scalar": specs.Array((), np.float32),
    "bytes": specs.Array((8, 8, 3), np.uint8),
    "truth": specs.Array((2,), bool),
    "bounded": specs.BoundedArray((2,), np.float32, [-1, 0], [1, 5]),
    "whole": specs.BoundedArray((2,), np.int64, -3, 9),
    "choice": specs.DiscreteArray(4),
    "nested": {
        "position": specs.Array((2,), np.float64),
        "parts": [specs.DiscreteArray(3), specs.Array((1,), bool)],
    },
    "text": specs.StringArray(()),
    "deep text": {"a": specs.StringArray((2,))},
}
ACTIONS: dict[str, Any] = {
    "reals": specs.BoundedArray((2,), np.float64, [-1, 2], [1, 3]),
    "choice": specs.DiscreteArray(3),
    "whole": specs.BoundedArray((), np.int32, 2, 4),
    "several": specs.BoundedArray((2,), np.int32, [0, -1], [1, 1]),
    "free": specs.Array((2,), np.float32),
    "endless": specs.Array((2,), np.int32),
    "dict": {"a": specs.DiscreteArray(3), "b": specs.DiscreteArray(2)},
    "text": specs.StringArray(()),
}


def shows(observation: str) -> World:
    return World(OBSERVATIONS[observation])


def takes(action: str) -> World:
    return World(specs.Array((1,), np.float32), ACTIONS[action])


def rewards(reward: Any) -> World:
    return World(specs.Array((1,), np.float32), reward=reward)


def ends(discount: float) -> World:
    def last(reward: Any, observation: Any) -> dm_env.TimeStep:
        return dm_env.TimeStep(dm_env.StepType.LAST, reward, discount, observation)

    return World(specs.Array((1,), np.float32), last=last)


_ONE = World(specs.Array((1,), np.float32))


def the_same() -> World:
    return _ONE


def nothing() -> object:
    return object()
