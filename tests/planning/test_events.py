"""Cores that threads share, and lines, by hand-made times."""

from __future__ import annotations

from functools import partial

import pytest

from seedbed.planning.events import Clock, Cores, Line


def ends_of(count: float, *jobs: tuple[float, float, float]) -> list[float]:
    """Ends of jobs ``(begin, seconds, threads)`` on some cores."""
    clock, ends = Clock(), [0.0] * len(jobs)
    cores = Cores(clock, count)
    for index, (begin, seconds, threads) in enumerate(jobs):

        def end(index: int = index) -> None:
            ends[index] = clock.now

        clock.after(begin, partial(cores.run, seconds, end, threads))
    while clock.step():
        pass
    cores.settle()
    assert cores.busy == pytest.approx(sum(seconds * threads for _, seconds, threads in jobs))
    return ends


def test_threads_share_the_cores_equally() -> None:
    assert ends_of(1, (0, 1, 1)) == pytest.approx([1])
    assert ends_of(1, (0, 1, 1), (0, 3, 1)) == pytest.approx([2, 4])
    assert ends_of(2, (0, 1, 1), (0, 1, 1)) == pytest.approx([1, 1])
    assert ends_of(2, (0, 1, 1), (0, 1, 1), (0, 1, 1)) == pytest.approx([1.5] * 3)
    # The second one comes when half of the first is done.
    assert ends_of(1, (0, 2, 1), (1, 1, 1)) == pytest.approx([3, 3])


def test_work_of_several_threads_takes_several_cores() -> None:
    assert ends_of(2, (0, 1, 2)) == pytest.approx([1])
    assert ends_of(1, (0, 1, 2)) == pytest.approx([2])
    assert ends_of(2, (0, 1, 2), (0, 1, 1)) == pytest.approx([1.5, 1.5])


def test_a_crowd_is_a_share_of_the_cores() -> None:
    clock = Clock()
    cores = Cores(clock, 4)
    for expected in (0.25, 0.5, 0.75, 1.0, 1.0):
        cores.run(1.0, lambda: None)
        assert cores.crowd == expected


def test_jobs_of_a_line_wait_for_one_another() -> None:
    clock, ends = Clock(), []
    line = Line(clock)
    for seconds in (1.0, 2.0):
        line.run(partial(clock.after, seconds), lambda: ends.append(clock.now))
    clock.after(10.0, lambda: line.run(partial(clock.after, 1.0), lambda: ends.append(clock.now)))
    while clock.step():
        pass
    assert ends == [1.0, 3.0, 11.0]
    assert line.busy == pytest.approx(4.0)


def test_the_use_of_a_line_is_known_in_the_middle_of_a_job() -> None:
    clock = Clock()
    line = Line(clock)
    line.run(partial(clock.after, 4.0), lambda: None)
    clock.after(1.0, lambda: None)
    clock.step()
    line.settle()
    assert line.busy == 1.0
    clock.step()
    assert line.busy == 4.0
