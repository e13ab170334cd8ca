"""A single Gymnasium environment, compared with the declaration of its spaces before it is batched with others.

Batching would fill one array with the observations of all: arrays that do not fit would be cut, cast or reported in
NumPy's terms. Here errors name the declaration, the observation, and the call: ``reset`` or ``step``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from seedbed.envs import contract, remedies
from seedbed.envs.narrowing import Narrowing
from seedbed.envs.remedies import Keys
from seedbed.envs.spaces import name_of, require_entries, taken, unlike

Read = Callable[[Any], Any]


class AsDeclared(gymnasium.Wrapper[Any, Any, Any, Any]):
    """An environment that keeps to its declaration, or raises :class:`EnvironmentFault`."""

    def __init__(self, env: gymnasium.Env[Any, Any], env_id: str) -> None:
        super().__init__(env)
        self._env_id = env_id
        self._read = reader(env.observation_space, env_id, ())

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Resets it."""
        observation, info = contract.reset(
            self._env_id, self.env.reset, self.unwrapped.reset, seed=seed, options=options
        )
        return self._as_declared(observation, "reset"), info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Steps it."""
        result = contract.stepped(self._env_id, self.env.step, action)
        observation, reward, terminated, truncated, info = contract.step(self._env_id, result)
        return self._as_declared(observation, "step"), reward, terminated, truncated, info

    def _as_declared(self, shown: Any, moment: str) -> Any:
        return taken(self._read, shown, moment)


def reader(space: Any, env_id: str, keys: Keys) -> Read:
    """Makes the function that brings observations of ``space`` to the dtypes that it declares.

    It raises :class:`EnvironmentFault`, which names the place ``keys``, for one that is not declared.
    """
    if isinstance(space, spaces.Dict):
        return _dict_reader(space, env_id, keys)
    if isinstance(space, spaces.Tuple):
        return _tuple_reader(space, env_id, keys)
    if isinstance(space, spaces.Discrete):
        return _choice_reader(space, env_id, keys)
    if isinstance(space, spaces.Box | spaces.MultiDiscrete | spaces.MultiBinary):
        return _array_reader(space, env_id, keys)
    return lambda shown: shown


def _dict_reader(space: spaces.Dict, env_id: str, keys: Keys) -> Read:
    children = {key: reader(child, env_id, (*keys, key)) for key, child in space.spaces.items()}

    def read(shown: Any) -> Any:
        require_entries(space, env_id, keys, shown)
        return {key: child(shown[key]) for key, child in children.items()}

    return read


def _tuple_reader(space: spaces.Tuple[Any], env_id: str, keys: Keys) -> Read:
    children = [reader(child, env_id, (*keys, index)) for index, child in enumerate(space.spaces)]

    def read(shown: Any) -> Any:
        require_entries(space, env_id, keys, shown)
        return tuple(child(part) for child, part in zip(children, shown, strict=True))

    return read


def _choice_reader(space: spaces.Discrete, env_id: str, keys: Keys) -> Read:
    first, last = int(space.start), int(space.start + space.n) - 1

    def read(shown: Any) -> Any:
        whole = isinstance(shown, int | np.integer | np.bool_) or (
            isinstance(shown, np.ndarray) and shown.shape == () and shown.dtype.kind in "iub"
        )
        if not whole or not first <= int(shown) <= last:
            raise unlike(space, env_id, keys, shown)
        return int(shown)

    return read


def _array_reader(space: Any, env_id: str, keys: Keys) -> Read:
    shape, dtype = tuple(space.shape), np.dtype(space.dtype)
    narrowed = Narrowing(
        name_of(env_id, keys),
        dtype.name,
        lambda: f"the space declares {space}",
        lambda offset: remedies.without_offset(keys, shape, offset),
        watched=dtype.kind == "f",
    )

    def read(shown: Any) -> Any:
        if type(shown) is np.ndarray and shown.dtype == dtype and shown.shape == shape:
            return shown
        if shown is None or isinstance(shown, list | tuple | str | bytes | Mapping):
            raise unlike(space, env_id, keys, shown)
        array = np.asarray(shown)
        if array.shape != shape or array.dtype.kind not in "biuf":
            raise unlike(space, env_id, keys, shown)
        return narrowed(array[None])[0]

    return read
