"""The common part of A3C, Gorila and DistBelief: asynchronous updates, made as gradients come by threads or workers."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from seedbed.architectures.interface import Setup
from seedbed.instances import Instances
from seedbed.learning.books import Books
from seedbed.learning.checkpoint import Contents
from seedbed.learning.failure import Failure
from seedbed.learning.loop import NOBODY
from seedbed.learning.update import TrainState
from seedbed.metrics.meters import Tally

_POLL_SECONDS = 0.2


class Asynchronous(ABC):
    """Base class of a :class:`~seedbed.learning.run.Run` whose own thread only watches; workers or threads learn."""

    @property
    @abstractmethod
    def instances(self) -> Mapping[str, Instances]:
        """The instances of the roles that learn, see :class:`~seedbed.learning.run.Run`."""

    def __init__(self, setup: Setup) -> None:
        self._config, self._agent, self._spec = setup.config, setup.agent, setup.spec
        self._failure = Failure()
        self.books = Books()
        self.staleness = Tally()
        self._news = threading.Condition()
        self._metrics: Mapping[str, Any] | None = None
        self._dropped = 0

    def updates(self, stop: threading.Event) -> Iterator[Mapping[str, Any] | None]:
        """Yields the newest metrics as they come, and None now and then while there are none, until ``stop`` is set.

        Raises:
          RunFailed: a part of the run failed.
        """
        while not stop.is_set():
            self._failure.check()
            with self._news:
                self._news.wait_for(lambda: self._metrics is not None, _POLL_SECONDS)
                metrics, self._metrics = self._metrics, None
            yield metrics

    @abstractmethod
    def rest(self, stand_down: Callable[[], None], stop: Callable[[], None]) -> bool:
        """Ends learning, so that parameters, books and version are of one moment.

        See :class:`~seedbed.learning.run.Run`.
        """

    def report(self) -> dict[str, Any]:
        """Returns nothing: there is one host."""
        return {}

    def merge(self, reports: Sequence[Mapping[str, Any]]) -> None:
        """Does nothing: there is one host."""
        del reports

    def variants(self) -> list[dict[str, Any]]:
        """Returns an empty list: there is one agent."""
        return []

    def fail(self, error: BaseException) -> None:
        """Ends the run with this error; may be called from any thread."""
        self._failure.report(error)

    @property
    def frames_per_step(self) -> int:
        """Number of environment frames in one agent step."""
        return self._spec.frames_per_step

    @abstractmethod
    def open(self, addresses: list[str], dialled: Mapping[str, list[str]] = NOBODY) -> list[str]:
        """Admits workers if they are processes; see :class:`~seedbed.learning.run.Run`."""

    def begin(self) -> None:  # noqa: B027 (there is nothing to do, and nothing to forget)
        """Does nothing: workers that are processes compile for themselves."""

    @abstractmethod
    def close(self) -> None:
        """Stops everything; safe to call twice."""

    @property
    @abstractmethod
    def train_state(self) -> TrainState:
        """Parameters, optimizer state and counters, read from the shards."""

    @property
    @abstractmethod
    def version(self) -> int:
        """Number of gradients that the shards have taken, including skipped ones."""

    @property
    @abstractmethod
    def skipped(self) -> int:
        """Number of gradients that were skipped: not finite themselves, or leading to parameters that are not."""

    @abstractmethod
    def snapshot(self, *, alone: bool = False) -> Contents:
        """Returns parameters, optimizer state and counters; learning goes on."""

    def meters(self) -> dict[str, float]:
        """Returns the metrics since the last call, by name."""
        staleness = self.staleness.take()
        return {
            **self.books.progress(self.version, self.frames_per_step),
            **(
                {"gradient_staleness_mean": staleness[0], "gradient_staleness_max": staleness[1]}
                if staleness
                else {}
            ),
            "gradients_dropped": self._dropped,
            "skipped_updates": self.skipped,
        }
