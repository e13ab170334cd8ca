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
        self.ended = 0
        """The number of environments of which the last step is the final one of an episode, seen whole or not."""

    @property
    def returns(self) -> NDArray[np.float64]:
        """Rewards ``[num_envs]`` of every environment's episode so far; the next step changes the array."""
        return self._return

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Steps ``[num_envs]`` of every environment's episode so far; the next step changes the array."""
        return self._length

    @property
    def open(self) -> NDArray[np.bool_]:
        """Whether each environment ``[num_envs]`` is within an episode whose beginning was seen."""
        return self._open

    def add(self, timestep: TimeStep) -> list[tuple[float, int]]:
        """Takes one step ``[num_envs]``; returns ``(return, length)`` of each episode that it finished.

        The return is the sum of the unclipped rewards, the length is in agent steps (transitions); both are
        in the order of the environments.
        """
        ended = np.asarray(timestep.terminated) | np.asarray(timestep.truncated)
        self._return += np.asarray(timestep.reward)
        self._length += 1
        # Most steps neither begin nor end an episode.
        if np.count_nonzero(timestep.first):
            first = np.asarray(timestep.first)
            self._return[first], self._length[first] = 0.0, 0
            self._open |= first & ~ended  # an agent that is not there begins nothing
        self.ended = int(np.count_nonzero(ended))
        if not self.ended:
            self.finished = []
            return []
        self.finished = np.flatnonzero(ended & self._open).tolist()
        self._open &= ~ended
        return [(float(self._return[i]), int(self._length[i])) for i in self.finished]
