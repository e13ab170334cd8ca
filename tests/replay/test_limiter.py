"""The rate limiter: the ratio is kept, and nothing ever stalls."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seedbed.errors import ConfigError
from seedbed.replay.limiter import RateLimiter

RATIOS = st.floats(0.01, 64)


@given(
    ratio=RATIOS,
    base=st.integers(0, 50),
    batch=st.integers(1, 20),
    largest=st.integers(1, 20),
    spare=st.floats(0, 20),
    data=st.data(),
)
def test_one_of_the_two_may_always_go_on_and_the_ratio_is_kept(
    ratio: float, base: int, batch: int, largest: int, spare: float, data: st.DataObject
) -> None:
    limiter = RateLimiter(ratio, base, batch, largest, batch + ratio * largest + spare)
    inserts, samples = 0, 0
    for eager, items in data.draw(st.lists(st.tuples(st.booleans(), st.integers(1, largest)), max_size=150)):
        insert, sample = limiter.may_insert(items), limiter.may_sample()
        assert insert or sample, "it stalls"
        assert not (sample and inserts <= base), "sampled before it was filled"
        if insert and (eager or not sample):
            limiter.insert(items)
            inserts += items
        else:
            limiter.sample()
            samples += batch
        credit = ratio * (inserts - base) - samples
        assert limiter.credit == pytest.approx(credit)
        assert credit <= limiter.tolerance + 1e-9
        assert credit >= min(0.0, ratio * (inserts - base)) - 1e-9


def test_in_the_long_run_the_ratio_is_kept() -> None:
    limiter = RateLimiter(0.25, 1000, 32, 40)
    for _ in range(20_000):
        if limiter.may_insert(40):
            limiter.insert(40)
        else:
            limiter.sample()
    assert limiter.samples / (limiter.inserts - 1000) == pytest.approx(0.25, rel=0.01)


def test_filling_up_is_always_allowed() -> None:
    limiter = RateLimiter(1.0, 10, 4, 6)
    assert not limiter.may_sample()
    limiter.insert(9)
    assert limiter.may_insert(10**6)
    limiter.insert(1)
    assert not limiter.may_insert(21)
    assert limiter.may_insert(20)
    assert not limiter.may_sample()
    limiter.insert(3)
    assert not limiter.may_sample()
    limiter.insert(1)
    assert limiter.may_sample()


def test_what_is_on_its_way_in_counts() -> None:
    limiter = RateLimiter(1.0, 10, 4, 6)
    assert limiter.may_insert(6, pending=9)
    assert limiter.may_insert(20, pending=10)
    assert not limiter.may_insert(20, pending=11)


def test_without_a_ratio_only_the_base_is_waited_for() -> None:
    for base in (0, 1, 5):
        limiter = RateLimiter(None, base, 4, 6)
        for _ in range(max(base, 1)):
            assert not limiter.may_sample()
            limiter.insert(1)
        for _ in range(100):
            assert limiter.may_sample()
            limiter.sample()
            assert limiter.may_insert(10**6)
        assert limiter.credit == 0


def test_settling_forgets_credit_and_debt() -> None:
    limiter = RateLimiter(2.0, 10, 4, 6)
    limiter.insert(5)
    limiter.settle()
    assert limiter.samples == 0
    limiter.insert(11)
    limiter.settle()
    assert (limiter.credit, limiter.may_sample()) == (0, False)
    limiter.sample()
    limiter.settle()
    assert limiter.credit == 0
    limiter.insert(2)
    assert limiter.may_sample()


def test_a_batch_is_given_back() -> None:
    limiter = RateLimiter(1.0, 0, 4, 4)
    limiter.insert(4)
    limiter.sample()
    assert not limiter.may_sample()
    limiter.give_back()
    assert limiter.may_sample()


def test_it_goes_on_from_its_state() -> None:
    limiter = RateLimiter(0.5, 10, 4, 6)
    limiter.insert(30)
    limiter.sample()
    state = json.loads(json.dumps(limiter.state()))
    same, other = RateLimiter(0.5, 10, 4, 6), RateLimiter(2.0, 10, 4, 6)
    same.restore(state)
    assert (same.credit, same.inserts) == (limiter.credit, 30) == (6, 30)
    other.restore(state)
    assert (other.credit, other.inserts) == (0, 30), "another ratio owes nothing for the past"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0.0, 1, 1, 1), "number above 0"),
        ((-1.0, 1, 1, 1), "number above 0"),
        ((float("nan"), 1, 1, 1), "number above 0"),
        ((1.0, -1, 1, 1), "base of -1"),
        ((1.0, 1, 0, 1), "batches of 0"),
        ((1.0, 1, 1, 0), "inserts of 0"),
        ((0.5, 1, 32, 100, 81.0), "need a tolerance of 82 or more"),
        ((0.5, 1, 32, 100, float("nan")), "need a tolerance of 82 or more"),
    ],
)
def test_what_could_not_work_is_refused(arguments: tuple[Any, ...], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        RateLimiter(*arguments)


def test_the_smallest_tolerance_is_enough() -> None:
    assert RateLimiter(0.5, 1, 32, 100, 82.0).tolerance == 82
    assert RateLimiter(0.5, 1, 32, 100).tolerance == 164
