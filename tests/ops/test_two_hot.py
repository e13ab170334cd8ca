"""Two-hot distributions by hand, their inverse, and the gradient of their cross-entropy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from seedbed.ops.two_hot import Support, cross_entropy


def test_a_number_is_on_the_two_points_beside_it():
    plain = Support(limit=3, rescale=0.0)
    assert plain.size == 7
    wanted = {
        1.7: [0, 0, 0, 0, 0.3, 0.7, 0],
        -0.25: [0, 0, 0.25, 0.75, 0, 0, 0],
        2.0: [0, 0, 0, 0, 0, 1, 0],
        9.0: [0, 0, 0, 0, 0, 0, 1],
        -3.0: [1, 0, 0, 0, 0, 0, 0],
    }
    np.testing.assert_allclose(plain.encode(jnp.array([*wanted])), [*wanted.values()], atol=1e-6)


def test_points_are_of_the_rescaled_number():
    # h(8) = sqrt(9) - 1 + 0.001 * 8 = 2.008
    found = Support(limit=3, rescale=1e-3).encode(jnp.array(8.0))
    np.testing.assert_allclose(found, [0, 0, 0, 0, 0, 0.992, 0.008], atol=1e-6)


def test_what_is_beyond_the_last_point_is_told():
    numbers = jnp.array([2.9, 3.0, 3.1, -3.1, 14.8, 16.0])
    np.testing.assert_array_equal(Support(3, 0.0).cuts(numbers), [False, False, True, True, True, True])
    # h(15) = 3 and a little more.
    np.testing.assert_array_equal(Support(3, 1e-3).cuts(numbers), [False] * 5 + [True])


@pytest.mark.parametrize("rescale", [0.0, 1e-3])
def test_decoding_undoes_encoding(rescale):
    support = Support(limit=12, rescale=rescale)
    numbers = jnp.array([-11.3, -0.5, 0.0, 1e-3, 0.7, 10.2])
    # Probabilities of 0 have a logit that is low enough.
    logits = jnp.log(jnp.maximum(support.encode(numbers), 1e-30))
    np.testing.assert_allclose(support.decode(logits), numbers, rtol=1e-4, atol=1e-5)
    assert float(support.decode(jnp.zeros(25))) == pytest.approx(0.0, abs=1e-5)


def test_the_cross_entropy_is_least_at_the_target_itself():
    target = jnp.array([0.2, 0.5, 0.3])
    logits = jnp.array([1.0, -1.0, 0.5])
    by_hand = -(np.asarray(target) * np.log(np.exp(logits) / np.exp(logits).sum())).sum()
    assert float(cross_entropy(target, logits)) == pytest.approx(by_hand, rel=1e-6)
    gradient = jax.grad(lambda x: cross_entropy(target, x))
    np.testing.assert_allclose(gradient(logits), jax.nn.softmax(logits) - target, atol=1e-6)
    np.testing.assert_allclose(gradient(jnp.log(target)), np.zeros(3), atol=1e-6)
