"""Returns and lengths of episodes, from the stream."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from seedbed.types import TimeStep


class EpisodeMeter:
    """Adds up every environment's episode; an episode whose beginning it did not see is not reported."""

    def __init__(self, num_envs: int) -> None:
        self._return = np.zeros(num_envs, np.float64)
        self._length = np.zeros(num_envs, np.int64)
        self._open = np.zeros(num_envs, np.bool_)
        self.finished: list[int] = []
        """The environments whose episodes the last step finished."""

    @property
    def returns(self) -> NDArray[np.float64]:
        """Rewards ``[num_envs]`` of every environment's episode so far."""
        return self._return

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Steps ``[num_envs]`` of every environment's episode so far."""
        return self._length

    def add(self, timestep: TimeStep) -> list[tuple[float, int]]:
        """Takes one step ``[num_envs]``; returns ``(return, length)`` of each episode that it finished.

        The return is the sum of the unclipped rewards, the length is in agent steps (transitions); both are
        in the order of the environments.
        """
        first = np.asarray(timestep.first)
        self._return = np.where(first, 0.0, self._return + timestep.reward)
        self._length = np.where(first, 0, self._length + 1)
        ended = np.asarray(timestep.terminated) | np.asarray(timestep.truncated)
        self._open |= first & ~ended  # an agent that is not there begins nothing
        self.finished = np.flatnonzero(ended & self._open).tolist()
        self._open &= ~ended
        return [(float(self._return[i]), int(self._length[i])) for i in self.finished]
