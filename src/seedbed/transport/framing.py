"""Frames on the wire: a small fixed header, then a body of the length that the header states.

One codec for every carrier, so that there is one parser to attack and one to defend. A frame's body is
JSON (questions, answers, terms), raw array bytes (steps, replies) or text (the reason of an end); where
arrays travel in shared memory, the frames of steps and replies have no body and are doorbells. A length is
compared with the limit of its kind before anything is allocated for it.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Mapping
from enum import IntEnum
from typing import Any, NamedTuple

from seedbed.errors import ProtocolError, SpecError
from seedbed.transport.interface import MAX_LANES, MAX_QUESTION_BYTES, PROTOCOL

MAGIC = b"Sd"
MAX_REASON_BYTES = 2048
# 16 bytes, so that arrays which follow it in one ``bytes`` object are aligned.
_HEADER = struct.Struct("<2sBBIQ")
HEADER_BYTES = _HEADER.size


class Kind(IntEnum):
    """The kind of a frame."""

    ASK = 1
    ANSWER = 2
    REFUSED = 3
    OPENED = 4
    STEP = 5
    REPLY = 6
    CLOSED = 7
    CHALLENGE = 8
    PROOF = 9
    ADMITTED = 10


class Frame(NamedTuple):
    """One message: its kind, its lane (0 where lanes mean nothing) and its body."""

    kind: int
    lane: int
    body: Any


Limits = Mapping[int, int]
"""The kinds that one end accepts, and the most bytes of the body of each."""


def limits_up(step: int) -> Limits:
    """Returns the limits of a server, where the body of a step has at most ``step`` bytes."""
    return {Kind.ASK: MAX_QUESTION_BYTES, Kind.STEP: step, Kind.CLOSED: MAX_REASON_BYTES}


def limits_down(reply: int) -> Limits:
    """Returns the limits of a client, where the body of a reply has at most ``reply`` bytes."""
    return {
        Kind.ANSWER: MAX_QUESTION_BYTES,
        Kind.REFUSED: MAX_REASON_BYTES,
        Kind.OPENED: MAX_QUESTION_BYTES,
        Kind.REPLY: reply,
        Kind.CLOSED: MAX_REASON_BYTES,
    }


def header(kind: int, lane: int, length: int) -> bytes:
    """The header of a frame whose body has ``length`` bytes."""
    return _HEADER.pack(MAGIC, PROTOCOL, kind, lane, length)


def pack(kind: int, lane: int = 0, body: bytes = b"") -> bytes:
    """A whole frame."""
    return header(kind, lane, len(body)) + body


def _read_header(data: bytes | bytearray | memoryview, limits: Limits) -> tuple[int, int, int]:
    magic, protocol, kind, lane, length = _HEADER.unpack_from(data)
    if magic != MAGIC:
        raise ProtocolError(f"a frame begins with {magic!r}, not {MAGIC!r}: the peer is not a Seedbed one")
    if protocol != PROTOCOL:
        raise ProtocolError(
            f"the peer speaks protocol {protocol}, this side {PROTOCOL}: install the same version"
        )
    limit = limits.get(kind)
    if limit is None:
        raise ProtocolError(f"a frame of kind {kind} is not expected here")
    if length > limit:
        raise ProtocolError(
            f"a frame of kind {Kind(kind).name} with {length} bytes; at most {limit} are taken"
        )
    if lane >= MAX_LANES:
        raise ProtocolError(f"a frame for lane {lane}; there are at most {MAX_LANES}")
    return kind, lane, length


def unpack(message: bytes, limits: Limits) -> Frame:
    """Reads a message that holds exactly one frame; raises :class:`ProtocolError`."""
    if len(message) < HEADER_BYTES:
        raise ProtocolError(f"a message of {len(message)} bytes is shorter than a frame's header")
    kind, lane, length = _read_header(message, limits)
    if length != len(message) - HEADER_BYTES:
        raise ProtocolError(f"a frame of {len(message) - HEADER_BYTES} bytes whose header says {length}")
    return Frame(kind, lane, memoryview(message)[HEADER_BYTES:])


class Inbox:
    """Cuts a stream of bytes into frames; holds at most one frame of the largest kind and one read.

    Args:
      limits: the kinds that are taken; may be set to others at any time, also between two frames of one read.
    """

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self._held = bytearray()

    @property
    def held(self) -> int:
        """Number of bytes of a frame that is not complete yet."""
        return len(self._held)

    def feed(self, data: bytes) -> Iterator[Frame]:
        """Adds ``data`` and yields the frames that are complete; raises :class:`ProtocolError`."""
        self._held += data
        while len(self._held) >= HEADER_BYTES:
            kind, lane, length = _read_header(self._held, self.limits)
            end = HEADER_BYTES + length
            if len(self._held) < end:
                return
            body = bytes(self._held[HEADER_BYTES:end])
            del self._held[:end]
            yield Frame(kind, lane, body)


def encode(message: Mapping[str, Any]) -> bytes:
    """A question or an answer as bytes; raises :class:`SpecError` if it is no JSON or too long."""
    try:
        body = json.dumps(message).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise SpecError(f"a message must be plain JSON values: {error}") from error
    if len(body) > MAX_QUESTION_BYTES:
        raise SpecError(f"a message of {len(body)} bytes; the limit is {MAX_QUESTION_BYTES}")
    return body


def decode(body: Any) -> dict[str, Any]:
    """Reads a body of :func:`encode`; raises :class:`ProtocolError` on anything else."""
    try:
        message = json.loads(bytes(body))
    except (ValueError, RecursionError) as error:
        raise ProtocolError(f"a message that is no JSON: {str(error)[:200]}") from error
    if not isinstance(message, dict):
        raise ProtocolError(f"a message must be a JSON object, not {type(message).__name__}")
    return message


def encode_reason(reason: str) -> bytes:
    """The reason of an end as bytes, cut where it is too long."""
    return reason.encode(errors="replace")[:MAX_REASON_BYTES]


def decode_reason(body: Any) -> str:
    """Reads a body of :func:`encode_reason`, with any contents."""
    return bytes(body).decode(errors="replace")
