"""The one interface between actors and the place that acts for them, and the promises of every carrier.

Alternatives weighed: one protobuf message a step (slower to build than to send, and a schema for every
environment); pickled arrays (a stranger's bytes would run code); shapes in every message (they never change).
So shapes and dtypes are exchanged once, and from then on a message is raw array bytes of a length that both
sides know beforehand.

A conversation:

1. ``client.ask({...}) -> {...}``: small JSON questions, answered by the server's :class:`Handler`. The handler says
   no by raising :class:`~seedbed.errors.Refused`, which the client raises too, with the same text; by raising
   :class:`~seedbed.errors.NotNow` it ends the conversation, and the client may come again.
2. In one of its answers the handler calls ``peer.open(lanes)``; the client calls ``client.open`` with the same
   argument after that answer. It fixes the :class:`Layouts` of every lane, and with them of all that follows.
3. ``client.send(lane, arrays)`` and ``peer.reply(lane, arrays)`` alternate on each lane, beginning with the
   client. Lanes are independent of one another, so that one half of an actor's environments steps while the
   other half waits for its actions.
4. The end that closes first, or dies, ends the conversation: the handler hears ``left`` exactly once, the client's
   next call raises :class:`~seedbed.errors.ConnectionLost`.

A message that is malformed (wrong length, unknown lane, garbage, out of turn) ends that one conversation with
a :class:`~seedbed.errors.ProtocolError` on the server's side and a reason sent to the client; other peers
notice nothing. A client that was told why sees that reason in the error it raises.

The caller's own mistakes (arrays that do not fit, a lane that does not exist or whose turn it is not)
are raised at once, before anything travels: ``SpecError``, ``ProtocolError``. The conversation goes
on. A client may ask at any time, also while replies are due.

One thread calls the handler of a server, its own or one that hears it
(:class:`~seedbed.transport.poller.Poller`): ``answer``, ``deliver`` and ``left`` of all its peers come one after
another, and never from inside ``reply`` or ``close``, so a handler may hold its locks there. (``Server.close`` waits
for that thread, or says ``left`` in its place: call it without them.)
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from seedbed.errors import SpecError

PROTOCOL = 2
MAX_PEERS = 1024
"""Conversations of one server at once by default; one more client is sent away, and may come again."""

RUN_IS_OVER = "the run is over"
"""Reason with which a server closes conversations for good: its clients need not come again."""

NO_ROOM = "no room for"
"""Begins the reason with which a server that is full ends a conversation: there may be room later."""

MAX_QUESTION_BYTES = 1 << 20
MAX_STEP_BYTES = 1 << 30
MAX_MESSAGE_BYTES = 256 << 20
"""Longest step or reply over gRPC by default: it holds a whole message before anybody can look at it."""
MAX_CONVERSATION_BYTES = 4 << 30
MAX_LANES = 64
_ALIGNMENT = 64


@dataclass(frozen=True)
class Layout:
    """The layout of a fixed sequence of arrays in one run of bytes; every array starts on a cache line.

    Attributes:
      fields: ``(shape, dtype name)`` of each array, shapes with their batch axis. Dtypes are plain numbers or
        booleans in the machine's byte order; sizes of 0 are fine.
    """

    fields: tuple[tuple[tuple[int, ...], str], ...]

    def __post_init__(self) -> None:
        for shape, dtype in self.fields:
            _check_field(shape, dtype)
        if self.nbytes > MAX_STEP_BYTES:
            raise SpecError(
                f"one message would take {self.nbytes} bytes, the limit is {MAX_STEP_BYTES}: "
                "use fewer environments an actor"
            )

    @cached_property
    def dtypes(self) -> tuple[np.dtype[Any], ...]:
        """The dtype of each array."""
        return tuple(np.dtype(dtype) for _, dtype in self.fields)

    @cached_property
    def _sizes(self) -> tuple[int, ...]:
        # Python's integers: a product of hostile sizes must not wrap round to a small one.
        return tuple(
            math.prod(shape) * dtype.itemsize
            for (shape, _), dtype in zip(self.fields, self.dtypes, strict=True)
        )

    @property
    def payload(self) -> int:
        """Bytes of the arrays alone, without the padding between them."""
        return sum(self._sizes)

    @cached_property
    def offsets(self) -> tuple[int, ...]:
        """First byte of each array, and the end of the last one."""
        return tuple(accumulate((size + -size % _ALIGNMENT for size in self._sizes), initial=0))

    @property
    def nbytes(self) -> int:
        """Bytes of one message."""
        return self.offsets[-1]

    def views(self, buffer: Any) -> list[NDArray[Any]]:
        """The arrays of a message, as views of ``buffer`` (anything with ``nbytes`` bytes; not copied)."""
        given = memoryview(buffer).nbytes
        if given != self.nbytes:
            raise SpecError(f"a step of {given} bytes; the agreed layout has {self.nbytes}")
        return [
            np.frombuffer(buffer, dtype, count=math.prod(shape), offset=offset).reshape(shape)
            for (shape, _), dtype, offset in zip(self.fields, self.dtypes, self.offsets, strict=False)
        ]

    def check(self, arrays: Sequence[NDArray[Any]]) -> None:
        """Raises :class:`SpecError` if ``arrays`` differ from the agreed ones: in number, a shape or a dtype."""
        if len(arrays) != len(self.fields):
            raise SpecError(f"{len(arrays)} arrays given, the agreed layout has {len(self.fields)}")
        for array, (shape, name), dtype in zip(arrays, self.fields, self.dtypes, strict=True):
            if array.shape != shape or array.dtype != dtype:
                raise SpecError(
                    f"array {array.dtype.str}{array.shape} given, the agreed layout has {name}{shape}"
                )

    def write(self, buffer: Any, arrays: Sequence[NDArray[Any]]) -> None:
        """Copies ``arrays`` into ``buffer``; raises :class:`SpecError` if one has another shape or dtype."""
        self.check(arrays)
        for view, array in zip(self.views(buffer), arrays, strict=True):
            view[...] = array

    def join(self, arrays: Sequence[NDArray[Any]], head: bytes = b"") -> bytes:
        """``head`` and a message of checked ``arrays`` as one ``bytes``, copied once."""
        pieces: list[Any] = [head]
        for array, size in zip(arrays, self._sizes, strict=True):
            pieces += (np.ascontiguousarray(array).data, bytes(-size % _ALIGNMENT))
        return b"".join(pieces)


def _check_field(shape: tuple[int, ...], name: str) -> None:
    try:
        dtype = np.dtype(name)
    except TypeError as error:
        raise SpecError(f"dtype {name!r} is not known to NumPy") from error
    if dtype.kind not in "biufc":
        raise SpecError(f"dtype {name!r} cannot travel: only plain numbers and booleans can")
    if not dtype.isnative:
        raise SpecError(f"dtype {name!r} has the other byte order: convert with array.astype({dtype.name!r})")
    if any(size < 0 for size in shape):
        raise SpecError(f"shape {shape} has a negative size")


class Layouts(NamedTuple):
    """The layouts of one lane.

    Attributes:
      up: layout of a step, client to server.
      down: layout of a reply.
    """

    up: Layout
    down: Layout

    @property
    def nbytes(self) -> int:
        """Bytes of a step and its reply."""
        return self.up.nbytes + self.down.nbytes


@dataclass(frozen=True)
class Terms:
    """The terms that ``open`` fixes, the same at both ends.

    Attributes:
      lanes: the layouts of each, 1 to ``MAX_LANES``.
    """

    lanes: tuple[Layouts, ...]

    def __post_init__(self) -> None:
        if not 1 <= len(self.lanes) <= MAX_LANES:
            raise SpecError(f"{len(self.lanes)} lanes: a conversation has 1 to {MAX_LANES}")
        if self.nbytes > MAX_CONVERSATION_BYTES:
            raise SpecError(
                f"{len(self.lanes)} lanes of {self.nbytes} bytes together are more than {MAX_CONVERSATION_BYTES}: "
                "use fewer environments an actor"
            )

    @property
    def nbytes(self) -> int:
        """Bytes of one message a lane, both ways."""
        return sum(lane.nbytes for lane in self.lanes)

    @property
    def longest_up(self) -> int:
        """Bytes of the longest step."""
        return max(lane.up.nbytes for lane in self.lanes)

    @property
    def longest(self) -> int:
        """Bytes of the longest message either way."""
        return max(max(lane.up.nbytes, lane.down.nbytes) for lane in self.lanes)

    def to_json(self) -> dict[str, Any]:
        """The terms as plain JSON values: two ends agree if and only if these are equal."""
        return {"lanes": [{"up": _described(lane.up), "down": _described(lane.down)} for lane in self.lanes]}


def _described(layout: Layout) -> list[list[Any]]:
    return [[list(shape), dtype.name] for (shape, _), dtype in zip(layout.fields, layout.dtypes, strict=True)]


class Client(Protocol):
    """An actor's end; used by one thread, or by two of which one sends and the other receives."""

    def ask(self, message: dict[str, Any]) -> dict[str, Any]:
        """Sends a question and waits for the answer; raises ``Refused`` or ``ConnectionLost``."""

    def open(self, lanes: Sequence[Layouts]) -> None:
        """Fixes the layouts of every lane, after the answer in which the handler did the same.

        Raises ``SpecError`` if the handler fixed something else, ``ProtocolError`` if it fixed nothing.
        """

    def send(self, lane: int, arrays: Sequence[NDArray[Any]]) -> None:
        """Sends one step up; the arrays may be reused when it returns."""

    def receive(self, *, wait: bool = True, idle: bool = False) -> tuple[int, list[NDArray[Any]]] | None:
        """Returns the next reply as ``(lane, arrays)``; with ``wait=False`` None if there is none yet.

        The arrays are valid until the next ``send`` on that lane. ``idle``: it waits while no reply is due, too, for
        the reply to another thread's message or for the end.
        """

    def close(self, reason: str = "") -> None:
        """Ends the conversation, and tells the handler why.

        Safe to call twice, and from any thread: it wakes one that waits.
        """


