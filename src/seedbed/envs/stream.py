"""The stream of a batch of environments that start the next episode one step *after* an end.

Gymnasium calls this autoreset mode ``NEXT_STEP``; ALE, EnvPool and the toys have it too. It is the one mode
that can be turned into :class:`~seedbed.types.TimeStep` without stopping the other environments of the batch.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from seedbed.types import TimeStep, Tree


class Stream:
    """Remembers which environments ended, and marks their next observations as first ones.

    Attributes:
      ended: bool ``[num_envs]``, the newest step was the final one of its episode.
    """

    def __init__(self, num_envs: int) -> None:
        self.num_envs = num_envs
        self.ended: NDArray[np.bool_] = np.zeros(num_envs, np.bool_)

    def start(self, observation: Tree, absent: NDArray[np.bool_] | None = None) -> TimeStep:
        """The step after a reset of every environment; ``absent`` as for :meth:`step`."""
        self.ended = np.zeros(self.num_envs, np.bool_) if absent is None else absent
        return TimeStep(
            observation=observation,
            reward=np.zeros(self.num_envs, np.float32),
            terminated=self.ended.copy(),
            truncated=np.zeros(self.num_envs, np.bool_),
            first=np.ones(self.num_envs, np.bool_),
        )

    def step(
        self,
        observation: Tree,
        reward: Any,
        terminated: Any,
        truncated: Any,
        absent: NDArray[np.bool_] | None = None,
    ) -> TimeStep:
        """Returns the step after one action each; an environment's claims about its reset step are ignored.

        Args:
          observation: tree of ``[num_envs, ...]``.
          reward, terminated, truncated: ``[num_envs]``.
          absent: bool ``[num_envs]``, rows whose agent is not there; each was absent before, or its episode has ended.
        """
        first = self.ended
        over = np.asarray(terminated, np.bool_) & ~first
        if absent is not None:
            over |= absent
        cut = np.asarray(truncated, np.bool_) & ~first & ~over
        self.ended = over | cut
        with np.errstate(over="ignore"):  # an infinite one is refused, see :mod:`seedbed.envs.rules`
            paid = np.asarray(reward, np.float32)
        return TimeStep(
            observation=observation,
            reward=np.where(first, np.float32(0), paid),
            terminated=over,
            truncated=cut,
            first=first,
        )
