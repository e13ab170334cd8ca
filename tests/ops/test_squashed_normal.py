"""The squashed normal against numerical integration, finite differences and hand-made cases."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from seedbed.errors import SpecError
from seedbed.ops.squashed_normal import SquashedNormal
from seedbed.types import ArraySpec

ONE = SquashedNormal((-2.0,), (2.0,), (1,))
BOX = SquashedNormal((-1.0, 0.0, 3.0), (1.0, 6.0, 3.0), (3,))
"""The last element is a constant."""


def noise_of(before, mean, log_deviation):
    """The noise that comes to ``before``."""
    return (before - mean) / np.exp(log_deviation)


@pytest.mark.parametrize(
    ("mean", "log_deviation"), [(0.0, 0.0), (0.7, -1.0), (-2.0, 0.5), (3.0, -2.0), (0.0, 1.5)]
)
def test_the_density_has_a_mass_of_one(mean, log_deviation):
    before = mean + np.exp(log_deviation) * np.linspace(-9, 9, 40_001)
    params = jnp.tile(jnp.asarray([mean, log_deviation], jnp.float32), (len(before), 1))
    noise = np.float32(noise_of(before, mean, log_deviation))[:, None]
    elements, log_density = ONE.draw(params, noise)
    np.testing.assert_allclose(elements[:, 0], np.tanh(before), atol=1e-6)
    # Over e itself, so that a wrong change of variables would show.
    mass = np.trapezoid(np.exp(np.float64(log_density)), np.tanh(before))
    assert mass == pytest.approx(1.0, abs=1e-3)


@pytest.mark.parametrize("before", [-60.0, -20.0, -9.0, -0.5, 0.0, 1.0, 5.0, 12.0, 30.0, 80.0])
def test_the_change_of_variables_is_exact_where_the_tanh_is_flat(before):
    mean, log_deviation = 0.25, 1.0

    def rest(u):
        """1 - tanh(u) for positive numbers, in float64 without a difference."""
        return 2 / (np.exp(2 * u) + 1)

    step, size = 1e-4, abs(before)
    slope = (rest(size - step) - rest(size + step)) / (2 * step)
    normal = scipy.stats.norm(mean, np.exp(log_deviation)).logpdf(before)
    noise = np.float32([noise_of(before, mean, log_deviation)])
    params = jnp.asarray([mean, log_deviation], jnp.float32)
    _, log_density = ONE.draw(params, noise)
    assert float(log_density) == pytest.approx(normal - np.log(slope), rel=1e-5, abs=1e-4)
    gradient = jax.grad(lambda params: ONE.draw(params, noise)[1])(params)
    # d/dm of -log(1 - tanh(m + s noise)^2) is 2 tanh; the normal itself has no gradient along its own draw.
    along = np.array([2 * np.tanh(before), 2 * np.tanh(before) * (before - mean) - 1])
    np.testing.assert_allclose(gradient, along, rtol=1e-4, atol=1e-4)


def test_elements_move_with_the_parameters():
    params, noise = jnp.asarray([0.3, -0.4], jnp.float32), jnp.asarray([0.8], jnp.float32)
    gradient = jax.grad(lambda params: ONE.draw(params, noise)[0][0])(params)
    before = 0.3 + np.exp(-0.4) * 0.8
    slope = 1 - np.tanh(before) ** 2
    np.testing.assert_allclose(gradient, [slope, slope * np.exp(-0.4) * 0.8], rtol=1e-5)


def test_the_log_deviation_is_clipped():
    noise = jnp.ones((2, 1))
    elements, log_density = ONE.draw(jnp.asarray([[0.0, 50.0], [0.0, -50.0]]), noise)
    same, as_dense = ONE.draw(jnp.asarray([[0.0, 2.0], [0.0, -20.0]]), noise)
    np.testing.assert_array_equal(elements, same)
    np.testing.assert_array_equal(log_density, as_dense)
    assert np.isfinite(log_density).all()


def test_actions_are_within_their_bounds_and_come_back_as_elements():
    elements = jnp.asarray([[-1.0, -1.0, 0.0], [1.0, 1.0, 0.0], [0.5, 0.0, 0.0]])
    actions = BOX.action(elements)
    np.testing.assert_allclose(actions, [[-1, 0, 3], [1, 6, 3], [0.5, 3, 3]])
    np.testing.assert_allclose(BOX.elements(actions), elements, atol=1e-6)
    far = BOX.action(BOX.draw(jnp.full(6, 300.0), jnp.ones(3))[0])
    assert (np.asarray(far) <= np.asarray(BOX.high)).all()


def test_the_density_is_that_of_elements_and_not_of_the_environments_units():
    params, noise = jnp.asarray([0.3, -0.4], jnp.float32), jnp.asarray([0.8], jnp.float32)
    wide = SquashedNormal((-200.0,), (200.0,), (1,))
    assert float(wide.draw(params, noise)[1]) == float(ONE.draw(params, noise)[1])


def test_a_constant_has_no_part():
    params = jnp.asarray([0.3, -0.2, 7.0, -0.4, 0.1, 1.0], jnp.float32)
    noise = jnp.asarray([0.8, -0.3, 2.0], jnp.float32)
    two = SquashedNormal(BOX.low[:2], BOX.high[:2], (2,))
    elements, log_density = BOX.draw(params, noise)
    fewer, of_two = two.draw(params[jnp.asarray([0, 1, 3, 4])], noise[:2])
    np.testing.assert_array_equal(elements, [*fewer, 0.0])
    assert float(log_density) == pytest.approx(float(of_two), rel=1e-6)
    assert (BOX.num_free, BOX.size, BOX.num_params) == (2, 3, 6)
    assert BOX.middle(params)[2] == BOX.anything(jax.random.key(0))[2] == 0


def test_anything_is_uniform():
    drawn = jax.vmap(BOX.anything)(jax.random.split(jax.random.key(0), 4_000))
    for element in (0, 1):
        assert scipy.stats.kstest(drawn[:, element], scipy.stats.uniform(-1, 2).cdf).pvalue > 1e-3
    assert abs(np.corrcoef(drawn[:, 0], drawn[:, 1])[0, 1]) < 0.06


def test_from_spec():
    spec = ArraySpec((2,), "float64", low=(-1.0,), high=(1.0,))
    with pytest.raises(SpecError, match="do not fit"):
        SquashedNormal.from_spec(spec)
    assert SquashedNormal.from_spec(ArraySpec((2,), "float64", low=(-1.0, 0.0), high=(1.0, 2.0))) == (
        SquashedNormal((-1.0, 0.0), (1.0, 2.0), (2,), "float32")
    )
    for low, high in (((), ()), ((-np.inf,), (1.0,)), ((-1.0,), (3e38,))):
        with pytest.raises(SpecError, match="a tanh needs finite ones on both sides"):
            SquashedNormal.from_spec(ArraySpec((1,), "float32", low=low, high=high))
