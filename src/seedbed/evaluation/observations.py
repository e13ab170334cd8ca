"""Observations of a user's own program, as a policy takes them. Imports no JAX."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from seedbed.errors import SpecError
from seedbed.types import ArraySpec, EnvSpec, TimeStep, Tree, leaves, rebuild

Array = NDArray[Any]


def step_of(spec: EnvSpec, arrays: list[Array], reward: Any, first: Any) -> TimeStep:
    """Returns the time step ``[B, ...]`` at which a policy decides.

    Args:
      spec: spec of the environments.
      arrays: leaves of the observation, of :func:`batch_of`.
      reward: reward of the step that led here, a number or ``[B]``; None for 0.
      first: bool, or bool ``[B]``, environments in which an episode begins, where no reward counts.
    """
    rows = len(arrays[0])
    begins = np.array(np.broadcast_to(np.asarray(first, np.bool_), rows))
    rewards = np.broadcast_to(np.asarray(0.0 if reward is None else reward, np.float32), rows)
    ends = np.zeros(rows, np.bool_)
    observation = rebuild(spec.observation, arrays)
    return TimeStep(observation, np.where(begins, np.float32(0), rewards), ends, ends, begins)


def batch_of(observation: Tree, spec: Tree) -> tuple[list[Array], int | None]:
    """Returns the leaves of an observation as arrays ``[B, *shape]``, and B; None for one environment alone.

    Args:
      observation: tree of arrays ``[*shape]`` or ``[B, *shape]``; see :meth:`seedbed.evaluation.policy.Policy.act`.
      spec: tree of :class:`~seedbed.types.ArraySpec`.

    Raises:
      SpecError: an array does not fit the spec, or their batch axes differ.
    """
    shown = _shown(observation, spec, "observation")
    arrays = [_leaf(array, leaf, name) for (name, leaf), array in zip(_named(spec), shown, strict=True)]
    batches = {name: batch for (name, _), (_, batch) in zip(_named(spec), arrays, strict=True)}
    if len({*batches.values()}) > 1:
        said = ", ".join(f"{name} {'none' if batch is None else batch}" for name, batch in batches.items())
        raise SpecError(f"the batch axes of an observation are to be alike, and are: {said}")
    return [array for array, _ in arrays], next(iter(batches.values()))


def _named(spec: Tree) -> list[tuple[str, ArraySpec]]:
    return leaves(spec, "observation")


def _shown(observation: Tree, spec: Tree, name: str) -> list[Any]:
    """The leaves of an observation, in the order of the spec's."""
    if not isinstance(spec, Mapping):
        return [observation]
    entries = dict(enumerate(observation)) if isinstance(observation, tuple | list) else observation
    if not isinstance(entries, Mapping):
        raise SpecError(
            f"{name} is {type(observation).__name__}, needed is a dict with {', '.join(sorted(spec))}"
        )
    named = {str(entry): value for entry, value in entries.items()}
    if {*named} != {*spec}:
        raise SpecError(f"{name} has {', '.join(sorted(named))}, needed is {', '.join(sorted(spec))}")
    return [leaf for entry in sorted(spec) for leaf in _shown(named[entry], spec[entry], f"{name}/{entry}")]


def _leaf(shown: Any, spec: ArraySpec, name: str) -> tuple[Array, int | None]:
    """An array ``[B, *shape]`` in the dtype of the spec, and B; None if it had no batch axis."""
    array = np.asarray(shown)
    if spec.channels_first and array.ndim >= 3 and array.shape[-3:] == (spec.shape[2], *spec.shape[:2]):
        array = np.moveaxis(array, -3, -1)
    batch = array.shape[: array.ndim - len(spec.shape)]
    if len(batch) > 1 or array.shape[len(batch) :] != spec.shape or batch == (0,):
        raise SpecError(
            f"{name} is {array.dtype}{list(array.shape)}, needed is {spec.dtype}{list(spec.shape)}"
        )
    if not np.can_cast(array.dtype, spec.dtype, "same_kind") and not _is_whole(array, spec.dtype):
        raise SpecError(
            f"{name} is {array.dtype}, and its numbers are not those of {spec.dtype}, which is needed"
        )
    with np.errstate(over="ignore", invalid="ignore"):  # looked at below
        converted = array.astype(spec.dtype)
    if converted.dtype.kind in "iu" and not np.array_equal(converted, array):
        raise SpecError(f"{name} has numbers that {spec.dtype} does not have")
    if converted.dtype != array.dtype and not np.array_equal(np.isfinite(converted), np.isfinite(array)):
        raise SpecError(f"{name} has numbers that are beyond {spec.dtype}, which is needed")
    if spec.num_values and ((converted < 0) | (converted > spec.bounds[1])).any():
        most = ", ".join(str(count - 1) for count in spec.num_values)
        raise SpecError(
            f"{name} has values from {converted.min()} to {converted.max()}, and needed are choices from 0 to {most}: "
            "subtract the start of a Discrete space that begins elsewhere"
        )
    return (converted, batch[0]) if batch else (converted[None], None)


def _is_whole(array: Array, dtype: str) -> bool:
    """Returns whether both dtypes are of whole numbers (or truth), whose values can be compared."""
    return array.dtype.kind in "biu" and np.dtype(dtype).kind in "biuf"
