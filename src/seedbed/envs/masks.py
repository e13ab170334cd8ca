"""Action masks at the border of the environments: their convention, and actions at random that keep to them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from seedbed.types import ACTION_MASK, EnvSpec, TimeStep

Array = NDArray[Any]


def mask_rule(spec: EnvSpec) -> Callable[[TimeStep], str | None] | None:
    """Makes the rule for the action masks of a step; None if observations have none.

    Wherever something is decided, each choice has a value that is allowed. At the end of an episode nothing is, and
    any mask will do. The rule describes, in words that follow the name of the mask, the first that breaks it.

    Raises:
      SpecError: the leaf is no mask of the spec's actions.
    """
    if spec.action_mask is None:
        return None
    starts = _starts(spec)

    def rule(step: TimeStep) -> str | None:
        mask = np.asarray(step.observation[ACTION_MASK])
        decides = ~(np.asarray(step.terminated) | np.asarray(step.truncated))
        odd = ((mask != 0) & (mask != 1)).any(axis=-1)
        stuck = ~np.logical_or.reduceat(mask, starts, axis=-1).all(axis=-1)
        broken = np.flatnonzero(decides & (odd | stuck))
        if not broken.size:
            return None
        of = f"of environment {broken[0]} of the batch is {mask[broken[0]].astype(int).tolist()}"
        if odd[broken[0]]:
            return f"{of}: it must be 1 (allowed) or 0 for each action"
        alone = "" if len(starts) == 1 else " of one of the choices"
        return f"{of} and allows no action{alone}: it must allow one in all but the last observation of an episode"

    return rule


def allowed_actions(spec: EnvSpec, step: TimeStep, action: Array) -> Array:
    """Returns actions ``[B, *shape]`` with forbidden choices replaced by the next allowed one, in a circle.

    Where nothing is allowed, or there is no mask, they are as they were.
    """
    if spec.action_mask is None:
        return action
    mask = np.asarray(step.observation[ACTION_MASK]) != 0
    elements = action.reshape(len(action), -1).copy()
    for index, (start, count) in enumerate(zip(_starts(spec), spec.action.num_values, strict=True)):
        circle = (elements[:, index, None] + np.arange(count)) % count
        next_one = np.take_along_axis(mask[:, start : start + count], circle, axis=1).argmax(axis=1)
        elements[:, index] = np.take_along_axis(circle, next_one[:, None], axis=1)[:, 0]
    return elements.reshape(action.shape)


def _starts(spec: EnvSpec) -> Array:
    """Returns the index of each choice's first value in a mask."""
    return np.cumsum((0, *spec.action.num_values[:-1]))
