"""The two ends of a conversation: turns, agreed terms, the end. The same for every carrier.

Alternatives weighed: a state machine in each carrier (three places to get the turns wrong); a carrier that
is handed to one conversation class as a set of callbacks (the state of an end then lives in two objects). So
an end is a base class that decides, and a carrier derives from it and moves frames. Decisions are made
under the lock; frames are sent and the handler is called outside of it.
"""

from __future__ import annotations

import logging
import queue
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Sequence
from enum import Enum
from typing import Any, NoReturn, TypeVar

from numpy.typing import NDArray

from seedbed.errors import ConnectionLost, NotNow, ProtocolError, Refused, SpecError, TransportError
from seedbed.transport.framing import Frame, Kind, decode, decode_reason, encode
from seedbed.transport.interface import Handler, Layout, Layouts, Terms

_log = logging.getLogger(__name__)

_T = TypeVar("_T")
Arrays = list[NDArray[Any]]


WAKE_SECONDS = 0.25
"""A thread that waits looks up this often: a signal that came just before it fell asleep does not wake it."""


def next_of(mailbox: queue.SimpleQueue[_T], wait: bool) -> _T | None:
    """The next item of a queue; with ``wait=False`` None if there is none. Ctrl-C ends the wait."""
    while True:
        try:
            return mailbox.get(block=wait, timeout=WAKE_SECONDS if wait else None)
        except queue.Empty:
            if not wait:
                return None


def views_of(layout: Layout, frame: Frame) -> Arrays:
    """The arrays of a frame's body; raises ``ProtocolError`` if it has not the agreed length."""
    if len(frame.body) != layout.nbytes:
        raise ProtocolError(f"a message of {len(frame.body)} bytes; the agreed layout has {layout.nbytes}")
    return layout.views(frame.body)


CLOSED_BY_CLIENT = "the client closed the conversation"


class Ending(Enum):
    """Reasons for the end of a conversation."""

    GONE = "gone"
    """The client closed it or died."""
    CLOSED = "closed"
    """This side closed it."""
    REFUSED = "refused"
    """The handler said no."""
    MALFORMED = "malformed"
    """The client broke the rules."""


