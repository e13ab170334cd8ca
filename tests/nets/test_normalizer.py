"""Running statistics against NumPy over everything that was seen."""

import jax
import jax.numpy as jnp
import numpy as np

from seedbed.nets.normalizer import (
    add_observations,
    add_rows,
    initial_moments,
    initial_statistics,
    mean_and_deviation,
    normalized,
    normalized_observation,
)
from seedbed.testing.agents import SPECS, observations
from seedbed.types import ArraySpec, leaves

SPEC = SPECS["tree"].observation


def test_statistics_are_those_of_all_that_was_seen():
    batches = [observations(SPECS["tree"], (5, 4 + seed), seed) for seed in range(4)]
    statistics = initial_statistics(SPEC)
    for batch in batches:
        statistics = jax.jit(lambda s, b: add_observations(s, SPEC, b))(statistics, batch)
    assert set(statistics) == {"body/joints", "body/speed"}, "no pictures and no choices"
    for name in statistics:
        rows = [dict(leaves(batch))[name] for batch in batches]
        seen = np.concatenate([row.reshape(-1, *row.shape[2:]) for row in rows])
        assert statistics[name]["count"] == len(seen) == 110
        np.testing.assert_allclose(statistics[name]["mean"], seen.mean(0), atol=1e-6)
        np.testing.assert_allclose(statistics[name]["square"] / len(seen), seen.var(0), rtol=1e-5)


def test_what_was_seen_gets_mean_0_and_variance_1_and_nothing_else_changes():
    batch = observations(SPECS["tree"], (50, 8), 3)
    batch["body"]["speed"] = 100 + 7 * batch["body"]["speed"]
    shown = normalized_observation(add_observations(initial_statistics(SPEC), SPEC, batch), SPEC, batch)
    for name in ("speed", "joints"):
        np.testing.assert_allclose(np.mean(shown["body"][name], (0, 1)), 0, atol=1e-4)
        np.testing.assert_allclose(np.std(shown["body"][name], (0, 1)), 1, atol=1e-4)
    for name in ("camera", "goal"):
        np.testing.assert_array_equal(shown[name], batch[name])


def test_at_first_nothing_is_changed_and_outliers_are_clipped():
    spec = ArraySpec((2,), "float32")
    rows = jnp.array([[1.0, -2.0], [3.0, 4.0]])
    np.testing.assert_array_equal(normalized_observation(initial_statistics(spec), spec, rows), rows)
    statistics = add_observations(initial_statistics(spec), spec, rows[None])
    far = normalized_observation(statistics, spec, jnp.array([1e9, -1e9]))
    np.testing.assert_array_equal(far, [10.0, -10.0])


def test_numbers_one_by_one() -> None:
    """Moments of the targets of values: those of all rows so far, 0 and 1 before there are any."""
    np.testing.assert_array_equal(mean_and_deviation(initial_moments()), (0.0, 1.0))
    rows = np.random.default_rng(0).normal(300.0, 40.0, (3, 50)).astype(np.float32)
    moments = initial_moments()
    for part in rows:
        moments = add_rows(moments, part)
        # Those that do not count leave no trace, also where none does.
        moments = add_rows(moments, jnp.full(5, 7.0), jnp.zeros(5, bool))
        moments = add_rows(moments, jnp.array([jnp.nan, part[0]]), jnp.array([False, True]))
        # Nor does a batch with a number that is none.
        moments = add_rows(moments, jnp.array([1.0, jnp.inf]))
    rows = np.concatenate([rows, rows[:, :1]], axis=1)
    mean, deviation = mean_and_deviation(moments)
    np.testing.assert_allclose((mean, deviation), (rows.mean(), rows.std()), rtol=1e-5)
    np.testing.assert_allclose(normalized(moments, rows), (rows - rows.mean()) / rows.std(), atol=1e-3)


def test_only_observations_are_clipped() -> None:
    """A target far out has to stay where it is, or it would never be learned."""
    moments = add_rows(initial_moments(), jnp.arange(2.0))
    np.testing.assert_allclose(normalized(moments, jnp.array([50.5, -49.5])), [100.0, -100.0], rtol=1e-4)
