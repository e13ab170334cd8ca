"""Checks of a Gymnasium environment's results: messages speak of its methods, not of the code that reads it.

Each runs at every step, so that the common case costs a comparison or two.
"""

from __future__ import annotations

import inspect
import re
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from seedbed.errors import EnvironmentFault, listed

_FIVE = ("observation", "reward", "terminated", "truncated", "info")
_UNPACKED = re.compile(r"values to unpack \(expected 5(, got \d+)?\)")
_ONE_NUMBER = "env = gymnasium.wrappers.TransformReward(env, lambda r: float(np.sum(r)))"


def reset(env_id: str, method: Callable[..., Any], own: Callable[..., Any], **given: Any) -> tuple[Any, Any]:
    """Calls a reset and returns observation and info.

    Args:
      env_id: name of the environment.
      method: reset of the environment with its wrappers.
      own: its reset without them.
      **given: seed and options.

    Raises:
      EnvironmentFault: it does not take them, or returns something else.
    """
    try:
        result = method(**given)
    except TypeError as error:
        if missing := _not_taken(own, given):
            raise EnvironmentFault(
                f"{env_id}: reset() takes no {listed([f'`{name}`' for name in missing])}: define it as reset(self, *, "
                "seed=None, options=None), begin with super().reset(seed=seed), and return observation and info"
            ) from error
        raise
    if (
        isinstance(result, tuple)
        and len(result) == 2
        and (result[1] is None or isinstance(result[1], Mapping))
    ):
        return result
    raise EnvironmentFault(
        f"{env_id}: reset() returned {looks(result)}; it must return two values: observation, info (a dict)"
    )


def stepped(env_id: str, method: Callable[[Any], Any], action: Any) -> Any:
    """Calls a step; raises :class:`EnvironmentFault` if a wrapper finds more or fewer than five values."""
    try:
        return method(action)
    except ValueError as error:
        by = Path(traceback.extract_tb(error.__traceback__)[-1].filename).parts
        if (found := _UNPACKED.search(str(error))) and "gymnasium" in by:
            count = (found[1] or "more than five").replace(", got ", "")
            raise EnvironmentFault(_not_five(env_id, f"{count} values", old=count == "4")) from error
        raise


def step(env_id: str, result: Any) -> tuple[Any, float, bool, bool, Any]:
    """The five values of a step of one environment.

    Raises:
      EnvironmentFault: there are more or fewer, or reward, terminated or truncated are not one number each.
    """
    observation, reward, terminated, truncated, info = five(env_id, result)
    return (
        observation,
        reward if type(reward) is float else _number(env_id, reward),
        terminated if type(terminated) is bool else _truth(env_id, "terminated", terminated),
        truncated if type(truncated) is bool else _truth(env_id, "truncated", truncated),
        info,
    )


def steps(env_id: str, result: Any, num_envs: int) -> tuple[Any, Any, Any, Any, Any]:
    """The five values of a step of ``num_envs`` environments at once.

    Raises:
      EnvironmentFault: as :func:`step` does.
    """
    values = five(env_id, result)
    for name, value in zip(_FIVE[1:4], values[1:4], strict=True):
        array = np.asarray(value)
        # None in an array of objects becomes nan, which the rule for rewards names with its environment.
        kinds, kind = ("biufO", "numbers") if name == "reward" else ("biu", "True or False")
        if array.shape != (num_envs,) or array.dtype.kind not in kinds:
            raise EnvironmentFault(
                f"{env_id}: step() gave {name} as {looks(array)}; it must be {kind} of shape ({num_envs},), one for "
                "each environment"
            )
    return values


def five(env_id: str, result: Any) -> tuple[Any, Any, Any, Any, Any]:
    """The five values of a step, or an :class:`EnvironmentFault`."""
    if isinstance(result, tuple) and len(result) == len(_FIVE):
        return result
    found = f"{len(result)} values" if isinstance(result, tuple) else looks(result)
    raise EnvironmentFault(_not_five(env_id, found, old=isinstance(result, tuple) and len(result) == 4))


def _not_five(env_id: str, found: str, *, old: bool) -> str:
    api = (
        "; four are the API of gym before 0.26: give its `done` as terminated, or as truncated where a time limit "
        "has ended the episode"
    )
    return f"{env_id}: step() returned {found}; it must return five: {', '.join(_FIVE)}{api if old else ''}"


def looks(shown: Any) -> str:
    """Describes a value in a few words."""
    if isinstance(shown, np.ndarray):
        return f"an array of {shown.dtype} {shown.shape}" if shown.shape else f"{shown} of {shown.dtype}"
    if shown is None:
        return "None"
    return f"{' '.join(repr(shown).split())[:60]}, a {type(shown).__name__}"


def _not_taken(method: Callable[..., Any], names: Mapping[str, Any]) -> list[str]:
    """Returns the ``names`` that are no parameters of the method."""
    try:
        parameters = inspect.signature(method).parameters
    except (TypeError, ValueError):
        return []
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        return []
    return [name for name in names if name not in parameters]


def _number(env_id: str, reward: Any) -> float:
    """The reward as a number; that of an array of one element is one."""
    array = np.asarray(reward)
    if array.size == 1 and array.dtype.kind in "biuf":
        return float(array.reshape(()))
    several = f": {_ONE_NUMBER}" if array.size > 1 and array.dtype.kind in "biuf" else ""
    raise EnvironmentFault(
        f"{env_id}: step() gave the reward as {looks(reward)}; it must be one number{several}"
    )


def _truth(env_id: str, name: str, value: Any) -> bool:
    array = np.asarray(value)
    if array.size == 1 and array.dtype.kind in "biu":
        return bool(array.reshape(()))
    raise EnvironmentFault(f"{env_id}: step() gave {name} as {looks(value)}; it must be True or False")
