"""The registry where the workers of a parameter server report: what each is to do, and what it has done so far."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from numpy.typing import NDArray

from seedbed.errors import Refused
from seedbed.transport.admission import require_admission
from seedbed.transport.interface import Layout, Layouts, Peer

_NOTHING = [Layouts(Layout(()), Layout(()))]


@dataclass
class Worker:
    """One that has joined.

    Attributes:
      index: its place among the workers.
      epoch: how many had that place before.
      told: what it has reported last.
    """

    index: int
    epoch: int
    told: Mapping[str, Any] = field(default_factory=dict)


class WorkerRegistry:
    """Lets the workers of a run in; a :class:`~seedbed.transport.interface.Handler` of questions alone.

    Args:
      token: what a worker must know.
      count: how many there are.
      job: what the worker with an index, the so-manieth there, is to do (JSON values).
      on_report: called with every report.
      on_leave: called with a worker that is gone, and why.
      first_epoch: of the first worker at each index.
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
    ) -> None:
        self._token = token
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
        """``join`` tells a worker what to do; then it may ``report``."""
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
        index = message.get("index")
        if type(index) is not int or not 0 <= index < self._count:
            raise Refused(f"worker index {index!r}: must be a whole number from 0 to {self._count - 1}")
        with self._lock:
            if any(worker.index == index for worker in self._workers.values()):
                raise Refused(f"worker {index} is there already")
            epoch = self._epochs.get(index, self._first_epoch - 1) + 1
            self._epochs[index] = epoch
            self._workers[peer] = Worker(index, epoch)
        peer.open(_NOTHING)
        return self._job(index, epoch)

    def deliver(self, peer: Peer, lane: int, arrays: list[NDArray[Any]]) -> None:
        """Nothing travels on lanes."""
        del lane, arrays
        peer.close("a worker sends nothing but questions")

    def left(self, peer: Peer, reason: str) -> None:
        """Tells who is gone."""
        with self._lock:
            worker = self._workers.pop(peer, None)
            if worker is not None:
                self._heard.pop(worker.index, None)
        if worker is not None:
            self._on_leave(worker, reason)

    def owes(self) -> dict[int, float | None]:
        """Returns when each worker has reported last, in s (monotonic): the next report is what it owes.

        One that has not reported yet is left out: it still compiles.
        """
        with self._lock:
            return dict(self._heard)

    def __len__(self) -> int:
        with self._lock:
            return len(self._workers)

    @property
    def last_epoch(self) -> int:
        """The highest epoch of a worker so far."""
        with self._lock:
            return max(self._epochs.values(), default=self._first_epoch)
