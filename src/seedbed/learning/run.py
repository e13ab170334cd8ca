"""A run, whatever its architecture: what its head does, watches and keeps."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

from seedbed.instances import Instances
from seedbed.learning.books import Books
from seedbed.learning.checkpoint import Contents
from seedbed.learning.update import TrainState


class Run(Protocol):
    """The parts of one run, put together; used by one thread but for :meth:`fail`."""

    @property
    def books(self) -> Books:
        """Steps, episodes and lag."""

    @property
    def train_state(self) -> TrainState:
        """Parameters, optimizer and counters."""

    @property
    def version(self) -> int:
        """Updates so far; known whatever has failed."""

    @property
    def skipped(self) -> int:
        """How many of them were skipped; known whatever has failed."""

    @property
    def frames_per_step(self) -> int:
        """Environment frames in one agent step."""

    @property
    def instances(self) -> Mapping[str, Instances]:
        """The instances of the program's roles, by the name of the role; left out are roles that are not watched."""

    def open(self, addresses: list[str], dialled: Mapping[str, list[str]]) -> list[str]:
        """Compiles, and lets the roles in that dial the head.

        Args:
          addresses: where they may come; the first is for those of this machine.
          dialled: addresses of the roles that the head dials, by their name.

        Returns:
          The addresses as others can reach them.
        """

    def rest(self, stand_down: Callable[[], None], stop: Callable[[], None]) -> bool:
        """Ends learning that other threads or processes do, so that weights, books and version are of one moment.

        Args:
          stand_down: has instances not be replaced from now on.
          stop: ends the roles that dial the head, once they are told that it is over.

        Returns:
          Whether there was any; what was told of the run before is then older than it is.
        """

    def updates(self, stop: threading.Event) -> Iterator[Mapping[str, Any] | None]:
        """Learns until ``stop`` is set: yields metrics (scalars on the device) after some of the updates, and None
        now and then while there is nothing to learn from.

        Raises:
          RunFailed: a part of the run failed.
        """

    def report(self) -> dict[str, Any]:
        """What the other hosts of the run have to know of this one now, as JSON values."""

    def merge(self, reports: Sequence[Mapping[str, Any]]) -> None:
        """Takes over what all hosts reported after the same update, in their order, this one's too."""

    def meters(self) -> dict[str, float]:
        """Metrics since the last call, by name."""

    def variants(self) -> list[dict[str, Any]]:
        """The agents that are trained side by side: what each of them is, and how it does. Empty if there is one."""

    def snapshot(self, *, alone: bool = False) -> Contents:
        """What a checkpoint is made of; ``meta["exact"]`` says whether it holds the environments too.

        All hosts take it after the same update. ``alone``: another host is gone, and with it what only it had.
        """

    def fail(self, error: BaseException) -> None:
        """Ends the run with this error; from any thread."""

    def close(self) -> None:
        """Stops everything; safe to call twice."""
