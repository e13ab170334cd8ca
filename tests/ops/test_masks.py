"""Action masks by hand: values, probabilities, entropies, targets and draws under them, and gradients."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from seedbed.errors import SpecError
from seedbed.ops import policy_losses
from seedbed.ops.distributions import Categorical
from seedbed.ops.exploration import epsilon_greedy
from seedbed.ops.masks import FORBIDDEN, is_forbidden, masked
from seedbed.ops.q_values import td_errors
from seedbed.ops.returns import vtrace

ONE = Categorical((4,))
LOGITS = jnp.log(jnp.asarray([1.0, 2.0, 3.0, 50.0]))
MASK = jnp.asarray([1, 0, 1, 0])
UNDER = masked(LOGITS, MASK, (4,))  # odds of 1 to 3


def test_forbidden_values_are_out_of_reach_and_others_are_as_they_were():
    np.testing.assert_array_equal(UNDER, jnp.where(MASK == 1, LOGITS, FORBIDDEN))
    np.testing.assert_array_equal(is_forbidden(UNDER), MASK == 0)
    np.testing.assert_array_equal(masked(LOGITS, MASK != 0, (4,)), UNDER)


@pytest.mark.parametrize("nothing", [jnp.zeros(4, bool), jnp.zeros(4, jnp.int8)])
def test_where_nothing_is_allowed_nothing_is_forbidden(nothing):
    np.testing.assert_array_equal(masked(LOGITS, nothing, (4,)), LOGITS)


def test_each_choice_has_its_own_part_of_the_mask():
    values = jnp.arange(5.0)
    under = masked(values, jnp.asarray([0, 1, 0, 0, 0]), (3, 2))
    np.testing.assert_allclose(under, [FORBIDDEN, 1.0, FORBIDDEN, 3.0, 4.0])
    np.testing.assert_array_equal(Categorical((3, 2), (2,)).mode(under), [1, 1])


@pytest.mark.parametrize("shape", [(3,), (2, 4), (4, 1)])
def test_a_mask_of_another_shape_is_refused(shape):
    with pytest.raises(SpecError, match=r"a mask of shape .* ends with 4"):
        masked(LOGITS, jnp.ones(shape), (4,))


def test_probabilities_entropy_and_divergence_are_those_of_what_is_allowed():
    log_probs = [float(ONE.log_prob(UNDER, jnp.asarray(action))) for action in (0, 2)]
    np.testing.assert_allclose(log_probs, np.log([0.25, 0.75]), rtol=1e-6)
    entropy = -(0.25 * np.log(0.25) + 0.75 * np.log(0.75))
    assert float(ONE.entropy(UNDER)) == pytest.approx(entropy, rel=1e-6)
    even = masked(jnp.zeros(4), MASK, (4,))
    divergence = 0.25 * np.log(0.25 / 0.5) + 0.75 * np.log(0.75 / 0.5)
    assert float(ONE.kl(UNDER, even)) == pytest.approx(divergence, rel=1e-5)
    assert float(ONE.kl(UNDER, UNDER)) == 0.0


def test_a_mask_of_ones_changes_no_bit():
    np.testing.assert_array_equal(masked(LOGITS, jnp.ones(4, bool), (4,)), LOGITS)


def test_chance_without_masks_is_as_it_was_in_version_0_1():
    keys = jax.random.split(jax.random.key(3), 500)
    drawn = jax.vmap(lambda key: epsilon_greedy(key, LOGITS, jnp.asarray(1.0)))(keys)
    before = jax.vmap(lambda key: jax.random.randint(jax.random.split(key)[1], (), 0, 4))(keys)
    np.testing.assert_array_equal(drawn, before)


def test_draws_are_of_what_is_allowed_in_the_right_shares():
    keys = jax.random.split(jax.random.key(0), 20_000)
    drawn = np.asarray(jax.vmap(lambda key: ONE.sample(UNDER, key))(keys))
    np.testing.assert_allclose(np.bincount(drawn, minlength=4) / len(drawn), [0.25, 0, 0.75, 0], atol=0.01)
    assert int(ONE.mode(UNDER)) == 2


def test_chance_draws_each_allowed_action_as_often():
    keys = jax.random.split(jax.random.key(1), 20_000)
    q = masked(jnp.asarray([5.0, 0.0, 9.0, 1.0, 0.5]), jnp.asarray([0, 1, 0, 1, 1]), (5,))
    counts = np.bincount(jax.vmap(lambda key: epsilon_greedy(key, q, jnp.asarray(0.6)))(keys), minlength=5)
    # The best allowed one is action 3: 0.4, and a third of the 0.6 as any other.
    np.testing.assert_allclose(counts / len(keys), [0, 0.2, 0, 0.6, 0.2], atol=0.01)


@pytest.mark.parametrize("of", ["log_prob", "entropy", "kl"])
def test_gradients_are_finite_and_nothing_at_forbidden_actions(of):
    behaviour = masked(jnp.zeros(4), MASK, (4,))

    def value(logits):
        under = masked(logits, MASK, (4,))
        match of:
            case "log_prob":
                return ONE.log_prob(under, jnp.asarray(2))
            case "entropy":
                return ONE.entropy(under)
            case _:
                return ONE.kl(behaviour, under)

    gradient = np.asarray(jax.grad(value)(LOGITS))
    assert np.isfinite(gradient).all() and not gradient[[1, 3]].any()
    # Of the two that are allowed, as if there were no others.
    alone = jax.grad(lambda pair: value(LOGITS.at[jnp.asarray([0, 2])].set(pair)))(
        LOGITS[jnp.asarray([0, 2])]
    )
    np.testing.assert_allclose(gradient[[0, 2]], alone, rtol=1e-6)
    assert abs(gradient[0]) > 1e-3


def test_importance_ratios_are_those_of_what_is_allowed():
    behaviour = masked(jnp.zeros((2, 4)), jnp.asarray([[1, 0, 1, 0], [0, 0, 0, 1]]), (4,))
    policy = masked(jnp.stack([LOGITS, LOGITS]), jnp.asarray([[1, 0, 1, 0], [0, 0, 0, 1]]), (4,))
    actions = jnp.asarray([2, 3])
    log_rhos = ONE.log_prob(policy, actions) - ONE.log_prob(behaviour, actions)
    np.testing.assert_allclose(jnp.exp(log_rhos), [0.75 / 0.5, 1.0], rtol=1e-6)


def test_a_step_into_the_next_episode_spoils_nothing_whatever_is_forbidden_there():
    """The decision at a final observation, which a mask that is not used may forbid."""
    logits = jnp.stack([LOGITS, LOGITS, LOGITS])
    masks, actions = jnp.asarray([[1, 0, 1, 0], [0, 0, 0, 1], [1, 1, 1, 1]]), jnp.asarray([0, 0, 1])
    valid = jnp.asarray([True, False, True])

    def loss(logits):
        log_probs = ONE.log_prob(masked(logits, masks, (4,)), actions)
        returns = vtrace(log_probs, jnp.ones(3), jnp.ones(3), jnp.zeros(4), valid)
        return policy_losses.policy_gradient_loss(log_probs, returns.advantages, valid)

    value, gradient = jax.value_and_grad(loss)(logits)
    assert np.isfinite(value) and np.isfinite(gradient).all() and not gradient[1].any()


@pytest.mark.parametrize("double", [True, False])
@pytest.mark.parametrize("rescale", [0.0, 1e-3])
def test_targets_are_maxima_over_what_is_allowed(double, rescale):
    q = jnp.asarray([[1.0, 2.0, 3.0], [4.0, 0.5, 9.0], [0.0, 7.0, 8.0]])
    target_q = jnp.asarray([[0.0, 0.0, 0.0], [2.0, 3.0, 99.0], [6.0, 5.0, 99.0]])
    masks = jnp.asarray([[1, 1, 1], [1, 1, 0], [1, 1, 0]])
    under, target_under = (masked(values, masks, (3,)) for values in (q, target_q))
    arguments = (jnp.asarray([2, 0]), jnp.full(2, 0.5), jnp.asarray([1.0, 0.0]), jnp.ones(2, bool))
    errors = td_errors(under, target_under, *arguments, n=1, double=double, rescale=rescale)
    # The third action is the best by every number, and forbidden after both transitions.
    chosen = [2.0, 5.0] if double else [3.0, 6.0]
    if not rescale:
        np.testing.assert_allclose(errors, [1.0 + 0.5 * chosen[0] - 3.0, 0.5 * chosen[1] - 4.0], rtol=1e-6)
    gradient = jax.grad(
        lambda q: jnp.sum(
            jnp.square(
                td_errors(
                    masked(q, masks, (3,)), target_under, *arguments, n=2, double=double, rescale=rescale
                )
            )
        )
    )(q)
    assert np.isfinite(gradient).all() and gradient[0, 2] != 0 and not gradient[1:, 2].any()
