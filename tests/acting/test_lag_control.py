import dataclasses
import threading

import jax
import numpy as np
import pytest
from fakes import COUNT, FakePeer, numbered

from seedbed.acting.batcher import BatchRule
from seedbed.acting.lag import ExactLag, Rounds, batches_per_round
from seedbed.acting.lag_control import ExactControl, FreeBatches, RoundBuffer
from seedbed.acting.lanes import Member, ServedLane
from seedbed.acting.unrolls import Delivery, OpenUnroll
from seedbed.envs.episodes import EpisodeMeter
from seedbed.errors import ConfigError
from seedbed.weights.store import WeightStore


def lane(index: int, half: int = 0, arrived: float | None = 0.0, rounds: int = 0) -> ServedLane:
    return ServedLane(
        member=Member(index, 0, FakePeer()),
        half=half,
        slots=np.arange(2, dtype=np.int32),
        open=OpenUnroll(COUNT, 2, 3),
        meter=EpisodeMeter(2),
        arrived=arrived,
        rounds=rounds,
    )


def store(*versions: int, keep: int = 100) -> WeightStore:
    weights = WeightStore(jax.devices()[:1], keep=keep)
    for version in versions:
        weights.publish({"w": np.float32(version)}, version)
    return weights


def nowhere(delivery: Delivery) -> bool:
    raise AssertionError("nothing is handed over here")


class Shelf:
    """Takes unrolls while there is room."""

    def __init__(self, room: int = 1000) -> None:
        self.room = room
        self.held: list[tuple[int, list[tuple[float, int]]]] = []

    def take(self, delivery: Delivery) -> bool:
        if len(self.held) >= self.room:
            return False
        self.held.append((int(delivery.unroll.version[0, 0]), delivery.episodes))
        return True


# -- free -----------------------------------------------------------------------------------------------------


def free(max_rows: int = 4, wait: float = 1.0) -> FreeBatches:
    return FreeBatches(BatchRule(max_rows, wait), store(0, 7), 0, nowhere)


def test_free_serves_in_order_of_arrival_and_ties_in_order_of_the_lanes() -> None:
    late, tie, early = lane(0, arrived=2.0), lane(2, arrived=1.0), lane(1, arrived=1.0)
    chosen, wait = free().choose([late, tie, early], 2.0)
    assert (chosen, wait) == ([early, tie], None)


def test_free_waits_for_those_that_step_and_not_for_those_that_are_held() -> None:
    here, steps, held = lane(0), lane(1, arrived=None), lane(2)
    held.outbox = numbered(3, [1])
    assert free().choose([here, steps, held], 0.25) == ([], 0.75)
    assert free().choose([here, held], 0.25) == ([here], None)
    assert free().choose([held], 0.25) == ([], None)
    assert free().choose([], 0.25) == ([], None)


def test_free_acts_with_the_newest_weights() -> None:
    assert free().weights([lane(0)]).version == 7


def test_free_hands_over_when_there_is_room() -> None:
    shelf = Shelf(room=1)
    control = FreeBatches(BatchRule(4, 1.0), store(0), 0, shelf.take)
    one = lane(0)
    one.outbox, one.finished = numbered(3, [4]), [(1.0, 2)]
    assert control.hand_over(one)
    assert not control.hand_over(one)
    assert shelf.held == [(4, [(1.0, 2)])]


# -- lockstep -------------------------------------------------------------------------------------------------


def lockstep(
    weights: WeightStore,
    lag: int = 0,
    per_round: int = 1,
    base: int = 0,
    halves: dict[int, int] | None = None,
    collect: RoundBuffer | None = None,
) -> ExactControl:
    return ExactControl(
        Rounds(ExactLag(lag), per_round, base=base),
        halves=halves or {0: 2, 1: 2},
        store=weights,
        device=0,
        collect=collect or RoundBuffer(4, nowhere),
    )


@pytest.mark.parametrize(
    ("lag", "per_round", "base", "versions"),
    [
        (0, 1, 0, [0, 1, 2, 3, 4]),
        (1, 1, 0, [0, 0, 1, 2, 3]),
        (2, 1, 0, [0, 0, 0, 1, 2]),
        (0, 2, 0, [0, 2, 4, 6, 8]),
        (1, 2, 0, [0, 0, 2, 4, 6]),
        (2, 2, 10, [10, 10, 10, 12, 14]),
        (0, 1, 5, [5, 6, 7, 8, 9]),
    ],
)
def test_the_version_of_a_round_is_exact(lag: int, per_round: int, base: int, versions: list[int]) -> None:
    control = lockstep(store(), lag, per_round, base)
    assert [control.version(lane(0, rounds=r)) for r in range(5)] == versions


