"""Checks of numbers that actors from elsewhere send: nothing proves that their program checks them itself.

The run's own actors check every step where it enters (:class:`~seedbed.envs.make.Guarded`); that is not done twice.
"""

from __future__ import annotations

import numpy as np

from seedbed.acting.lanes import Lane
from seedbed.envs.masks import mask_rule
from seedbed.envs.rules import StepRules
from seedbed.types import ACTION_MASK, EnvSpec, TimeStep


class BorderRules(StepRules):
    """The rules for the numbers and action masks of actors from elsewhere.

    Args:
      spec: spec of the environments.
    """

    def __init__(self, spec: EnvSpec) -> None:
        super().__init__(spec)
        self._mask_rule = mask_rule(spec)

    def broken_by(self, lane: Lane, step: TimeStep) -> str | None:
        """Returns the field and the environment (its number in its actor) that break a rule; None if none does.

        Args:
          lane: the lane of the environments.
          step: steps that were received, ``[n, ...]`` or ``[T, n, ...]``.
        """
        if lane.member.local:
            return None
        return self.broken(step, lane.half * lane.rows) or self._broken_mask(step)

    def _broken_mask(self, step: TimeStep) -> str | None:
        if self._mask_rule is None:
            return None
        mask, *flags = step.observation[ACTION_MASK], step.terminated, step.truncated
        masks = mask[None] if np.ndim(step.reward) == 1 else mask
        over = np.reshape(flags, (2, *masks.shape[:2]))
        for shown, terminated, truncated in zip(masks, *over, strict=True):
            one = step._replace(observation={ACTION_MASK: shown}, terminated=terminated, truncated=truncated)
            if (broken := self._mask_rule(one)) is not None:
                return f"{ACTION_MASK} {broken}"
        return None
