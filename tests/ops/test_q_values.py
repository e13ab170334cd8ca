"""Q-values, priorities and exploration against hand-made numbers, a slow oracle, rlax, and at the ends of episodes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import rlax

from seedbed.errors import SpecError
from seedbed.ops.exploration import epsilon_greedy, epsilons_of
from seedbed.ops.priorities import sequence_priority
from seedbed.ops.q_values import in_rewards, of_actions, q_lambda, rescaled, td_errors
from seedbed.ops.returns import n_step
from seedbed.types import Exploration

T, A = 9, 3


def slow_n_step(discounts, rewards, values, valid, n):
    """Walks ahead from every step until n steps, the episode or the trajectory are over; float64."""
    returns = []
    for t in range(len(rewards)):
        total, weight, at = 0.0, 1.0, t
        while at < len(rewards) and at < t + n and valid[at]:
            total += weight * rewards[at]
            weight *= discounts[at]
            at += 1
        returns.append(total + weight * values[at])
    return np.asarray(returns)


def trajectory(seed, ends=True):
    rng = np.random.default_rng(seed)
    ended = (rng.random(T) < 0.3) & ends
    ended[1:] &= ~ended[:-1]
    terminated = ended & (rng.random(T) < 0.5)
    valid = np.append(True, ~ended[:-1])
    return {
        "discounts": np.where(terminated, 0, 0.9).astype(np.float32),
        "rewards": rng.normal(size=T).astype(np.float32),
        "valid": valid,
    }


def q_values(seed):
    rng = np.random.default_rng(100 + seed)
    return (rng.normal(size=(T + 1, A)).astype(np.float32) for _ in range(2))


@pytest.mark.parametrize("n", [1, 2, 5, T, T + 4])
@pytest.mark.parametrize("seed", range(4))
def test_n_step_returns_are_those_of_a_walk_ahead(n, seed):
    parts = trajectory(seed)
    values = np.random.default_rng(seed).normal(size=T + 1).astype(np.float32)
    got = jax.jit(lambda v: n_step(values=v, n=n, **parts))(values)
    expected = slow_n_step(n=n, values=values, **parts)
    np.testing.assert_allclose(np.asarray(got)[parts["valid"]], expected[parts["valid"]], rtol=1e-5)


@pytest.mark.parametrize("n", [1, 3, 5])
def test_n_step_returns_equal_those_of_rlax(n):
    parts = trajectory(1, ends=False)
    values = np.random.default_rng(1).normal(size=T + 1).astype(np.float32)
    theirs = rlax.n_step_bootstrapped_returns(parts["rewards"], parts["discounts"], values[1:], n)
    np.testing.assert_allclose(n_step(values=values, n=n, **parts), theirs, rtol=1e-5)


def test_a_truncation_bootstraps_from_the_final_observation_and_a_termination_from_nothing():
    for cut, expected in ((0.0, 1.0), (0.5, 1.0 + 0.5 * 10)):
        returns = n_step(
            jnp.asarray([cut, 0.5, 0.5]),
            jnp.asarray([1.0, 77.0, 2.0]),  # 77 leads into the next episode
            jnp.asarray([5.0, 10.0, 20.0, 40.0]),
            jnp.asarray([True, False, True]),
            n=3,
        )
        assert float(returns[0]) == expected
        assert float(returns[2]) == 2.0 + 0.5 * 40


@pytest.mark.parametrize("epsilon", [1e-3, 1e-2, 0.5])
def test_rescaling_has_its_inverse_up_to_large_values(epsilon):
    values = np.asarray([-3e4, -7.0, -1e-3, 0.0, 1e-3, 0.5, 20.0, 3e4], np.float32)
    there = rescaled(values, epsilon)
    np.testing.assert_allclose(in_rewards(there, epsilon), values, rtol=2e-4, atol=1e-6)
    np.testing.assert_allclose(there, rlax.signed_hyperbolic(values, epsilon), rtol=1e-6)


def test_rescaling_of_numbers_worked_out_by_hand():
    assert float(rescaled(jnp.asarray(8.0), 1e-3)) == pytest.approx(2.008)
    assert float(rescaled(jnp.asarray(-3.0), 1e-3)) == pytest.approx(-1.003)
    assert float(in_rewards(jnp.asarray(2.008), 1e-3)) == pytest.approx(8.0, rel=1e-5)
    assert float(rescaled(jnp.asarray(8.0), 0.0)) == 8.0 == float(in_rewards(jnp.asarray(8.0), 0.0))


@pytest.mark.parametrize("double", [True, False])
@pytest.mark.parametrize("rescale", [0.0, 1e-3])
@pytest.mark.parametrize("seed", range(3))
def test_errors_are_those_of_a_walk_ahead(seed, rescale, double):
    parts, (q, target_q) = trajectory(seed), q_values(seed)
    actions = np.random.default_rng(seed).integers(0, A, T)
    got = td_errors(q, target_q, actions, n=3, double=double, rescale=rescale, **parts)
    best = (q if double else target_q).argmax(1)
    values = np.asarray(in_rewards(target_q[np.arange(T + 1), best], rescale))
    targets = np.asarray(rescaled(jnp.asarray(slow_n_step(n=3, values=values, **parts)), rescale))
    expected = np.where(parts["valid"], targets - q[np.arange(T), actions], 0)
    np.testing.assert_allclose(got, expected, atol=1e-5)


def test_errors_of_one_step_equal_those_of_rlax():
    parts, (q, target_q) = trajectory(2, ends=False), q_values(2)
    actions = np.random.default_rng(2).integers(0, A, T)
    theirs = jax.vmap(rlax.double_q_learning)(
        q[:-1], actions, parts["rewards"], parts["discounts"], target_q[1:], q[1:]
    )
    np.testing.assert_allclose(td_errors(q, target_q, actions, n=1, **parts), theirs, atol=1e-5)


def test_the_gradient_is_that_of_the_taken_values_alone():
    parts, (q, target_q) = trajectory(0), q_values(0)
    actions = np.random.default_rng(0).integers(0, A, T)

    def total(q, target_q):
        return jnp.sum(td_errors(q, target_q, actions, n=3, **parts))

    of_q, of_target = jax.grad(total, (0, 1))(jnp.asarray(q), jnp.asarray(target_q))
    expected = np.zeros((T + 1, A))
    expected[np.arange(T), actions] = -1.0 * parts["valid"]
    np.testing.assert_array_equal(of_q, expected)
    assert not np.any(of_target)


def test_values_of_actions():
    assert of_actions(jnp.asarray([[1.0, 2.0], [3.0, 4.0]]), jnp.asarray([1, 0])).tolist() == [2.0, 3.0]


def test_a_priority_worked_out_by_hand():
    errors, valid = jnp.asarray([1.0, -3.0, 100.0]), jnp.asarray([True, True, False])
    assert float(sequence_priority(errors, valid, eta=0.9)) == pytest.approx(0.9 * 3 + 0.1 * 2)
    assert float(sequence_priority(errors, jnp.zeros(3, bool), eta=0.9)) == 0.0


def test_epsilons_are_those_of_the_papers():
    exploration = Exploration(jnp.arange(8) / 7, jnp.arange(8) == 7)
    epsilons = epsilons_of(exploration, base=0.4, exponent=7.0, evaluation=1e-3)
    np.testing.assert_allclose(epsilons, [*0.4 ** np.linspace(1, 7, 7), 1e-3], rtol=1e-5)
    explorers = exploration._replace(evaluates=jnp.zeros(8, bool))
    last = epsilons_of(explorers, base=0.4, exponent=7.0, evaluation=1e-3)[-1]
    assert float(last) == pytest.approx(0.4**8)


def test_the_greedy_action_is_left_as_often_as_epsilon_says():
    keys = jax.random.split(jax.random.key(0), 20_000)
    q = jnp.asarray([0.0, 1.0, 0.5, 0.2])
    actions = np.asarray(jax.vmap(lambda key: epsilon_greedy(key, q, jnp.asarray(0.4)))(keys))
    # Every fourth of the random ones is the best one after all.
    np.testing.assert_allclose(np.bincount(actions) / len(actions), [0.1, 0.7, 0.1, 0.1], atol=0.01)
    never = jax.vmap(lambda key: epsilon_greedy(key, q, jnp.asarray(0.0)))(keys)
    assert set(np.asarray(never)) == {1}


def test_a_batch_that_was_not_mapped_is_refused():
    batch = jnp.zeros((T, 2))
    with pytest.raises(SpecError, match=r"\[9, 2\]"):
        n_step(batch, batch, jnp.zeros((T + 1, 2)), batch, n=1)
    with pytest.raises(SpecError, match=r"\[9, 2\]"):
        sequence_priority(batch, batch, eta=0.9)


def slow_q_lambda(q, discounts, rewards, valid, lambda_):
    """Gallici et al. 2024, from the end of each episode back to its beginning, in float64."""
    values = np.asarray(q, np.float64).max(axis=1)
    returns, after = np.zeros(T), values[-1]
    for t in reversed(range(T)):
        if not valid[t]:  # The step before the next episode is the last that counts.
            after = returns[t] = values[t]
            continue
        after = returns[t] = rewards[t] + discounts[t] * ((1 - lambda_) * values[t + 1] + lambda_ * after)
    return returns


@pytest.mark.parametrize("lambda_", [0.0, 0.3, 0.65, 1.0])
@pytest.mark.parametrize("seed", range(4))
def test_q_lambda_is_that_of_a_walk_back(seed, lambda_):
    parts, (q, _) = trajectory(seed), q_values(seed)
    got = jax.jit(lambda q: q_lambda(q, lambda_=lambda_, **parts))(q)
    np.testing.assert_allclose(got, slow_q_lambda(q, lambda_=lambda_, **parts), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("lambda_", [0.0, 0.5, 1.0])
def test_q_lambda_equals_that_of_rlax(lambda_):
    parts, (q, _) = trajectory(3, ends=False), q_values(3)
    actions = np.random.default_rng(3).integers(0, A, T)
    theirs = rlax.q_lambda(q[:-1], actions, parts["rewards"], parts["discounts"], q[1:], lambda_)
    ours = q_lambda(q, lambda_=lambda_, **parts) - q[np.arange(T), actions]
    np.testing.assert_allclose(ours, theirs, atol=1e-5)


@pytest.mark.parametrize(("lambda_", "n"), [(0.0, 1), (1.0, T)])
@pytest.mark.parametrize("seed", range(4))
def test_at_its_limits_q_lambda_is_the_return_of_one_step_and_that_of_all(seed, lambda_, n):
    parts, (q, _) = trajectory(seed), q_values(seed)
    expected = n_step(values=q.max(axis=1), n=n, **parts)
    np.testing.assert_allclose(q_lambda(q, lambda_=lambda_, **parts), expected, rtol=1e-5, atol=1e-5)


def test_q_lambda_of_numbers_worked_out_by_hand():
    q = jnp.asarray([[9.0, 0.0], [2.0, 4.0], [6.0, 1.0]])
    discounts, rewards, valid = jnp.full(2, 0.5), jnp.asarray([1.0, 3.0]), jnp.ones(2, bool)
    # The last: 3 + 0.5 * 6 = 6. The first: 1 + 0.5 * (0.75 * 4 + 0.25 * 6) = 3.25.
    assert q_lambda(q, discounts, rewards, valid, lambda_=0.25).tolist() == [3.25, 6.0]
    # A termination after the first transition; one step later the next episode begins.
    ended = q_lambda(q, jnp.asarray([0.0, 0.5]), rewards, jnp.asarray([True, False]), lambda_=0.25)
    assert ended.tolist() == [1.0, 4.0]


def test_no_gradient_goes_through_q_lambda():
    parts, (q, _) = trajectory(0), q_values(0)
    assert not np.any(jax.grad(lambda q: jnp.sum(q_lambda(q, lambda_=0.5, **parts)))(jnp.asarray(q)))
