"""Gymnasium's spaces, translated: observation and action spaces to :class:`~seedbed.types.ArraySpec`.

Inside Seedbed a choice always starts at 0, integers have at most 32 bits and reals are float32; the
functions made here convert whole batches at the border.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from seedbed.errors import ConfigError
from seedbed.types import ArraySpec, Tree

if TYPE_CHECKING:
    from gymnasium.spaces import Space

Array = NDArray[Any]

_NARROWED = {
    "float64": "float32",
    "float16": "float32",
    "int64": "int32",
    "uint64": "int32",
    "uint32": "int32",
}


def observation_codec(space: Space[Any], env_id: str) -> tuple[Tree, Callable[[Any], Tree]]:
    """The spec of one observation of ``space``, and what turns a batch of observations into a tree of it.

    A ``Tuple`` becomes a dict with the keys ``"0"``, ``"1"``, … The function takes what a vector environment
    returns (arrays ``[B, ...]``, dicts and tuples of them); it copies only what changes its dtype.

    Raises:
      ConfigError: the space, or one inside it, is not one of those below.
    """
    from gymnasium import spaces

    if isinstance(space, spaces.Dict):
        return _join({key: observation_codec(child, env_id) for key, child in space.spaces.items()})
    if isinstance(space, spaces.Tuple):
        return _join({index: observation_codec(child, env_id) for index, child in enumerate(space.spaces)})
    if isinstance(space, spaces.Box):
        spec = ArraySpec(space.shape, _NARROWED.get(space.dtype.name, space.dtype.name))
        return spec, lambda batch: np.asarray(batch, spec.dtype)
    choice = _choice(space)
    if choice is None:
        raise ConfigError(
            f"{env_id}: observations of {type(space).__name__} are not supported; Seedbed takes Box, "
            "Discrete, MultiDiscrete, MultiBinary, and Dict and Tuple of them"
        )
    choice_spec, start = choice
    return choice_spec, lambda batch: (np.asarray(batch) - start).astype(choice_spec.dtype)


def action_codec(space: Space[Any], env_id: str) -> tuple[ArraySpec, Callable[[Array], Array]]:
    """The spec of one action of ``space``, and what turns a policy's batch into what the environment wants.

    The function adds the ``start`` of choices, clips continuous actions to their bounds, and casts.

    Raises:
      ConfigError: the space is not Discrete, MultiDiscrete, MultiBinary or a Box of reals.
    """
    from gymnasium import spaces

    choice = _choice(space)
    if choice is not None:
        spec, start = choice
        return spec, lambda action: (np.asarray(action) + start).astype(space.dtype)
    if isinstance(space, spaces.Box) and np.issubdtype(space.dtype, np.floating):
        low, high = space.low, space.high
        spec = ArraySpec(space.shape, "float32", low=_flat(low), high=_flat(high))
        return spec, lambda action: np.clip(np.asarray(action, space.dtype), low, high)
    raise ConfigError(
        f"{env_id}: actions of {space} are not supported; Seedbed takes Discrete, MultiDiscrete, MultiBinary "
        "and Box of reals"
    )


def _choice(space: Space[Any]) -> tuple[ArraySpec, Any] | None:
    """Spec and start of a space of choices; None for any other."""
    from gymnasium import spaces

    if isinstance(space, spaces.Discrete):
        return ArraySpec((), "int32", (int(space.n),)), space.start
    if isinstance(space, spaces.MultiDiscrete):
        return ArraySpec(space.shape, "int32", tuple(int(n) for n in space.nvec.ravel())), space.start
    if isinstance(space, spaces.MultiBinary):
        return ArraySpec(space.shape, "int8", (2,) * int(np.prod(space.shape))), np.int8(0)
    return None


def _flat(bound: Array) -> tuple[float, ...]:
    return tuple(float(x) for x in bound.ravel())


def _join(parts: Mapping[Any, tuple[Tree, Callable[[Any], Tree]]]) -> tuple[Tree, Callable[[Any], Tree]]:
    """One codec out of those of the entries of a dict (by key) or a tuple (by index)."""
    spec = {str(key): part for key, (part, _) in parts.items()}
    return spec, lambda batch: {str(key): convert(batch[key]) for key, (_, convert) in parts.items()}
