"""The carrier inside one process: an actor is a thread, its messages are copied through queues.

Alternative weighed: the client's thread calls the handler itself, which saves two thread switches. A handler
would then be called from as many threads as there are actors here and from one thread everywhere else, and
would be tested under other conditions than it runs in. The queues have no bound of their own: a client has at
most one message a lane and one question in them, since it may not send before the reply.
"""

from __future__ import annotations

import itertools
import queue
import threading
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from seedbed.errors import ConfigError, ConnectionLost
from seedbed.transport.conversation import Arrays, Caller, Conversation, Ending, next_of
from seedbed.transport.framing import Frame, Kind, encode_reason
from seedbed.transport.interface import Handler, Terms

PREFIX = "inproc:"
_END = Frame(0, 0, None)  # behind the last frame of a conversation


class InProcessServer:
    """Listens under a name in this process; implements :class:`~seedbed.transport.interface.Server`.

    Args:
      name: name that clients connect to; raises ``ConfigError`` if another server has it.
      handler: handler that answers.
    """

    def __init__(self, name: str, handler: Handler) -> None:
        self.address = PREFIX + name
        self._name = name
        self._handler = handler
        self._numbers = itertools.count(1)
        self._events: queue.SimpleQueue[tuple[_Conversation, Frame | None] | None] = queue.SimpleQueue()
        self._peers: set[_Conversation] = set()
        self._lock = threading.Lock()
        self._closed = False
        _registry.add(name, self)
        self._thread = threading.Thread(target=self._run, name=self.address, daemon=True)
        self._thread.start()

    def __repr__(self) -> str:
        return f"<server {self.address}: {len(self._peers)} peers>"

    def close(self) -> None:
        """See :class:`~seedbed.transport.interface.Server`."""
        with self._lock:
            first, self._closed = not self._closed, True
            peers = list(self._peers)
        if first:
            _registry.remove(self._name, self)
            for peer in peers:
                peer.close("the server is closing")
            self._events.put(None)
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def accept(self, mailbox: queue.SimpleQueue[Frame]) -> _Conversation | None:
        """Begins a conversation whose frames go to ``mailbox``; None if the server is closed."""
        name = f"in-process peer {next(self._numbers)} ({threading.current_thread().name})"
        conversation = _Conversation(name, self._handler, self._events, mailbox)
        with self._lock:
            if self._closed:
                return None
            self._peers.add(conversation)
        return conversation

    def _run(self) -> None:
        while (event := self._events.get()) is not None:
            conversation, frame = event
            if frame is not None:
                conversation.take(frame)
                continue
            conversation.depart()
            with self._lock:
                self._peers.discard(conversation)


class _Conversation(Conversation):
    def __init__(
        self,
        name: str,
        handler: Handler,
        events: queue.SimpleQueue[Any],
        mailbox: queue.SimpleQueue[Frame],
    ) -> None:
        super().__init__(name, handler)
        self._events = events
        self._mailbox = mailbox

    def post(self, frame: Frame) -> None:
        """Puts a frame of the client before the server."""
        self._events.put((self, frame))

    def _transmit(self, kind: Kind, lane: int, body: bytes) -> None:
        self._mailbox.put(Frame(kind, lane, body))

    def _transmit_reply(self, lane: int, arrays: Sequence[NDArray[Any]]) -> None:
        self._mailbox.put(Frame(Kind.REPLY, lane, _copies(arrays)))

    def _arrays_of(self, terms: Terms, frame: Frame) -> Arrays:
        arrays: Arrays = frame.body
        return arrays

    def _hang_up(self, ending: Ending, reason: str) -> None:
        kind = Kind.REFUSED if ending is Ending.REFUSED else Kind.CLOSED
        self._transmit(kind, 0, encode_reason(reason))
        self._mailbox.put(_END)
        self._events.put((self, None))


class InProcessClient(Caller):
    """A client in the server's process; implements :class:`~seedbed.transport.interface.Client`.

    Args:
      name: the server's.
      timeout: seconds to wait for a server of that name; raises ``ConnectionLost`` after them.
    """

    def __init__(self, name: str, *, timeout: float) -> None:
        super().__init__(PREFIX + name)
        self._mailbox: queue.SimpleQueue[Frame] = queue.SimpleQueue()
        conversation = _registry.find(name, timeout).accept(self._mailbox)
        if conversation is None:
            raise ConnectionLost(f"{self.address}: the server is closing")
        self._conversation = conversation

    def _transmit(self, kind: Kind, lane: int, body: bytes) -> None:
        self._post(Frame(kind, lane, body))

    def _transmit_step(self, lane: int, arrays: Sequence[NDArray[Any]]) -> None:
        self._post(Frame(Kind.STEP, lane, _copies(arrays)))

    def _post(self, frame: Frame) -> None:
        if self._conversation.over:
            raise ConnectionLost(self.address)
        self._conversation.post(frame)

    def _arrays_of(self, terms: Terms, frame: Frame) -> Arrays:
        arrays: Arrays = frame.body
        return arrays

    def _next(self, wait: bool) -> Frame | None:
        frame = next_of(self._mailbox, wait)
        if frame is _END:
            self._mailbox.put(_END)  # the end stays the end
            raise ConnectionLost(f"{self.address}: the conversation is over")
        return frame

    def _shut(self, reason: str) -> None:
        self._conversation.post(Frame(Kind.CLOSED, 0, encode_reason(reason)))
        self._mailbox.put(_END)


class _Registry:
    """The servers of this process, by name."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._servers: dict[str, InProcessServer] = {}

    def add(self, name: str, server: InProcessServer) -> None:
        with self._changed:
            if name in self._servers:
                raise ConfigError(
                    f"a server listens at {PREFIX}{name} already: close it or take another name"
                )
            self._servers[name] = server
            self._changed.notify_all()

    def remove(self, name: str, server: InProcessServer) -> None:
        with self._changed:
            if self._servers.get(name) is server:
                del self._servers[name]

    def find(self, name: str, timeout: float) -> InProcessServer:
        deadline = time.monotonic() + timeout
        with self._changed:
            while (server := self._servers.get(name)) is None:
                if not self._changed.wait(deadline - time.monotonic()):
                    raise ConnectionLost(
                        f"cannot reach {PREFIX}{name} within {timeout:g} s: "
                        "is the learner running in this process?"
                    )
        return server


_registry = _Registry()


def _copies(arrays: Sequence[NDArray[Any]]) -> Arrays:
    return [np.array(array, order="C") for array in arrays]
