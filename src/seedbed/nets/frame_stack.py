"""The frame stack, rebuilt where the network reads it: only the newest frame travels and is stored.

The last ``count - 1`` frames are part of the agent's state. At the first step of an episode the stack is
filled with its first frame, as Gymnasium's ``FrameStackObservation`` and Baselines do (the DQN of 2015 filled
it with zeros), so nothing of the episode before shows through, and the state itself needs no mask: the frames
in it belong to the episode that is running. Acting (one step) and the loss (a whole unroll) call the same
function, which has no loop over time.

Every leaf of an observation that has an axis and is not a choice is stacked, along its last axis, oldest
first.
"""

from __future__ import annotations

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np

from seedbed.nets.cpu import library
from seedbed.types import ArraySpec, Tree, leaves, map_leaves, rebuild

_LONE_LEAF = "observation"


def is_stacked(spec: ArraySpec) -> bool:
    """Returns whether a leaf takes part in the stack: it has an axis and is not a choice."""
    return bool(spec.shape) and not spec.num_values


def stacked_spec(observation: Tree, count: int) -> Tree:
    """Returns the specs of the network's observations: the last axis of stacked leaves is ``count`` times as long."""

    def stacked(spec: ArraySpec) -> ArraySpec:
        if count == 1 or not is_stacked(spec):
            return spec
        low, high = (_repeated(bound, spec.shape, count) for bound in (spec.low, spec.high))
        return dataclasses.replace(spec, shape=(*spec.shape[:-1], spec.shape[-1] * count), low=low, high=high)

    return map_leaves(stacked, observation)


def _repeated(bound: tuple[float, ...], shape: tuple[int, ...], count: int) -> tuple[float, ...]:
    """The bounds of a stack."""
    if len(bound) < 2:
        return bound
    return tuple(np.concatenate([np.reshape(bound, shape)] * count, axis=-1).ravel().tolist())


def initial_frames(observation: Tree, count: int, batch: int) -> dict[str, jax.Array]:
    """The frames before the first step: zeros ``[batch, ..., C * (count - 1)]``, by path of the leaf."""
    return {
        path or _LONE_LEAF: jnp.zeros(
            (batch, *spec.shape[:-1], spec.shape[-1] * (count - 1)), jax.dtypes.canonicalize_dtype(spec.dtype)
        )
        for path, spec in leaves(observation)
        if count > 1 and is_stacked(spec)
    }


def stack_observation(
    frames: dict[str, jax.Array], observation: Tree, first: jax.Array, count: int
) -> tuple[Tree, dict[str, jax.Array]]:
    """Stacks the frames of every step.

    Args:
      frames: frames of the state before step 0, see :func:`initial_frames`.
      observation: tree of ``[T, B, ...]``, the newest frame of each step.
      first: bool ``[T, B]``, steps that begin an episode.
      count: frames in a stack.

    Returns:
      The observation with stacked leaves ``[T, B, ..., C * count]``, and the frames of the state after the
      last step.
    """
    stacked, after = [], {}
    for path, newest in leaves(observation):
        name = path or _LONE_LEAF
        if name in frames:
            newest, after[name] = _stack(frames[name], newest, first, count)  # noqa: PLW2901
        stacked.append(newest)
    return rebuild(observation, stacked), after


def _stack(before: jax.Array, newest: jax.Array, first: jax.Array, count: int) -> tuple[jax.Array, jax.Array]:
    """Stacks one leaf: the frame ``lag`` steps back is, one step later, the frame ``lag + 1`` steps back."""
    channels = newest.shape[-1]
    first = first.reshape(*first.shape, *(1,) * (newest.ndim - first.ndim))
    lags = [newest]
    for older in jnp.split(before, count - 1, axis=-1)[::-1]:
        shifted = jnp.concatenate([older[None], lags[-1][:-1]])
        lags.append(jnp.where(first, newest, shifted))
    stack = _side_by_side(lags[::-1])
    return stack, stack[-1, ..., channels:]


def _side_by_side(frames: list[jax.Array]) -> jax.Array:
    """All along the last axis, as a concatenation would put them.

    Four frames of one byte a pixel, as Atari's are, make a word each: to write words takes a third of the time. (ONNX
    has no operation that reads the bytes of words.)
    """
    newest = frames[-1]
    if library.is_portable() or (len(frames), newest.shape[-1], str(newest.dtype)) != (4, 1, "uint8"):
        return jnp.concatenate(frames, axis=-1)
    words = [frame[..., 0].astype(jnp.uint32) << 8 * place for place, frame in enumerate(frames)]
    return jax.lax.bitcast_convert_type(functools.reduce(jnp.bitwise_or, words), jnp.uint8)
