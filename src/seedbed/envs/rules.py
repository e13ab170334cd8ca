"""The rules of observations and rewards, in one place: actors, the learner and the conformance suite all ask here.

An environment *declares* its spec's shapes, dtypes and bounds. A number may go beyond its bounds by as much as they are
apart, since many an environment does by a little; one that goes further belongs to bounds that are wrong. A number that
is not finite, or so large that its square is no float32 any more, is never let in: everything that is computed from it,
and a whole batch with it, would be lost.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from seedbed.types import ArraySpec, EnvSpec, TimeStep, leaves

Array = NDArray[Any]

LARGEST_REAL = 2.0**62
"""Size of an observed real (4.6e18) up to which float32 holds its square."""
LARGEST_REWARD = 1e12
"""Size of a reward up to which float32 holds the squares of returns of a million such rewards, and sums of these."""
_CLIPPED = "np.clip(np.nan_to_num({}), -1e6, 1e6)"
_MENDED = (
    "mend the environment, or, if it says so on purpose, show another number in its place: "
    f"gymnasium.wrappers.TransformObservation with {_CLIPPED.format('o')}"
)
_REWARDED = (
    "mend the environment, or, if it says so on purpose, give another number in its place: env = "
    f"gymnasium.wrappers.TransformReward(env, lambda r: float({_CLIPPED.format('r')}))"
)


class Breach(NamedTuple):
    """A number that breaks a rule.

    Attributes:
      at: its place in the array, one number for each axis.
      text: the rule, in words that follow the name of the array.
      remedy: the way to mend it; empty if the text says it.
    """

    at: tuple[int, ...]
    text: str
    remedy: str = ""


Rule = Callable[[Any], Breach | None]
"""Takes an array ``[..., *shape]`` of numbers and returns the first of them that breaks it."""


class StepRules:
    """The rules for the numbers of time steps ``[..., B]``; pictures that use all of their bytes are not looked at.

    Args:
      spec: spec of the environments.
    """

    def __init__(self, spec: EnvSpec) -> None:
        found = ((path, value_rule(leaf)) for path, leaf in leaves(spec.observation))
        self._rules = [(path, rule) for path, rule in found if rule is not None]

    def breach(self, step: TimeStep) -> tuple[str, Breach] | None:
        """Returns the first number that breaks a rule, with the name of its array; None if none does.

        Args:
          step: arrays ``[..., B, *shape]`` of the dtypes of the spec.
        """
        if (found := reward_rule(step.reward)) is not None:
            return "reward", found
        if not self._rules:
            return None
        shown = dict(leaves(step.observation))
        for path, rule in self._rules:
            if (found := rule(shown[path])) is not None:
                return f"observation {path}".strip(), found
        return None

    def broken(self, step: TimeStep, first: int = 0) -> str | None:
        """Returns a line that names field and environment of a number that breaks a rule, and the remedy; or None.

        Args:
          step: arrays ``[B, ...]`` or ``[T, B, ...]``, of the dtypes of the spec.
          first: number of the first of the B environments.
        """
        if (found := self.breach(step)) is None:
            return None
        field, (at, text, remedy) = found
        environment = first + at[np.ndim(step.reward) - 1]
        return f"the {field} of environment {environment} {text}" + (f": {remedy}" if remedy else "")


def broken_array(array: Any, dtype: str, shape: tuple[int, ...]) -> str | None:
    """Describes ``array`` if it has another dtype or shape."""
    if isinstance(array, np.ndarray) and array.shape == shape and array.dtype == dtype:
        return None
    wanted = f"{dtype} {shape}"
    found = f"{array.dtype} {array.shape}" if isinstance(array, np.ndarray) else f"a {type(array).__name__}"
    return f"is {found}; it must be {wanted}"


def reward_rule(reward: Array) -> Breach | None:
    """The rule for rewards ``[...]``."""
    # One comparison, which a NaN does not pass.
    inside = np.abs(reward) <= LARGEST_REWARD
    if inside.all():
        return None
    at = _first(~inside)
    value = reward[at]
    if not np.isfinite(value):
        return Breach(at, f"is not finite ({value!s}): {_REWARDED}")
    return Breach(
        at, f"is {value!s}, and {LARGEST_REWARD:g} is the most that can be learned from: {_REWARDED}"
    )


def value_rule(spec: ArraySpec) -> Rule | None:
    """Makes the rule for the numbers of an array ``[..., *shape]``; None if the dtype holds no others."""
    low, high = _limits(spec)
    least, greatest = _range_of(np.dtype(spec.dtype))
    if not low.size or (
        (low <= least).all() and (high >= greatest).all() and np.dtype(spec.dtype).kind != "f"
    ):
        return None
    lowest, highest = _plain(np.maximum(low, least), spec), _plain(np.minimum(high, greatest), spec)

    def rule(array: Any) -> Breach | None:
        # One comparison each, which a NaN does not pass.
        inside = (array >= lowest) & (array <= highest)
        if inside.all():
            return None
        at = _first(~inside)
        return _described(spec, at, array[at])

    return rule


def _first(marked: Array) -> tuple[int, ...]:
    return tuple(int(place) for place in np.argwhere(marked)[0])


def _limits(spec: ArraySpec) -> tuple[Array, Array]:
    """Least and greatest number that is let pass, float64 ``[*shape]``; infinite where nothing is declared."""
    low, high = spec.bounds
    if spec.num_values:
        return low, high
    with np.errstate(invalid="ignore", over="ignore"):
        slack = high - low
        slack = np.where(np.isfinite(slack), np.maximum(slack, 1e-3), np.inf)
        return low - slack, high + slack


def _range_of(dtype: np.dtype[Any]) -> tuple[float, float]:
    if dtype.kind == "b":
        return 0.0, 1.0
    if dtype.kind == "f":
        return -LARGEST_REAL, LARGEST_REAL
    limits = np.iinfo(dtype)
    return float(limits.min), float(limits.max)


def _plain(bound: Array, spec: ArraySpec) -> Any:
    """The bound in the dtype, as one number where all are the same: that is compared faster."""
    exact = bound.astype(spec.dtype)
    return exact.flat[0] if (exact == exact.flat[0]).all() else exact


def _described(spec: ArraySpec, at: tuple[int, ...], value: Any) -> Breach:
    if not np.isfinite(value):
        return Breach(at, f"is not finite ({value!s})", _MENDED)
    if spec.num_values:
        return Breach(at, f"has {value!s}, beyond its choices, which are 0 to {max(spec.num_values) - 1}")
    low, high = spec.bounds
    if low.min() <= value <= high.max():
        return Breach(
            at, f"has {value!s}, and {LARGEST_REAL:.2g} is the most that can be learned from", _MENDED
        )
    declared = f"{float(low.min()):g} to {float(high.max()):g}"
    return Breach(
        at,
        f"has {value!s}, and {declared} is declared",
        "declare what it shows, or clip it, by gymnasium.wrappers.TransformObservation",
    )
