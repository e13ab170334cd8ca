"""No number becomes another one on its way in: what does not fit is named, and digits that are lost are told."""

import logging

import numpy as np
import pytest
from gymnasium import spaces

from seedbed.envs.make import make
from seedbed.envs.narrowing import Narrowing
from seedbed.envs.spaces import observation_codec
from seedbed.errors import EnvironmentFault


def decoded(dtype, value, low=None, high=None):
    limits = np.iinfo(dtype) if np.dtype(dtype).kind in "iu" else np.finfo(dtype)
    space = spaces.Box(
        limits.min if low is None else low, limits.max if high is None else high, (1,), np.dtype(dtype).type
    )
    return observation_codec(spaces.Dict(x=space), "odd")[1]({"x": np.array([[value]], dtype)})["x"]


@pytest.mark.parametrize(
    ("dtype", "value"),
    [
        *(("uint8", 255), ("int8", -128), ("uint16", 65535), ("int16", -32768), ("int32", -(2**31))),
        *(("uint32", 2**31 - 1), ("int64", -(2**31)), ("uint64", 7), ("float64", 0.5), ("float16", 0.5)),
        *(("float64", np.inf), ("float64", -3e38)),
    ],
)
def test_what_fits_is_the_same(dtype, value):
    assert float(decoded(dtype, value)[0, 0]) == float(np.float32(value) if "float" in dtype else value)


@pytest.mark.parametrize(
    ("dtype", "value"),
    [
        *(
            ("uint32", 3_000_000_000),
            ("int64", 5_000_000_000),
            ("int64", -(2**31) - 1),
            ("uint64", 2**40 + 7),
        ),
        *(("uint32", 2**31), ("float64", 1e39), ("float64", -1e300)),
    ],
)
def test_what_does_not_fit_is_named(dtype, value):
    with pytest.raises(EnvironmentFault, match="observation x shows") as fault:
        decoded(dtype, value)
    assert str(np.array(value, dtype)) in str(fault.value)


def test_what_needs_no_conversion_is_not_touched():
    batch = np.zeros((2, 8), np.uint8)
    assert observation_codec(spaces.Box(0, 255, (8,), np.uint8), "odd")[1](batch) is batch


def told(caplog, dtype, batches, **bounds):
    space = spaces.Box(bounds.get("low", -np.inf), bounds.get("high", np.inf), (2,), np.dtype(dtype).type)
    _, convert = observation_codec(spaces.Dict(t=space), "odd")
    for batch in batches:
        convert({"t": np.array(batch, dtype)})
    return [record.getMessage() for record in caplog.records]


@pytest.mark.parametrize(
    ("dtype", "batches", "bounds"),
    [
        ("float64", [[[1.7e9, 0]], [[1.7e9 + 20, 1]]], {}),  # what tells them apart is lost
        ("float64", [[[0, 100000.003], [0, 100000.0]]], {}),
        ("int64", [[[2**24, 0], [2**24 + 1, 0]]], {"low": 0, "high": 2**31 - 1}),
        ("int32", [[[1_700_000_000, 0]], [[1_700_000_003, 0]]], {"low": 0, "high": 2**31 - 1}),
    ],
)
def test_lost_digits_are_told_once(dtype, batches, bounds, caplog):
    lines = told(caplog, dtype, batches * 3, **bounds)
    assert len(lines) == 1
    assert lines[0].startswith("odd: observation t shows numbers like ") and "subtract the offset" in lines[0]


@pytest.mark.parametrize(
    ("dtype", "batches", "bounds"),
    [
        ("float64", [[[0.1, 1e-9]], [[0.7, 5.0]]], {}),
        ("float64", [[[1e6 / 3, 0]], [[-1e6 / 7, 0]]], {}),  # a ten-thousandth of what they are apart
        ("float64", [[[1.7e9 + 1, 0]], [[1.7e9 + 1, 1]]], {}),  # a constant
        ("float64", [[[np.nan, 0]], [[np.inf, 0]]], {}),
        (
            "int64",
            [[[1_700_000_000, 1_700_000_000]], [[1_700_000_003] * 2]],
            {"low": 17 * 10**8, "high": 17 * 10**8 + 9},
        ),
        ("int32", [[[5, 0]], [[6, 0]]], {"low": 0, "high": 2**31 - 1}),
    ],
)
def test_what_keeps_its_meaning_is_not_told(dtype, batches, bounds, caplog):
    assert told(caplog, dtype, batches, **bounds) == []


def test_the_line_that_takes_an_offset_off_works(caplog):
    world = make("odd_worlds:clock", 2, {"start": 1.7e9})
    world.reset(1)
    for _ in range(6):
        world.send(np.zeros(2, np.int32))
        world.receive()
    (line,) = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    import gymnasium
    from odd_worlds import clock

    names = {"gymnasium": gymnasium, "np": np, "env": clock(1.7e9)}
    exec(line.partition(": env = ")[2].join(("env = ", "")), names)
    shown = {float(names["env"].reset(seed=seed)[0][0]) for seed in range(9)}
    assert shown == {0.0, 20.0}


def test_a_narrowing_of_many_elements_lists_no_more_than_a_line_holds():
    lines = []
    from seedbed.envs.remedies import without_offset

    narrow = Narrowing("odd: observation", "float32", lambda: "", lambda offset: lines.append(offset) or "")
    narrow(np.full((1, 100), 1.7e9) + np.arange(100.0))
    narrow(np.full((1, 100), 1.7e9 + 30) + np.arange(100.0))
    assert len(without_offset((), (100,), lines[0])) < 200
