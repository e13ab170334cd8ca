"""One worker thread for each accelerator that acts: it takes steps in, has the policy decide, and hands unrolls on."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from orchard.acting.inference import Inference
from orchard.acting.lanes import Lane, Script, arrival, digest_of
from orchard.acting.ledger import Ledger
from orchard.acting.pace import Lockstep, Pace
from orchard.acting.recipe import Recipe
from orchard.acting.unrolls import timestep_of
from orchard.errors import RunFailed
from orchard.types import map_leaves


@dataclass
class Meters:
    """What inference has done since the meters were last read; guarded by its lock."""

    batches: int = 0
    rows: int = 0
    padded: int = 0
    seconds: float = 0.0
    lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def add(self, rows: int, size: int, seconds: float) -> None:
        """Counts one batch of ``rows`` in a full batch's ``size``."""
        with self.lock:
            self.batches += 1
            self.rows += rows
            self.padded += size
            self.seconds += seconds

    def take(self) -> dict[str, float]:
        """Means since the last call, by metric name; empty if there was no batch."""
        with self.lock:
            if not self.batches:
                return {}
            means = {
                "inference_batch": self.rows / self.batches,
                "batch_fill": self.rows / self.padded,
                "inference_milliseconds": 1e3 * self.seconds / self.batches,
            }
            self.batches, self.rows, self.padded, self.seconds = 0, 0, 0, 0.0
            return means


