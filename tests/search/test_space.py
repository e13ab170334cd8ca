from typing import Any

import pytest

from seedbed.config.resolve import configure
from seedbed.config.settings import RunConfig
from seedbed.errors import ConfigError
from seedbed.search.space import Axis, axes, described


@pytest.fixture(scope="module")
def config() -> RunConfig:
    return configure("toy:catch", preset="none", agent="ppo", frames=1000)


@pytest.mark.parametrize(
    ("item", "axis"),
    [
        ("learning_rate=log:1e-4..1e-2", Axis("learning_rate", (), 1e-4, 1e-2, log=True)),
        ("--gradient-clip=0.1..1", Axis("gradient_clip", (), 0.1, 1.0)),
        ("unroll_length=log:4..32", Axis("unroll_length", (), 4.0, 32.0, log=True, whole=True)),
        ("minibatches=1..4", Axis("minibatches", (), 1.0, 4.0, whole=True)),
        ("entropy_cost=0,0.01", Axis("entropy_cost", (0, 0.01))),
        ("activation=tanh,relu", Axis("activation", ("tanh", "relu"))),
        ("anneal_to_zero=True,false", Axis("anneal_to_zero", (True, False))),
        ("target_kl=none,0.01", Axis("target_kl", (None, 0.01))),
    ],
)
def test_an_axis_is_read(config: RunConfig, item: str, axis: Axis) -> None:
    assert axes(config, [item]) == (axis,)
    distribution = axis.distribution()
    assert all(distribution._contains(distribution.to_internal_repr(end)) for end in axis.ends)


@pytest.mark.parametrize(
    ("items", "says"),
    [
        ([], "a sweep is over nothing: name each setting once"),
        (["entropy_cost=0,1", "entropy-cost=0..1"], "name each setting once"),
        (["learning_rat=0..1"], "did you mean learning_rate"),
        (["replay_size=10..20"], "replay_size is a setting of dqn"),
        (["env=a,b"], "env is the same in all runs"),
        (["learning_rate"], r"write name=low\.\.high"),
        (["learning_rate=1e-2..1e-4"], "the lower one first"),
        (["learning_rate=0..nan"], "two finite numbers"),
        (["learning_rate=log:0..1"], "begin above 0"),
        (["discount=0.5..1.5"], "discount is 1.5"),
        (["reuse=0,4"], "reuse is 0"),
        (["reuse=1.5,4"], "reuse is 1.5"),
        (["activation=tanh,sinus"], "activation is 'sinus'"),
        (["entropy_cost=0.01"], "two or more different values"),
        (["hidden=[64],[128]"], "over numbers and words, not over lists"),
        (["entropy_cost=0,0"], "two or more different values"),
        (["frames=1000,4000"], "frames is the same in all runs"),
        (["until_return=1,2"], "until_return is the same in all runs"),
        (["rmsprop_decay=0.9,0.99"], "over rmsprop_decay: it means nothing where optimizer is adam"),
        (["opponents_share=0.1..0.5"], "over opponents_share: it means nothing where opponents is 0"),
    ],
)
def test_what_is_impossible_is_refused(config: RunConfig, items: list[str], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        axes(config, items)


def test_a_setting_may_mean_something_by_another_one_of_the_sweep(config: RunConfig) -> None:
    assert len(axes(config, ["rmsprop_decay=0.9,0.99", "optimizer=adam,rmsprop"])) == 2
    assert len(axes(config, ["opponents=0,4", "opponents_share=0.1,0.5"])) == 2


def test_values_in_words() -> None:
    values: dict[str, Any] = {"learning_rate": 0.000123456, "reuse": 4, "activation": "tanh"}
    assert described(values) == "learning_rate 0.0001235, reuse 4, activation tanh"
