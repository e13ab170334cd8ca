"""Environments of DeepMind's interface: ``dm_env:module:factory`` (dm_control, bsuite, DeepMind Lab, one's own).

``factory(**options)`` returns a ``dm_env.Environment``, which becomes a ``gymnasium.Env`` and is treated like any
other. The two interfaces differ in three places:

- the end of an episode says by its discount whether it is a termination (0) or a truncation (anything else); discounts
  within an episode are the agent's, and not the environment's;
- ``reset`` takes no seed: a factory with a parameter ``seed`` is called again with it;
- whole numbers as actions are choices, and text is no observation.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from seedbed.envs.claims import claim, release
from seedbed.envs.contract import looks
from seedbed.envs.options import Options, arguments, taken_by
from seedbed.envs.standard import GymnasiumBatch, batch_of
from seedbed.errors import ConfigError, EnvironmentFault
from seedbed.plugins import load

PREFIX = "dm_env:"
_NEEDED = ("reset", "step", "observation_spec", "action_spec")
_WIDTH, _HEIGHT = 320, 240


class DeepMindEnvironment(gymnasium.Env[Any, Any]):
    """A ``dm_env.Environment`` with Gymnasium's interface.

    Args:
      env_id: its name, for messages.
      make: makes the environment, given ``seed`` if it takes one.
      seeded: whether it does.
      render: whether pictures are wanted.

    Raises:
      ConfigError: it is none, or has a spec that is no space.
    """

    _env: Any = None

    def __init__(self, env_id: str, make: Callable[..., Any], *, seeded: bool, render: bool) -> None:
        self._id, self._make, self._seeded = env_id, make, seeded
        self._open()
        self.observation_space = _observation(env_id, self._env.observation_spec())
        self.action_space = _action(env_id, self._env.action_spec())
        self.render_mode = "rgb_array" if render and hasattr(self._env, "physics") else None

    def _open(self, **seed: int) -> None:
        """Makes the environment, in the place of the one before."""
        self.close()
        env = self._make(**seed)
        if missing := [name for name in _NEEDED if not hasattr(env, name)]:
            raise ConfigError(
                f"{self._id} returned a {type(env).__name__}; it must return a dm_env.Environment (no "
                f"{', '.join(missing)})"
            )
        claim(self._id, [env])
        self._env = env

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        """Begins an episode; with a seed, in an environment that is made anew if the factory takes one."""
        del options
        if seed is not None and self._seeded:
            self._open(seed=seed)
        return _plain(self._env.reset().observation), {}

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Takes one action."""
        step = self._env.step(action)
        over = step.last()
        terminated = over and self._discount(step.discount) == 0
        return _plain(step.observation), step.reward, terminated, over and not terminated, {}

    def _discount(self, given: Any) -> float:
        """The discount of an episode's last step, which says how it ended."""
        try:
            discount = float(given)
        except (TypeError, ValueError):
            discount = np.nan
        if not 0 <= discount <= 1:
            raise EnvironmentFault(
                f"{self._id}: the discount of an episode's last step is {looks(given)}; it must be a number from 0 "
                "(the episode has terminated) to 1 (a time limit has cut it), as of dm_env.termination and truncation"
            )
        return discount

    def render(self) -> Any:
        """The picture of the first camera."""
        return self._env.physics.render(height=_HEIGHT, width=_WIDTH, camera_id=0)

    def close(self) -> None:
        """Closes the environment, if there is something to close."""
        if self._env is not None:
            release([self._env])
            getattr(self._env, "close", lambda: None)()
            self._env = None


