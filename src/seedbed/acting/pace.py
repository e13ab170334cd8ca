"""How acting keeps pace with learning: freely, or in lockstep with an exact lag.

Free: each lane is served as soon as a batch is due, with the newest weights; a lane whose complete unroll
finds no room in the queue is held. The mean lag is bounded by the queue and the environments.

Lockstep: unrolls come in rounds, one of every lane. Round ``r`` acts with the weights after the updates on the
first ``r - lag`` rounds, exactly, and waits for them. All that is batched together is fixed beforehand, so the
run is reproducible whatever the machine does.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Protocol

from seedbed.acting.batcher import BatchRule, decide
from seedbed.acting.lanes import Lane, ServedLane, arrival
from seedbed.acting.unrolls import Delivery
from seedbed.errors import ConfigError
from seedbed.types import Weights
from seedbed.weights.store import WeightStore

HandOver = Callable[[Delivery], bool]
"""Takes a complete unroll; False if there is no room."""


class Pace(Protocol):
    """Decides with which weights lanes act, and when their unrolls are passed on."""

    def version(self, lane: Lane) -> int:
        """The version of the weights that the lane's next unroll acts with, were it to begin now."""

    def hand_over(self, lane: Lane) -> bool:
        """Passes the lane's outbox on; False if it has to stay."""


class BatchPace(Pace, Protocol):
    """Decides, too, who is served next."""

    def choose(self, lanes: Sequence[ServedLane], now: float) -> tuple[list[ServedLane], float | None]:
        """The lanes to serve now, in the order of their rows; and when to ask again, in s (None: on news)."""

    def weights(self, lanes: Sequence[ServedLane]) -> Weights:
        """The weights that these lanes, just chosen, act with."""


class Free:
    """Each lane at its own pace; see the module."""

    def __init__(self, store: WeightStore, device: int, hand_over: HandOver) -> None:
        self._store = store
        self._device = device
        self._hand_over = hand_over

    def version(self, lane: Lane) -> int:
        """The newest."""
        return self._store.newest(self._device).version

    def hand_over(self, lane: Lane) -> bool:
        """As soon as there is room."""
        return self._hand_over(lane.delivery())


class FreeBatches(Free):
    """Each lane at its own pace, in batches that ``rule`` makes."""

    def __init__(self, rule: BatchRule, store: WeightStore, device: int, hand_over: HandOver) -> None:
        super().__init__(store, device, hand_over)
        self._rule = rule

    def choose(self, lanes: Sequence[ServedLane], now: float) -> tuple[list[ServedLane], float | None]:
        """See :class:`BatchPace`."""
        waiting = sorted(
            (lane for lane in lanes if lane.arrived is not None and lane.outbox is None),
            key=arrival,
        )
        busy = sum(lane.arrived is None for lane in lanes)
        decision = decide([(lane.rows, lane.arrived or 0.0) for lane in waiting], busy, now, self._rule)
        return waiting[: decision.take], decision.wait

    def weights(self, lanes: Sequence[ServedLane]) -> Weights:
        """The newest."""
        return self._store.newest(self._device)


class Round:
    """Collects one unroll of every lane and passes them on in the order of the lanes; thread-safe."""

    def __init__(self, lanes: int, hand_over: HandOver) -> None:
        self._lanes = lanes
        self._hand_over = hand_over
        self._lock = threading.Lock()
        self._collected: dict[int, dict[tuple[int, int], Delivery]] = {}

    def add(self, number: int, order: tuple[int, int], delivery: Delivery) -> bool:
        """Takes an unroll of round ``number`` from the lane at ``order``.

        Always True: the lag bounds what is collected.
        """
        with self._lock:
            parts = self._collected.setdefault(number, {})
            parts[order] = delivery
            if len(parts) == self._lanes:
                for _, each in sorted(self._collected.pop(number).items(), key=itemgetter(0)):
                    if not self._hand_over(each):
                        raise AssertionError("the queue was sized for the lag and cannot be full")
        return True


class Lockstep:
    """All lanes in rounds, ``lag`` rounds ahead of learning; see the module.

    Args:
      lag: rounds between the weights that act and the newest that could.
      updates_per_round: how often the learner updates on one round.
      halves: for each half of the actors, how many lanes it has on this device.
      store, device: where the weights come from.
      collect: shared by the workers of all devices.
      base: the version that round 0 acts with.
      filling: the first rounds, after which nothing is learned yet: they fill a replay.
    """

    def __init__(
        self,
        *,
        lag: int,
        updates_per_round: int,
        halves: dict[int, int],
        store: WeightStore,
        device: int,
        collect: Round,
        base: int = 0,
        filling: int = 0,
    ) -> None:
        self._base = base
        self._filling = filling
        self._lag = lag
        self._updates_per_round = updates_per_round
        self._halves = halves
        self._store = store
        self._device = device
        self._collect = collect

    def version(self, lane: Lane) -> int:
        """The version that the lane's present round acts with."""
        behind = self._lag + self._filling
        return version_of_round(lane.rounds, behind, self._updates_per_round, self._base)

    def choose(self, lanes: Sequence[ServedLane], now: float) -> tuple[list[ServedLane], float | None]:
        """See :class:`BatchPace`: a half whose lanes have all arrived, once its weights are published."""
        for half, size in self._halves.items():
            group = [lane for lane in lanes if lane.half == half and lane.arrived is not None]
            if group and len(group) == size and self._store.exactly(self.version(group[0]), self._device):
                return sorted(group, key=lambda lane: lane.order), None
        return [], None

    def blocked(self, lanes: Sequence[Lane]) -> bool:
        """Whether every lane has arrived at the start of a round whose weights are not published."""
        return len(lanes) == sum(self._halves.values()) and all(
            lane.at_rest and not self._store.exactly(self.version(lane), self._device) for lane in lanes
        )

    def weights(self, lanes: Sequence[ServedLane]) -> Weights:
        """Those of the round."""
        weights = self._store.exactly(self.version(lanes[0]), self._device)
        assert weights is not None
        return weights

    def hand_over(self, lane: Lane) -> bool:
        """Once the round is complete, in the order of the lanes."""
        return self._collect.add(lane.rounds, lane.order, lane.delivery())


def version_of_round(number: int, lag: int, updates_a_round: int, base: int = 0) -> int:
    """The version that round ``number`` acts with, if the round 0 acted with ``base``: ``lag`` rounds behind."""
    return base + max(0, number - lag) * updates_a_round


def batches_per_round(rows: int, batch_size: int) -> int:
    """How many batches use up one round of ``rows`` unrolls; raises :class:`ConfigError` if it is not whole."""
    if rows == 0:
        raise ConfigError("an exact lag needs actors that this run starts itself: use --actors 1 or more")
    if rows % batch_size:
        raise ConfigError(
            f"with an exact lag, the {rows} environments must be a multiple of the batch size {batch_size}: "
            f"use --batch-size {rows}, or another number of --actors or --envs-per-actor"
        )
    return rows // batch_size
