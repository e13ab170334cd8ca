"""A normal distribution that a tanh squashes into the bounds of an action.

Its density is known where the number before the tanh is: for actions that the loss itself draws, as a soft actor-critic
does. (For actions that come back from an environment the clipped normal of :mod:`seedbed.ops.distributions` is exact.)
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import jax
import jax.numpy as jnp

from seedbed.errors import SpecError
from seedbed.ops.distributions import ClippedNormal
from seedbed.types import ArraySpec

_LEAST_LOG_DEVIATION, _MOST_LOG_DEVIATION = -20.0, 2.0
_LOG_SQRT_2PI = 0.5 * math.log(2 * math.pi)


@dataclass(frozen=True)
class SquashedNormal:
    """Independent squashed normals, one for each element of an action.

    ::

        u = m + s * noise,    e = tanh(u),    action = centre + half * e

    (Haarnoja et al. 2018, *Soft Actor-Critic Algorithms and Applications*, appendix C.) Parameters are all m, then all
    log s, which is clipped to [-20, 2], as in the authors' code. *Elements* are e, in [-1, 1] with any bounds of the
    action: critics read them, and densities are of them, so that entropies do not depend on the environment's units.
    An element whose bounds are equal is a constant: it is 0, and has no part in a density.

    Attributes:
      low, high: finite bounds of each element, C order.
      shape: the shape of an action.
      dtype: its dtype.
    """

    low: tuple[float, ...]
    high: tuple[float, ...]
    shape: tuple[int, ...]
    dtype: str = "float32"

    @staticmethod
    def from_spec(spec: ArraySpec) -> SquashedNormal:
        """Makes it for a float spec; raises :class:`SpecError` where an element has no bounds below a million."""
        bounds = ClippedNormal.from_spec(spec)
        if not all(map(math.isfinite, (*bounds.low, *bounds.high))):
            raise SpecError(f"bounds {bounds.low} to {bounds.high}: a tanh needs finite ones on both sides")
        return SquashedNormal(bounds.low, bounds.high, spec.shape, bounds.dtype)

    @property
    def size(self) -> int:
        """Number of elements, E."""
        return len(self.low)

    @property
    def num_params(self) -> int:
        """A mean and a deviation for every element."""
        return 2 * self.size

    @property
    def _is_free(self) -> tuple[bool, ...]:
        return tuple(low < high for low, high in zip(self.low, self.high, strict=True))

    @property
    def num_free(self) -> int:
        """Number of elements that are no constants."""
        return sum(self._is_free)

    def _only_free(self, terms: jax.Array) -> jax.Array:
        """Returns ``[..., E]`` with 0 at constants."""
        return terms if all(self._is_free) else jnp.where(jnp.array(self._is_free), terms, 0.0)

    @property
    def _frame(self) -> tuple[jax.Array, jax.Array]:
        """Centre and half range of every element."""
        pairs = list(zip(self.low, self.high, strict=True))
        centre, half = (
            [low + (high - low) / 2 for low, high in pairs],
            [(high - low) / 2 for low, high in pairs],
        )
        return jnp.asarray(centre, jnp.float32), jnp.asarray(half, jnp.float32)

    def draw(self, params: jax.Array, noise: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Draws elements, with a gradient through them to the parameters.

        ::

            log p(e) = sum_i log N(u_i; m_i, s_i) - log(1 - tanh(u_i)^2)

        The last term is taken as 2 (log 2 - u - softplus(-2u)), which keeps all digits where the tanh is 1.

        Args:
          params: float32 ``[..., 2 E]``.
          noise: float32 ``[..., E]``, standard normal.

        Returns:
          Elements float32 ``[..., E]``, and their log-density ``[...]``.
        """
        mean, raw = jnp.split(params, 2, axis=-1)
        log_deviation = jnp.clip(raw, _LEAST_LOG_DEVIATION, _MOST_LOG_DEVIATION)
        before = mean + jnp.exp(log_deviation) * noise
        normal = -0.5 * jnp.square(noise) - log_deviation - _LOG_SQRT_2PI
        terms = normal - 2 * (math.log(2) - before - jax.nn.softplus(-2 * before))
        return self._only_free(jnp.tanh(before)), jnp.sum(self._only_free(terms), axis=-1)

    def middle(self, params: jax.Array) -> jax.Array:
        """Computes the elements ``[..., E]`` of the mean before the tanh, which are the median."""
        return self._only_free(jnp.tanh(jnp.split(params, 2, axis=-1)[0]))

    def anything(self, key: jax.Array) -> jax.Array:
        """Draws uniform elements ``[E]``."""
        return self._only_free(jax.random.uniform(key, (self.size,), minval=-1.0, maxval=1.0))

    def action(self, elements: jax.Array) -> jax.Array:
        """Computes the action ``[..., *shape]``, within its bounds, of elements ``[..., E]``."""
        centre, half = self._frame
        low, high = jnp.asarray(self.low, jnp.float32), jnp.asarray(self.high, jnp.float32)
        inside = jnp.clip(centre + half * elements, low, high)
        return inside.reshape(*elements.shape[:-1], *self.shape).astype(self.dtype)

    def elements(self, action: jax.Array) -> jax.Array:
        """Computes the elements, float32 ``[..., E]``, of an action ``[..., *shape]``."""
        centre, half = self._frame
        leading = action.shape[: action.ndim - len(self.shape)]
        apart = action.reshape(*leading, self.size).astype(jnp.float32) - centre
        return self._only_free(apart / jnp.where(half > 0, half, 1.0))
