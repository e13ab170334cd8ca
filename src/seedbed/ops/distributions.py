"""Distributions over actions, made from the spec of an action.

A network puts out ``num_params`` numbers for every state; a distribution says their meaning. Parameters are
float ``[..., P]``, actions ``[..., *shape]``; every function works on any leading axes, but ``sample`` uses
one key for all of them: vmap it where every row has a key of its own.

Choices (:class:`Categorical`) and continuous actions (:class:`ClippedNormal`) are there. For bounded
continuous actions there are two common designs. A *squashed* normal (tanh) has a density only in terms of the
number before the tanh, which is lost when the action saturates in float32, and its entropy can only be
estimated. A *clipped* normal, whose tails become point masses at the bounds, has an exact log-probability for
the very action that the environment got, so importance ratios are exact, and entropy and KL in closed form;
its policy gradient has provably lower variance than that of the unclipped normal (Fujita and Maeda 2018,
Clipped Action Policy Gradient). Hence the clipped one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import log_ndtr, ndtr

from seedbed.errors import SpecError
from seedbed.types import ArraySpec


class Distribution(Protocol):
    """A family of distributions over actions, indexed by parameters ``[..., P]``.

    Attributes:
      num_params: P, how many numbers the network must put out.
      num_deviations: the last of these parameters that are deviations, which may be the same in every state.
      num_features: E, how many numbers :meth:`encode` makes of an action.
    """

    @property
    def num_params(self) -> int: ...  # noqa: D102

    @property
    def num_deviations(self) -> int: ...  # noqa: D102

    @property
    def num_features(self) -> int: ...  # noqa: D102

    def sample(self, params: jax.Array, key: jax.Array) -> jax.Array:
        """Draws actions ``[..., *shape]`` with one ``key`` for all rows."""

    def mode(self, params: jax.Array) -> jax.Array:
        """The most likely action ``[..., *shape]``."""

    def log_prob(self, params: jax.Array, action: jax.Array) -> jax.Array:
        """Log-probability (or density) of ``action``, ``[...]``."""

    def entropy(self, params: jax.Array) -> jax.Array:
        """Entropy in nats ``[...]``; exact."""

    def kl(self, params: jax.Array, other: jax.Array) -> jax.Array:
        """``KL(params || other)`` in nats ``[...]``; exact."""

    def encode(self, action: jax.Array) -> jax.Array:
        """An action as float32 features ``[..., E]`` for a network."""


def from_spec(spec: ArraySpec, deviation: float = 1.0) -> Distribution:
    """Makes the distribution for actions of ``spec``.

    Args:
      spec: spec of an action.
      deviation: deviation of continuous actions where their parameters are 0, in halves of the range.

    Raises:
      SpecError: the action is neither a choice nor a float array.
    """
    if spec.num_values:
        if len(spec.num_values) != math.prod(spec.shape):
            raise SpecError(f"{len(spec.num_values)} num_values for an action of shape {list(spec.shape)}")
        return Categorical(spec.num_values, spec.shape, _device_dtype(spec))
    if np.issubdtype(np.dtype(spec.dtype), np.floating):
        return ClippedNormal.from_spec(spec, deviation)
    raise SpecError(
        f"no distribution for actions of dtype {spec.dtype} without num_values: needed is a choice"
        " (num_values) or a float array"
    )


def _device_dtype(spec: ArraySpec) -> str:
    """The dtype in which actions leave the accelerator: 64 bits become 32 there."""
    return {"int64": "int32", "uint64": "uint32", "float64": "float32"}.get(spec.dtype, spec.dtype)


@dataclass(frozen=True)
class Categorical:
    """Independent choices, one for each element; ``Discrete(n)`` is one element of shape ``()``.

    Parameters are the logits of all elements, one after the other in C order.

    Attributes:
      num_values: number of values that each element may take.
      shape: the shape of an action.
      dtype: its dtype.
    """

    num_values: tuple[int, ...]
    shape: tuple[int, ...] = ()
    dtype: str = "int32"

    @property
    def num_params(self) -> int:
        """One logit for every value of every element."""
        return sum(self.num_values)

    @property
    def num_deviations(self) -> int:
        """None."""
        return 0

    @property
    def num_features(self) -> int:
        """One-hot: as many as there are logits."""
        return sum(self.num_values)

    def _logits(self, params: jax.Array, axis: int = -1) -> list[jax.Array]:
        """The logits of every element i, its n_i values along ``axis``."""
        return jnp.split(params, np.cumsum(self.num_values)[:-1], axis=axis)

    def _log_probs(self, params: jax.Array) -> list[jax.Array]:
        """Normalized log-probabilities ``[n_i, ...]`` of every element i.

        Values come first: on a CPU a sum over a last axis of a few numbers is several times slower.
        """
        return [jax.nn.log_softmax(piece, axis=0) for piece in self._logits(jnp.moveaxis(params, -1, 0), 0)]

    def _join(self, elements: list[jax.Array]) -> jax.Array:
        """Element actions ``[...]`` as one array ``[..., *shape]``."""
        joined = jnp.stack(elements, axis=-1)
        return joined.reshape(*joined.shape[:-1], *self.shape).astype(self.dtype)

    def _part(self, action: jax.Array) -> jax.Array:
        """The action as a row of elements, int32 ``[..., number of elements]``."""
        leading = action.shape[: action.ndim - len(self.shape)]
        return action.reshape(*leading, len(self.num_values)).astype(jnp.int32)

    def sample(self, params: jax.Array, key: jax.Array) -> jax.Array:
        """Draws actions ``[..., *shape]``."""
        pieces = self._logits(params)
        keys = jax.random.split(key, len(pieces))
        return self._join([jax.random.categorical(k, p) for k, p in zip(keys, pieces, strict=True)])

    def mode(self, params: jax.Array) -> jax.Array:
        """The most likely value of every element."""
        return self._join([jnp.argmax(piece, axis=-1) for piece in self._logits(params)])

    def log_prob(self, params: jax.Array, action: jax.Array) -> jax.Array:
        """Sum of the elements' log-probabilities ``[...]``."""
        elements = self._part(action)

        def chosen(i: int, log_probs: jax.Array) -> jax.Array:
            # No lookup: its gradient would put numbers into their places one by one.
            is_it = jax.nn.one_hot(elements[..., i], len(log_probs), axis=0, dtype=bool)
            return jnp.sum(jnp.where(is_it, log_probs, 0.0), axis=0)

        return sum((chosen(i, piece) for i, piece in enumerate(self._log_probs(params))), jnp.zeros(()))

    def entropy(self, params: jax.Array) -> jax.Array:
        """Exact, ``[...]``."""
        return -_expectation(self._log_probs(params), self._log_probs(params))

    def kl(self, params: jax.Array, other: jax.Array) -> jax.Array:
        """Exact, ``[...]``."""
        ours, theirs = self._log_probs(params), self._log_probs(other)
        return _expectation(ours, [p - q for p, q in zip(ours, theirs, strict=True)])

    def encode(self, action: jax.Array) -> jax.Array:
        """One-hot of every element, concatenated: float32 ``[..., sum(num_values)]``."""
        elements = self._part(action)
        hots = [jax.nn.one_hot(elements[..., i], n) for i, n in enumerate(self.num_values)]
        return jnp.concatenate(hots, axis=-1)