def make_deepmind(env_id: str, num_envs: int, options: Options, *, render: bool) -> GymnasiumBatch:
    """Makes a batch of ``num_envs`` with the factory that ``env_id`` names after its prefix.

    Raises:
      ConfigError: there is no such factory, it does not take an option, or its result cannot be used.
    """
    factory = load(env_id.removeprefix(PREFIX))
    seeded = "seed" in inspect.signature(factory).parameters
    settings = arguments(env_id, options, taken_by(factory, *(["seed"] if seeded else [])))

    def make_one() -> DeepMindEnvironment:
        def make(**seed: int) -> Any:
            return factory(**settings, **seed)

        return DeepMindEnvironment(env_id, make, seeded=seeded, render=render)

    return batch_of(env_id, num_envs, make_one)


def _observation(env_id: str, spec: Any, name: str = "observation") -> spaces.Space[Any]:
    """Returns the space of a spec, or of a dict or sequence of specs."""
    if isinstance(spec, Mapping):
        return spaces.Dict(
            {str(key): _observation(env_id, part, f"{name} {key}") for key, part in spec.items()}
        )
    if isinstance(spec, list | tuple):
        return spaces.Tuple(
            [_observation(env_id, part, f"{name} {place}") for place, part in enumerate(spec)]
        )
    if hasattr(spec, "num_values"):
        return spaces.Discrete(int(spec.num_values))
    shape, dtype = _array(env_id, spec, name)
    return spaces.Box(*_bounds(spec, shape, dtype), shape, dtype.type)


def _action(env_id: str, spec: Any) -> spaces.Space[Any]:
    """The space of actions: choices where they are whole numbers."""
    if hasattr(spec, "num_values"):
        return spaces.Discrete(int(spec.num_values))
    if isinstance(spec, Mapping | list | tuple):
        raise ConfigError(
            f"{env_id}: actions of {len(spec)} parts are not supported: let the factory return an environment that "
            "takes them as one array (its action_spec a dm_env.specs.BoundedArray or DiscreteArray)"
        )
    shape, dtype = _array(env_id, spec, "action")
    low, high = _bounds(spec, shape, dtype)
    if dtype.kind == "f":
        return spaces.Box(low, high, shape, dtype.type)
    if not hasattr(spec, "minimum"):
        raise ConfigError(
            f"{env_id}: actions of {spec} have no bounds: a dm_env.specs.BoundedArray is needed"
        )
    count = np.asarray(high, np.int64) - low + 1
    if not shape:
        return spaces.Discrete(int(count), start=int(low))
    return spaces.MultiDiscrete(count, dtype=dtype.type, start=low)


def _array(env_id: str, spec: Any, name: str) -> tuple[tuple[int, ...], np.dtype[Any]]:
    """Shape and dtype of a spec of numbers."""
    dtype = np.dtype(getattr(spec, "dtype", object))
    if dtype.kind not in "biuf":
        raise ConfigError(
            f"{env_id}: {name} is of {spec}, and Seedbed takes numbers: let the factory return an environment that "
            "leaves it out, or shows it as a dm_env.specs.Array of numbers"
        )
    return tuple(spec.shape), dtype


def _bounds(spec: Any, shape: tuple[int, ...], dtype: np.dtype[Any]) -> tuple[Any, Any]:
    """Returns least and greatest numbers, ``[*shape]``; the dtype's if the spec has none."""
    if hasattr(spec, "minimum"):
        return tuple(
            np.broadcast_to(np.asarray(bound, dtype), shape).copy() for bound in (spec.minimum, spec.maximum)
        )  # type: ignore[return-value]
    if dtype.kind == "b":
        low, high = False, True
    elif dtype.kind == "f":
        low, high = -np.inf, np.inf  # type: ignore[assignment]
    else:
        limits = np.iinfo(dtype)
        low, high = limits.min, limits.max  # type: ignore[assignment]
    return np.full(shape, low, dtype), np.full(shape, high, dtype)


def _plain(shown: Any) -> Any:
    """An observation with dicts and tuples only; numbers as arrays."""
    if isinstance(shown, Mapping):
        return {str(key): _plain(part) for key, part in shown.items()}
    if isinstance(shown, list | tuple):
        return tuple(_plain(part) for part in shown)
    return shown