class Peer(Protocol):
    """The server's end of one conversation. ``reply`` and ``close`` may be called from any thread."""

    name: str
    """For people: ``"unix peer 3 (pid 4711)"``."""

    place: str
    """Address of the client's machine; empty if it is this one."""

    def open(self, lanes: Sequence[Layouts]) -> None:
        """Fixes the layouts of every lane; the handler calls it once, inside ``answer``; ``SpecError`` past a limit."""

    def reply(self, lane: int, arrays: Sequence[NDArray[Any]]) -> None:
        """Sends the arrays of one lane down; does nothing if the peer is gone, which the handler hears by ``left``."""

    def close(self, reason: str) -> None:
        """Ends the conversation and tells the client why; safe to call twice."""


class Handler(Protocol):
    """The part behind a server. Called by one thread at a time, the server's or, at the end, that which closes it.

    It must be quick and must not raise anything but ``Refused`` (a bug that does ends that one conversation and is
    logged).
    """

    def answer(self, peer: Peer, message: dict[str, Any]) -> dict[str, Any]:
        """Answers a question, or raises ``Refused``, which ends the conversation.

        A ``SpecError`` (of ``peer.open``, say) is a refusal too.
        """

    def deliver(self, peer: Peer, lane: int, arrays: list[NDArray[Any]]) -> None:
        """Takes one step. The arrays stay valid until ``peer.reply`` on that lane (or until ``left``)."""

    def left(self, peer: Peer, reason: str) -> None:
        """Notes the end of a conversation, by any reason; called once for every peer that asked anything."""


class Server(Protocol):
    """Listens for clients from its construction until ``close``."""

    address: str
    """The address for clients: ``"inproc:NAME"``, ``"shm:PATH"``, ``"unix:PATH"``, ``"HOST:PORT"``."""

    def close(self) -> None:
        """Ends every conversation and frees everything; safe to call twice."""
