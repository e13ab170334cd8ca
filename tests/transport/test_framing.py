"""The codec: what one end writes the other reads, however it is cut; nothing else gets through."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from seedbed.errors import ProtocolError, SpecError
from seedbed.transport.framing import (
    HEADER_BYTES,
    MAX_REASON_BYTES,
    Inbox,
    Kind,
    decode,
    decode_reason,
    encode,
    encode_reason,
    header,
    limits_up,
    pack,
    unpack,
)
from seedbed.transport.interface import MAX_QUESTION_BYTES

LIMITS = limits_up(step=100)
FRAMES = st.lists(
    st.tuples(st.sampled_from([Kind.ASK, Kind.STEP]), st.integers(0, 63), st.binary(max_size=100)), max_size=8
)


@settings(max_examples=100)
@given(FRAMES, st.lists(st.integers(1, 60), max_size=30))
def test_frames_survive_any_cutting(frames: list[tuple[Kind, int, bytes]], cuts: list[int]) -> None:
    stream = b"".join(pack(*frame) for frame in frames)
    inbox, got = Inbox(LIMITS), []
    for cut in [*cuts, len(stream) + 1]:
        got += list(inbox.feed(stream[:cut]))
        stream = stream[cut:]
    assert [tuple(frame) for frame in got] == frames


@settings(max_examples=200)
@given(st.binary(max_size=64), st.booleans())
def test_garbage_is_a_protocol_error_or_waits_for_more(data: bytes, disguised: bool) -> None:
    data = header(Kind.ASK, 0, 0)[:3] + data if disguised else data
    for read in (lambda: list(Inbox(LIMITS).feed(data)), lambda: unpack(data, LIMITS)):
        try:
            read()
        except ProtocolError as error:
            assert str(error)


@settings(max_examples=100)
@given(st.binary(max_size=64))
def test_bodies_that_are_no_json_objects_are_protocol_errors(body: bytes) -> None:
    try:
        assert isinstance(decode(body), dict)
    except ProtocolError as error:
        assert str(error)


@pytest.mark.parametrize(
    ("data", "word"),
    [
        (b"XX" + header(1, 0, 0)[2:], "Seedbed"),
        (b"Sd\x09" + header(1, 0, 0)[3:], "protocol 9"),
        (header(77, 0, 0), "kind 77"),
        (header(Kind.ANSWER, 0, 0), "not expected"),
        (header(Kind.ASK, 0, MAX_QUESTION_BYTES + 1), "at most"),
        (header(Kind.STEP, 0, (1 << 64) - 1), "at most"),
        (header(Kind.STEP, 64, 0), "lane 64"),
    ],
)
def test_a_bad_header_is_refused_before_its_body(data: bytes, word: str) -> None:
    with pytest.raises(ProtocolError, match=word):
        list(Inbox(LIMITS).feed(data))
    with pytest.raises(ProtocolError, match=word):
        unpack(data, LIMITS)


def test_a_message_has_exactly_its_frame() -> None:
    for message in (pack(Kind.ASK, 0, b"{}")[:-1], pack(Kind.ASK, 0, b"{}") + b"x", b"Sd"):
        with pytest.raises(ProtocolError):
            unpack(message, LIMITS)
    assert HEADER_BYTES % 16 == 0  # arrays behind it are aligned


def test_nested_json_is_refused() -> None:
    with pytest.raises(ProtocolError, match="JSON"):
        decode(b'{"a":' * 200_000)


def test_messages_and_reasons_are_bounded() -> None:
    with pytest.raises(SpecError, match="limit"):
        encode({"x": "y" * MAX_QUESTION_BYTES})
    assert json.loads(encode({"x": "☃"})) == {"x": "☃"}
    assert len(encode_reason("☃" * 10_000)) <= MAX_REASON_BYTES
    assert decode_reason(encode_reason("☃" * 10_000)).startswith("☃☃")
    assert decode_reason(b"\xff\xfe")