class Worker:
    """Serves the lanes of one accelerator: a thread that alone touches lanes and tables.

    Args:
      inference: the policy on the accelerator.
      pace: who is served when.
      recipe: of the run.
      ledger: the books.
      meters: shared by the workers.
      full_batch: rows of a full batch, for the meters.
      on_failure: called with the exception that ended the thread.
    """

    def __init__(
        self,
        inference: Inference,
        pace: Pace,
        recipe: Recipe,
        *,
        ledger: Ledger,
        meters: Meters,
        full_batch: int,
        on_failure: Callable[[BaseException], None],
    ) -> None:
        self.inference = inference
        self.pace = pace
        self.lanes: list[Lane] = []
        self._recipe = recipe
        self._ledger = ledger
        self._meters = meters
        self._full_batch = full_batch
        self._on_failure = on_failure
        self._news = threading.Condition()
        self._inbox: list[tuple[Callable[..., None], tuple[Any, ...]]] = []
        self._poked = False
        self._stopping = False
        self._idle = False
        self._thread = threading.Thread(target=self._run, name="acting", daemon=True)

    # What other threads call.

    def start(self) -> None:
        """Starts the thread."""
        self._thread.start()

    def submit(self, what: str, *arguments: Any) -> None:
        """Has the thread do ``join(lane)``, ``arrive(lane, arrays, time)`` or ``leave(lane)``, in order."""
        with self._news:
            self._inbox.append((getattr(self, f"_{what}"), arguments))
            self._news.notify_all()

    def poke(self) -> None:
        """Says that there are new weights, or room in the queue."""
        with self._news:
            self._poked = True
            self._news.notify_all()

    def stop(self) -> None:
        """Ends the thread; open unrolls are left where they are."""
        with self._news:
            self._stopping = True
            self._news.notify_all()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join()

    def wait_blocked(self, timeout: float) -> bool:
        """Waits, in lockstep, until all lanes wait for weights; False when ``timeout`` s have passed."""
        with self._news:
            return self._news.wait_for(self._blocked, timeout)

    def _blocked(self) -> bool:
        return (
            self._idle
            and not self._inbox
            and not self._poked
            and isinstance(self.pace, Lockstep)
            and self.pace.blocked(self.lanes)
        )

    # What the thread does.

    def _run(self) -> None:
        try:
            wait: float | None = None
            while self._wait_for_news(wait):
                wait = self._turn()
        except BaseException as error:
            self._on_failure(error)

    def _wait_for_news(self, timeout: float | None) -> bool:
        with self._news:
            self._idle = True
            self._news.notify_all()
            self._news.wait_for(lambda: self._inbox or self._poked or self._stopping, timeout)
            self._idle = False
            inbox, self._inbox, self._poked = self._inbox, [], False
            if self._stopping:
                return False
        for action, arguments in inbox:
            action(*arguments)
        return True

    def _turn(self) -> float | None:
        """Passes on what can be, serves who is due; returns how long to wait for news, in s."""
        # First come, first served: otherwise a full queue would starve the last lanes, or the large ones.
        for lane in sorted((lane for lane in self.lanes if lane.outbox is not None), key=arrival):
            if not self.pace.hand_over(lane):
                break
            lane.outbox, lane.finished, lane.counted = None, [], 0
        chosen, wait = self.pace.choose(self.lanes, time.monotonic())
        if not chosen:
            return wait
        self._serve(chosen)
        return 0.0

    def _serve(self, lanes: Sequence[Lane]) -> None:
        weights = self.pace.weights(lanes)
        begin = time.monotonic()
        actions, record = self.inference.act(
            weights.params, [(lane.open.observed, lane.columns()) for lane in lanes]
        )
        now = time.monotonic()
        start = 0
        for lane in lanes:
            rows = slice(start, start + lane.rows)
            start += lane.rows
            lane.open.decide(actions[rows], map_leaves(itemgetter(rows), record), weights.version)
            lane.steps += 1
            self._reply(lane, actions[rows], now)
        self._ledger.decide(start)
        self._meters.add(start, max(start, self._full_batch), now - begin)

    def _reply(self, lane: Lane, action: NDArray[Any], now: float) -> None:
        lane.arrived = None
        lane.owed_since = now
        lane.member.peer.reply(lane.half, [np.ascontiguousarray(action, self._recipe.spec.action.dtype)])

    def _join(self, lane: Lane) -> None:
        if lane.script is None:  # otherwise the slots hold what the checkpoint kept
            self.inference.reset(lane.slots)
        self.lanes.append(lane)

    def _leave(self, lane: Lane) -> None:
        if lane in self.lanes:
            self.lanes.remove(lane)
            self._ledger.drop(open_steps=lane.open.transitions, queued_steps=lane.counted)

    def _arrive(self, lane: Lane, arrays: list[NDArray[Any]], now: float) -> None:
        if lane not in self.lanes:
            return
        finished = lane.meter.add(timestep_of(self._recipe.spec, arrays))
        if self._recipe.evaluating:  # those that explore are not what the agent can do
            finished = [
                episode
                for row, episode in zip(lane.meter.finished, finished, strict=True)
                if row >= lane.rows - lane.evaluating
            ]
        if lane.script is None:
            lane.finished += finished
        elif not self._replayed(lane, lane.script, arrays, now):
            return  # and the episodes that ended up to here were counted before the run was interrupted
        if lane.open.observe(arrays):
            self._cut(lane)
        lane.arrived = now

    def _cut(self, lane: Lane) -> None:
        lane.counted = lane.open.transitions
        lane.outbox = lane.open.cut(self.inference.first_states(lane.slots))
        lane.rounds += 1
        if lane.log is not None:
            lane.log.append(lane.outbox.action[-(lane.counted // lane.rows) :])
        self._ledger.cut(lane.counted)

    def _replayed(self, lane: Lane, script: Script, arrays: list[NDArray[Any]], now: float) -> bool:
        """Plays the next logged action; True once the environments are where they were."""
        if script.played < len(script.actions):
            script.played += 1
            self._reply(lane, script.actions[script.played - 1], now)
            return False
        if digest_of(arrays) != script.digest:
            raise RunFailed(
                f"cannot resume exactly: lane {lane.order} of {self._recipe.env} does not come back to where "
                "it was when its actions are played again; the environment is not deterministic given its "
                "seed. Resume without --deterministic."
            )
        lane.script = None
        return True
