"""The ``info`` of episodes' ends, out of the ``info`` of a batch."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

FINAL = "seedbed final steps"
"""Key of a list with one info of each final step, where environments were batched one by one."""


def final_infos(
    info: Any, ended: NDArray[np.bool_], without: Container[str] = ()
) -> Iterator[Mapping[Any, Any]]:
    """Yields one info of each environment that ended.

    Args:
      info: the ``info`` of a vector environment.
      ended: ``[num_envs]``, the environments whose episode ended in this step.
      without: names that are left out, since they say nothing of the episode.
    """
    if not info or not isinstance(info, Mapping):
        return
    if FINAL in info:
        yield from info[FINAL]
        return
    if not ended.any():
        return
    kept = {name: values for name, values in info.items() if name not in without}
    for index in np.flatnonzero(ended):
        yield _of(kept, int(index), len(ended))


def _of(info: Mapping[Any, Any], index: int, num_envs: int) -> dict[Any, Any]:
    """The info of one environment: ``_name`` says, for each, whether it has a ``name``."""
    found = {}
    for name, values in info.items():
        if str(name).startswith("_"):
            continue
        told = info.get(f"_{name}")
        if told is not None and not (np.shape(told) == (num_envs,) and told[index]):
            continue
        if isinstance(values, Mapping):
            found[name] = _of(values, index, num_envs)
        elif isinstance(values, np.ndarray) and values.shape[:1] == (num_envs,):
            found[name] = values[index]
    return found
