"""The registry of a parameter server's workers: gives each its job, and takes its reports."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from numpy.typing import NDArray

from seedbed.errors import Refused
from seedbed.transport.admission import require_admission, require_claim
from seedbed.transport.interface import Layout, Layouts, Peer

_NOTHING = [Layouts(Layout(()), Layout(()))]


@dataclass
class Worker:
    """A worker that has joined.

    Attributes:
      index: index of the worker among the workers.
      epoch: number of workers that had this index before.
      told: its last report.
    """

    index: int
    epoch: int
    told: Mapping[str, Any] = field(default_factory=dict)


class WorkerRegistry:
    """A :class:`~seedbed.transport.interface.Handler` that admits the workers of a run, and answers their questions.

    Args:
      token: secret that admits a worker.
      count: number of workers.
      job: function that returns the job of a worker, as JSON values, given its index and epoch.
      on_report: function that is called with a worker and its report.
      on_leave: function that is called with a worker that is gone, and the reason.
      first_epoch: epoch of the first worker at each index.
      claim: secret of the session by which workers on other machines are known; empty if there are none.
    """

    def __init__(
        self,
        token: str,
        count: int,
        *,
        job: Callable[[int, int], dict[str, Any]],
        on_report: Callable[[Worker, Mapping[str, Any]], None],
        on_leave: Callable[[Worker, str], None],
        first_epoch: int = 0,
        claim: str = "",
    ) -> None:
        self._token = token
        self._claim = claim
        self._count = count
        self._job = job
        self._on_report = on_report
        self._on_leave = on_leave
        self._first_epoch = first_epoch
        self._epochs: dict[int, int] = {}
        self._workers: dict[Peer, Worker] = {}
        self._heard: dict[int, float] = {}
        self._lock = threading.Lock()

    def answer(self, peer: Peer, message: dict[str, Any]) -> dict[str, Any]:
        """Answers ``join`` with the worker's job; after that takes its ``report``.

        Raises:
          Refused: the token or the index is wrong, the index is taken, or the question is out of turn.
        """
        kind = message.get("kind")
        if kind == "join":
            return self._welcome(peer, message)
        if kind == "report":
            with self._lock:
                worker = self._workers.get(peer)
            if worker is None:
                raise Refused("'report' comes after 'join'")
            self._on_report(worker, message)
            with self._lock:
                self._heard[worker.index] = time.monotonic()
            return {}
        raise Refused(f"unknown question {kind!r}: a worker asks 'join', then reports")

    def _welcome(self, peer: Peer, message: dict[str, Any]) -> dict[str, Any]:
        require_admission(message, self._token)
        require_claim(message, self._claim)
        index = message.get("index")
        if type(index) is not int or not 0 <= index < self._count:
            raise Refused(f"worker index {index!r}: must be a whole number from 0 to {self._count - 1}")
        if message.get("elsewhere") is True:
            self._replace(index)  # its machine may be gone, and not missed yet
        with self._lock:
            if any(worker.index == index for worker in self._workers.values()):
                raise Refused(f"worker {index} is there already")
            epoch = self._epochs.get(index, self._first_epoch - 1) + 1
            self._epochs[index] = epoch
            self._workers[peer] = Worker(index, epoch)
        peer.open(_NOTHING)
        return self._job(index, epoch)

    def _replace(self, index: int) -> None:
        with self._lock:
            before = [peer for peer, worker in self._workers.items() if worker.index == index]
        for peer in before:
            self.left(peer, "replaced by a new worker with the same index")
            peer.close("another worker joined with the same index")

    def deliver(self, peer: Peer, lane: int, arrays: list[NDArray[Any]]) -> None:
        """Ends the conversation: workers send no arrays."""
        del lane, arrays
        peer.close("a worker sends nothing but questions")

    def left(self, peer: Peer, reason: str) -> None:
        """Removes the worker, and reports it as gone."""
        with self._lock:
            worker = self._workers.pop(peer, None)
            if worker is not None:
                self._heard.pop(worker.index, None)
        if worker is not None:
            self._on_leave(worker, reason)

    def owes(self) -> dict[int, float | None]:
        """Returns the time (monotonic, s) of each worker's last report, since which it owes the next one.

        Workers that have not reported yet are left out: they still compile.
        """
        with self._lock:
            return dict(self._heard)

    def __len__(self) -> int:
        with self._lock:
            return len(self._workers)

    @property
    def last_epoch(self) -> int:
        """Highest epoch of a worker so far."""
        with self._lock:
            return max(self._epochs.values(), default=self._first_epoch)
