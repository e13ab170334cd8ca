"""V-trace and generalized advantages against the papers' formulas, against rlax, and at the ends of episodes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import rlax

from seedbed.errors import SpecError
from seedbed.ops.returns import backward_sum, gae, vtrace

T = 9


def formula(
    log_rhos, discounts, rewards, values, valid, lambda_=1.0, clip_rho=1.0, clip_c=1.0, clip_pg_rho=1.0
):
    """Equation 1 of the paper, as a sum of products in float64."""
    log_rhos, discounts, rewards, values = (
        np.asarray(x, np.float64) for x in (log_rhos, discounts, rewards, values)
    )
    ratios = np.where(valid, np.exp(np.where(valid, log_rhos, 0)), 0)
    rhos, cs = np.minimum(clip_rho, ratios), lambda_ * np.minimum(clip_c, ratios)
    steps = len(rewards)
    targets = np.zeros(steps)
    for s in range(steps):
        total = values[s]
        for t in range(s, steps):
            delta = rhos[t] * (rewards[t] + discounts[t] * values[t + 1] - values[t])
            total += np.prod(discounts[s:t] * cs[s:t]) * delta
        targets[s] = total
    following = np.append(targets[1:], values[-1])
    return targets, np.minimum(clip_pg_rho, ratios) * (rewards + discounts * following - values[:-1])


def trajectory(seed, steps=T, off_policy=1.0, ends=True):
    rng = np.random.default_rng(seed)
    terminated = (rng.random(steps) < 0.2) & ends
    truncated = (rng.random(steps) < 0.2) & ~terminated & ends
    # The transition after an end leads into a new episode; two ends in a row make no sense.
    valid = np.append(True, ~(terminated | truncated)[:-1])
    return {
        "log_rhos": (off_policy * rng.normal(size=steps)).astype(np.float32),
        "discounts": np.where(terminated & valid, 0, 0.9).astype(np.float32),
        "rewards": rng.normal(size=steps).astype(np.float32),
        "values": rng.normal(size=steps + 1).astype(np.float32),
        "valid": valid,
    }


@pytest.mark.parametrize("clips", [{}, {"lambda_": 0.7, "clip_rho": 2.0, "clip_c": 0.8, "clip_pg_rho": 1.5}])
@pytest.mark.parametrize("seed", range(5))
def test_equals_the_formula(seed, clips):
    inputs = trajectory(seed)
    targets, advantages = jax.jit(lambda kw: vtrace(**kw, **clips))(inputs)
    expected_targets, expected_advantages = formula(**inputs, **clips)
    np.testing.assert_allclose(targets, expected_targets, atol=2e-5)
    np.testing.assert_allclose(advantages, expected_advantages, atol=2e-5)
    assert targets.dtype == advantages.dtype == jnp.float32


@pytest.mark.parametrize("lambda_", [1.0, 0.6])
def test_equals_rlax(lambda_):
    inputs = trajectory(3, ends=False)
    ours = vtrace(**inputs, lambda_=lambda_, clip_pg_rho=1.0)
    theirs = rlax.vtrace_td_error_and_advantage(
        inputs["values"][:-1],
        inputs["values"][1:],
        inputs["rewards"],
        inputs["discounts"],
        np.exp(inputs["log_rhos"]),
        lambda_,
    )
    np.testing.assert_allclose(ours.targets - inputs["values"][:-1], theirs.errors, atol=1e-5)
    if lambda_ == 1.0:  # rlax mixes lambda into the advantage; the paper (and this) does not
        np.testing.assert_allclose(ours.advantages, theirs.pg_advantage, atol=1e-5)


def test_on_policy_it_is_the_return():
    inputs = trajectory(0, off_policy=0.0, ends=False)
    expected = [
        sum(0.9 ** (t - s) * inputs["rewards"][t] for t in range(s, T))
        + 0.9 ** (T - s) * inputs["values"][-1]
        for s in range(T)
    ]
    np.testing.assert_allclose(vtrace(**inputs).targets, expected, rtol=1e-5)


def test_without_lambda_it_is_one_step():
    inputs = trajectory(1, off_policy=0.0, ends=False)
    expected = inputs["rewards"] + 0.9 * inputs["values"][1:]
    np.testing.assert_allclose(vtrace(**inputs, lambda_=0.0).targets, expected, atol=1e-6)


def test_ratios_are_clipped_each_by_its_own_bound():
    inputs = trajectory(2, ends=False) | {"log_rhos": np.full(T, 5.0, np.float32)}
    on_policy = inputs | {"log_rhos": np.zeros(T, np.float32)}
    np.testing.assert_allclose(vtrace(**inputs).targets, vtrace(**on_policy).targets, rtol=1e-6)
    loose = vtrace(**inputs, clip_pg_rho=3.0)
    np.testing.assert_allclose(loose.advantages, 3 * vtrace(**inputs).advantages, rtol=1e-5)
    np.testing.assert_allclose(loose.targets, vtrace(**inputs).targets)


@pytest.mark.parametrize("end", range(1, T))
@pytest.mark.parametrize("how", ["terminated", "truncated"])
def test_an_episode_ends(how, end):
    """Step ``end`` is final, step ``end + 1`` the first of the next episode; rewards are 1, discounts 1."""
    values = np.arange(10.0, 10.0 + T + 1, dtype=np.float32)
    terminated, first = np.zeros(T + 1, bool), np.zeros(T + 1, bool)
    terminated[end] = how == "terminated"
    if end < T:
        first[end + 1 : end + 2] = True
    rewards = np.where(first, 0, 1).astype(np.float32)[1:]
    targets, advantages = vtrace(np.zeros(T), np.where(terminated, 0.0, 1.0)[1:], rewards, values, ~first[1:])
    after_end = 0.0 if how == "terminated" else values[end]
    for s in range(end):
        assert targets[s] == pytest.approx(end - s + after_end)
        assert advantages[s] == pytest.approx(end - s + after_end - values[s])
    if end < T:
        assert targets[end] == values[end]
        assert advantages[end] == 0
        for s in range(end + 1, T):
            assert targets[s] == pytest.approx(T - s + values[T])


def test_a_boundary_may_hold_anything():
    inputs = trajectory(4, ends=False)
    inputs["valid"] = np.arange(T) != 4
    expected = vtrace(**inputs)
    inputs["log_rhos"][4], inputs["rewards"][4] = np.inf, 1e30
    np.testing.assert_array_equal(vtrace(**inputs).targets, expected.targets)
    np.testing.assert_array_equal(vtrace(**inputs).advantages, expected.advantages)


def test_targets_are_constants():
    inputs = trajectory(5)
    for name in ("log_rhos", "values", "rewards"):
        gradient = jax.grad(lambda x, name=name: sum(r.sum() for r in vtrace(**(inputs | {name: x}))))(
            inputs[name]
        )
        np.testing.assert_array_equal(gradient, 0)


def test_batches_are_refused():
    inputs = trajectory(0)
    with pytest.raises(SpecError, match="vmap"):
        vtrace(**(inputs | {"rewards": inputs["rewards"][:, None]}))
    with pytest.raises(SpecError, match=f"values has {T} steps, needed are {T + 1}"):
        vtrace(**(inputs | {"values": inputs["values"][:-1]}))


def test_backward_sum():
    np.testing.assert_allclose(backward_sum(jnp.array([1.0, 2, 3]), jnp.array([0.5, 0.1, 7])), [2.15, 2.3, 3])


def gae_formula(discounts, rewards, values, valid, lambda_):
    """Equation 16 of the paper, as a sum of products in float64."""
    discounts, rewards, values = (np.asarray(x, np.float64) for x in (discounts, rewards, values))
    deltas = np.where(valid, rewards + discounts * values[1:] - values[:-1], 0)
    decays = np.where(valid, lambda_ * discounts, 0)
    return [sum(np.prod(decays[s:t]) * deltas[t] for t in range(s, len(deltas))) for s in range(len(deltas))]


@pytest.mark.parametrize("lambda_", [0.0, 0.7, 1.0])
@pytest.mark.parametrize("seed", range(4))
def test_gae_equals_the_formula(seed, lambda_):
    inputs = trajectory(seed)
    del inputs["log_rhos"]
    ours = jax.jit(lambda kw: gae(**kw, lambda_=lambda_))(inputs)
    np.testing.assert_allclose(ours, gae_formula(**inputs, lambda_=lambda_), atol=2e-5)


@pytest.mark.parametrize("lambda_", [0.0, 0.6, 1.0])
def test_gae_equals_rlax(lambda_):
    inputs = trajectory(3, ends=False)
    theirs = rlax.truncated_generalized_advantage_estimation(
        inputs["rewards"], inputs["discounts"], lambda_, inputs["values"]
    )
    del inputs["log_rhos"]
    np.testing.assert_allclose(gae(**inputs, lambda_=lambda_), theirs, atol=1e-5)


def test_gae_is_what_vtrace_says_on_policy():
    inputs = trajectory(5, off_policy=0.0)
    targets = vtrace(**inputs, lambda_=0.8).targets
    del inputs["log_rhos"]
    advantages = gae(**inputs, lambda_=0.8)
    valid = inputs["valid"]
    np.testing.assert_allclose(
        np.where(valid, advantages + inputs["values"][:-1], 0), np.where(valid, targets, 0), atol=1e-5
    )


@pytest.mark.parametrize("how", ["terminated", "truncated"])
def test_gae_at_the_end_of_an_episode(how):
    """Step 4 is final, step 5 the first of the next episode; rewards are 1, discounts 1, values 10."""
    values, first = np.full(T + 1, 10.0, np.float32), np.arange(T + 1) == 5
    discounts = np.where((np.arange(T + 1) == 4) & (how == "terminated"), 0.0, 1.0)[1:]
    advantages = gae(discounts, np.where(first, 0, 1)[1:].astype(np.float32), values, ~first[1:], lambda_=1.0)
    after_end = 0.0 if how == "terminated" else 10.0
    np.testing.assert_allclose(advantages[:4], [4 - s + after_end - 10.0 for s in range(4)])
    assert advantages[4] == 0
    np.testing.assert_allclose(advantages[5:], [T - s for s in range(5, T)])


def test_a_boundary_may_hold_anything_for_gae():
    inputs = trajectory(4, ends=False)
    del inputs["log_rhos"]
    inputs["valid"] = np.arange(T) != 4
    expected = gae(**inputs, lambda_=0.9)
    inputs["rewards"][4] = np.inf
    np.testing.assert_array_equal(gae(**inputs, lambda_=0.9), expected)