class Conversation(ABC):
    """The server's end; implements :class:`~seedbed.transport.interface.Peer`.

    ``take`` and ``depart`` belong to the server's thread; everything else may be called from any.

    Args:
      name: name for people.
      handler: handler that answers.
      place: address of the client's machine; empty if it is this one.
    """

    def __init__(self, name: str, handler: Handler, place: str = "") -> None:
        self.name = name
        self.place = place
        self._handler = handler
        self._lock = threading.Lock()
        self._terms: Terms | None = None
        self._owed: list[bool] = []  # by lane: a step was delivered and not yet replied to
        self._over: tuple[Ending, str] | None = None
        self._spoke = False

    def __repr__(self) -> str:
        state = self._over[1] if self._over else f"{sum(self._owed)} of {len(self._owed)} lanes await a reply"
        return f"<{self.name}: {state}>"

    # -- what a carrier adds: none of these may block, raise or call the handler --

    @abstractmethod
    def _transmit(self, kind: Kind, lane: int, body: bytes) -> None:
        """Puts a frame on its way."""

    @abstractmethod
    def _transmit_reply(self, lane: int, arrays: Sequence[NDArray[Any]]) -> None:
        """Puts a reply on its way; ``arrays`` fit the layout."""

    @abstractmethod
    def _arrays_of(self, terms: Terms, frame: Frame) -> Arrays:
        """The arrays of a step; raises ``ProtocolError`` if the body has not the agreed length."""

    @abstractmethod
    def _hang_up(self, ending: Ending, reason: str) -> None:
        """Tells the client, and has the server's thread let go of the conversation and call ``depart``."""

    def _furnish(self, terms: Terms) -> None:
        """Allocates for the terms and tells the client; may raise ``SpecError``."""
        self._transmit(Kind.OPENED, 0, encode(terms.to_json()))

    # -- Peer --

    def open(self, lanes: Sequence[Layouts]) -> None:
        """See :class:`~seedbed.transport.interface.Peer`."""
        terms = Terms(tuple(lanes))
        if self._terms is not None:
            raise ProtocolError(f"{self.name} was opened before: a conversation has one layout")
        self._furnish(terms)
        with self._lock:
            self._terms = terms
            self._owed = [False] * len(terms.lanes)

    def reply(self, lane: int, arrays: Sequence[NDArray[Any]]) -> None:
        """See :class:`~seedbed.transport.interface.Peer`; raises ``SpecError`` or ``ProtocolError`` on misuse."""
        terms = self._terms
        if terms is not None and 0 <= lane < len(terms.lanes):
            terms.lanes[lane].down.check(arrays)
        with self._lock:
            if self._over:
                return
            if not (0 <= lane < len(self._owed) and self._owed[lane]):
                raise ProtocolError(f"{self.name}: no step on lane {lane} waits for a reply")
            self._owed[lane] = False
        self._transmit_reply(lane, arrays)

    def close(self, reason: str) -> None:
        """See :class:`~seedbed.transport.interface.Peer`."""
        self.end(Ending.CLOSED, reason)

    # -- for the server --

    @property
    def over(self) -> bool:
        """True once the conversation has ended; nothing more is taken from the client then."""
        return self._over is not None

    def end(self, ending: Ending, reason: str) -> None:
        """Ends the conversation, if it has not ended before."""
        with self._lock:
            if self._over:
                return
            self._over = (ending, reason)
        self._hang_up(ending, reason)

    def take(self, frame: Frame) -> None:
        """Acts on one frame of the client; an error in it ends this conversation only."""
        if self._over:
            return
        try:
            self._act_on(frame)
        except ProtocolError as error:
            self.end(Ending.MALFORMED, str(error))
        except Exception as error:
            # A bug behind the handler must not take the other peers' server down.
            _log.exception("%s: the handler raised", self.name)
            self.end(Ending.CLOSED, f"internal error of the server: {type(error).__name__}: {error}")

    def depart(self) -> None:
        """Tells the handler, once, that the conversation is over."""
        with self._lock:
            spoke, self._spoke = self._spoke, False
            reason = self._over[1] if self._over else "the connection was lost"
        if not spoke:
            return
        try:
            self._handler.left(self, reason)
        except Exception:
            _log.exception("%s: the handler raised", self.name)

    def _act_on(self, frame: Frame) -> None:
        if frame.kind == Kind.STEP:
            self._deliver(frame)
        elif frame.kind == Kind.ASK:
            self._answer(frame)
        elif frame.kind == Kind.CLOSED:
            self.end(Ending.GONE, decode_reason(frame.body or b"") or CLOSED_BY_CLIENT)
        else:
            raise ProtocolError(f"a client does not send frames of kind {frame.kind}")

    def _answer(self, frame: Frame) -> None:
        question = decode(frame.body)
        self._spoke = True
        try:
            answer = encode(self._handler.answer(self, question))
        except NotNow as reason:
            self.end(Ending.CLOSED, str(reason))
            return
        except (Refused, SpecError) as refusal:
            self.end(Ending.REFUSED, str(refusal))
            return
        self._transmit(Kind.ANSWER, 0, answer)

    def _deliver(self, frame: Frame) -> None:
        terms = self._terms
        if terms is None:
            raise ProtocolError("a step before the conversation was opened")
        if frame.lane >= len(terms.lanes):
            raise ProtocolError(f"a step on lane {frame.lane}; there are {len(terms.lanes)}")
        arrays = self._arrays_of(terms, frame)
        with self._lock:
            if self._over:
                return
            if self._owed[frame.lane]:
                raise ProtocolError(
                    f"a step on lane {frame.lane} out of turn: the one before awaits its reply"
                )
            self._owed[frame.lane] = True
        self._handler.deliver(self, frame.lane, arrays)


