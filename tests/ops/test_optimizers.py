"""Rules by hand; what is optax's own is tested there."""

import math

import jax.numpy as jnp
import optax
import pytest

from seedbed.errors import ConfigError
from seedbed.ops.optimizers import OptimizerSettings, make_optimizer


def test_adagrad_divides_by_the_root_of_all_squares_so_far():
    """Dean et al. 2012, section 4.1: the rate of each parameter is ``gamma / sqrt(sum of its squared gradients)``."""
    rule = make_optimizer(
        OptimizerSettings(optimizer="adagrad", learning_rate=0.5, adagrad_start=0.0, adagrad_eps=0.0), None
    )
    params = jnp.array([1.0, -2.0])
    state = rule.init(params)
    for gradient in ([3.0, 0.1], [4.0, 0.0]):
        update, state = rule.update(jnp.array(gradient), state, params)
        params = optax.apply_updates(params, update)
    assert params.tolist() == pytest.approx([1 - 0.5 - 0.5 * 4 / 5, -2 - 0.5], rel=1e-6)


def test_adagrad_may_begin_with_a_sum():
    rule = make_optimizer(OptimizerSettings(optimizer="adagrad", learning_rate=1.0, adagrad_start=3.0), None)
    update, _ = rule.update(jnp.array(1.0), rule.init(jnp.array(0.0)))
    assert float(update) == pytest.approx(-1 / math.sqrt(4), rel=1e-5)


@pytest.mark.parametrize("name", ["adagrad_start", "adagrad_eps"])
def test_what_adagrad_adds_is_not_negative(name):
    with pytest.raises(ConfigError, match=f"{name} is -1, and has to be 0 or more"):
        OptimizerSettings(**{name: -1})
