import numpy as np
from fakes import COUNT, FakePeer, numbered

from seedbed.acting.lanes import Member, ServedLane, arrival, digest_of
from seedbed.acting.unrolls import OpenUnroll, step_arrays
from seedbed.envs.episodes import EpisodeMeter
from seedbed.envs.make import make


def lane(index: int = 2, half: int = 1, epoch: int = 5, rows: int = 3) -> ServedLane:
    return ServedLane(
        member=Member(index, epoch, FakePeer()),
        half=half,
        slots=np.arange(10, 10 + rows, dtype=np.int32),
        open=OpenUnroll(COUNT, rows, 2),
        meter=EpisodeMeter(rows),
    )


def test_columns_name_slot_epoch_step_and_the_begin_of_an_unroll() -> None:
    one = lane()
    columns = one.columns()
    assert columns.dtype == np.int32
    assert columns.tolist() == [[10, 11, 12], [5] * 3, [0] * 3, [1] * 3]
    one.open.observe(step_arrays(make("toy:count", 3).reset(0)))
    one.open.decide(np.zeros(3, np.int32), {}, 0)
    one.steps += 1
    assert one.columns().tolist() == [[10, 11, 12], [5] * 3, [1] * 3, [0] * 3]


def test_order_is_by_actor_then_half() -> None:
    lanes = [lane(index, half) for index in (1, 0) for half in (1, 0)]
    assert sorted(each.order for each in lanes) == [(0, 0), (0, 1), (1, 0), (1, 1)]


def test_arrival_sorts_by_time_and_then_by_place() -> None:
    early, late, nowhere = lane(9), lane(0), lane(1)
    early.arrived, late.arrived = 1.0, 2.0
    tie = lane(8)
    tie.arrived = 1.0
    assert sorted([nowhere, late, early, tie], key=arrival) == [tie, early, late, nowhere]


def test_lanes_are_told_apart_by_identity() -> None:
    one, other = lane(), lane()
    assert one != other
    assert one in [other, one]


def test_members_are_equal_whatever_their_connection() -> None:
    assert Member(1, 2, FakePeer()) == Member(1, 2, FakePeer())
    assert Member(1, 2, FakePeer()) != Member(1, 3, FakePeer())


def test_a_digest_tells_steps_apart() -> None:
    environment = make("toy:count", 3)
    first = step_arrays(environment.reset(0))
    environment.send(np.zeros(3, np.int32))
    second = step_arrays(environment.receive())
    assert digest_of(first) == digest_of([array.copy() for array in first])
    assert digest_of(first) != digest_of(second)
    wide = np.arange(12).reshape(3, 4)
    assert digest_of([wide.T]) == digest_of([np.ascontiguousarray(wide.T)])


def test_repr_says_what_it_does() -> None:
    one = lane()
    assert repr(one) == "<lane (2, 1) of 3: steps, step 0, round 0>"
    one.arrived, one.outbox = 1.0, numbered(2, [1])
    assert repr(one) == "<lane (2, 1) of 3: waits, step 0, round 0, unroll held>"
