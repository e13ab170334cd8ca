"""Checks of numbers that actors from elsewhere send: nothing proves that their program checks them itself.

The run's own actors check every step where it enters (:class:`~seedbed.envs.make.Guarded`); that is not done twice.
"""

from __future__ import annotations

from seedbed.acting.lanes import Lane
from seedbed.envs.rules import StepRules
from seedbed.types import TimeStep


class BorderRules(StepRules):
    """The rules for the numbers of actors from elsewhere."""

    def broken_by(self, lane: Lane, step: TimeStep) -> str | None:
        """Returns the field and the environment (its number in its actor) that break a rule; None if none does.

        Args:
          lane: the lane of the environments.
          step: steps that were received, ``[n, ...]`` or ``[T, n, ...]``.
        """
        return None if lane.member.local else self.broken(step, lane.half * lane.rows)
