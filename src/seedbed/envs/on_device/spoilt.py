"""Numbers of environments on a device that nothing can be learned from: a compiled program can refuse none of them.

It counts them instead, by field, and the host says which environment gave them.
"""

from __future__ import annotations

import logging
from typing import Any

import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from seedbed.envs.rules import LARGEST_REAL, LARGEST_REWARD
from seedbed.types import EnvSpec, TimeStep, leaves

_log = logging.getLogger(__name__)


def spoilt_by(step: TimeStep) -> Any:
    """Returns the last environment that gave a number which is not finite, or too large, by field.

    Args:
      step: ``[T, B, ...]``.

    Returns:
      int32 ``[fields]``: its number, counted from 1, and 0 if there is none; the reward first, then the reals of the
      observation.
    """
    reals = [leaf for _, leaf in leaves(step.observation) if jnp.issubdtype(leaf.dtype, jnp.floating)]
    bounds = [(step.reward, LARGEST_REWARD), *((leaf, LARGEST_REAL) for leaf in reals)]
    return jnp.stack([_last(array, bound) for array, bound in bounds])


def _last(array: Any, bound: float) -> Any:
    # One comparison, which a NaN does not pass.
    bad = ~(jnp.abs(array) <= bound)
    rows = jnp.any(bad, axis=tuple(axis for axis in range(bad.ndim) if axis != 1))
    return jnp.max(jnp.where(rows, jnp.arange(1, len(rows) + 1, dtype=jnp.int32), 0))


class Spoilt:
    """A listener on the host, which warns once of each field that had such numbers.

    Args:
      spec: spec of the environments.

    Attributes:
      cause: environment and field of the last result, if it had any; else None.
    """

    def __init__(self, spec: EnvSpec) -> None:
        reals = [path for path, leaf in leaves(spec.observation) if np.dtype(leaf.dtype).kind == "f"]
        self._id, self._rows = spec.id, spec.rows
        self._fields = {
            "reward": LARGEST_REWARD,
            **{f"observation {path}".strip(): LARGEST_REAL for path in reals},
        }
        self._told: set[str] = set()
        self.cause: str | None = None

    def hear(self, counted: NDArray[np.int32]) -> None:
        """Takes a result of :func:`spoilt_by`."""
        found = {
            field: f"the {field} of environment {(number - 1) // self._rows} is not finite, or larger than {bound:.2g}"
            for (field, bound), number in zip(self._fields.items(), counted.tolist(), strict=True)
            if number
        }
        self.cause = next((f"{self._id}: {text}" for text in found.values()), None)
        for field, text in found.items():
            if field not in self._told:
                self._told.add(field)
                _log.warning(
                    "%s: %s; on a device none is refused, and updates that it spoils are skipped: mend the environment",
                    *(self._id, text),
                )
