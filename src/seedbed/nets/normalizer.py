"""Arrays brought to mean 0 and variance 1 by statistics of all that were seen so far.

Of observations only floating-point arrays are touched: no choices and no pictures. The statistics are part of the
agent's params, so that acting with these params normalizes by them.
"""

from __future__ import annotations

from dataclasses import replace

import jax
import jax.numpy as jnp

from seedbed.types import ArraySpec, Tree, leaves, map_leaves, rebuild

Moments = dict[str, jax.Array]
"""``count`` float32 ``[]``, and of the array's shape ``mean`` and ``square``, the sum of squared deviations from it."""

Statistics = dict[str, Moments]
"""For each array of an observation, by its path."""

_LARGEST = 10.0


def _name(path: str) -> str:
    return path or "observation"


def _is_float(leaf: ArraySpec) -> bool:
    return leaf.dtype.startswith("float")


def normalized_spec(spec: Tree) -> Tree:
    """The specs of observations once they are normalized: floating-point arrays have lost their bounds."""
    return map_leaves(lambda leaf: replace(leaf, low=(), high=()) if _is_float(leaf) else leaf, spec)


def initial_statistics(spec: Tree) -> Statistics:
    """Of no observation."""
    return {_name(path): initial_moments(leaf.shape) for path, leaf in leaves(spec) if _is_float(leaf)}


def add_observations(
    statistics: Statistics, spec: Tree, observation: Tree, counts: jax.Array | None = None
) -> Statistics:
    """The statistics with the observations ``[T, B, ...]`` added.

    Args:
      statistics: statistics of earlier observations.
      spec: spec of an observation.
      observation: the observations.
      counts: bool ``[T, B]``, observations that count; None for all.
    """
    added = {}
    counts = None if counts is None else counts.reshape(-1)
    for (path, leaf), (_, array) in zip(leaves(spec), leaves(observation), strict=True):
        if _is_float(leaf):
            rows = array.reshape(-1, *leaf.shape)
            added[_name(path)] = add_rows(statistics[_name(path)], rows, counts)
    return added


def initial_moments(shape: tuple[int, ...] = ()) -> Moments:
    """Returns the moments of no array; the shape is the one of each array to come."""
    return {"count": jnp.zeros(()), "mean": jnp.zeros(shape), "square": jnp.zeros(shape)}


def add_rows(old: Moments, rows: jax.Array, counts: jax.Array | None = None) -> Moments:
    """The moments with rows added (Chan, Golub and LeVeque 1979, equation 2.1).

    Args:
      old: moments of earlier rows.
      rows: ``[N, *shape]``.
      counts: bool ``[N]``, rows that count; None for all.

    Returns:
      The moments; the old ones if a row that counts is not finite.
    """
    if counts is None:
        counts = jnp.ones(rows.shape[0], bool)
    counted = counts.reshape(-1, *[1] * (rows.ndim - 1))
    count = jnp.sum(counts.astype(jnp.float32))
    mean = jnp.sum(jnp.where(counted, rows, 0.0), 0) / jnp.maximum(count, 1.0)
    total, apart = old["count"] + count, mean - old["mean"]
    within = jnp.sum(jnp.square(jnp.where(counted, rows - mean, 0.0)), 0)
    share = count / jnp.maximum(total, 1.0)
    new = {
        "count": total,
        "mean": old["mean"] + apart * share,
        "square": old["square"] + within + jnp.square(apart) * old["count"] * share,
    }
    # One number that is not finite would spoil all that comes after it.
    finite = jnp.all(jnp.isfinite(new["mean"]) & jnp.isfinite(new["square"]))
    return {name: jnp.where(finite, new[name], old[name]) for name in new}


def mean_and_deviation(moments: Moments) -> tuple[jax.Array, jax.Array]:
    """Mean and standard deviation, more than 0; 0 and 1 before any row was added."""
    variance = jnp.where(moments["count"] > 1, moments["square"] / jnp.maximum(moments["count"], 1.0), 1.0)
    return moments["mean"], jnp.sqrt(variance + 1e-8)


def normalized(moments: Moments, array: jax.Array) -> jax.Array:
    """The array ``[..., *shape]`` shifted and scaled."""
    mean, deviation = mean_and_deviation(moments)
    return (array - mean) / deviation


def normalized_observation(statistics: Statistics, spec: Tree, observation: Tree) -> Tree:
    """The observations ``[..., *shape]`` with their floating-point arrays normalized, and clipped to ±10."""

    def normalize(path: str, leaf: ArraySpec, array: jax.Array) -> jax.Array:
        if not _is_float(leaf):
            return array
        return jnp.clip(normalized(statistics[_name(path)], array), -_LARGEST, _LARGEST)

    pairs = zip(leaves(spec), leaves(observation), strict=True)
    return rebuild(spec, [normalize(path, leaf, array) for (path, leaf), (_, array) in pairs])
