"""The parts of a forward-pass server's inference service, which acts for rollout workers and learns nothing.

Complete unrolls go to the optimizer (:class:`RemoteRecipient`). Weights come from it over the links of the lanes that
are served (:class:`Fetch`): under a free lag each newer version as soon as it is published, so that every step is
decided with the newest (:class:`Newest`); under an exact lag the versions that the optimizer told the lanes
(:class:`AsTold`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from seedbed.acting.batcher import BatchRule
from seedbed.acting.inference import Inference
from seedbed.acting.lag_control import FreeBatches
from seedbed.acting.lanes import Lane, ServedLane
from seedbed.acting.opponents import Games, Opponents, PoolCopy
from seedbed.serving.link import Link, ProxiedLane
from seedbed.types import Unroll, Weights
from seedbed.weights.store import WeightStore


class Fetch:
    """The weights that come from the optimizer, one snapshot at a time; used by the thread that acts.

    Args:
      store: store into which they are published, with one device.
      pool: copy of the optimizer's pool; None without self-play.
    """

    def __init__(self, store: WeightStore, pool: PoolCopy | None = None) -> None:
        self.store = store
        self._pool = pool
        self.asked: Link | None = None
        """The link that was asked for a snapshot which has not come."""

    def ask(self, lanes: Sequence[ServedLane], version: int | None) -> None:
        """Asks the optimizer for a version, or for one of its pool where weights that have come wait for that.

        Args:
          lanes: lanes that are served; the link of the first one is asked.
          version: the least version that is wanted; None if none is.
        """
        # Until the link's last lane has left, the snapshot that it was asked for may still come.
        if any(_link(lane) is self.asked for lane in lanes):
            return
        self.asked = None
        missing = None if self._pool is None else self._pool.missing()
        wanted = version if missing is None else -1 - missing
        if lanes and wanted is not None:
            self.asked = _link(lanes[0])
            self.asked.want(wanted)

    def take(self, link: Link, weights: Weights, table: NDArray[np.float64] | None) -> None:
        """Publishes a snapshot that came over ``link``, in self-play as soon as the opponents of its table are here."""
        if self.asked is link:
            self.asked = None
        complete: Weights | None = weights
        if self._pool is not None:
            assert table is not None, "in self-play a table comes with all weights"
            complete = self._pool.take(weights, table)
        if complete is not None and complete.version not in self.store.versions:
            self.store.publish(complete.params, complete.version)


class Newest:
    """The batch control of a free lag: each lane at its own pace, in batches of ``rule``, with the newest weights."""

    def __init__(self, rule: BatchRule, fetch: Fetch) -> None:
        self._fetch = fetch
        self._free = FreeBatches(rule, fetch.store, 0, hand_over=lambda delivery: False)
        self.version = self._free.version
        self.blocked = self._free.blocked
        self.weights = self._free.weights

    def hand_over(self, lane: Lane) -> bool:
        """See :class:`~seedbed.acting.lag_control.LagControl`."""
        return _when_taken(lane)

    def choose(self, lanes: Sequence[ServedLane], now: float) -> tuple[list[ServedLane], float | None]:
        """See :class:`~seedbed.acting.lag_control.BatchControl`; chooses no lane before the first weights are here."""
        held = self._fetch.store.versions
        self._fetch.ask(lanes, max(held, default=-1) + 1)
        return self._free.choose(lanes, now) if held else ([], None)


class AsTold:
    """The control of an exact lag: each lane acts with the version that it was told, in batches of one lane.

    So the size of batches is fixed beforehand.
    """

    def __init__(self, fetch: Fetch) -> None:
        self._fetch = fetch

    def version(self, lane: Lane) -> int:
        """See :class:`~seedbed.acting.lag_control.LagControl`."""
        told = _told(lane)
        assert told is not None
        return told

    def hand_over(self, lane: Lane) -> bool:
        """See :class:`~seedbed.acting.lag_control.LagControl`."""
        return _when_taken(lane)

    def blocked(self, lanes: Sequence[Lane]) -> bool:
        """Returns False; never called: the optimizer knows when its rounds are at rest."""
        del lanes
        return False

    def choose(self, lanes: Sequence[ServedLane], now: float) -> tuple[list[ServedLane], float | None]:
        """See :class:`~seedbed.acting.lag_control.BatchControl`."""
        del now
        held = self._fetch.store.versions
        told = {version for lane in lanes if (version := _told(lane)) is not None}
        self._fetch.ask(lanes, min(told.difference(held), default=None))
        waiting = [lane for lane in lanes if lane.arrived is not None and lane.outbox is None]
        due = [lane for lane in waiting if _told(lane) in held]
        return sorted(due, key=lambda lane: lane.order)[:1], None

    def weights(self, lanes: Sequence[ServedLane]) -> Weights:
        """See :class:`~seedbed.acting.lag_control.BatchControl`."""
        weights = self._fetch.store.exactly(self.version(lanes[0]))
        assert weights is not None
        return weights


def _told(lane: Lane) -> int | None:
    assert isinstance(lane, ProxiedLane)
    return lane.told


def _when_taken(lane: Lane) -> bool:
    """Returns False: an unroll stays in the outbox until the optimizer says that it was taken."""
    del lane
    return False


class RemoteRecipient:
    """The recipient of unrolls that are trained on in another process; see :class:`ProxiedLane`.

    Args:
      inference: the policy on the accelerator.
    """

    def __init__(self, inference: Inference) -> None:
        self._inference = inference

    def new_lane(self, **known: Any) -> ServedLane:
        """See :class:`~seedbed.serving.inference_service.Recipient`."""
        return ProxiedLane(**known)

    def games(self, pool: Opponents, lane: ServedLane) -> Games:
        """See :class:`~seedbed.serving.inference_service.Recipient`; the versions that play go with the unrolls."""
        assert isinstance(lane, ProxiedLane)
        return Games(pool, lane.numbers, lane.member.epoch, records=True)

    def joined(self, lane: ServedLane) -> None:
        """Tells the policy the numbers and the exploration that the optimizer gave the environments."""
        assert isinstance(lane, ProxiedLane)
        self._inference.assign(lane.slots, lane.numbers, lane.exploration)

    def cut(self, lane: ServedLane, unroll: Unroll) -> Unroll:
        """Sends the unroll as it was played: the optimizer counts its games, and takes opponents out."""
        assert isinstance(lane, ProxiedLane)
        lane.told = None
        lane.link.send(lane.half, unroll, None if lane.games is None else lane.games.recorded())
        return unroll


def _link(lane: ServedLane) -> Link:
    assert isinstance(lane, ProxiedLane)
    return lane.link
