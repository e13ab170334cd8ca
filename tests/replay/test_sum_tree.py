"""The sum tree beside a plain array."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from seedbed.errors import ConfigError
from seedbed.replay.sum_tree import SumTree

VALUES = st.one_of(st.just(0.0), st.floats(1e-12, 1e30), st.integers(1, 5).map(float))


@given(capacity=st.integers(1, 70), data=st.data())
def test_it_does_what_an_array_does(capacity: int, data: st.DataObject) -> None:
    tree, oracle = SumTree(capacity), np.zeros(capacity)
    for _ in range(data.draw(st.integers(1, 5))):
        changes = data.draw(st.lists(st.tuples(st.integers(0, capacity - 1), VALUES), max_size=20))
        for index, value in changes:
            oracle[index] = value
        tree.set(np.array([i for i, _ in changes], np.int64), np.array([v for _, v in changes]))
        np.testing.assert_array_equal(tree.leaves, oracle)
        np.testing.assert_array_equal(tree.get(np.arange(capacity)), oracle)
        assert tree.total == pytest.approx(oracle.sum(), rel=1e-12)
        rebuilt = SumTree(capacity)
        rebuilt.rebuild(oracle)
        assert rebuilt.total == tree.total, "sums are those of the children, however they came about"


@given(values=st.lists(st.integers(0, 4), min_size=1, max_size=70).filter(any))
def test_points_find_the_leaf_they_lie_on(values: list[int]) -> None:
    tree = SumTree(len(values))
    tree.rebuild(np.array(values, np.float64))
    points = np.arange(0, sum(values), 0.5)
    expected = np.repeat(np.arange(len(values)), 2 * np.array(values))
    np.testing.assert_array_equal(tree.find(points), expected)
    np.testing.assert_array_equal(tree.find(points.reshape(-1, 1)), expected[:, None])


@given(values=st.lists(VALUES, min_size=1, max_size=70).filter(any), data=st.data())
def test_no_empty_leaf_is_found_however_sums_round(values: list[float], data: st.DataObject) -> None:
    tree = SumTree(len(values))
    tree.rebuild(np.array(values))
    shares = data.draw(st.lists(st.floats(0, 1), min_size=1, max_size=20))
    points = np.append(np.array(shares) * tree.total, np.nextafter(tree.total, 0.0))
    assert (tree.get(tree.find(points)) > 0).all()


def test_a_point_that_rounds_to_behind_the_last_leaf_finds_that_leaf() -> None:
    tree, unit = SumTree(4), 2.0**-52
    tree.rebuild(np.array([1.5 * unit, 0.0, 1.0 + 2 * unit, 0.0]))
    # The last point below the total; less the first leaf it rounds to the third one's value, which is its end.
    point = np.nextafter(tree.total, 0.0)
    assert point - 1.5 * unit == 1.0 + 2 * unit
    assert tree.find(np.array([point])).tolist() == [2]


def test_of_a_leaf_that_is_set_twice_the_last_value_stays() -> None:
    tree = SumTree(5)
    tree.set(np.array([3, 1, 3, 3, 1]), np.array([1.0, 2.0, 3.0, 4.0, 5.0]))
    assert tree.leaves.tolist() == [0, 5, 0, 4, 0]
    assert tree.total == 9
    tree.set(np.array([[0, 4], [1, 3]]), 0.5)
    assert tree.leaves.tolist() == [0.5, 0.5, 0, 0.5, 0.5]
    assert tree.total == 2


def test_sums_do_not_drift() -> None:
    tree = SumTree(1000)
    random = np.random.default_rng(0)
    for _ in range(300):
        tree.set(random.integers(0, 1000, 64), random.random(64) * 10.0 ** random.integers(-12, 12))
    tree.set(np.arange(1000), 0.0)
    assert tree.total == 0


def test_leaves_are_changed_by_set_alone() -> None:
    with pytest.raises(ValueError, match="read-only"):
        SumTree(3).leaves[0] = 1.0
    with pytest.raises(ConfigError, match="needs 1 or more"):
        SumTree(0)


@pytest.mark.parametrize("capacity", [1, 2, 3, 64, 65])
def test_its_bytes(capacity: int) -> None:
    assert SumTree.bytes_of(capacity) == SumTree(capacity)._nodes.nbytes
