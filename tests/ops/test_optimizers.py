"""Rules by hand; what is optax's own is tested there."""

import math

import jax
import jax.numpy as jnp
import optax
import pytest

from seedbed.errors import ConfigError
from seedbed.ops.optimizers import OptimizerSettings, apply_gradient, make_optimizer


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


def test_radam_divides_by_the_root_of_squares_only_once_it_knows_them():
    """Liu et al. 2020, algorithm 2, step by step."""
    rate, b1, b2, eps = 0.1, 0.9, 0.9, 1e-8
    settings = OptimizerSettings(optimizer="radam", learning_rate=rate, adam_b1=b1, adam_b2=b2, adam_eps=eps)
    rule = make_optimizer(settings, None)
    state, mean, square = rule.init(jnp.array(0.0)), 0.0, 0.0
    longest = 2 / (1 - b2) - 1
    kinds = []
    for t, gradient in enumerate([3.0, -1.0, 2.0, 0.5, 4.0, -2.0, 1.0, 1.0, 3.0, 2.0], 1):
        mean, square = b1 * mean + (1 - b1) * gradient, b2 * square + (1 - b2) * gradient**2
        length = longest - 2 * t * b2**t / (1 - b2**t)
        step = mean / (1 - b1**t)
        kinds.append(length >= 5)
        if length >= 5:
            above = (length - 4) * (length - 2) * longest
            below = (longest - 4) * (longest - 2) * length
            step *= math.sqrt(above / below) / (math.sqrt(square / (1 - b2**t)) + eps)
        update, state = rule.update(jnp.array(gradient), state)
        assert float(update) == pytest.approx(-rate * step, rel=1e-4)
    assert set(kinds) == {True, False}


@pytest.mark.parametrize("optimizer", ["adam", "radam", "rmsprop", "adagrad"])
def test_an_annealed_rate_moves_on_by_what_was_carried_out(optimizer):
    """Two batches of which half was carried out lower the rate as one whole batch does."""
    settings = OptimizerSettings(optimizer=optimizer, learning_rate=1.0, anneal_to_zero=True)
    rule = make_optimizer(settings, 4)
    whole = make_optimizer(OptimizerSettings(optimizer=optimizer, learning_rate=1.0), None)
    params = jnp.array(1.0)
    state, plain = rule.init(params), whole.init(params)
    for carried, left in [
        (1.0, 1.0),
        (0.5, 0.75),
        (0.5, 0.625),
        (0.0, 0.5),
        (1.0, 0.5),
        (1.0, 0.25),
        (1.0, 0.0),
    ]:
        changed, plain, _ = apply_gradient(whole, params, plain, jnp.array(2.0))
        annealed, state, _ = apply_gradient(rule, params, state, jnp.array(2.0), carried=carried)
        assert float(annealed - params) == pytest.approx(left * float(changed - params), rel=1e-6, abs=1e-7)


def test_what_was_skipped_changes_nothing_but_the_rate():
    """It counts towards the run's length: else the rate of a run that skips would not have come to 0 at its end."""
    rule = make_optimizer(OptimizerSettings(learning_rate=1.0, anneal_to_zero=True), 4)
    state = rule.init(jnp.array(1.0))
    same, after, _ = apply_gradient(rule, jnp.array(1.0), state, jnp.array(1.0), finite=False, carried=0.5)
    assert same == 1.0
    assert optax.tree.get(after, "count", filtering=lambda path, value: value.dtype == jnp.float32) == 0.5
    changed = [
        bool((one != other).any()) for one, other in zip(*map(jax.tree.leaves, (state, after)), strict=True)
    ]
    assert sum(changed) == 1


@pytest.mark.parametrize("start", [0.0, 1.0])
@pytest.mark.parametrize("centered", [False, True])
def test_rmsprop_divides_by_the_root_of_a_mean_that_begins_where_it_is_told(start, centered):
    """Tieleman and Hinton 2012; TensorFlow's, which Baselines used, begins at 1, with its epsilon inside the root."""
    settings = OptimizerSettings(
        optimizer="rmsprop",
        learning_rate=0.5,
        rmsprop_decay=0.9,
        rmsprop_eps=0.01,
        rmsprop_start=start,
        rmsprop_centered=centered,
    )
    rule = make_optimizer(settings, None)
    state, square, mean = rule.init(jnp.array(0.0)), start, 0.0
    for gradient in (2.0, -1.0, 3.0):
        update, state = rule.update(jnp.array(gradient), state)
        square, mean = 0.9 * square + 0.1 * gradient**2, 0.9 * mean + 0.1 * gradient
        spread = square - mean**2 if centered else square
        assert float(update) == pytest.approx(-0.5 * gradient / math.sqrt(spread + 0.01), rel=1e-5)


def test_rmsprops_first_step_is_less_than_the_rate_where_it_begins_at_one():
    first = {}
    for start in (0.0, 1.0):
        rule = make_optimizer(
            OptimizerSettings(optimizer="rmsprop", learning_rate=7e-4, rmsprop_start=start), None
        )
        first[start] = -float(rule.update(jnp.array(1.0), rule.init(jnp.array(0.0)))[0])
    assert first[0.0] == pytest.approx(10 * 7e-4, rel=1e-3)
    assert first[1.0] == pytest.approx(7e-4, rel=1e-3)
    assert OptimizerSettings().rmsprop_start == 1.0


def test_rmsprop_with_momentum_adds_up_its_steps():
    settings = OptimizerSettings(
        optimizer="rmsprop", learning_rate=1.0, rmsprop_decay=0.0, rmsprop_eps=0.0, rmsprop_momentum=0.5
    )
    rule = make_optimizer(settings, None)
    state = rule.init(jnp.array(0.0))
    steps = []
    for gradient in (3.0, 3.0, -3.0):
        update, state = rule.update(jnp.array(gradient), state)
        steps.append(float(update))
    assert steps == pytest.approx([-1.0, -1.5, 0.25], rel=1e-5)


def test_adam_is_the_rule_of_its_paper():
    """Kingma and Ba 2015, algorithm 1, with the bias of both means corrected and epsilon outside the root."""
    settings = OptimizerSettings(learning_rate=0.1, adam_b1=0.8, adam_b2=0.9, adam_eps=0.01)
    rule = make_optimizer(settings, None)
    state, mean, square = rule.init(jnp.array(0.0)), 0.0, 0.0
    for step, gradient in enumerate((2.0, -1.0, 0.5), 1):
        update, state = rule.update(jnp.array(gradient), state)
        mean, square = 0.8 * mean + 0.2 * gradient, 0.9 * square + 0.1 * gradient**2
        root = math.sqrt(square / (1 - 0.9**step))
        assert float(update) == pytest.approx(-0.1 * mean / (1 - 0.8**step) / (root + 0.01), rel=1e-5)


@pytest.mark.parametrize("optimizer", ["adam", "radam", "rmsprop", "adagrad"])
def test_every_optimizer_comes_to_the_bottom_of_a_bowl(optimizer):
    settings = OptimizerSettings(optimizer=optimizer, learning_rate=0.3, anneal_to_zero=True)
    rule = make_optimizer(settings, 300)

    def descend(_, now):
        params, state = now
        params, state, _ = apply_gradient(rule, params, state, 2 * params)
        return params, state

    begin = jnp.array([2.0, -1.0])
    params, _ = jax.jit(lambda: jax.lax.fori_loop(0, 300, descend, (begin, rule.init(begin))))()
    assert float(jnp.abs(params).max()) < 0.2
