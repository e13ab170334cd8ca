"""Action masks, in one place for all agents: a forbidden action is never drawn, never the best, and never learned.

A mask has one entry for each value of each choice, one choice after the other in C order, as logits and q-values have
(1: allowed, 0: forbidden; the convention of PettingZoo and sb3-contrib). The networks' heads put :data:`FORBIDDEN` in
the place of what a mask forbids, so that everything that is computed of logits and q-values (draws, the best action,
log-probabilities, entropies, importance ratios, maxima in targets) is under the mask, and so is what acting records.
"""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from seedbed.errors import SpecError

FORBIDDEN = -1e30
"""Logit or q-value of a forbidden action: its probability is exactly 0, and no difference or product of it is NaN."""


def masked(values: jax.Array, mask: jax.Array, num_values: Sequence[int]) -> jax.Array:
    """Puts :data:`FORBIDDEN` in the place of the values that the mask forbids.

    Their gradient is 0 (Huang and Ontañón 2022, *A Closer Look at Invalid Action Masking in Policy Gradient
    Algorithms*, section 3). A choice of which nothing is allowed keeps its values: environments show that at the end of
    an episode, where nothing is decided any more, and never elsewhere.

    Args:
      values: float32 ``[..., P]``, logits or q-values.
      mask: bool or whole numbers ``[..., P]``, 0 where an action is forbidden.
      num_values: numbers of values of the choices, with the sum P.

    Returns:
      float32 ``[..., P]``.

    Raises:
      SpecError: shapes do not fit, when traced.
    """
    if values.shape != mask.shape or mask.shape[-1] != sum(num_values):
        raise SpecError(
            f"a mask of shape {list(mask.shape)} for values of shape {list(values.shape)}: needed is the same shape, "
            f"which ends with {sum(num_values)}"
        )
    choices = jnp.split(mask != 0, np.cumsum(num_values)[:-1], axis=-1)
    allowed = jnp.concatenate([one | ~jnp.any(one, axis=-1, keepdims=True) for one in choices], axis=-1)
    return jnp.where(allowed, values, FORBIDDEN)


def is_forbidden(values: jax.Array) -> jax.Array:
    """Returns whether logits, log-probabilities or q-values are of forbidden actions; bool of the same shape."""
    return values < 0.5 * FORBIDDEN
