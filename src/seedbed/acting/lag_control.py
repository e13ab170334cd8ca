"""The control of lanes by the lag: the weights that each lane acts with, and the moment its unrolls are passed on.

Under a free lag each lane is served as soon as a batch is due, with the newest weights; a lane whose complete unroll
finds no room in the queue is held. Under an exact lag unrolls come in rounds, one of every lane, and a round waits for
its weights: the content of every batch is fixed beforehand, so the run is reproducible at any timing of the machine.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Protocol

from seedbed.acting.batcher import BatchRule, decide
from seedbed.acting.lag import Rounds
from seedbed.acting.lanes import Lane, ServedLane, arrival
from seedbed.acting.unrolls import Delivery
from seedbed.types import Weights
from seedbed.weights.store import WeightStore

HandOver = Callable[[Delivery], bool]
"""A function that takes a complete unroll; returns False if there is no room."""


class LagControl(Protocol):
    """The decision on the weights that lanes act with, and on when their unrolls are passed on."""

    def version(self, lane: Lane) -> int:
        """Returns the version of the weights that the lane's next unroll would act with if it began now."""

    def hand_over(self, lane: Lane) -> bool:
        """Passes the lane's outbox on; returns False if it has to stay."""

    def blocked(self, lanes: Sequence[Lane]) -> bool:
        """Returns whether acting is at rest: all lanes wait for weights that are not published."""


class BatchControl(LagControl, Protocol):
    """A lag control that also chooses the lanes of the next batch."""

    def choose(self, lanes: Sequence[ServedLane], now: float) -> tuple[list[ServedLane], float | None]:
        """Chooses lanes at the time ``now`` (monotonic, s).

        Returns the lanes of the next batch, in the order of their rows, and the time in s after which to ask again
        (None: when a message comes).
        """

    def weights(self, lanes: Sequence[ServedLane]) -> Weights:
        """Returns the weights that these lanes, just chosen, act with."""


class FreeControl:
    """The lag control of a free lag, each lane at its own pace; see the module."""

    def __init__(self, store: WeightStore, device: int, hand_over: HandOver) -> None:
        self._store = store
        self._device = device
        self._hand_over = hand_over

    def version(self, lane: Lane) -> int:
        """Returns the newest version."""
        return self._store.newest(self._device).version

    def hand_over(self, lane: Lane) -> bool:
        """Passes the outbox on at once; returns False if there is no room."""
        return self._hand_over(lane.delivery())

    def blocked(self, lanes: Sequence[Lane]) -> bool:
        """Returns False: acting waits for no update."""
        del lanes
        return False


class FreeBatches(FreeControl):
    """The batch control of a free lag: each lane at its own pace, in batches that ``rule`` makes."""

    def __init__(self, rule: BatchRule, store: WeightStore, device: int, hand_over: HandOver) -> None:
        super().__init__(store, device, hand_over)
        self._rule = rule

    def choose(self, lanes: Sequence[ServedLane], now: float) -> tuple[list[ServedLane], float | None]:
        """See :class:`BatchControl`."""
        waiting = sorted(
            (lane for lane in lanes if lane.arrived is not None and lane.outbox is None),
            key=arrival,
        )
        busy = sum(lane.arrived is None for lane in lanes)
        decision = decide([(lane.rows, lane.arrived or 0.0) for lane in waiting], busy, now, self._rule)
        return waiting[: decision.take], decision.wait

    def weights(self, lanes: Sequence[ServedLane]) -> Weights:
        """Returns the newest weights."""
        return self._store.newest(self._device)


class RoundBuffer:
    """A buffer that collects one unroll of every lane and passes them on in the order of the lanes; thread-safe."""

    def __init__(self, lanes: int, hand_over: HandOver) -> None:
        self._lanes = lanes
        self._hand_over = hand_over
        self._lock = threading.Lock()
        self._collected: dict[int, dict[tuple[int, int], Delivery]] = {}

    def add(self, number: int, order: tuple[int, int], delivery: Delivery) -> bool:
        """Takes an unroll of round ``number`` from the lane at ``order``; passes the round on once it is complete.

        Returns True always: the lag bounds the number of unrolls in the buffer.
        """
        with self._lock:
            parts = self._collected.setdefault(number, {})
            parts[order] = delivery
            if len(parts) == self._lanes:
                for _, each in sorted(self._collected.pop(number).items(), key=itemgetter(0)):
                    if not self._hand_over(each):
                        raise AssertionError("the queue was sized for the lag and cannot be full")
        return True


class ExactControl:
    """The batch control of an exact lag: all lanes in rounds, ahead of learning by the lag; see the module.

    Args:
      rounds: schedule of the version that each round acts with.
      halves: number of lanes on this device, by half of the actors.
      store: store of the published weights.
      device: index of the device in the store.
      collect: buffer of rounds, shared by the services of all devices.
    """

    def __init__(
        self, rounds: Rounds, *, halves: dict[int, int], store: WeightStore, device: int, collect: RoundBuffer
    ) -> None:
        self._rounds = rounds
        self._halves = halves
        self._store = store
        self._device = device
        self._collect = collect

    def version(self, lane: Lane) -> int:
        """Returns the version that the lane's present round acts with."""
        return self._rounds.version(lane.rounds)

    def choose(self, lanes: Sequence[ServedLane], now: float) -> tuple[list[ServedLane], float | None]:
        """Chooses a half whose lanes have all arrived and whose weights are published; see :class:`BatchControl`."""
        for half, size in self._halves.items():
            group = [lane for lane in lanes if lane.half == half and lane.arrived is not None]
            if group and len(group) == size and self._store.exactly(self.version(group[0]), self._device):
                return sorted(group, key=lambda lane: lane.order), None
        return [], None

    def blocked(self, lanes: Sequence[Lane]) -> bool:
        """Returns whether every lane has arrived at the start of a round whose weights are not published."""
        return len(lanes) == sum(self._halves.values()) and all(
            lane.at_rest and not self._store.exactly(self.version(lane), self._device) for lane in lanes
        )

    def weights(self, lanes: Sequence[ServedLane]) -> Weights:
        """Returns the weights of the lanes' round."""
        weights = self._store.exactly(self.version(lanes[0]), self._device)
        assert weights is not None
        return weights

    def hand_over(self, lane: Lane) -> bool:
        """Puts the outbox into the buffer of rounds, which passes it on once the round is complete."""
        return self._collect.add(lane.rounds, lane.order, lane.delivery())
