"""Gymnasium's spaces, translated: observation and action spaces to :class:`~seedbed.types.ArraySpec`.

Inside Seedbed a choice always starts at 0, integers have at most 32 bits, reals are float32, and images are
``[H, W, C]``; the functions made here convert whole batches at the border (:mod:`seedbed.envs.narrowing`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from seedbed.envs import remedies
from seedbed.envs.contract import looks
from seedbed.envs.narrowing import Narrowing
from seedbed.envs.remedies import Keys
from seedbed.errors import ConfigError, EnvironmentFault
from seedbed.types import ArraySpec, Tree, leaves

if TYPE_CHECKING:
    from gymnasium.spaces import Space

Array = NDArray[Any]
Codec = tuple[Tree, Callable[[Any], Tree]]

_NARROWED = {
    "float64": "float32",
    "float16": "float32",
    "int64": "int32",
    "uint64": "int32",
    "uint32": "int32",
}

_FEW_CHANNELS = 8
"""Fewer than these are channels wherever they stand; of more, a side of an image is at least four times as long."""

_MOST_VALUES = 1 << 16
"""Of one choice in an observation, which becomes as many inputs of a network."""

_MOST_ACTIONS = 2**31 - 1
"""Of one choice, which travels as int32."""

_EXACT = 2.0**24
"""Up to this size float32 has every whole number."""


def observation_codec(space: Space[Any], env_id: str) -> Codec:
    """Returns the spec of one observation of ``space``, and the function from a batch of observations to its tree.

    A ``Tuple`` becomes a dict with the keys ``"0"``, ``"1"``, … The function takes the observations of a vector
    environment (arrays ``[B, ...]``, dicts and tuples of them); it copies only arrays that change their dtype or axes,
    and raises :class:`~seedbed.errors.EnvironmentFault` where a number would become another one.

    Raises:
      ConfigError: the space, or one inside it, is not one of the kinds below, or there is nothing in it.
    """
    spec, convert = _codec(space, env_id, ())
    if not sum(int(np.prod(leaf.shape)) for _, leaf in leaves(spec)):
        constant = remedies.transformed((), "np.zeros(1, np.float32)", remedies.box(0, 1, (1,), "float32"))
        raise ConfigError(
            f"{env_id}: observations of {space} hold no number, and a policy needs one, if only a constant: {constant}"
        )
    return spec, convert


def _codec(space: Space[Any], env_id: str, keys: Keys, beside: Iterable[str | int] = ()) -> Codec:
    """The codec of a space at ``keys``; ``beside`` are the names of all that is in the one around it."""
    from gymnasium import spaces

    if isinstance(space, spaces.Dict):
        return _join(space, env_id, keys, space.spaces)
    if isinstance(space, spaces.Tuple):
        return _join(space, env_id, keys, dict(enumerate(space.spaces)))
    if isinstance(space, spaces.Box):
        return _box_codec(space, env_id, keys)
    choice = _choice(space)
    if choice is None:
        raise ConfigError(
            f"{env_id}: observations of {type(space).__name__} are not supported; Seedbed takes Box, "
            f"Discrete, MultiDiscrete, MultiBinary, and Dict and Tuple of them; {_place(keys)} is none: "
            f"{_without(space, keys, [*beside])}"
        )
    choice_spec, _ = choice
    if (most := max(choice_spec.num_values, default=0)) > _MOST_VALUES:
        line = (
            remedies.choice_of_parts(keys, space, _MOST_VALUES)
            or "gymnasium.wrappers.TransformObservation does it"
        )
        raise ConfigError(
            f"{name_of(env_id, keys)} is a choice among {most:,}, which would be as many inputs of a network, and "
            f"{_MOST_VALUES:,} are the most: show it in parts: {line}"
        )
    return choice_spec, _choices_codec(space, env_id, keys)


def _choices_codec(space: Any, env_id: str, keys: Keys) -> Callable[[Any], Array]:
    """The function from a batch of choices as the space counts them to choices that start at 0."""
    spec, start = _choice(space)  # type: ignore[misc]
    start = np.asarray(start, np.int64)
    narrowed = Narrowing(
        name_of(env_id, keys), spec.dtype, lambda: f"the space declares {space}", lambda _: "", watched=False
    )

    def convert(batch: Any) -> Array:
        given = np.asarray(batch)
        # Unsigned numbers have none below 0, which a choice that is none may be.
        return narrowed(
            (given.astype(np.int64) if given.dtype.kind == "u" else given) - start if start.any() else given
        )

    return convert


def _without(space: Space[Any], keys: Keys, beside: list[str | int]) -> str:
    """Returns the remedy for an observation that cannot be taken."""
    mended = []
    if len(keys) == 1 and len(beside) > 1:
        mended.append(f"leave it out: {remedies.left_out(keys[0], beside)}")
    if (line := remedies.in_numbers(keys, space)) is not None:
        mended.append(f"show it as numbers: {line}")
    return (
        "; or ".join(mended) or "show what matters of it as a Box, by gymnasium.wrappers.TransformObservation"
    )


def _box_codec(space: Any, env_id: str, keys: Keys) -> Codec:
    shape, dtype = tuple(space.shape), _NARROWED.get(space.dtype.name, space.dtype.name)
    low, high = _declared(space, dtype)
    spec = ArraySpec(shape, dtype, low=low, high=high)
    narrowed = Narrowing(
        name_of(env_id, keys),
        dtype,
        lambda: remedies.smaller(keys, space),
        lambda offset: remedies.without_offset(keys, shape, offset),
        watched=_may_lose_digits(spec),
    )
    if not is_channels_first(spec):
        return spec, narrowed
    return turned(spec), lambda batch: np.ascontiguousarray(np.moveaxis(narrowed(batch), 1, -1))


def _may_lose_digits(spec: ArraySpec) -> bool:
    """Returns whether float32, counted from the bound nearest to 0, may not tell two numbers apart."""
    if np.dtype(spec.dtype).kind == "f":
        return True
    low, high = spec.bounds
    return bool((np.minimum(high - low, np.maximum(-low, high)) > _EXACT).any())


def is_channels_first(spec: ArraySpec) -> bool:
    """Returns whether an array is an image whose channels come first: ``[C, H, W]``."""
    if len(spec.shape) != 3:
        return False
    channels, *sides = spec.shape
    few = channels < _FEW_CHANNELS or 4 * channels <= min(sides)
    return few and channels < min(sides) and turned(spec).is_image


def turned(spec: ArraySpec) -> ArraySpec:
    """The spec of ``[C, H, W]`` once its channels are last."""

    def turn(bound: tuple[float, ...]) -> tuple[float, ...]:
        return bound if len(bound) < 2 else _flat(np.moveaxis(np.reshape(bound, spec.shape), 0, -1))

    channels, height, width = spec.shape
    return dataclasses.replace(
        spec, shape=(height, width, channels), low=turn(spec.low), high=turn(spec.high), channels_first=True
    )


def _declared(space: Any, dtype: str) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """The bounds of a ``Box`` as :class:`ArraySpec` keeps them: nothing where they say no more than the dtype."""
    kind = np.dtype(dtype)
    if kind.kind == "b":
        return (), ()
    low, high = (np.asarray(bound, np.float64).ravel() for bound in (space.low, space.high))
    if kind.kind == "f":
        return _kept(low, -np.inf), _kept(high, np.inf)
    limits = np.iinfo(kind)
    return _kept(np.maximum(low, limits.min), limits.min), _kept(np.minimum(high, limits.max), limits.max)


def _kept(bound: Array, silent: float) -> tuple[float, ...]:
    """One number where all are the same, and none where that is ``silent``."""
    if (bound == silent).all():
        return ()
    return _flat(bound[:1] if (bound == bound[0]).all() else bound)


def action_codec(space: Space[Any], env_id: str) -> tuple[ArraySpec, Callable[[Array], Array]]:
    """Returns the spec of one action of ``space``, and the function from a policy's batch to the environment's.

    The function adds the ``start`` of choices, clips continuous actions to their bounds, and casts.

    Raises:
      ConfigError: the space is not Discrete, MultiDiscrete, MultiBinary or a Box of reals, or has no element.
    """
    from gymnasium import spaces

    choice = _choice(space)
    reals = isinstance(space, spaces.Box) and np.issubdtype(space.dtype, np.floating)
    if (choice is None and not reals) or not int(np.prod(space.shape or ())):
        line = remedies.action(space)
        raise ConfigError(
            f"{env_id}: actions of {space} are not supported; Seedbed takes Discrete, MultiDiscrete, MultiBinary "
            "and Box of reals, of one element or more; "
            + (line or "make one of these of them, by gymnasium.wrappers.TransformAction")
        )
    if choice is not None:
        spec, start = choice
        if (most := max(spec.num_values)) > _MOST_ACTIONS:
            raise ConfigError(
                f"{env_id}: actions of {space} are a choice among {most:,}, and {_MOST_ACTIONS:,} are the most: let it "
                "be chosen in parts, as a MultiDiscrete, by gymnasium.wrappers.TransformAction"
            )
        return spec, lambda action: (np.asarray(action) + start).astype(space.dtype)
    low, high = space.low, space.high  # type: ignore[attr-defined]
    spec = ArraySpec(tuple(space.shape or ()), "float32", low=_flat(low), high=_flat(high))
    return spec, lambda action: np.clip(np.asarray(action, space.dtype), low, high)


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


def name_of(env_id: str, keys: Keys) -> str:
    """Returns the name of the observation at ``keys`` for messages."""
    return f"{env_id}: {_place(keys)}"


def _place(keys: Keys) -> str:
    return f"observation {'/'.join(map(str, keys))}".strip()


def taken(convert: Callable[[Any], Tree], shown: Any, moment: str) -> Tree:
    """Converts an observation; the fault of one that cannot be converted names the call."""
    try:
        return convert(shown)
    except EnvironmentFault as fault:
        told = EnvironmentFault(f"{fault} (shown by {moment}())")
        told.environment = fault.environment
        raise told from fault


def _flat(bound: Array) -> tuple[float, ...]:
    return tuple(float(x) for x in bound.ravel())


def _join(space: Any, env_id: str, keys: Keys, children: Mapping[Any, Space[Any]]) -> Codec:
    """Makes one codec out of the codecs of the entries of a dict (by key) or a tuple (by index)."""
    names = [str(key) for key in children]
    for name in names:
        if not name or names.count(name) > 1:
            raise ConfigError(
                f"{name_of(env_id, keys)} has {'two keys' if name else 'a key'} that read {name!r}: give each entry a "
                "name of its own, by gymnasium.wrappers.TransformObservation"
            )
    parts = {key: _codec(child, env_id, (*keys, key), children) for key, child in children.items()}
    spec = {str(key): part for key, (part, _) in parts.items()}

    def convert(batch: Any) -> dict[str, Tree]:
        require_entries(space, env_id, keys, batch)
        return {str(key): convert(batch[key]) for key, (_, convert) in parts.items()}

    return spec, convert


def require_entries(space: Any, env_id: str, keys: Keys, shown: Any) -> None:
    """Raises :class:`EnvironmentFault` unless ``shown`` has the entries that a ``Dict`` or ``Tuple`` declares."""
    if isinstance(space.spaces, Mapping):
        if not isinstance(shown, Mapping):
            raise unlike(space, env_id, keys, shown)
        if shown.keys() != space.spaces.keys():
            raise EnvironmentFault(
                f"{name_of(env_id, keys)} has the keys {sorted(map(str, shown))}, and the space declares "
                f"{sorted(map(str, space.spaces))}"
            )
    elif not isinstance(shown, tuple | list) or len(shown) != len(space.spaces):
        raise unlike(space, env_id, keys, shown)


def unlike(space: Space[Any], env_id: str, keys: Keys, shown: Any) -> EnvironmentFault:
    """Returns the fault of an observation that its space does not declare."""
    from gymnasium import spaces

    remedy = ""
    if isinstance(shown, list | tuple) and isinstance(space, spaces.Box):
        line = remedies.transformed(keys, f"np.asarray({{}}, np.{space.dtype.name})", None)
        remedy = f": {line}"
    return EnvironmentFault(
        f"{name_of(env_id, keys)} is {looks(shown)}, and the space declares {space}{remedy}"
    )
