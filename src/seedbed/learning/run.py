"""The interface of a run under any architecture: the work, instances and state of the process at its head."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

from seedbed.instances import Instances
from seedbed.learning.books import Books
from seedbed.learning.checkpoint import Contents
from seedbed.learning.update import TrainState


class Run(Protocol):
    """The parts of one run, put together; used by one thread, except for :meth:`fail`."""

    @property
    def books(self) -> Books:
        """Counters of steps, episodes and lag."""

    @property
    def train_state(self) -> TrainState:
        """Parameters, optimizer and counters."""

    @property
    def version(self) -> int:
        """Number of updates so far; readable even after a failure."""

    @property
    def skipped(self) -> int:
        """Number of updates that were skipped; readable even after a failure."""

    @property
    def frames_per_step(self) -> int:
        """Environment frames in one agent step."""

    @property
    def instances(self) -> Mapping[str, Instances]:
        """Instances of the program's roles, by the name of the role; roles that are not watched are left out."""

    def open(self, addresses: list[str], dialled: Mapping[str, list[str]]) -> list[str]:
        """Admits the roles that dial the head, whose work waits for :meth:`begin`.

        Args:
          addresses: addresses to listen on; the first is for instances on this machine.
          dialled: addresses of the roles that the head dials, by the name of the role.

        Returns:
          The addresses as other processes can reach them.
        """

    def begin(self) -> None:
        """Compiles, while the processes of the run start; to be called once, between ``open`` and ``updates``."""

    def rest(self, stand_down: Callable[[], None], stop: Callable[[], None]) -> bool:
        """Stops learning in other threads or processes, so that weights, books and version are of one moment.

        Args:
          stand_down: function after which ended instances are not replaced.
          stop: function that ends the roles that dial the head, to be called after they were told of the end.

        Returns:
          Whether any were learning; metrics that were reported before are then older than the run's state.
        """

    def updates(self, stop: threading.Event) -> Iterator[Mapping[str, Any] | None]:
        """Trains until ``stop`` is set; yields metrics (device scalars) after some of the updates.

        Yields None now and then while there is no batch.

        Raises:
          RunFailed: a part of the run failed.
        """

    def report(self) -> dict[str, Any]:
        """Returns this host's news for the other hosts of the run, as JSON values; see :meth:`merge`."""

    def merge(self, reports: Sequence[Mapping[str, Any]]) -> None:
        """Takes over the reports of all hosts after the same update, in host order, this host's included."""

    def meters(self) -> dict[str, float]:
        """Returns the metrics since the last call, by name."""

    def variants(self) -> list[dict[str, Any]]:
        """Returns settings and results of each agent that is trained side by side; empty for a single agent."""

    def snapshot(self, *, alone: bool = False) -> Contents:
        """Returns the contents of a checkpoint; ``meta["exact"]`` says whether they include the environments' state.

        All hosts take it after the same update. ``alone``: another host is gone, and with it all state that only it
        held.
        """

    def fail(self, error: BaseException) -> None:
        """Ends the run with this error; may be called from any thread."""

    def close(self) -> None:
        """Stops everything that the run started; safe to call twice."""
