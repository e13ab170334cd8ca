import threading
from collections import deque
from typing import Any

import jax
import numpy as np
import pytest
from fakes import PATIENCE, numbered
from hypothesis import given
from hypothesis import strategies as st

from seedbed.errors import ConfigError
from seedbed.replay.queue import UnrollQueue, join, rows_of, select
from seedbed.types import Unroll

LENGTH = 2


def names(unroll: Unroll) -> list[int]:
    """Which environments' unrolls these are; checks that every array says the same."""
    found = unroll.version[0].tolist()
    jax.tree.map(np.testing.assert_array_equal, unroll, numbered(LENGTH, found))
    assert unroll.timestep.first.dtype == np.bool_ and unroll.action.dtype == np.int32
    return [int(name) for name in found]


def test_join_and_select_keep_every_array_in_its_place() -> None:
    parts = [numbered(LENGTH, [1]), numbered(LENGTH, [2, 3]), numbered(LENGTH, [4])]
    whole = join(parts)
    assert (rows_of(whole), names(whole)) == (4, [1, 2, 3, 4])
    assert names(select(whole, 1, 3)) == [2, 3]
    assert np.shares_memory(select(whole, 1, 3).timestep.reward, whole.timestep.reward)
    assert join(parts[:1]) is parts[0]


@given(
    capacity=st.integers(1, 20),
    batch=st.integers(1, 20),
    actions=st.lists(st.one_of(st.none(), st.integers(1, 9)), max_size=60),
)
def test_the_queue_against_a_list(capacity: int, batch: int, actions: list[int | None]) -> None:
    if capacity < batch:
        with pytest.raises(ConfigError, match=f"--queue-size {batch}"):
            UnrollQueue(capacity, batch)
        return
    queue = UnrollQueue(capacity, batch)
    oracle: deque[int] = deque()
    name = 0
    for rows in actions:
        if rows is None:
            taken = queue.take(0.0)
            if len(oracle) < batch:
                assert taken is None
            else:
                assert taken is not None
                assert names(join(taken)) == [oracle.popleft() for _ in range(batch)]
        else:
            accepted = queue.offer(numbered(LENGTH, range(name, name + rows)))
            assert accepted == (len(oracle) < batch or len(oracle) + rows <= capacity)
            if accepted:
                oracle.extend(range(name, name + rows))
                name += rows
        assert len(queue) == len(oracle) <= max(capacity, batch - 1 + 9)
        assert [n for unroll in queue.contents() for n in names(unroll)] == list(oracle)


@given(
    rows=st.lists(st.integers(1, 9), min_size=1, max_size=40),
    batch=st.integers(1, 9),
    extra=st.integers(0, 9),
)
def test_it_never_stalls_whatever_sizes_come(rows: list[int], batch: int, extra: int) -> None:
    queue = UnrollQueue(batch + extra, batch)
    offered, taken = 0, 0
    for size in rows:
        unroll = numbered(LENGTH, range(offered, offered + size))
        while not queue.offer(unroll):
            parts = queue.take(0.0)
            assert parts is not None, "neither room nor a batch: it stalls"
            taken += sum(map(rows_of, parts))
        offered += size
    while queue.take(0.0) is not None:
        taken += batch
    assert offered - taken == len(queue) < batch


def test_room_is_announced_after_it_was_made() -> None:
    queue = UnrollQueue(2, 2)
    heard: list[bool] = []
    queue.listen(lambda: heard.append(queue.offer(numbered(LENGTH, [7, 8]))))
    assert queue.take(0.0) is None
    assert heard == []
    assert queue.offer(numbered(LENGTH, [1, 2]))
    assert not queue.offer(numbered(LENGTH, [3]))
    assert queue.take(0.0) is not None
    assert heard == [True]
    assert len(queue) == 2


def test_take_waits_for_a_batch() -> None:
    queue = UnrollQueue(4, 4)
    taken: list[Any] = []
    waits = threading.Event()
    taker = threading.Thread(target=lambda: (waits.set(), taken.append(queue.take(PATIENCE))))
    taker.start()
    assert waits.wait(PATIENCE)
    for name in range(4):
        assert queue.offer(numbered(LENGTH, [name]))
    taker.join(PATIENCE)
    assert names(join(taken[0])) == [0, 1, 2, 3]


def test_close_wakes_whoever_waits_and_is_final() -> None:
    queue = UnrollQueue(4, 2)
    taken: list[Any] = []
    takers = [threading.Thread(target=lambda: taken.append(queue.take())) for _ in range(2)]
    for taker in takers:
        taker.start()
    queue.close()
    for taker in takers:
        taker.join(PATIENCE)
    assert taken == [None, None]
    queue.offer(numbered(LENGTH, [1, 2]))
    assert queue.take(0.0) is None


def test_threads_lose_and_double_nothing() -> None:
    queue = UnrollQueue(8, 5)
    room = threading.Semaphore(0)
    queue.listen(room.release)
    sizes, each = (1, 2, 3), 20

    def produce(index: int) -> None:
        for i in range(each):
            first = 1000 * index + 10 * i
            while not queue.offer(numbered(LENGTH, range(first, first + sizes[index]))):
                room.acquire(timeout=0.1)

    producers = [threading.Thread(target=produce, args=(index,)) for index in range(3)]
    for producer in producers:
        producer.start()
    taken: list[int] = []
    for _ in range(each * sum(sizes) // 5):
        batch = queue.take(PATIENCE)
        assert batch is not None
        taken += names(join(batch))
    for producer in producers:
        producer.join(PATIENCE)
    expected = [
        1000 * index + 10 * i + j for index in range(3) for i in range(each) for j in range(sizes[index])
    ]
    assert sorted(taken) == sorted(expected)
    for index in range(3):
        mine = [name for name in taken if name // 1000 == index]
        assert mine == sorted(mine), "first in, first out"