@pytest.mark.parametrize(
    ("lag", "updates", "filling", "base", "versions"),
    [
        (0, 1, 2, 0, [0, 0, 0, 1, 2, 3]),
        (1, 1, 2, 0, [0, 0, 0, 0, 1, 2]),
        (0, 3, 1, 10, [10, 10, 13, 16, 19, 22]),
    ],
)
def test_rounds_that_only_fill_a_replay_bring_no_version(
    lag: int, updates: int, filling: int, base: int, versions: list[int]
) -> None:
    rounds = Rounds(ExactLag(lag), updates, filling, base)
    assert [rounds.version(number) for number in range(6)] == versions


def test_lockstep_serves_a_whole_half_in_the_order_of_the_lanes() -> None:
    control = lockstep(store(0))
    a0, a1, b0, b1 = lane(0), lane(0, 1), lane(1), lane(1, 1)
    assert control.choose([b0], 9.0) == ([], None)
    assert control.choose([b0, a1, b1], 9.0) == ([a1, b1], None)
    assert control.choose([b1, b0, a0], 9.0) == ([a0, b0], None)
    a0.arrived = None
    assert control.choose([a0, b0, a1], 9.0) == ([], None)


def test_lockstep_waits_for_exactly_its_weights() -> None:
    weights = store(0, 1)
    control = lockstep(weights, halves={0: 2})
    lanes = [lane(0, rounds=2), lane(1, rounds=2)]
    assert control.choose(lanes, 0.0) == ([], None)
    assert control.blocked(lanes)
    weights.publish({"w": np.float32(2)}, 2)
    assert control.choose(lanes, 0.0)[0] == lanes
    assert not control.blocked(lanes)
    weights.publish({"w": np.float32(3)}, 3)
    assert control.weights(lanes).version == 2
    assert float(control.weights(lanes).params["w"]) == 2


def test_a_device_without_actors_of_its_own_is_never_due_and_always_at_rest() -> None:
    control = lockstep(store(0), halves={0: 0, 1: 0})
    assert control.choose([], 0.0) == ([], None)
    assert control.blocked([])


@pytest.mark.parametrize(
    "change", [{"arrived": None}, {"outbox": numbered(3, [1])}, {"rounds": 0}, {"decided": 1}]
)
def test_it_is_not_at_rest_while_anything_can_move(change: dict[str, object]) -> None:
    control = lockstep(store(0), halves={0: 2})
    rests, other = lane(0, rounds=1), lane(1, rounds=1)
    assert control.blocked([rests, other])
    assert not control.blocked([rests]), "one lane is missing"
    if "decided" in change:
        other.open.decided = 1
    else:
        other = dataclasses.replace(other, **change)  # type: ignore[arg-type]
    assert not control.blocked([rests, other])


# -- rounds ---------------------------------------------------------------------------------------------------


def complete(index: int, rounds: int, half: int = 0) -> ServedLane:
    one = lane(index, half, rounds=rounds)
    one.outbox = numbered(3, [10 * rounds + 2 * index + half])
    one.finished = [(float(index), rounds)]
    return one


def add(collect: RoundBuffer, one: ServedLane) -> bool:
    assert one.outbox is not None
    return collect.add(one.rounds, one.order, one.delivery())


def test_a_round_is_passed_on_once_complete_in_the_order_of_the_lanes() -> None:
    shelf = Shelf()
    collect = RoundBuffer(3, shelf.take)
    assert add(collect, complete(1, 0))
    assert add(collect, complete(0, 0, half=1))
    assert shelf.held == []
    assert add(collect, complete(0, 0))
    assert [name for name, _ in shelf.held] == [0, 1, 2]
    assert shelf.held[0][1] == [(0.0, 0)]


def test_lanes_that_are_ahead_wait_for_the_round_before() -> None:
    shelf = Shelf()
    collect = RoundBuffer(2, shelf.take)
    for one in (complete(0, 0), complete(0, 1), complete(1, 0), complete(1, 1)):
        assert lockstep(store(), 1, halves={0: 2}, collect=collect).hand_over(one)
    assert [name for name, _ in shelf.held] == [0, 2, 10, 12]


def test_a_queue_that_is_too_small_for_the_lag_is_an_error() -> None:
    collect = RoundBuffer(1, Shelf(room=0).take)
    with pytest.raises(AssertionError, match="sized for the lag"):
        add(collect, complete(0, 0))


def test_workers_of_several_devices_share_a_round() -> None:
    shelf = Shelf()
    lanes, rounds = 8, 20
    collect = RoundBuffer(lanes, shelf.take)
    together = threading.Barrier(lanes)

    def work(index: int) -> None:
        for r in range(rounds):
            together.wait()
            add(collect, complete(index, r))

    threads = [threading.Thread(target=work, args=(index,)) for index in range(lanes)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [name for name, _ in shelf.held] == [10 * r + 2 * i for r in range(rounds) for i in range(lanes)]


def test_batches_per_round_are_whole() -> None:
    assert batches_per_round(32, 32) == 1
    assert batches_per_round(32, 8) == 4
    with pytest.raises(ConfigError, match="the 24 environments must be a multiple of the batch size 32"):
        batches_per_round(24, 32)
    with pytest.raises(ConfigError, match="--actors 1 or more"):
        batches_per_round(0, 32)
