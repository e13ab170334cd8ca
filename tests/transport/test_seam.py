"""Layouts and terms: what fits, what is refused, and that both ways of writing give the same bytes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from seedbed.errors import SpecError
from seedbed.testing.transport import example, same
from seedbed.transport.interface import MAX_LANES, MAX_STEP_BYTES, Layout, Layouts, Terms

DTYPES = ("bool", "uint8", "int32", "float16", "float32", "float64", "complex64")
LAYOUTS = st.lists(
    st.tuples(st.lists(st.integers(0, 4), max_size=3).map(tuple), st.sampled_from(DTYPES)), max_size=4
).map(lambda fields: Layout(tuple(fields)))


@settings(max_examples=50)
@given(LAYOUTS, st.integers(0, 9))
def test_write_and_join_agree_and_views_give_back(layout: Layout, seed: int) -> None:
    arrays = example(layout, seed)
    buffer = bytearray(layout.nbytes)
    layout.write(buffer, arrays)
    assert same(layout.views(buffer), arrays)
    assert layout.join(arrays) == bytes(buffer)
    assert layout.join(arrays, b"head") == b"head" + bytes(buffer)
    assert all(offset % 64 == 0 for offset in layout.offsets)


@pytest.mark.parametrize(
    ("shape", "dtype", "word"),
    [
        ((1,), ">f4", "byte order"),
        ((1,), "object", "cannot travel"),
        ((1,), "U4", "cannot travel"),
        ((1,), "M8[s]", "cannot travel"),
        ((1,), "float31", "not known"),
        ((-1,), "float32", "negative"),
        ((MAX_STEP_BYTES + 1,), "uint8", "limit"),
        ((1 << 32, 1 << 32), "uint8", "limit"),  # wraps round to 0 in 64 bits
        ((-(1 << 32), -(1 << 32)), "uint8", "negative"),
    ],
)
def test_what_cannot_travel_is_refused(shape: tuple[int, ...], dtype: str, word: str) -> None:
    with pytest.raises(SpecError, match=word):
        Layout(((shape, dtype),))


def test_wrong_buffers_and_arrays_are_refused() -> None:
    layout = Layout((((2,), "float32"),))
    with pytest.raises(SpecError, match="63 bytes"):
        layout.views(bytes(63))
    with pytest.raises(SpecError, match="2 arrays"):
        layout.write(bytearray(64), [np.zeros(2, np.float32)] * 2)
    with pytest.raises(SpecError, match="f8"):
        layout.write(bytearray(64), [np.zeros(2)])


def test_terms_are_bounded() -> None:
    one = Layout((((1,), "uint8"),))
    huge = Layout((((MAX_STEP_BYTES,), "uint8"),))
    for lanes in (0, -1, MAX_LANES + 1):
        with pytest.raises(SpecError, match="lanes"):
            Terms((Layouts(one, one),) * lanes)
    with pytest.raises(SpecError, match="fewer environments"):
        Terms((Layouts(huge, huge),) * 3)
    assert Terms((Layouts(one, one),) * 3).nbytes == 3 * 128
