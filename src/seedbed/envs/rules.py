"""The rules of observations and rewards, in one place: training and the conformance suite both ask here.

Each function names the broken rule, in words that follow the name of the array, or returns None. An environment
*declares* its spec's shapes, dtypes and bounds. A number may go beyond its bounds by as much as they are apart, since
many an environment does by a little; one that goes further belongs to bounds that are wrong.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from seedbed.types import ArraySpec

Array = NDArray[Any]
Rule = Callable[[Any], str | None]

NOT_FINITE = "not finite"
"""Begin of the sentence about such a number; training skips its consequences, and the suite refuses it."""


def broken_array(array: Any, dtype: str, shape: tuple[int, ...]) -> str | None:
    """Describes ``array`` if it has another dtype or shape."""
    if isinstance(array, np.ndarray) and array.shape == shape and array.dtype == dtype:
        return None
    wanted = f"{dtype} {shape}"
    found = f"{array.dtype} {array.shape}" if isinstance(array, np.ndarray) else f"a {type(array).__name__}"
    return f"is {found}; it must be {wanted}"


def value_rule(spec: ArraySpec) -> Rule | None:
    """Makes the rule for the numbers of a batch ``[B, *shape]``; None if the dtype holds no others."""
    low, high = _limits(spec)
    least, greatest = _range_of(np.dtype(spec.dtype))
    if not low.size or (
        (low <= least).all() and (high >= greatest).all() and np.dtype(spec.dtype).kind != "f"
    ):
        return None
    lowest, highest = _plain(np.maximum(low, least), spec), _plain(np.minimum(high, greatest), spec)

    def rule(array: Any) -> str | None:
        # One comparison each, which a NaN does not pass.
        inside = (array >= lowest) & (array <= highest)
        return None if inside.all() else _described(spec, np.asarray(array)[~inside].reshape(-1)[0])

    return rule


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
    limits: Any = np.finfo(dtype) if dtype.kind == "f" else np.iinfo(dtype)
    return float(limits.min), float(limits.max)


def _plain(bound: Array, spec: ArraySpec) -> Any:
    """The bound in the dtype, as one number where all are the same: that is compared faster."""
    exact = bound.astype(spec.dtype)
    return exact.flat[0] if (exact == exact.flat[0]).all() else exact


def _described(spec: ArraySpec, value: Any) -> str:
    if not np.isfinite(value):
        return f"is {NOT_FINITE}: {value!s} is shown"
    if spec.num_values:
        return f"has {value!s}, beyond its choices, which are 0 to {max(spec.num_values) - 1}"
    low, high = spec.bounds
    declared = f"{float(low.min()):g} to {float(high.max()):g}"
    return (
        f"has {value!s}, and {declared} is declared: declare what it shows, or clip it, by "
        "gymnasium.wrappers.TransformObservation"
    )
