"""Lines that mend a space, ready to be pasted: each wraps ``env`` by a wrapper of Gymnasium's.

They need ``import gymnasium`` and ``import numpy as np``. A place in a space is the keys that lead there: text in a
``Dict``, a number in a ``Tuple``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from gymnasium.spaces import Space

Keys = tuple[str | int, ...]

_MOST_LISTED = 16
"""Numbers of an offset that a line lists; a longer one takes the same off everywhere."""


def transformed(keys: Keys, expression: str, space: str | None) -> str:
    """Returns the line of code that shows something else at one place of an observation.

    Args:
      keys: the place.
      expression: expression of the value there, ``{}``.
      space: its space, as an expression; None: it stays.
    """
    function = f"lambda o: {_at(keys, 'o', expression)}"
    whole = None if space is None else _space_with(keys, "env.observation_space", space)
    return f"env = gymnasium.wrappers.TransformObservation(env, {function}, {whole})"


def _at(keys: Keys, whole: str, expression: str) -> str:
    """An observation ``whole`` with the expression at a place of it."""
    if not keys:
        return expression.replace("{}", whole)
    key, rest = keys[0], keys[1:]
    inner = _at(rest, f"{whole}[{key!r}]", expression)
    if isinstance(key, int):
        return f"(*{whole}[:{key}], {inner}, *{whole}[{key + 1}:])"
    return f"{{**{whole}, {key!r}: {inner}}}"


def _space_with(keys: Keys, whole: str, space: str) -> str:
    if not keys:
        return space
    key, rest = keys[0], keys[1:]
    inner = _space_with(rest, f"{whole}[{key!r}]", space)
    if isinstance(key, int):
        return f"gymnasium.spaces.Tuple((*{whole}.spaces[:{key}], {inner}, *{whole}.spaces[{key + 1}:]))"
    return f"gymnasium.spaces.Dict({{**{whole}.spaces, {key!r}: {inner}}})"


def box(low: Any, high: Any, shape: Sequence[int], dtype: str) -> str:
    """A ``Box``, as an expression."""
    return f"gymnasium.spaces.Box({low}, {high}, {tuple(shape)}, np.{dtype})"


def smaller(keys: Keys, space: Space[Any]) -> str:
    """Shows wide whole numbers as parts of the largest, and reals within the range of float32."""
    if np.issubdtype(space.dtype, np.floating):
        return transformed(keys, "np.clip({}, -1e18, 1e18)", None)
    low, high = float(np.min(space.low)), float(np.max(space.high))  # type: ignore[attr-defined]
    parts = f"np.float32({{}} / {max(-low, high):.17g})"
    return transformed(keys, parts, box(0 if low >= 0 else -1, 1, space.shape or (), "float32"))


def without_offset(keys: Keys, shape: Sequence[int], offset: Any) -> str:
    """Takes an offset off, in the dtype that is shown, and then narrows it."""
    floors = np.floor(np.asarray(offset, np.float64))
    if floors.size > _MOST_LISTED:
        taken = f"{float(floors.max()):.17g}"
    else:
        taken = f"np.array({floors.tolist()})" if floors.shape else f"{float(floors):.17g}"
    return transformed(keys, f"np.float32({{}} - {taken})", box("-np.inf", "np.inf", shape, "float32"))


def left_out(key: str | int, others: Sequence[str | int]) -> str:
    """Leaves one entry of a ``Dict`` or ``Tuple`` out."""
    kept = [other for other in others if other != key]
    return f"env = gymnasium.wrappers.FilterObservation(env, {kept!r})"


def in_numbers(keys: Keys, space: Space[Any]) -> str | None:
    """Shows a text by its letters, or of a sequence how long it is; None for a space of another kind."""
    from gymnasium import spaces

    if isinstance(space, spaces.Text):
        size = space.max_length
        letters = f"np.frombuffer({{}}.encode()[:{size}].ljust({size}), np.uint8)"
        return transformed(keys, letters, box(0, 255, (size,), "uint8"))
    if isinstance(space, spaces.Sequence):
        return transformed(keys, "np.float32([len({})])", box(0, "np.inf", (1,), "float32"))
    return None


def choice_of_parts(keys: Keys, space: Space[Any], most: int) -> str | None:
    """Shows one choice among very many as several, each among ``most`` or fewer; None if it is not one alone."""
    from gymnasium import spaces

    if not isinstance(space, spaces.Discrete):
        return None
    count, start = int(space.n), int(space.start)
    parts = next(parts for parts in range(2, 64) if _side(count, parts) <= most)
    side = _side(count, parts)
    counted = f"({{}} - {start})" if start else "{}"
    digits = ", ".join(f"{counted} // {side**place} % {side}" for place in range(parts))
    return transformed(keys, f"np.array([{digits}])", f"gymnasium.spaces.MultiDiscrete({[side] * parts})")


def _side(count: int, parts: int) -> int:
    """The least number whose power is ``count`` or more."""
    side = int(count ** (1 / parts))
    return next(one for one in range(max(side - 1, 1), side + 3) if one**parts >= count)


# -- actions ------------------------------------------------------------------------------------------------


def action(space: Space[Any]) -> str | None:
    """Lets a policy act in ``space`` by choices, if all of it is choices or whole numbers, else by reals; else None."""
    parts = _Parts()
    taken = parts.expression(space)
    if taken is None:
        return None
    return f"env = gymnasium.wrappers.TransformAction(env, lambda a: {taken}, {parts.space()})"


class _Parts:
    """The numbers of a flat action, as they come together, and the action made of them."""

    def __init__(self) -> None:
        self.counts: list[int] = []
        self.starts: list[int] = []
        self.reals: list[tuple[float, float]] = []
        self._mixed = False

    def expression(self, space: Space[Any]) -> str | None:
        """Returns the environment's action as an expression of a flat action ``a``; None where it is not known."""
        self._mixed = _has_reals(space)
        return self._of(space)

    def space(self) -> str:
        """The space of the flat action."""
        if self.reals:
            low, high = ([bounds[side] for bounds in self.reals] for side in (0, 1))
            return f"gymnasium.spaces.Box(np.float32({low}), np.float32({high}))"
        if not self.counts:
            return "gymnasium.spaces.Discrete(1)"
        start = f", start={self.starts}" if any(self.starts) else ""
        return f"gymnasium.spaces.MultiDiscrete({self.counts}{start})"

    def _of(self, space: Space[Any]) -> str | None:
        from gymnasium import spaces

        if isinstance(space, spaces.Dict):
            return self._entries("{", [(f"{key!r}: ", child) for key, child in space.spaces.items()], "}")
        if isinstance(space, spaces.Tuple):
            return self._entries("(", [("", child) for child in space.spaces], ",)" if space.spaces else ")")
        if isinstance(space, spaces.Discrete):
            return f"int({self._whole(int(space.n), int(space.start))})"
        if isinstance(space, spaces.MultiDiscrete):
            counts, starts = space.nvec.ravel(), np.asarray(space.start).ravel()
            return self._array(
                space, [self._whole(int(n), int(s)) for n, s in zip(counts, starts, strict=True)]
            )
        if isinstance(space, spaces.MultiBinary):
            return self._array(space, [self._whole(2, 0) for _ in range(int(np.prod(space.shape)))])
        if isinstance(space, spaces.Box):
            return self._box(space)
        return None

    def _entries(self, opening: str, children: list[tuple[str, Any]], closing: str) -> str | None:
        made = [(name, self._of(child)) for name, child in children]
        if any(value is None for _, value in made):
            return None
        return opening + ", ".join(f"{name}{value}" for name, value in made) + closing

    def _box(self, space: Any) -> str | None:
        bounds = list(zip(space.low.ravel().tolist(), space.high.ravel().tolist(), strict=True))
        if np.issubdtype(space.dtype, np.floating):
            return self._array(space, [self._real(low, high) for low, high in bounds])
        if not all(high - low < _MOST_VALUES for low, high in bounds):
            return None
        return self._array(space, [self._whole(int(high) - int(low) + 1, int(low)) for low, high in bounds])

    def _array(self, space: Any, elements: list[str]) -> str:
        listed = f"np.array([{', '.join(elements)}], np.{space.dtype.name})"
        return listed if space.shape == (len(elements),) else f"{listed}.reshape({tuple(space.shape)})"

    def _real(self, low: float, high: float) -> str:
        self.reals.append((low, high))
        return f"a[{len(self.reals) - 1}]"

    def _whole(self, count: int, start: int) -> str:
        if not self._mixed:
            self.counts.append(count)
            self.starts.append(start)
            return f"a[{len(self.counts) - 1}]"
        # A whole number is where a real between 0 and 1 falls.
        self.reals.append((0.0, 1.0))
        return f"{start} + min(int(a[{len(self.reals) - 1}] * {count}), {count - 1})"


_MOST_VALUES = 1024
"""Of one whole number that is to become a choice."""


def _has_reals(space: Any) -> bool:
    from gymnasium import spaces

    if isinstance(space, spaces.Dict):
        return any(map(_has_reals, space.spaces.values()))
    if isinstance(space, spaces.Tuple):
        return any(map(_has_reals, space.spaces))
    return isinstance(space, spaces.Box) and bool(np.issubdtype(space.dtype, np.floating))
