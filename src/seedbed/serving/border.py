"""What actors from elsewhere send, looked at where it enters: what their program says of itself is only their word.

The run's own actors have looked at every step themselves (:class:`~seedbed.envs.make.Guarded`), and are not looked at
twice.
"""

from __future__ import annotations

from seedbed.acting.lanes import Lane
from seedbed.envs.rules import StepRules
from seedbed.types import TimeStep


class BorderRules(StepRules):
    """The rules for the numbers of actors from elsewhere."""

    def broken_by(self, lane: Lane, step: TimeStep) -> str | None:
        """Returns what breaks a rule, with the number of the environment among its actor's; None if nothing does.

        Args:
          lane: the lane of the environments.
          step: what came of it, ``[n, ...]`` or ``[T, n, ...]``.
        """
        return None if lane.member.local else self.broken(step, lane.half * lane.rows)
