from typing import Any

import numpy as np
import pytest
from fakes import COUNT, numbered
from hypothesis import given, settings
from hypothesis import strategies as st

from seedbed.acting.unrolls import OpenUnroll, step_arrays, step_fields, timestep_of
from seedbed.envs.make import make
from seedbed.transport.interface import Layout
from seedbed.types import ArraySpec, EnvSpec, Unroll

TREE = EnvSpec(
    "test/tree",
    {"b": ArraySpec((2,), "float32"), "a": {"z": ArraySpec((), "uint8"), "c": ArraySpec((3, 1), "int32")}},
    ArraySpec((2,), "float32"),
)


def test_step_arrays_are_what_the_fields_say_and_come_back() -> None:
    step = make("toy:count", 3).reset(0)
    arrays = step_arrays(step)
    Layout(step_fields(COUNT, 3)).check(arrays)
    again = timestep_of(COUNT, arrays)
    for mine, theirs in zip(again, step, strict=True):
        np.testing.assert_array_equal(mine, theirs)


def test_nested_observations_travel_in_sorted_order() -> None:
    fields = step_fields(TREE, 5)
    assert fields[:3] == (((5, 3, 1), "int32"), ((5,), "uint8"), ((5, 2), "float32"))
    assert fields[3:] == (((5,), "float32"), *(((5,), "bool"),) * 3)
    arrays = [np.full(shape, i, dtype) for i, (shape, dtype) in enumerate(fields)]
    step = timestep_of(TREE, arrays)
    assert step.observation["a"]["c"] is arrays[0]
    assert step.observation["a"]["z"] is arrays[1]
    assert step.observation["b"] is arrays[2]
    assert all(a is b for a, b in zip(step_arrays(step), arrays, strict=True))


@settings(max_examples=30)
@given(
    rows=st.integers(1, 4), length=st.integers(1, 6), decisions=st.integers(0, 30), longest=st.integers(1, 5)
)
def test_unrolls_are_the_stream_cut_in_pieces_that_share_one_step(
    rows: int, length: int, decisions: int, longest: int
) -> None:
    environment = make("toy:count", rows, {"longest": longest})
    open_unroll = OpenUnroll(environment.spec, rows, length)
    stream, acted, unrolls = [], [], []
    step = environment.reset(0)
    for t in range(decisions + 1):
        stream.append(step)
        if open_unroll.observe(step_arrays(step)):
            unrolls.append(open_unroll.cut({"round": np.full(rows, len(unrolls))}))
        for mine, theirs in zip(open_unroll.observed, step_arrays(step), strict=True):
            np.testing.assert_array_equal(mine, theirs)
        assert open_unroll.transitions == rows * (t % length)
        action = np.arange(rows, dtype=np.int32) % 3
        acted.append((action, {"t": np.full((rows, 2), t)}, t))
        open_unroll.decide(*acted[-1])
        environment.send(action)
        step = environment.receive()

    assert len(unrolls) == decisions // length, "cut as soon as the step is seen, before it is acted on"
    for i, unroll in enumerate(unrolls):
        begin = i * length
        _same_steps(unroll, stream[begin : begin + length + 1])
        for t in range(length):
            action, record, version = acted[begin + t]
            np.testing.assert_array_equal(unroll.action[t], action)
            np.testing.assert_array_equal(unroll.record["t"][t], record["t"])
            assert (unroll.version[t] == version).all()
        assert (unroll.state["round"] == i).all()


def _same_steps(unroll: Unroll, stream: list[Any]) -> None:
    for t, step in enumerate(stream):
        for mine, theirs in zip(unroll.timestep, step, strict=True):
            np.testing.assert_array_equal(mine[t], theirs)


def test_an_unroll_that_was_handed_over_is_never_written_again() -> None:
    environment = make("toy:count", 2)
    open_unroll = OpenUnroll(environment.spec, 2, 1)
    open_unroll.observe(step_arrays(environment.reset(0)))
    done: list[tuple[Unroll, list[Any]]] = []
    for version in range(4):
        open_unroll.decide(np.full(2, version % 3, np.int32), {"v": np.full(2, version)}, version)
        environment.send(np.full(2, version % 3))
        assert open_unroll.observe(step_arrays(environment.receive()))
        unroll = open_unroll.cut({})
        done.append((unroll, [array.copy() for array in (*unroll.timestep, unroll.action, unroll.version)]))
        assert open_unroll.transitions == 0
    for unroll, kept in done:
        for now, then in zip((*unroll.timestep, unroll.action, unroll.version), kept, strict=True):
            np.testing.assert_array_equal(now, then)


def test_there_is_an_empty_log_of_actions() -> None:
    log = OpenUnroll(TREE, 3, 5).no_actions()
    assert (log.shape, log.dtype) == ((0, 3, 2), np.dtype("float32"))


def test_a_step_with_too_few_arrays_is_refused() -> None:
    with pytest.raises(ValueError):
        OpenUnroll(COUNT, 2, 5).observe(step_arrays(make("toy:count", 2).reset(0))[:-1])
    assert numbered(2, [1, 2]).version.shape == (2, 2)
