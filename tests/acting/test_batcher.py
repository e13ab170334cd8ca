import pytest
from hypothesis import given
from hypothesis import strategies as st

from seedbed.acting.batcher import BatchRule, Decision, bucket_for, buckets, decide

RULE = BatchRule(max_rows=8, wait=2.0)


@pytest.mark.parametrize(
    ("waiting", "busy", "now", "expected"),
    [
        ([], 3, 0.0, Decision(0)),
        ([], 0, 0.0, Decision(0)),
        ([(4, 0.0)], 1, 0.5, Decision(0, 1.5)),
        ([(4, 0.0)], 0, 0.5, Decision(1)),
        ([(4, 0.0)], 1, 2.0, Decision(1)),
        ([(4, 0.0), (4, 0.1)], 9, 0.1, Decision(2)),
        ([(4, 0.0), (4, 0.1), (4, 0.2)], 9, 0.2, Decision(2)),
        ([(4, 0.0), (3, 0.1), (4, 0.2)], 9, 0.2, Decision(2)),
        ([(4, 0.0), (3, 0.1)], 9, 0.2, Decision(0, 1.8)),
        ([(9, 0.0)], 9, 0.0, Decision(1)),
        ([(9, 0.0), (1, 0.0)], 9, 0.0, Decision(1)),
        ([(1, 0.0), (9, 0.0)], 9, 0.0, Decision(1)),
        ([(1, 0.0), (1, 1.9)], 9, 2.1, Decision(2)),
    ],
)
def test_decide(waiting: list[tuple[int, float]], busy: int, now: float, expected: Decision) -> None:
    decision = decide(waiting, busy, now, RULE)
    assert decision.take == expected.take
    assert decision.wait == (None if expected.wait is None else pytest.approx(expected.wait))


@given(
    rows=st.lists(st.integers(1, 12), max_size=8),
    gaps=st.lists(st.floats(0, 3), min_size=8, max_size=8),
    busy=st.integers(0, 3),
    later=st.floats(0, 5),
    max_rows=st.integers(1, 16),
    wait=st.floats(0, 4),
)
def test_a_decision_is_never_too_large_too_late_or_out_of_turn(
    rows: list[int], gaps: list[float], busy: int, later: float, max_rows: int, wait: float
) -> None:
    arrivals = [sum(gaps[: i + 1]) for i in range(len(rows))]
    waiting = list(zip(rows, arrivals, strict=True))
    now = (arrivals[-1] if arrivals else 0.0) + later
    decision = decide(waiting, busy, now, BatchRule(max_rows, wait))
    taken = rows[: decision.take]
    assert sum(taken) <= max_rows or decision.take == 1
    if decision.take < len(rows) and decision.take:
        assert sum(rows[: decision.take + 1]) > max_rows, "there was room for the next one"
    if decision.take:
        assert decision.wait is None
    elif rows:
        assert busy, "nobody else can come"
        assert sum(rows) < max_rows, "full"
        assert decision.wait is not None and 0 < decision.wait <= wait
        assert arrivals[0] + wait == pytest.approx(now + decision.wait)


@given(smallest=st.integers(0, 40), largest=st.integers(1, 300))
def test_buckets_ascend_to_the_largest_and_waste_less_than_half(smallest: int, largest: int) -> None:
    sizes = buckets(smallest, largest)
    assert sizes[-1] == largest
    assert list(sizes) == sorted(set(sizes))
    for rows in range(1, largest + 1):
        size = bucket_for(rows, sizes)
        assert rows <= size
        assert size < 2 * rows or size == sizes[0]


def test_buckets_by_hand() -> None:
    assert buckets(4, 32) == (4, 8, 16, 32)
    assert buckets(4, 24) == (4, 8, 16, 24)
    assert buckets(32, 32) == (32,)
    assert buckets(0, 3) == (1, 2, 3)
    assert bucket_for(17, (4, 8, 16, 24)) == 24
