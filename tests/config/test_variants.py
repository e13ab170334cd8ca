from __future__ import annotations

import math
from typing import Any

import pytest

from seedbed.config.resolve import configure
from seedbed.config.variants import Variant, recorded_variants, variants, with_values
from seedbed.errors import ConfigError


def population(**settings: Any) -> list[Variant]:
    return variants(configure("gymnax:CartPole-v1", **{"preset": "none", "arch": "anakin", **settings}))


def test_one_run_is_one_agent() -> None:
    assert population(seed=7) == [Variant(7)]


def test_every_value_is_trained_with_every_seed() -> None:
    found = population(seed=7, seeds=2, sweep=("learning_rate=1e-4,1e-3", "entropy-cost=0,0.5"))
    assert len(found) == 8
    assert found[:3] == [
        Variant(7, {"learning_rate": 1e-4, "entropy_cost": 0.0}),
        Variant(8, {"learning_rate": 1e-4, "entropy_cost": 0.0}),
        Variant(7, {"learning_rate": 1e-4, "entropy_cost": 0.5}),
    ]
    assert str(found[1]) == "learning_rate 0.0001, entropy_cost 0, seed 8"
    assert str(Variant(3)) == "seed 3"


def test_numbers_are_drawn_for_as_many_agents_as_asked_for() -> None:
    sweep = ("learning_rate=log:1e-5..1e-2", "entropy_cost=0,0.5", "discount=0.9..1")
    found = population(seed=7, seeds=2, sweep=sweep, draws=200)
    assert [variant.seed for variant in found] == [7, 8] * 200
    assert all(first.values == second.values for first, second in zip(found[::2], found[1::2], strict=True))
    rates = [variant.values["learning_rate"] for variant in found[::2]]
    assert len({*rates}) > 190 and all(1e-5 <= rate <= 1e-2 for rate in rates)
    for decade in (1e-5, 1e-4, 1e-3):
        assert 45 <= sum(decade <= rate < 10 * decade for rate in rates) <= 90
    costs = [variant.values["entropy_cost"] for variant in found[::2]]
    assert 70 <= costs.count(0.0) <= 130 and costs.count(0.0) + costs.count(0.5) == 200
    discounts = [variant.values["discount"] for variant in found[::2]]
    assert (
        all(0.9 <= discount <= 1 for discount in discounts) and 80 <= sum(x < 0.95 for x in discounts) <= 120
    )
    assert all(float(f"{x:.4g}") == x for x in rates + discounts), "they are typed as they are told"


def test_the_seed_of_the_run_tells_what_is_drawn() -> None:
    sweep = ("learning_rate=log:1e-5..1e-2",)
    first = population(seed=7, sweep=sweep, draws=8)
    assert first == population(seed=7, sweep=sweep, draws=8) != population(seed=8, sweep=sweep, draws=8)
    record = {"seed": 7, "seeds": 1, "sweep": [*sweep], "draws": 8, "pbt_frames": None}
    assert recorded_variants(record) == first
    damage: list[dict[str, Any]] = [
        *({"draws": value} for value in (None, 10**6, "many", math.inf, -3, 2.7, True)),
        *({"seeds": value} for value in (math.inf, -1, 10**9)),
        {"sweep": ["learning_rate=2..1"]},
        {"draws": 1000, "sweep": [f"number_{number}=0..1" for number in range(11)]},
    ]
    for damaged in damage:
        with pytest.raises(ConfigError):
            recorded_variants({**record, **damaged})


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        (
            {"sweep": ("learning_rate=1e-4..1e-2",)},
            "numbers between 0.0001 and 0.01 cannot all be trained: list",
        ),
        ({"sweep": ("learning_rate=1e-2..1e-4",), "draws": 4}, "two finite numbers, the lower one first"),
        ({"sweep": ("learning_rate=log:0..1",), "draws": 4}, "a logarithmic scale has no 0"),
        ({"sweep": ("learning_rate=-1..1",), "draws": 4}, "learning_rate is -1"),
        ({"draws": 4}, "draws is given, and nothing that differs between agents: give --sweep"),
        ({"sweep": ("learning_rate=1,2",), "draws": 0}, "draws is 0, and has to be 1 or more"),
        ({"arch": "seed", "draws": 4}, "draws is a setting of anakin, .* --trials 8"),
        ({"sweep": ("learning_rate=1e-4..1e-2",), "draws": 10_001}, "10,001 are too many: at most 10,000"),
    ],
)
def test_what_cannot_be_drawn_is_refused(settings: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        population(**settings)


@pytest.mark.parametrize(
    ("sweep", "says"),
    [
        (("learning_rat=1,2",), "unknown number to sweep 'learning_rat': did you mean learning_rate"),
        (("learning_rate",), "write name=value,value"),
        (("learning_rate=",), "write name=value,value"),
        (("learning_rate=1e-3,fast",), "learning_rate has the value 'fast', which is no number"),
        (("learning_rate=1e-3,-1",), "learning_rate is -1"),
        (("learning_rate=1e-3,1e-3",), "a value is given twice"),
        (("learning_rate=1,2", "learning-rate=3"), "name each setting once"),
        (("batch_size=8,16",), "batch_size is 32, of which one program cannot have several values"),
        (("target_entropy=0.1,0.2",), "target_entropy is None, of which one program cannot"),
    ],
)
def test_what_cannot_be_swept_is_refused(sweep: tuple[str, ...], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        population(sweep=sweep)


def test_settings_with_values_that_no_one_looks_at() -> None:
    settings = configure("CartPole-v1", preset="none").settings
    nothing_to_compare = object()
    changed = with_values(settings, {"learning_rate": nothing_to_compare})
    assert changed.learning_rate is nothing_to_compare  # type: ignore[comparison-overlap]
    assert type(changed) is type(settings)
    assert changed.entropy_cost == settings.entropy_cost
