"""Environments of the user: ``module:factory``.

``factory(**options)`` returns one of

- a ``gymnasium.Env``: it is called once for every environment of the batch;
- an :class:`~seedbed.envs.on_device.interface.NativeEnvironment`, which ``--arch anakin`` needs: it is called once;
- a ``gymnasium.vector.VectorEnv`` in autoreset mode ``NEXT_STEP``, or an object that is an
  :class:`~seedbed.envs.interface.Environment`: it is called once, with ``num_envs`` if it has that parameter.

If it has a parameter ``render_mode``, it is given ``"rgb_array"`` where pictures are wanted.
:func:`seedbed.testing.environments.check_environment` tells whether the result keeps the rules.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from typing import Any

from seedbed.envs.interface import Environment
from seedbed.envs.options import Options, arguments, taken_by
from seedbed.envs.standard import GymnasiumBatch, batch_of
from seedbed.errors import ConfigError
from seedbed.plugins import load
from seedbed.types import EnvSpec

_AS_GYM = (
    ". It has reset() and step(), as environments of gym had before Gymnasium: call it from a gymnasium.Env of your "
    "own, whose reset(seed=…, options=…) returns two values and whose step returns five"
)
_PROTOCOL = ("spec", "num_envs", "reset", "send", "receive", "close")


def is_own(env_id: str) -> bool:
    """Returns whether ``env_id`` reads ``module:factory``; Gymnasium's ``module:Id-v0`` does not."""
    module, separator, factory = env_id.partition(":")
    return (
        bool(separator) and factory.isidentifier() and all(part.isidentifier() for part in module.split("."))
    )


def make_own(env_id: str, num_envs: int, options: Options, *, render: bool) -> Environment:
    """Makes a batch of ``num_envs`` with the factory that ``env_id`` names; the current directory counts.

    Raises:
      ConfigError: there is no such module or factory, it does not take an option, or its result is none of the
        things above.
    """
    factory = load(env_id)
    settings = arguments(env_id, options, taken_by(factory, "num_envs", "render_mode"))
    parameters = inspect.signature(factory).parameters
    if render and "render_mode" in parameters:
        settings["render_mode"] = "rgb_array"
    if "num_envs" in parameters:
        settings["num_envs"] = num_envs
    return _batched(env_id, num_envs, lambda: factory(**settings))


def _batched(env_id: str, num_envs: int, make_one: Callable[[], Any]) -> Environment:
    """Makes a batch out of a factory's results."""
    import gymnasium
    from gymnasium.vector import VectorEnv

    made = make_one()
    # Only a factory that has imported its class, and so JAX, can have made one.
    native = sys.modules.get("seedbed.envs.on_device.interface")
    if native is not None and isinstance(made, native.NativeEnvironment):
        from seedbed.envs.on_device.batch import NativeBatch

        return NativeBatch(native.settled(made), num_envs)
    if isinstance(made, VectorEnv):
        _require_size(env_id, made.num_envs, num_envs)
        return GymnasiumBatch(env_id, made)
    if isinstance(made, gymnasium.Env):
        # The one that was made to look at is the first of the batch: some worlds cannot be opened twice.
        ready = [made]
        return batch_of(env_id, num_envs, lambda: ready.pop() if ready else make_one())
    missing = [name for name in _PROTOCOL if not hasattr(made, name)]
    if missing or not isinstance(made.spec, EnvSpec):
        raise ConfigError(
            f"{env_id} returned a {type(made).__name__}; it must return a gymnasium.Env, a "
            "gymnasium.vector.VectorEnv or a seedbed Environment "
            + (f"(no {', '.join(missing)})" if missing else "(its spec is no EnvSpec)")
            + (_AS_GYM if {"reset", "step"} <= {*dir(made)} else "")
        )
    _require_size(env_id, made.num_envs, num_envs)
    environment: Environment = made
    return environment


def _require_size(env_id: str, made: int, wanted: int) -> None:
    if made != wanted:
        raise ConfigError(
            f"{env_id} returned a batch of {made} environments; {wanted} are needed: give the factory a "
            "parameter num_envs"
        )
