"""The rounds of population-based training, by hand and by their rules."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from seedbed.learning.population import FACTORS, SHARE, next_generation

RATES = np.array([1.0, 2.0, 4.0, 8.0], np.float32)


def fine(name: str, value: float) -> bool:
    return True


def test_the_worst_goes_on_from_the_best_with_a_value_near_its_own() -> None:
    chosen = set()
    for seed in range(20):
        source, values = next_generation(
            [5.0, -1.0, 7.0, 6.0], {"rate": RATES}, fine, np.random.default_rng(seed)
        )
        assert source.tolist() == [0, 2, 2, 3]
        assert values["rate"][[0, 2, 3]].tolist() == [1.0, 4.0, 8.0]
        chosen.add(round(float(values["rate"][1]), 4))
    assert chosen == {3.2, 4.8}


def test_a_quarter_of_many_goes_on_from_the_other_end() -> None:
    scores = [float(index) for index in range(8)]
    sources = {
        tuple(next_generation(scores, {}, fine, np.random.default_rng(seed)).source[:2]) for seed in range(50)
    }
    assert sources == {(6, 6), (6, 7), (7, 6), (7, 7)}


@pytest.mark.parametrize("scores", [[3.0, 3.0, 3.0, 3.0], [1.0, None, 2.0, 3.0], [None] * 4])
def test_nobody_is_replaced_by_an_equal_or_before_all_have_a_score(scores: list[float | None]) -> None:
    generation = next_generation(scores, {"rate": RATES}, fine, np.random.default_rng(0))
    assert not generation.replaced.size
    assert generation.values["rate"].tolist() == RATES.tolist()


def test_a_value_that_is_not_allowed_is_taken_over_as_it_was() -> None:
    asked: list[tuple[str, float]] = []

    def never(name: str, value: float) -> bool:
        asked.append((name, value))
        return False

    values = next_generation([0.0, 1.0, 2.0, 3.0], {"rate": RATES}, never, np.random.default_rng(0)).values
    assert values["rate"].tolist() == [8.0, 2.0, 4.0, 8.0]
    assert len(asked) == 1
    assert asked[0][1] in (pytest.approx(6.4), pytest.approx(9.6))


@given(st.lists(st.floats(-9, 9), min_size=2, max_size=13), st.integers(0, 99))
def test_whatever_the_scores_are(scores: list[float], seed: int) -> None:
    count = len(scores)
    before = {name: np.arange(1, count + 1, dtype=np.float32) * scale for name, scale in (("a", 1), ("b", 9))}
    kept = {name: each.copy() for name, each in before.items()}
    generation = next_generation(scores, before, fine, np.random.default_rng(seed))
    assert all((before[name] == kept[name]).all() for name in before), "the values before stay as they are"
    few = max(1, int(count * SHARE))
    best, worst = sorted(scores)[-few:], sorted(scores)[:few]
    assert len(generation.replaced) <= few
    for index in range(count):
        source = generation.source[index]
        if index in generation.replaced:
            assert scores[index] in worst
            assert scores[source] in best
            assert scores[source] > scores[index]
            for name, each in generation.values.items():
                assert any(each[index] == pytest.approx(before[name][source] * factor) for factor in FACTORS)
        else:
            assert source == index
            assert all(each[index] == before[name][index] for name, each in generation.values.items())
