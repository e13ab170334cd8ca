"""Distributions against SciPy and numerical integration."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.integrate
import scipy.stats

from seedbed.errors import SpecError
from seedbed.ops.distributions import Categorical, ClippedNormal, from_spec
from seedbed.types import ArraySpec

ONE = Categorical((4,))
MANY = Categorical((3, 2), shape=(2,))
BOUNDS = ((-1.0, 1.0), (0.0, 6.0), (-np.inf, np.inf), (0.5, np.inf))
BOX = ClippedNormal(*zip(*BOUNDS, strict=True), shape=(4,))  # type: ignore[misc]


def params(distribution, seed=0, rows=5):
    return np.random.default_rng(seed).normal(size=(rows, distribution.num_params)).astype(np.float32)


def test_from_spec():
    assert from_spec(ArraySpec((), "int64", (6,))) == Categorical((6,), (), "int32")
    assert from_spec(ArraySpec((2,), "int32", (3, 2))) == MANY
    assert from_spec(ArraySpec((2,), "float32", (), (-1.0, 0.0), (1.0, 2e8))).high == (1.0, np.inf)
    assert from_spec(ArraySpec((1,), "float64")).low == (-np.inf,)
    for spec in (
        ArraySpec((2,), "int32"),
        ArraySpec((2,), "int32", (3,)),
        ArraySpec((2,), "float32", (), (0.0,)),
    ):
        with pytest.raises(SpecError):
            from_spec(spec)


def test_categorical_against_scipy():
    logits, other = params(ONE), params(ONE, 1)
    p, q = (np.exp(x) / np.exp(x).sum(-1, keepdims=True) for x in (logits, other))
    np.testing.assert_allclose(ONE.entropy(logits), scipy.stats.entropy(p, axis=-1), rtol=1e-5)
    np.testing.assert_allclose(ONE.kl(logits, other), scipy.stats.entropy(p, q, axis=-1), rtol=1e-4)
    for action in range(4):
        log_prob = ONE.log_prob(logits, np.full(5, action))
        np.testing.assert_allclose(log_prob, np.log(p[:, action]), rtol=1e-5)
    np.testing.assert_array_equal(ONE.mode(logits), p.argmax(-1))


def test_categorical_samples_with_its_probabilities():
    logits = jnp.asarray([1.0, 0.0, -1.0, 2.0])
    samples = jax.vmap(lambda key: ONE.sample(logits, key))(jax.random.split(jax.random.key(0), 20000))
    frequencies = np.bincount(samples, minlength=4) / 20000
    np.testing.assert_allclose(frequencies, jax.nn.softmax(logits), atol=0.015)
    assert samples.dtype == jnp.int32


def test_many_choices_are_independent():
    logits = params(MANY)
    first, second = Categorical((3,)), Categorical((2,))
    action = np.array([[0, 1], [2, 0], [1, 1], [2, 1], [0, 0]])
    expected = first.log_prob(logits[:, :3], action[:, 0]) + second.log_prob(logits[:, 3:], action[:, 1])
    np.testing.assert_allclose(MANY.log_prob(logits, action), expected, rtol=1e-6)
    np.testing.assert_allclose(
        MANY.entropy(logits), first.entropy(logits[:, :3]) + second.entropy(logits[:, 3:]), rtol=1e-6
    )
    assert MANY.sample(logits, jax.random.key(0)).shape == (5, 2)
    np.testing.assert_array_equal(MANY.encode(np.array([2, 0])), [0, 0, 1, 1, 0])


def test_an_impossible_choice_has_no_entropy():
    logits = jnp.asarray([0.0, -jnp.inf, 0.0, -jnp.inf])
    assert ONE.entropy(logits) == pytest.approx(np.log(2))
    assert ONE.kl(logits, jnp.zeros(4)) == pytest.approx(np.log(2))
    for of in (ONE.entropy, lambda x: ONE.kl(x, jnp.zeros(4)), lambda x: ONE.log_prob(x, jnp.asarray(2))):
        gradient = np.asarray(jax.grad(of)(logits))
        assert np.isfinite(gradient).all()
        np.testing.assert_array_equal(gradient[[1, 3]], 0)


def test_gradients_over_time_and_batch_are_those_of_a_softmax():
    """Of ``log p(a)``: one-hot minus probabilities, for each element."""
    logits = np.random.default_rng(3).normal(size=(3, 4, 5)).astype(np.float32)
    action = np.random.default_rng(4).integers(0, [3, 2], (3, 4, 2))
    weights = np.arange(12, dtype=np.float32).reshape(3, 4)
    assert MANY.log_prob(logits, action).shape == (3, 4)
    gradient = jax.grad(lambda x: jnp.sum(weights * MANY.log_prob(x, action)))(logits)
    chances = [jax.nn.softmax(part) for part in (logits[..., :3], logits[..., 3:])]
    needed = weights[..., None] * (MANY.encode(action) - np.concatenate(chances, axis=-1))
    np.testing.assert_allclose(gradient, needed, rtol=1e-4, atol=1e-5)


def normals(row):
    """Means and deviations of the four elements, from the docstring."""
    mean, raw = np.split(row.astype(np.float64), 2)
    scale = np.log1p(np.exp(raw + np.log(np.e - 1))) + 1e-3
    centre, half = np.array([0, 3, 0, 0]), np.array([1, 3, 1, 1])
    return centre + half * mean, half * scale


def expectation(of, mean, scale, low, high):
    """E[of(x)] for x = clip(normal, low, high), by integration."""
    normal = scipy.stats.norm(mean, scale)
    left, right = max(low, mean - 12 * scale), min(high, mean + 12 * scale)
    total = scipy.integrate.quad(
        lambda x: normal.pdf(x) * of(x), left, right, points=[np.clip(mean, left, right)]
    )[0]
    total += normal.cdf(low) * of(low) if np.isfinite(low) else 0
    return total + (normal.sf(high) * of(high) if np.isfinite(high) else 0)


def log_density(x, mean, scale, low, high):
    normal = scipy.stats.norm(mean, scale)
    return normal.logcdf(low) if x <= low else normal.logsf(high) if x >= high else normal.logpdf(x)


@pytest.mark.parametrize("row", range(5))
def test_clipped_normal_against_integration(row):
    ours, theirs = params(BOX)[row], params(BOX, 1)[row]
    p = list(zip(*normals(ours), *zip(*BOUNDS, strict=True), strict=True))
    q = list(zip(*normals(theirs), *zip(*BOUNDS, strict=True), strict=True))
    for x in ([0.3, 2.0, -1.0, 0.6], [-1.0, 6.0, 3.0, 0.5], [1.0, 0.0, 0.0, 7.0]):
        expected = sum(log_density(v, *element) for v, element in zip(x, p, strict=True))
        assert BOX.log_prob(ours, np.float32(x)) == pytest.approx(expected, rel=1e-4)
    entropy = -sum(expectation(lambda x, e=e: log_density(x, *e), *e) for e in p)
    assert BOX.entropy(ours) == pytest.approx(entropy, rel=1e-4)
    kl = sum(
        expectation(lambda x, e=e, f=f: log_density(x, *e) - log_density(x, *f), *e)
        for e, f in zip(p, q, strict=True)
    )
    assert BOX.kl(ours, theirs) == pytest.approx(kl, rel=1e-3)
    assert BOX.kl(ours, ours) == pytest.approx(0, abs=1e-6)


def test_clipped_normal_samples():
    row = params(BOX)[0]
    samples = np.asarray(
        jax.vmap(lambda key: BOX.sample(row, key))(jax.random.split(jax.random.key(0), 20000))
    )
    for i, (mean, scale, (low, high)) in enumerate(zip(*normals(row), BOUNDS, strict=True)):
        normal = scipy.stats.norm(mean, scale)
        assert samples[:, i].min() >= low
        assert samples[:, i].max() <= high
        assert np.mean(samples[:, i] <= low) == pytest.approx(normal.cdf(low), abs=0.015)
        assert np.median(samples[:, i]) == pytest.approx(np.clip(mean, low, high), abs=0.05 * scale)
    assert samples.dtype == np.float32
    assert BOX.mode(row).shape == (4,)
    np.testing.assert_allclose(ClippedNormal((0.0,), (6.0,), (1,)).encode(np.float32([4.5])), [0.5])


@pytest.mark.parametrize("size", [0.0, 3.0, 30.0, 1000.0])
def test_gradients_stay_finite_far_out(size):
    row = jnp.asarray(params(BOX)[0] * size)
    action = BOX.sample(row, jax.random.key(0))

    def total(row):
        return BOX.log_prob(row, action) + BOX.entropy(row) + BOX.kl(row, row * 0.5) / (1 + size**4)

    assert np.all(np.isfinite(jax.grad(total)(row)))


def test_an_action_whose_bounds_are_equal_is_a_constant():
    """Probabilities, entropy, KL and gradients are those of the other elements alone."""
    both = ClippedNormal((-1.0, 3.0), (1.0, 3.0), (2,))
    alone = ClippedNormal((-1.0,), (1.0,), (1,))
    one, other = params(both), params(both, seed=1)
    one_alone, other_alone = one[:, ::2], other[:, ::2]
    action = both.sample(one, jax.random.key(0))
    np.testing.assert_array_equal(action[:, 1], 3.0)
    np.testing.assert_array_equal(both.mode(one)[:, 1], 3.0)
    np.testing.assert_allclose(both.log_prob(one, action), alone.log_prob(one_alone, action[:, :1]))
    np.testing.assert_allclose(both.entropy(one), alone.entropy(one_alone))
    np.testing.assert_allclose(both.kl(one, other), alone.kl(one_alone, other_alone))
    for function in (
        lambda p: both.log_prob(p, action),
        both.entropy,
        lambda p: both.kl(p, jnp.asarray(other)),
    ):
        gradient = jax.grad(lambda p, function=function: function(p).sum())(jnp.asarray(one))
        assert np.isfinite(gradient).all()
        assert not gradient[:, 1::2].any()
    assert np.isfinite(both.encode(action)).all()