class Caller(ABC):
    """The client's end; implements :class:`~seedbed.transport.interface.Client`.

    One thread uses it, or, once it is open and nothing is asked any more, one sends and another receives (``idle``);
    ``close`` may come from any thread and wakes them.

    Args:
      address: the server's, for people.
    """

    def __init__(self, address: str) -> None:
        self.address = address
        self._terms: Terms | None = None
        self._offered: dict[str, Any] | None = None  # the server's terms, until ``open`` agrees
        self._owed: list[bool] = []  # by lane: a step was sent and its reply has not come
        self._replies: deque[Frame] = deque()  # those that came while an answer was awaited
        self._lost: str | None = None
        self._listening = False  # a thread of its own receives, and hears why it ended
        self._closing = threading.Lock()
        self._closed = False

    def __repr__(self) -> str:
        state = self._lost or f"{sum(self._owed)} of {len(self._owed)} lanes await a reply"
        return f"<client of {self.address}: {state}>"

    # -- what a carrier adds --

    @abstractmethod
    def _transmit(self, kind: Kind, lane: int, body: bytes) -> None:
        """Sends a frame; raises ``ConnectionLost`` if the server is gone (``_next`` then tells why)."""

    @abstractmethod
    def _transmit_step(self, lane: int, arrays: Sequence[NDArray[Any]]) -> None:
        """Sends a step as ``_transmit`` does; ``arrays`` fit the layout."""

    @abstractmethod
    def _arrays_of(self, terms: Terms, frame: Frame) -> Arrays:
        """The arrays of a reply; raises ``ProtocolError`` if the body has not the agreed length."""

    @abstractmethod
    def _next(self, wait: bool) -> Frame | None:
        """The next frame of the server; raises ``TransportError`` when there will be none."""

    @abstractmethod
    def _shut(self, reason: str) -> None:
        """Says why, frees everything and wakes a thread that waits in ``_next``; called once."""

    def _furnish(self, terms: Terms) -> None:  # noqa: B027 (most carriers need nothing)
        """Allocates for the agreed terms."""

    # -- Client --

    def ask(self, message: dict[str, Any]) -> dict[str, Any]:
        """See :class:`~seedbed.transport.interface.Client`."""
        question = encode(message)
        self._check_alive()
        try:
            self._transmit(Kind.ASK, 0, question)
        except ConnectionLost:
            self._tell_why()
        while True:
            frame = self._frame(wait=True)
            assert frame is not None
            if frame.kind == Kind.ANSWER:
                return decode(frame.body)
            self._replies.append(frame)

    def open(self, lanes: Sequence[Layouts]) -> None:
        """See :class:`~seedbed.transport.interface.Client`."""
        terms = Terms(tuple(lanes))
        self._check_alive()
        if self._offered is None:
            raise ProtocolError("the server has not opened the conversation, or it is open already")
        if self._offered != terms.to_json():
            raise SpecError(f"the server agreed to {self._offered}, this side wants {terms.to_json()}")
        self._furnish(terms)
        self._offered = None
        self._terms = terms
        self._owed = [False] * len(terms.lanes)

    def send(self, lane: int, arrays: Sequence[NDArray[Any]]) -> None:
        """See :class:`~seedbed.transport.interface.Client`."""
        self._check_alive()
        terms = self._opened()
        if not 0 <= lane < len(terms.lanes):
            raise ProtocolError(f"lane {lane} does not exist: there are {len(terms.lanes)}")
        terms.lanes[lane].up.check(arrays)
        if self._owed[lane]:
            raise ProtocolError(f"lane {lane} still waits for its reply: receive it before the next step")
        self._owed[lane] = True
        try:
            self._transmit_step(lane, arrays)
        except ConnectionLost:
            if self._listening:
                raise
            self._tell_why()

    def receive(self, *, wait: bool = True, idle: bool = False) -> tuple[int, Arrays] | None:
        """See :class:`~seedbed.transport.interface.Client`; raises ``ProtocolError`` if no reply can come."""
        self._check_alive()
        terms = self._opened()
        self._listening = self._listening or idle
        if wait and not self._listening and not any(self._owed):
            raise ProtocolError("no lane waits for a reply: this would wait forever")
        frame = self._replies.popleft() if self._replies else self._frame(wait)
        if frame is None:
            return None
        if frame.kind != Kind.REPLY or frame.lane >= len(terms.lanes) or not self._owed[frame.lane]:
            raise self._give_up(f"the server sent a frame (kind {frame.kind}, lane {frame.lane}) out of turn")
        try:
            arrays = self._arrays_of(terms, frame)
        except ProtocolError as error:
            raise self._give_up(str(error)) from error
        self._owed[frame.lane] = False
        return frame.lane, arrays

    def close(self, reason: str = "") -> None:
        """See :class:`~seedbed.transport.interface.Client`."""
        with self._closing:
            if self._closed:
                return
            self._closed = True
            self._lost = self._lost or "this side closed the conversation"
        self._shut(reason)

    # -- deciding --

    def _opened(self) -> Terms:
        if self._terms is None:
            raise ProtocolError("the conversation is not open: ask for it first")
        return self._terms

    def _check_alive(self) -> None:
        if self._lost is not None:
            raise ConnectionLost(f"{self.address}: {self._lost}")

    def _tell_why(self) -> NoReturn:
        """Raises the error that ended the conversation: it stands behind the frames that were not read yet."""
        while True:
            self._frame(wait=True)

    def _frame(self, wait: bool) -> Frame | None:
        """The next frame that is not about the conversation itself."""
        while True:
            try:
                frame = self._next(wait)
            except TransportError as error:
                if (failed := self._failed(error)) is error:
                    raise
                raise failed from error
            if frame is None:
                return None
            if frame.kind == Kind.OPENED:
                self._offered = decode(frame.body)
            elif frame.kind == Kind.REFUSED:
                raise self._failed(Refused(decode_reason(frame.body)))
            elif frame.kind == Kind.CLOSED:
                reason = decode_reason(frame.body)
                raise self._failed(ConnectionLost(f"{self.address}: {reason}", said=reason))
            else:
                return frame

    def _failed(self, error: TransportError) -> TransportError:
        if self._closed:
            return ConnectionLost(f"{self.address}: this side closed the conversation")
        self._lost = str(error)
        return error

    def _give_up(self, reason: str) -> ProtocolError:
        self._lost = reason
        self.close()
        return ProtocolError(f"{self.address}: {reason}")
