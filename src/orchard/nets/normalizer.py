"""Observations brought to mean 0 and variance 1 by statistics of all that were seen so far.

Only floating-point arrays are touched: no choices and no pictures. The statistics are part of the agent's params, so
that whoever acts with these params normalizes as they say.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from orchard.types import ArraySpec, Tree, leaves, rebuild

Statistics = dict[str, dict[str, jax.Array]]
"""For each array, by its path: ``count`` float32 ``[]``, and of the array's shape ``mean`` and ``square``, the sum of
squared deviations from it."""

_LARGEST = 10.0


def _name(path: str) -> str:
    return path or "observation"


def _is_float(leaf: ArraySpec) -> bool:
    return leaf.dtype.startswith("float")


def initial_statistics(spec: Tree) -> Statistics:
    """Of no observation."""
    return {
        _name(path): {"count": jnp.zeros(()), "mean": jnp.zeros(leaf.shape), "square": jnp.zeros(leaf.shape)}
        for path, leaf in leaves(spec)
        if _is_float(leaf)
    }


def add_observations(statistics: Statistics, spec: Tree, observation: Tree) -> Statistics:
    """The statistics with the observations ``[T, B, ...]`` added (Chan, Golub and LeVeque 1979, equation 2.1)."""
    added = {}
    for (path, leaf), (_, array) in zip(leaves(spec), leaves(observation), strict=True):
        if _is_float(leaf):
            rows = array.reshape(-1, *leaf.shape)
            added[_name(path)] = _add(statistics[_name(path)], rows)
    return added


def _add(old: dict[str, jax.Array], rows: jax.Array) -> dict[str, jax.Array]:
    count, mean = jnp.float32(rows.shape[0]), jnp.mean(rows, 0)
    total, apart = old["count"] + count, mean - old["mean"]
    within = jnp.sum(jnp.square(rows - mean), 0)
    return {
        "count": total,
        "mean": old["mean"] + apart * count / total,
        "square": old["square"] + within + jnp.square(apart) * old["count"] * count / total,
    }


def normalized(statistics: Statistics, spec: Tree, observation: Tree) -> Tree:
    """The observations ``[..., *shape]`` shifted, scaled and clipped to ±10; as they are before any was added."""

    def normalize(path: str, leaf: ArraySpec, array: jax.Array) -> jax.Array:
        if not _is_float(leaf):
            return array
        known = statistics[_name(path)]
        variance = jnp.where(known["count"] > 1, known["square"] / jnp.maximum(known["count"], 1.0), 1.0)
        return jnp.clip((array - known["mean"]) / jnp.sqrt(variance + 1e-8), -_LARGEST, _LARGEST)

    pairs = zip(leaves(spec), leaves(observation), strict=True)
    return rebuild(spec, [normalize(path, leaf, array) for (path, leaf), (_, array) in pairs])
