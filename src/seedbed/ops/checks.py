"""Shape checks that run while a function is traced, and cost nothing when it runs."""

from __future__ import annotations

import jax

from seedbed.errors import SpecError


def check_time_major(*, length: int | None = None, **arrays: jax.Array) -> None:
    """Checks that ``arrays`` are all one trajectory ``[T]`` of one length (``length``, if given).

    Raises:
      SpecError: an array has another rank (a batch axis that should have been vmapped) or another length.
    """
    for name, array in arrays.items():
        if array.ndim != 1:
            raise SpecError(
                f"{name} has shape {list(array.shape)}, needed is one trajectory [T]: jax.vmap over the batch"
            )
        length = array.shape[0] if length is None else length
        if array.shape[0] != length:
            raise SpecError(f"{name} has {array.shape[0]} steps, needed are {length}")
