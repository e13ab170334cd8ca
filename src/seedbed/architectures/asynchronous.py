"""What A3C, Gorila and DistBelief have in common: updates are made elsewhere, as gradients come."""

from __future__ import annotations

import threading
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from seedbed.architectures.one_agent import OneAgent
from seedbed.architectures.run import progress
from seedbed.config.settings import RunConfig
from seedbed.learning.checkpoint import Contents
from seedbed.learning.update import TrainState
from seedbed.metrics.meters import Tally
from seedbed.types import Agent, EnvSpec

_POLL_SECONDS = 0.2


class Asynchronous(OneAgent):
    """A run whose own thread watches others learn; see :class:`~seedbed.architectures.one_agent.OneAgent`."""

    def __init__(self, config: RunConfig, agent: Agent, spec: EnvSpec) -> None:
        super().__init__(config, agent, spec)
        self.staleness = Tally()
        self._news = threading.Condition()
        self._metrics: Mapping[str, Any] | None = None
        self._dropped = 0

    def updates(self, stop: threading.Event) -> Iterator[Mapping[str, Any] | None]:
        """Yields the newest metrics as they come, None while none do; ends when ``stop`` is set.

        Raises:
          RunFailed: a part of the run failed.
        """
        while not stop.is_set():
            if self._failure is not None:
                raise self._failure
            with self._news:
                self._news.wait_for(lambda: self._metrics is not None, _POLL_SECONDS)
                metrics, self._metrics = self._metrics, None
            yield metrics

    @abstractmethod
    def rest(self, stop: Callable[[], None]) -> None:
        """Ends learning, so that parameters, books and version are of one moment from now on.

        Args:
          stop: waits for those who learn, once they are told that it is over, and ends those that stay.
        """

    def report(self) -> dict[str, Any]:
        """There is one host."""
        return {}

    def merge(self, reports: Sequence[Mapping[str, Any]]) -> None:
        """There is one host."""

    def ledgers(self) -> list[dict[str, int]]:
        """The books of all who learn."""
        return [self.ledger.counts()]

    @property
    @abstractmethod
    def train_state(self) -> TrainState:
        """Parameters, optimizer and counters, as the shards have them."""

    @property
    @abstractmethod
    def version(self) -> int:
        """Gradients that the shards have taken."""

    @property
    @abstractmethod
    def skipped(self) -> int:
        """Gradients that were not finite, or would have led to parameters that are not."""

    @abstractmethod
    def snapshot(self, *, alone: bool = False) -> Contents:
        """Parameters, optimizer and counters; those who learn go on."""

    def meters(self) -> dict[str, float]:
        """Metrics since the last call, by name."""
        staleness = self.staleness.take()
        return {
            **progress(self),
            **(
                {"gradient_staleness_mean": staleness[0], "gradient_staleness_max": staleness[1]}
                if staleness
                else {}
            ),
            "gradients_dropped": self._dropped,
            "skipped_updates": self.skipped,
        }
