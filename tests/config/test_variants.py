from __future__ import annotations

from typing import Any

import pytest

from seedbed.config.resolve import configure
from seedbed.config.variants import Variant, variants, with_values
from seedbed.errors import ConfigError


def population(**settings: Any) -> list[Variant]:
    return variants(configure("gymnax:CartPole-v1", preset="none", arch="anakin", **settings))


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
