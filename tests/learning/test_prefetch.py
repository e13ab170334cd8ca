import threading

import pytest
from fakes import PATIENCE

from seedbed.learning.prefetch import Prefetch


class Source:
    """Makes 0, 1, 2 … when it is allowed to."""

    def __init__(self, allowed: int = 0) -> None:
        self.allowed = threading.Semaphore(allowed)
        self.asked = threading.Semaphore(0)
        self.made = 0
        self.ended = threading.Event()

    def make(self) -> int | None:
        self.asked.release()
        while not self.allowed.acquire(timeout=0.01):
            if self.ended.is_set():
                return None
        self.made += 1
        return self.made - 1


def never(error: BaseException) -> None:
    raise AssertionError("nothing fails here") from error


def test_without_depth_each_batch_is_made_when_it_is_asked_for() -> None:
    source = Source(2)
    prefetch = Prefetch(source.make, 0, never)
    assert source.made == 0
    assert [prefetch.take(0.0), prefetch.take(0.0)] == [0, 1]
    prefetch.close()


@pytest.mark.parametrize("depth", [1, 3])
def test_so_many_are_made_ahead_and_in_order(depth: int) -> None:
    source = Source(depth + 5)
    prefetch = Prefetch(source.make, depth, never)
    for _ in range(depth):
        assert source.asked.acquire(timeout=PATIENCE)
    assert [prefetch.take(PATIENCE) for _ in range(5)] == [0, 1, 2, 3, 4]
    assert source.made <= 5 + depth
    source.ended.set()
    prefetch.close()


def test_no_more_than_the_depth_is_made_ahead() -> None:
    source = Source(10)
    prefetch = Prefetch(source.make, 2, never)
    for _ in range(2):
        assert source.asked.acquire(timeout=PATIENCE)
    assert not source.asked.acquire(timeout=0.05), "asked for a third, and there is no room for it"
    assert prefetch.take(PATIENCE) == 0
    assert source.asked.acquire(timeout=PATIENCE)
    prefetch.close()


def test_a_source_that_has_none_yet_is_asked_again() -> None:
    answers = iter([None, None, 7])
    prefetch = Prefetch(lambda: next(answers, None), 1, never)
    assert prefetch.take(PATIENCE) == 7
    prefetch.close()


def test_take_gives_up_when_time_is_up() -> None:
    source = Source()
    prefetch = Prefetch(source.make, 1, never)
    assert prefetch.take(0.0) is None
    source.ended.set()
    prefetch.close()


def test_close_wakes_whoever_waits_and_ends_the_thread() -> None:
    source = Source()
    prefetch = Prefetch(source.make, 1, never)
    taken: list[int | None] = []
    taker = threading.Thread(target=lambda: taken.append(prefetch.take(PATIENCE)))
    taker.start()
    assert source.asked.acquire(timeout=PATIENCE)
    source.ended.set()
    prefetch.close()
    prefetch.close()
    taker.join(PATIENCE)
    assert taken == [None]
    assert not any(thread.name == "prefetch" for thread in threading.enumerate())


def test_what_breaks_is_told() -> None:
    failures: list[BaseException] = []
    told = threading.Event()

    def fail(error: BaseException) -> None:
        failures.append(error)
        told.set()

    def broken() -> int:
        raise ValueError("torn")

    prefetch = Prefetch(broken, 1, fail)
    assert told.wait(PATIENCE)
    assert [str(error) for error in failures] == ["torn"]
    assert prefetch.take(0.0) is None
    prefetch.close()
