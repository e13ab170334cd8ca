"""Stopping criteria of a run: its limits, and a decision that is the same on all hosts."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any

from seedbed.config.settings import Stop
from seedbed.launch.recorder import TrainingTime
from seedbed.learning.run import Run
from seedbed.metrics.console import Budget


class Stopping:
    """The stopping criteria of a run.

    Args:
      limits: limits of the run: frames, minutes, mean return.
      clock: time that the run has trained.
      interrupted: event that is set when the user interrupts the run.
    """

    def __init__(self, limits: Stop, clock: TrainingTime, interrupted: threading.Event) -> None:
        self._limits = limits
        self._clock = clock
        self._interrupted = interrupted

    @property
    def budget(self) -> Budget:
        """The limits, for the progress display."""
        minutes = self._limits.minutes
        return Budget(
            frames=self._limits.frames,
            seconds=None if minutes is None else 60 * minutes,
            until_return=self._limits.until_return,
        )

    def wish(self) -> dict[str, Any]:
        """Returns this host's own reasons to stop, as JSON values: an interruption, or spent time."""
        return {"interrupted": self._interrupted.is_set(), "time": self.out_of_time()}

    def out_of_time(self) -> str | None:
        """Returns the reason to stop if the time is spent, else None.

        Only time is checked while no batch is ready: limits that count steps or episodes end a run at the same update
        however fast its actors are.
        """
        minutes = self._limits.minutes
        if minutes is not None and self._clock.seconds >= 60 * minutes:
            return f"{minutes:g} minutes spent"
        return None

    def reason(self, run: Run, wishes: Sequence[Mapping[str, Any]]) -> str | None:
        """Returns the reason to stop, None to go on; the same on all hosts.

        Args:
          run: the run, with its counts.
          wishes: all hosts' results of :meth:`wish`.
        """
        limits, episodes = self._limits, run.books.episodes
        if any(wish["interrupted"] for wish in wishes):
            return "interrupted"
        mean = episodes.mean_return
        goal = limits.until_return
        if goal is not None and episodes.full and mean is not None and mean >= goal:
            return f"mean return {mean:.4g} reached {goal:g}"
        if limits.frames is not None and run.books.agent_steps * run.frames_per_step >= limits.frames:
            return f"{limits.frames} frames spent"
        return next((wish["time"] for wish in wishes if wish["time"]), None)
