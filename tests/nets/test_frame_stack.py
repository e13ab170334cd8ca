"""The frame stack: a naive deque, and one step after the other against all steps at once."""

from collections import deque

import jax.numpy as jnp
import numpy as np
import pytest

from seedbed.nets.frame_stack import initial_frames, stack_observation, stacked_spec
from seedbed.types import ArraySpec

SPEC = {
    "image": ArraySpec((2, 3, 2), "uint8"),
    "grey": ArraySpec((2, 3, 1), "uint8"),
    "goal": ArraySpec((), "int32", (4,)),
    "time": ArraySpec((), "float32"),
}
T, B = 11, 3
FIRST = np.zeros((T, B), bool)
FIRST[0] = FIRST[4, 0] = FIRST[5, 0] = FIRST[9, 1] = FIRST[1, 2] = True


def observation():
    rng = np.random.default_rng(0)
    return {
        "image": rng.integers(0, 256, (T, B, 2, 3, 2), dtype=np.uint8),
        "grey": rng.integers(0, 256, (T, B, 2, 3, 1), dtype=np.uint8),
        "goal": rng.integers(0, 4, (T, B), dtype=np.int32),
        "time": rng.normal(size=(T, B)).astype(np.float32),
    }


def deque_stack(images, first, count):
    """What Gymnasium's wrapper does, one environment at a time: a reset fills the stack with the first frame."""
    stacked = np.zeros((*images.shape[:-1], images.shape[-1] * count), images.dtype)
    for row in range(images.shape[1]):
        frames = deque(maxlen=count)
        for t in range(len(images)):
            for _ in range(count if first[t, row] else 1):
                frames.append(images[t, row])
            stacked[t, row] = np.concatenate(frames, axis=-1)
    return stacked


@pytest.mark.parametrize("count", [1, 2, 4])
def test_all_at_once_equals_a_deque(count):
    seen = observation()
    stacked, _ = stack_observation(initial_frames(SPEC, count, B), seen, jnp.asarray(FIRST), count)
    for name in ("image", "grey"):
        np.testing.assert_array_equal(stacked[name], deque_stack(seen[name], FIRST, count))
        assert stacked[name].dtype == np.uint8
        assert stacked[name].shape[2:] == stacked_spec(SPEC, count)[name].shape
    np.testing.assert_array_equal(stacked["goal"], seen["goal"])


@pytest.mark.parametrize("cut", range(1, T))
def test_pieces_equal_the_whole(cut):
    """Unrolls of any length, down to single steps, with the state handed on."""
    seen = observation()
    whole, end = stack_observation(initial_frames(SPEC, 4, B), seen, jnp.asarray(FIRST), 4)
    state, pieces = initial_frames(SPEC, 4, B), []
    for start in range(0, T, cut):
        part = {name: x[start : start + cut] for name, x in seen.items()}
        stacked, state = stack_observation(state, part, jnp.asarray(FIRST[start : start + cut]), 4)
        pieces.append(stacked)
    for name in ("image", "grey"):
        np.testing.assert_array_equal(np.concatenate([piece[name] for piece in pieces]), whole[name])
        np.testing.assert_array_equal(state[name], end[name])


def test_a_lone_leaf_is_stacked_too():
    spec = ArraySpec((2,), "float32")
    frames = initial_frames(spec, 3, 1)
    newest = jnp.arange(4.0).reshape(2, 1, 2)
    stacked, after = stack_observation(frames, newest, jnp.asarray([[True], [False]]), 3)
    np.testing.assert_array_equal(stacked[:, 0], [[0, 1, 0, 1, 0, 1], [0, 1, 0, 1, 2, 3]])
    np.testing.assert_array_equal(next(iter(after.values())), [[0, 1, 2, 3]])
