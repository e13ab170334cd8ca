"""The thread of a forward-pass server: acts for rollout workers as central inference does, without learning.

Its weights come from the optimizer over the links of the lanes that it serves: under a free lag each newer version as
soon as it is published, so that every step is decided with the newest; under an exact lag the versions that the
optimizer told the lanes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from seedbed.acting.assignment import Assignment
from seedbed.acting.batcher import BatchRule
from seedbed.acting.inference import Inference
from seedbed.acting.lag_control import BatchControl, FreeBatches
from seedbed.acting.lanes import Lane, ServedLane
from seedbed.acting.meters import Meters
from seedbed.acting.opponents import Games, Opponents, PoolCopy
from seedbed.metrics.ledger import Ledger
from seedbed.serving.inference_service import InferenceService
from seedbed.serving.proxy import Link, ProxiedLane
from seedbed.types import Unroll, Weights
from seedbed.weights.store import WeightStore


class ForwardControl(BatchControl, Protocol):
    """A batch control that also decides which weights are fetched."""

    def wanted(self, lanes: Sequence[ServedLane]) -> int | None:
        """Returns the least version to ask the optimizer for now; None if none is needed."""


class Newest(FreeBatches):
    """The control of a free lag: each lane at its own pace, in batches of ``rule``, with the newest weights."""

    def __init__(self, rule: BatchRule, store: WeightStore) -> None:
        super().__init__(rule, store, 0, hand_over=lambda delivery: False)

    def hand_over(self, lane: Lane) -> bool:
        """See :class:`~seedbed.acting.lag_control.LagControl`."""
        return _when_told(lane)

    def choose(self, lanes: Sequence[ServedLane], now: float) -> tuple[list[ServedLane], float | None]:
        """See :class:`~seedbed.acting.lag_control.BatchControl`; chooses no lane before the first weights are here."""
        return super().choose(lanes, now) if self._store.versions else ([], None)

    def wanted(self, lanes: Sequence[ServedLane]) -> int | None:
        """Returns the version after the newest one here."""
        del lanes
        return max(self._store.versions, default=-1) + 1


class AsTold:
    """The control of an exact lag: each lane acts with the version that it was told, in batches of one lane.

    So the size of batches is fixed beforehand.
    """

    def __init__(self, store: WeightStore) -> None:
        self._store = store

    def version(self, lane: Lane) -> int:
        """See :class:`~seedbed.acting.lag_control.LagControl`."""
        told = _told(lane)
        assert told is not None
        return told

    def hand_over(self, lane: Lane) -> bool:
        """See :class:`~seedbed.acting.lag_control.LagControl`."""
        return _when_told(lane)

    def blocked(self, lanes: Sequence[Lane]) -> bool:
        """Returns False; never called: the optimizer knows when its rounds are at rest."""
        del lanes
        return False

    def choose(self, lanes: Sequence[ServedLane], now: float) -> tuple[list[ServedLane], float | None]:
        """See :class:`~seedbed.acting.lag_control.BatchControl`."""
        del now
        held = self._store.versions
        due = [lane for lane in lanes if lane.arrived is not None and _told(lane) in held]
        return sorted(due, key=lambda lane: lane.order)[:1], None

    def weights(self, lanes: Sequence[ServedLane]) -> Weights:
        """See :class:`~seedbed.acting.lag_control.BatchControl`."""
        weights = self._store.exactly(self.version(lanes[0]))
        assert weights is not None
        return weights

    def wanted(self, lanes: Sequence[ServedLane]) -> int | None:
        """Returns the oldest version that a lane was told and that is not here."""
        told = {version for lane in lanes if (version := _told(lane)) is not None}
        return min(told.difference(self._store.versions), default=None)


def _told(lane: Lane) -> int | None:
    assert isinstance(lane, ProxiedLane)
    return lane.told


def _when_told(lane: Lane) -> bool:
    """Returns False: an unroll stays in the outbox until the optimizer says that it was taken."""
    del lane
    return False


class ForwardService(InferenceService):
    """An inference service of one accelerator whose unrolls are trained on in another process.

    Args:
      inference: the policy on the accelerator.
      lag_control: control that chooses lanes, their weights, and the weights to fetch.
      assignment: the run's assignment.
      store: store of the fetched weights, with one device.
      meters: meters of this server.
      full_batch: number of rows in a full batch, for the meters.
      on_failure: function that is called with the exception that ended the thread.
      pool: copy of the optimizer's pool; None without self-play.
    """

    def __init__(
        self,
        inference: Inference,
        lag_control: ForwardControl,
        assignment: Assignment,
        store: WeightStore,
        *,
        meters: Meters,
        full_batch: int,
        on_failure: Callable[[BaseException], None],
        pool: PoolCopy | None = None,
    ) -> None:
        super().__init__(
            inference,
            lag_control,
            assignment,
            ledger=Ledger(),
            meters=meters,
            full_batch=full_batch,
            on_failure=on_failure,
            pool=pool,
        )
        self._copy = pool
        self._of_policy = lag_control.wanted
        self._store = store
        self._asked: Link | None = None
        self._answered = True

    def beats(self) -> bool:
        """Returns whether the thread has run a command since the last call; for one other thread."""
        if not self._answered:
            return False
        self._answered = False
        self._submit(self._beat)
        return True

    def tell(self, lane: ProxiedLane, version: int) -> None:
        """Tells the thread that the lane's unroll was taken, and the version that the next one begins with."""
        self._submit(self._tell, lane, version)

    def take(self, link: Link, weights: Weights, table: NDArray[np.float64] | None) -> None:
        """Hands the thread a snapshot that came over ``link``, with the pool's table in self-play."""
        self._submit(self._take, link, weights, table)

    def _beat(self) -> None:
        self._answered = True

    def new_lane(self, kept: object, **known: Any) -> ProxiedLane:
        """See :class:`~seedbed.serving.service.Service`; no checkpoint holds lanes of this server."""
        del kept
        lane = ProxiedLane(open=self._open_unroll(len(known["slots"])), **known)
        if self._pool is not None:
            lane.games = Games(self._pool, lane.numbers, lane.member.epoch)
        return lane

    def _turn(self) -> float | None:
        if self._asked is None and self.lanes and (wanted := self._wanted()) is not None:
            self._asked = _link(self.lanes[0])
            self._asked.want(wanted)
        return super()._turn()

    def _wanted(self) -> int | None:
        """Returns the version to ask the optimizer for: one of its pool, as ``-1 - version``, or one of the policy."""
        missing = None if self._copy is None else self._copy.missing()
        return self._of_policy(self.lanes) if missing is None else -1 - missing

    def _take(self, link: Link, weights: Weights, table: NDArray[np.float64] | None) -> None:
        """Publishes a snapshot that came over ``link``, in self-play as soon as the opponents of its table are here."""
        if self._asked is link:
            self._asked = None
        complete: Weights | None = weights
        if self._copy is not None:
            assert table is not None, "in self-play a table comes with all weights"
            complete = self._copy.take(weights, table)
        if complete is not None and complete.version not in self._store.versions:
            self._store.publish(complete.params, complete.version)

    def _tell(self, lane: ProxiedLane, version: int) -> None:
        """Empties the lane's outbox, which the optimizer has taken; the next unroll begins with this version."""
        if lane.served:
            self._ledger.train(lane.counted)
            lane.handed_over()
            self._complete.remove(lane)
            lane.told = version

    def _players(
        self, pool: Opponents, lanes: Sequence[ServedLane], weights: Weights
    ) -> tuple[NDArray[np.int64], int]:
        found = super()._players(pool, lanes, weights)
        for lane in lanes:
            assert isinstance(lane, ProxiedLane) and lane.games is not None
            lane.players.append(lane.games.players.astype(np.int32))
        return found

    def _as_handed_on(self, unroll: Unroll) -> Unroll:
        """Returns the unroll as it was played: the optimizer counts its games, and takes opponents out."""
        return unroll

    def _cut(self, lane: ServedLane) -> None:
        super()._cut(lane)
        assert isinstance(lane, ProxiedLane) and lane.outbox is not None
        lane.told = None
        players = np.stack(lane.players) if lane.players else None
        lane.players = []  # without a replay, unrolls share no decision
        lane.link.send(lane.half, lane.outbox, players)

    def _join(self, lane: ServedLane) -> None:
        assert isinstance(lane, ProxiedLane)
        self.inference.assign(lane.slots, lane.numbers, lane.exploration)
        super()._join(lane)

    def _leave(self, lane: ServedLane) -> None:
        super()._leave(lane)
        # Only once the link's last lane has left: until then the snapshot that it was asked for may still come.
        if self._asked not in [_link(each) for each in self.lanes]:
            self._asked = None


def _link(lane: ServedLane) -> Link:
    assert isinstance(lane, ProxiedLane)
    return lane.link