def _expectation(log_probs: list[jax.Array], of: list[jax.Array]) -> jax.Array:
    """``sum_i sum_x p_i(x) of_i(x)``, with 0 where p is 0 (a masked value has log-probability -inf)."""

    def element(log_probs: jax.Array, of: jax.Array) -> jax.Array:
        never = jnp.isneginf(log_probs)
        # In the factor: with the product masked instead, its gradient would be 0 times infinity.
        return jnp.sum(jnp.exp(log_probs) * jnp.where(never, 0.0, of), axis=0)

    return sum(map(element, log_probs, of), jnp.zeros(()))


_MIN_SCALE = 1e-3
_FAR = 1e4
_NO_BOUND = 1e6
_LOG_SQRT_2PI = 0.5 * math.log(2 * math.pi)


@dataclass(frozen=True)
class ClippedNormal:
    """Independent normals, one for each element, clipped to the bounds of the action.

    The action is ``clip(centre + half * (m + s * noise), low, high)``. Parameters are all m, then all raw s,
    with ``s = softplus(raw + softplus^-1(start)) + 0.001``: at 0 the normal is centred and its deviation ``start``
    halves of the range. The distribution has a density between the bounds and a point mass on each of them;
    log-probability, entropy and KL are with respect to that mixed measure and exact. An element without a
    bound on a side has no point mass there (bounds of a million and more count as none) and is in units of
    its own: centre 0, half 1. An element whose bounds are equal is a constant: it has no part in any of them.

    Attributes:
      low, high: bounds of each element, C order, infinite where there are none.
      shape: the shape of an action.
      dtype: its dtype.
      start: deviation where raw s is 0, in halves of the range.
    """

    low: tuple[float, ...]
    high: tuple[float, ...]
    shape: tuple[int, ...]
    dtype: str = "float32"
    start: float = 1.0

    @staticmethod
    def from_spec(spec: ArraySpec, start: float = 1.0) -> ClippedNormal:
        """From a float spec, whose bounds may be absent; raises :class:`SpecError` if they do not fit."""
        size = math.prod(spec.shape)
        low = tuple(x if x > -_NO_BOUND else -math.inf for x in spec.low or (-math.inf,) * size)
        high = tuple(x if x < _NO_BOUND else math.inf for x in spec.high or (math.inf,) * size)
        if len(low) != size or len(high) != size or not all(a <= b for a, b in zip(low, high, strict=True)):
            raise SpecError(f"bounds {low} to {high} do not fit an action of shape {list(spec.shape)}")
        return ClippedNormal(low, high, spec.shape, _device_dtype(spec), start)

    @property
    def num_params(self) -> int:
        """A mean and a deviation for every element."""
        return 2 * len(self.low)

    @property
    def num_deviations(self) -> int:
        """One for every element."""
        return len(self.low)

    @property
    def num_features(self) -> int:
        """One for every element."""
        return len(self.low)

    @property
    def _bounds(self) -> tuple[jax.Array, jax.Array]:
        return jnp.asarray(self.low, jnp.float32), jnp.asarray(self.high, jnp.float32)

    def _over_elements(self, terms: jax.Array) -> jax.Array:
        """The sum of one term for each element, ``[..., size]`` to ``[...]``; constants have none."""
        free = [low < high for low, high in zip(self.low, self.high, strict=True)]
        return jnp.sum(terms if all(free) else jnp.where(jnp.array(free, bool), terms, 0.0), axis=-1)

    @property
    def _frame(self) -> tuple[jax.Array, jax.Array]:
        """Centre and half range of every element; 0 and 1 where a bound is missing."""
        pairs = list(zip(self.low, self.high, strict=True))
        centre = [(a + b) / 2 if math.isfinite(b - a) else 0.0 for a, b in pairs]
        half = [(b - a) / 2 if math.isfinite(b - a) and a < b else 1.0 for a, b in pairs]
        return jnp.asarray(centre, jnp.float32), jnp.asarray(half, jnp.float32)

    def _moments(self, params: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Mean and deviation of the normals before clipping, in units of the action, ``[..., size]``."""
        mean, raw = jnp.split(params, 2, axis=-1)
        centre, half = self._frame
        scale = jax.nn.softplus(raw + math.log(math.expm1(self.start))) + _MIN_SCALE
        return centre + half * mean, half * scale

    def _part(self, action: jax.Array) -> jax.Array:
        leading = action.shape[: action.ndim - len(self.shape)]
        return action.reshape(*leading, len(self.low))

    def _join(self, elements: jax.Array) -> jax.Array:
        low, high = self._bounds
        clipped = jnp.clip(elements, low, high)
        return clipped.reshape(*elements.shape[:-1], *self.shape).astype(self.dtype)

    def sample(self, params: jax.Array, key: jax.Array) -> jax.Array:
        """Draws actions ``[..., *shape]`` within the bounds."""
        mean, scale = self._moments(params)
        return self._join(mean + scale * jax.random.normal(key, mean.shape))

    def mode(self, params: jax.Array) -> jax.Array:
        """The clipped mean, which is the median, and the most likely action where no bound is near."""
        return self._join(self._moments(params)[0])

    def log_prob(self, params: jax.Array, action: jax.Array) -> jax.Array:
        """Log-density between the bounds, log-probability on them, summed over elements, ``[...]``."""
        mean, scale = self._moments(params)
        low, high = self._bounds
        elements = self._part(action)
        z = (elements - mean) / scale
        inside = -0.5 * jnp.square(z) - jnp.log(scale) - _LOG_SQRT_2PI
        at_low, at_high = elements <= low, elements >= high
        on_bound = log_ndtr(jnp.where(at_low, z, -z))
        return self._over_elements(jnp.where(at_low | at_high, on_bound, inside))

    def _standard_bounds(self, mean: jax.Array, scale: jax.Array) -> tuple[jax.Array, jax.Array]:
        """The bounds in deviations from the mean, at most 1e4: a float32 normal has nothing beyond."""

        def standard(bound: jax.Array, missing: float) -> jax.Array:
            # The inner where keeps infinity out of the gradient, where 0 * infinity would be NaN.
            finite = jnp.isfinite(bound)
            z = (jnp.where(finite, bound, 0.0) - mean) / scale
            return jnp.where(finite, jnp.clip(z, -_FAR, _FAR), missing)

        low, high = self._bounds
        return standard(low, -_FAR), standard(high, _FAR)

    def entropy(self, params: jax.Array) -> jax.Array:
        """Exact, with respect to the mixed measure, ``[...]``."""
        return -self._expected_log_prob(params, params)

    def kl(self, params: jax.Array, other: jax.Array) -> jax.Array:
        """Exact, ``[...]``."""
        return self._expected_log_prob(params, params) - self._expected_log_prob(params, other)

    def _expected_log_prob(self, params: jax.Array, of: jax.Array) -> jax.Array:
        """``E_{a ~ params} log p_of(a)``, ``[...]``: point masses and moments of a truncated normal."""
        mean, scale = self._moments(params)
        a, b = self._standard_bounds(mean, scale)
        other_mean, other_scale = self._moments(of)
        other_a, other_b = self._standard_bounds(other_mean, other_scale)
        mass = ndtr(b) - ndtr(a)
        # E[z; inside] and E[z^2; inside] of a standard normal between a and b.
        first = _density(a) - _density(b)
        second = mass + a * _density(a) - b * _density(b)
        ratio, shift = scale / other_scale, (mean - other_mean) / other_scale
        square = jnp.square(ratio) * second + 2 * ratio * shift * first + jnp.square(shift) * mass
        inside = -0.5 * square - mass * (jnp.log(other_scale) + _LOG_SQRT_2PI)
        # A bound that is missing has no mass, and log_ndtr is finite there: 0 * finite = 0.
        edges = ndtr(jnp.stack([a, -b])) * log_ndtr(jnp.stack([other_a, -other_b]))
        return self._over_elements(inside + edges.sum(axis=0))

    def encode(self, action: jax.Array) -> jax.Array:
        """The action in units of its half range: float32 ``[..., size]``, in [-1, 1] where it is bounded."""
        centre, half = self._frame
        return ((self._part(action) - centre) / half).astype(jnp.float32)


def _density(z: jax.Array) -> jax.Array:
    """Density of the standard normal."""
    return jnp.exp(-0.5 * jnp.square(z) - _LOG_SQRT_2PI)
