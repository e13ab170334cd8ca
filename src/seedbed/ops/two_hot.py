"""Numbers as distributions over the points of a scale, so that a network learns them by classification.

Schrittwieser et al. 2020, *Mastering Atari, Go, Chess and Shogi by Planning with a Learned Model*, appendix F.
"""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp

from seedbed.ops.q_values import in_rewards, rescaled


@dataclass(frozen=True)
class Support:
    """The whole numbers from ``-limit`` to ``limit``, on the scale of :func:`~seedbed.ops.q_values.rescaled`.

    Attributes:
      limit: greatest point.
      rescale: epsilon of h; 0: numbers are in units of rewards.
    """

    limit: int
    rescale: float

    @property
    def size(self) -> int:
        """Number of points."""
        return 2 * self.limit + 1

    @property
    def points(self) -> jax.Array:
        """The points, float32 ``[size]``."""
        return jnp.arange(-self.limit, self.limit + 1, dtype=jnp.float32)

    def cuts(self, numbers: jax.Array) -> jax.Array:
        """Returns whether numbers, in units of rewards, are beyond the last point, bool ``[...]``."""
        return jnp.abs(rescaled(numbers, self.rescale)) > self.limit

    def encode(self, numbers: jax.Array) -> jax.Array:
        """Puts all weight of each number on the two points beside it, so that their mean is the number.

        ::

            3.7  ->  0.3 at 3, 0.7 at 4

        Numbers beyond the last point are at it.

        Args:
          numbers: float ``[...]``, in units of rewards.

        Returns:
          float32 ``[..., size]``, probabilities.
        """
        scaled = jnp.clip(rescaled(numbers, self.rescale), -self.limit, self.limit)
        return jnp.maximum(1.0 - jnp.abs(scaled[..., None] - self.points), 0.0)

    def decode(self, logits: jax.Array) -> jax.Array:
        """Computes the means of distributions with the logits ``[..., size]``, in units of rewards; ``[...]``."""
        return in_rewards(jax.nn.softmax(logits) @ self.points, self.rescale)


def cross_entropy(target: jax.Array, logits: jax.Array) -> jax.Array:
    """Computes ``-sum_i target_i log softmax(logits)_i``, ``[...]``, of probabilities and logits ``[..., N]``."""
    return -jnp.sum(target * jax.nn.log_softmax(logits), axis=-1)
