"""The one seam between actors and the place that acts for them, and what every carrier promises.

Alternatives weighed: one protobuf message a step (slower to build than to send, and a schema for every
environment); pickled arrays (a stranger's bytes would run code); shapes in every message (they never change).
So shapes and dtypes are exchanged once, and from then on a message is raw array bytes of a length that both
sides know beforehand.

A conversation:

1. ``client.ask({...}) -> {...}``: small JSON questions, answered by the server's :class:`Desk`. The desk says
   no by raising :class:`~orchard.errors.Refused`, which the client raises too, with the same text.
2. In one of its answers the desk calls ``peer.open(up, down, lanes)``; the client calls ``client.open`` with
   the same arguments after that answer. They fix the :class:`Layout` of all that follows.
3. ``client.send(lane, arrays)`` and ``peer.reply(lane, arrays)`` alternate on each lane, beginning with the
   client. Lanes are independent of one another: that is what lets one half of an actor's environments step
   while the other half waits for its actions.
4. Whoever closes first, or dies, ends the conversation: the desk hears ``left`` exactly once, the client's
   next call raises :class:`~orchard.errors.ConnectionLost`.

A message that is malformed (wrong length, unknown lane, garbage, out of turn) ends that one conversation with a
:class:`~orchard.errors.ProtocolError` on the server's side and a reason sent to the client; other peers
notice nothing. A client that was told why sees that reason in the error it raises.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from orchard.errors import SpecError

PROTOCOL = 1
MAX_QUESTION_BYTES = 1 << 20
MAX_STEP_BYTES = 1 << 30
MAX_LANES = 64
_ALIGNMENT = 64


@dataclass(frozen=True)
class Layout:
    """Where each array of a fixed sequence stands in one run of bytes; every array starts on a cache line.

    Attributes:
      fields: ``(shape, dtype name)`` of each array, shapes with their batch axis.
    """

    fields: tuple[tuple[tuple[int, ...], str], ...]

    def __post_init__(self) -> None:
        if not 0 <= self.nbytes <= MAX_STEP_BYTES:
            raise SpecError(
                f"one step would take {self.nbytes} bytes, the limit is {MAX_STEP_BYTES}: use fewer environments an actor"
            )

    @property
    def offsets(self) -> tuple[int, ...]:
        """First byte of each array, and the end of the last one."""
        offsets, position = [], 0
        for shape, dtype in self.fields:
            offsets.append(position)
            size = int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
            position += -(-size // _ALIGNMENT) * _ALIGNMENT
        return (*offsets, position)

    @property
    def nbytes(self) -> int:
        """Bytes of one message."""
        return self.offsets[-1]

    def views(self, buffer: Any) -> list[NDArray[Any]]:
        """The arrays of a message, as views of ``buffer`` (anything with ``nbytes`` bytes; not copied)."""
        if memoryview(buffer).nbytes != self.nbytes:
            raise SpecError(f"a step of {memoryview(buffer).nbytes} bytes; the agreed layout has {self.nbytes}")
        return [
            np.frombuffer(
                buffer, dtype, count=int(np.prod(shape, dtype=np.int64)), offset=offset
            ).reshape(shape)
            for (shape, dtype), offset in zip(self.fields, self.offsets, strict=False)
        ]

    def write(self, buffer: Any, arrays: Sequence[NDArray[Any]]) -> None:
        """Copies ``arrays`` into ``buffer``; raises :class:`SpecError` if one has another shape or dtype."""
        if len(arrays) != len(self.fields):
            raise SpecError(f"{len(arrays)} arrays given, the agreed layout has {len(self.fields)}")
        for view, array, (shape, dtype) in zip(self.views(buffer), arrays, self.fields, strict=True):
            if array.shape != shape or array.dtype != np.dtype(dtype):
                raise SpecError(f"array {array.dtype}{array.shape} given, the agreed layout has {dtype}{shape}")
            view[...] = array


class Client(Protocol):
    """An actor's end; used by one thread."""

    def ask(self, message: dict[str, Any]) -> dict[str, Any]:
        """Sends a question and waits for the answer; raises ``Refused`` or ``ConnectionLost``."""

    def open(self, up: Layout, down: Layout, lanes: int) -> None:
        """Fixes the layouts, after the answer in which the desk did the same."""

    def send(self, lane: int, arrays: Sequence[NDArray[Any]]) -> None:
        """Sends one step up; the arrays may be reused when it returns."""

    def receive(self, *, wait: bool = True) -> tuple[int, list[NDArray[Any]]] | None:
        """The next reply as ``(lane, arrays)``; with ``wait=False`` None if there is none yet.

        The arrays are valid until the next ``send`` on that lane.
        """

    def close(self) -> None:
        """Ends the conversation; safe to call twice."""


class Peer(Protocol):
    """The server's end of one conversation. ``reply`` and ``close`` may be called from any thread."""

    name: str
    """For people: ``"unix peer 3 (pid 4711)"``."""

    def open(self, up: Layout, down: Layout, lanes: int) -> None:
        """Fixes the layouts; called by the desk inside ``answer``."""

    def reply(self, lane: int, arrays: Sequence[NDArray[Any]]) -> None:
        """Sends actions down; does nothing if the peer is gone (the desk hears of that by ``left``)."""

    def close(self, reason: str) -> None:
        """Ends the conversation and tells the client why; safe to call twice."""


class Desk(Protocol):
    """What stands behind a server. Called from the server's threads: must be quick and must not raise
    anything but ``Refused``. For one peer the calls come in order, never two at once."""

    def answer(self, peer: Peer, message: dict[str, Any]) -> dict[str, Any]:
        """Answers a question, or raises ``Refused``, which ends the conversation."""

    def deliver(self, peer: Peer, lane: int, arrays: list[NDArray[Any]]) -> None:
        """Takes one step. The arrays stay valid until ``peer.reply`` on that lane (or until ``left``)."""

    def left(self, peer: Peer, reason: str) -> None:
        """The conversation has ended, for whatever reason; called once for every peer that asked anything."""


class Server(Protocol):
    """Listens for clients from its construction until ``close``."""

    address: str
    """What a client connects to: ``"inproc:…"``, ``"shm:PATH"``, ``"unix:PATH"``, ``"HOST:PORT"``."""

    def close(self) -> None:
        """Ends every conversation and frees everything; safe to call twice."""
