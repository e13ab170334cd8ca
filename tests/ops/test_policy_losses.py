"""The parts of the actor-critic loss and their gradients."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import rlax

from seedbed.errors import SpecError
from seedbed.ops import policy_losses as losses

VALID = np.array([True, True, False, True])
A = np.array([1.0, -2, 50, 3], np.float32)
B = np.array([0.5, 1, 20, -1], np.float32)


def test_policy_gradient():
    loss, gradient = jax.value_and_grad(losses.policy_gradient_loss, argnums=(0, 1))(B, A, VALID)
    assert loss == pytest.approx(-(0.5 - 2 - 3) / 4)
    np.testing.assert_allclose(gradient[0], -A * VALID / 4)
    np.testing.assert_array_equal(gradient[1], 0)


def test_value_loss():
    loss, gradient = jax.value_and_grad(losses.value_loss, argnums=(0, 1))(A, B, VALID)
    assert loss == pytest.approx(0.5 * (0.25 + 9 + 16) / 4)
    np.testing.assert_allclose(gradient[0], (A - B) * VALID / 4)
    np.testing.assert_array_equal(gradient[1], 0)


def test_entropy_loss():
    loss, gradient = jax.value_and_grad(losses.entropy_loss)(A, VALID)
    assert loss == pytest.approx(-2 / 4)
    np.testing.assert_allclose(gradient, -1.0 * VALID / 4)


def test_divergence_loss():
    loss, gradient = jax.value_and_grad(losses.divergence_loss)(A, VALID)
    assert loss == pytest.approx(2 / 4)
    np.testing.assert_allclose(gradient, 1.0 * VALID / 4)


RATIOS = np.array([1.5, 0.5, 9.0, 1.1], np.float32)


def test_clipped_surrogate():
    loss, gradient = jax.value_and_grad(
        lambda *x: losses.clipped_surrogate_loss(*x, VALID, clip=0.2), argnums=(0, 1)
    )(np.log(RATIOS), A)
    # Gained by leaving: clipped, no gradient. Lost by leaving (a bad action made likelier would be): not clipped.
    assert loss == pytest.approx(-(1.2 * 1 - 0.8 * 2 + 1.1 * 3) / 4)
    np.testing.assert_allclose(gradient[0], [0, 0, 0, -1.1 * 3 / 4], rtol=1e-5)
    np.testing.assert_array_equal(gradient[1], 0)
    worse = losses.clipped_surrogate_loss(np.log(RATIOS), -A, VALID, clip=0.2)
    assert worse == pytest.approx(-(-1.5 * 1 + 0.5 * 2 - 1.1 * 3) / 4)


def test_clipped_surrogate_equals_rlax():
    rng = np.random.default_rng(0)
    ratios, advantages = np.exp(rng.normal(size=50)), rng.normal(size=50)
    ours = losses.clipped_surrogate_loss(np.log(ratios), advantages, np.ones(50, bool), clip=0.2)
    assert ours == pytest.approx(float(rlax.clipped_surrogate_pg_loss(ratios, advantages, 0.2)), rel=1e-5)


def test_a_boundary_may_have_any_ratio():
    ratios = np.where(VALID, 0.0, np.inf)
    slope = jax.grad(lambda x: losses.clipped_surrogate_loss(x, A, VALID, clip=0.2))(ratios)
    assert np.isfinite(slope).all() and slope[2] == 0


def test_clipped_value_loss():
    old, values = np.array([0.0, 0, 0, 0], np.float32), np.array([1.0, 1, 1, 0.1], np.float32)
    targets = np.array([1.0, -1, 5, 1], np.float32)
    loss, gradient = jax.value_and_grad(
        lambda v: losses.clipped_value_loss(v, old, targets, VALID, clip=0.2)
    )(values)
    # The first came to its target by more than 0.2: it pays as if it had come 0.2, and has no gradient.
    assert loss == pytest.approx(0.5 * (0.8**2 + 2**2 + 0.9**2) / 4)
    np.testing.assert_allclose(gradient, np.array([0, 2, 0, -0.9]) / 4, rtol=1e-6)


@pytest.mark.parametrize(("entropy", "sign"), [(0.2, -1), (0.8, 1)])
def test_entropy_below_its_target_raises_the_coefficient(entropy, sign):
    def loss(parameter, entropies):
        return losses.entropy_adjustment_loss(parameter, entropies, VALID, target=0.5, speed=10.0)

    entropies = jnp.where(VALID, entropy, 99.0)
    slope, through = jax.grad(loss, argnums=(0, 1))(jnp.asarray(-0.4), entropies)
    assert np.sign(slope) == sign  # descent goes against it
    assert slope == pytest.approx(10 * np.exp(-4) * (entropy - 0.5) * 3 / 4, rel=1e-5)
    np.testing.assert_array_equal(through, 0)


@pytest.mark.parametrize("part", [losses.policy_gradient_loss, losses.value_loss])
def test_shapes_are_checked(part):
    with pytest.raises(SpecError):
        part(A[:, None], B, VALID)
    with pytest.raises(SpecError):
        part(A, B[:-1], VALID)
