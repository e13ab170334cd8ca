"""The carrier between processes of one machine: arrays in shared memory, everything else on a Unix socket.

The socket does what sockets are good at: the handshake, the doorbells (one bare frame a step), and telling at
once that the other process has died. The arrays stand in anonymous memory that the server makes when a
conversation is opened and hands over through the socket. It has no name, so nothing is left behind after a kill of
either; it is freed when the last process that maps it lets go.

Alternatives weighed: named segments (stay in ``/dev/shm`` after a kill, and their clean-up daemons remove
segments in use); futexes or spinning instead of doorbells (faster still, but blind to a dead peer and hungry
for a core that an environment could have). A client may scribble over its own lanes at any time, as the
memory is its own too; it cannot shrink it under the server's feet, since its size is sealed.

A mapping is never closed by hand: NumPy views hold it, and it goes when the last of them does.
"""

from __future__ import annotations

import errno
import fcntl
import itertools
import logging
import mmap
import os
import socket
import struct
import tempfile
import threading
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from itertools import accumulate
from typing import Any

import numpy as np
from numpy.typing import NDArray

from seedbed.errors import ConfigError, ConnectionLost, ProtocolError, SpecError
from seedbed.transport.conversation import WAKE_SECONDS, Arrays, Caller, Conversation, Ending
from seedbed.transport.framing import (
    Frame,
    Inbox,
    Kind,
    encode,
    encode_reason,
    limits_down,
    limits_up,
    pack,
)
from seedbed.transport.interface import MAX_LANES, MAX_PEERS, MAX_QUESTION_BYTES, Handler, Terms
from seedbed.transport.poller import READ, WRITE, Poller
from seedbed.transport.socket_file import SocketFile, check_length

PREFIX = "shm:"

_READ_BYTES = 1 << 16
_MAX_UNREAD_BYTES = 4 * MAX_QUESTION_BYTES
_RETRY_SECONDS = 0.05
_STEP = [pack(Kind.STEP, lane) for lane in range(MAX_LANES)]
_REPLY = [pack(Kind.REPLY, lane) for lane in range(MAX_LANES)]
"""The doorbells of every lane: nearly all that is written, and read."""
_STEPS = {rung: Frame(Kind.STEP, lane, b"") for lane, rung in enumerate(_STEP)}
_REPLIES = {rung: Frame(Kind.REPLY, lane, b"") for lane, rung in enumerate(_REPLY)}
_DEAF_SECONDS = 0.5
_log = logging.getLogger(__name__)


class SharedMemoryServer:
    """Listens at a socket path; implements :class:`~seedbed.transport.interface.Server`.

    Args:
      path: path of the socket; raises ``ConfigError`` if it cannot be used.
      handler: handler that answers.
      poller: poller of the thread that hears clients; None: one of the server's own. A thread that has to wait for
        messages anyway hears them itself, rather than be told by another one, with which it would share the
        interpreter.
      most: conversations at once.
    """

    def __init__(
        self, path: str, handler: Handler, poller: Poller | None = None, *, most: int = MAX_PEERS
    ) -> None:
        self.address = PREFIX + path
        self._handler = handler
        self._file = SocketFile(path)
        self._listener = _listen(self._file)
        self._most = most
        self._numbers = itertools.count(1)
        self._peers: set[_Conversation] = set()
        # What needs the thread that polls: conversations that ended or have more to send.
        self._waiting: deque[_Conversation] = deque()
        self._closing = self._shut_down = False
        self._deaf_until: float | None = None
        self._poller = poller or Poller()
        with self._poller.lock:
            self._poller.register(self._listener, self._accept)
            self._poller.tend(self._tend)
        self._thread: threading.Thread | None = None
        if poller is None:
            self._thread = threading.Thread(target=self._run, name=self.address, daemon=True)
            self._thread.start()
        else:
            poller.wake()  # its thread may wait already, and knows nothing of the listener

    def __repr__(self) -> str:
        return f"<server {self.address}: {len(self._peers)} peers>"

    def close(self) -> None:
        """See :class:`~seedbed.transport.interface.Server`."""
        if self._thread is None:
            self._shut()
            return
        self._closing = True
        self._poller.wake()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    # -- called from any thread --

    def attend(self, conversation: _Conversation) -> None:
        """Has the thread that polls look at a conversation that ended or has more to send."""
        self._waiting.append(conversation)
        self._poller.wake()

    # -- the thread that polls, or with the poller's lock --

    def _run(self) -> None:
        try:
            while not self._closing:
                self._poller.poll(None)
        finally:
            self._shut()
            self._poller.close()

    def _accept(self, events: int) -> None:
        try:
            connection, _ = self._listener.accept()
        except BlockingIOError:
            return
        except OSError as error:
            # Out of file descriptors, most likely. The client in the backlog would ring on and on.
            _log.warning("%s takes no clients for %g s: %s", self.address, _DEAF_SECONDS, error)
            self._poller.unregister(self._listener)
            self._deaf_until = time.monotonic() + _DEAF_SECONDS
            return
        conversation = _Conversation(connection, next(self._numbers), self._handler, self)
        self._peers.add(conversation)
        self._poller.register(connection, conversation.on_event)
        if len(self._peers) > self._most:
            conversation.end(Ending.CLOSED, f"the server has {self._most} peers already")

    def _tend(self) -> float | None:
        """Attends to the conversations that need it; returns the time in s after which to do so at the latest."""
        while self._waiting:
            self._attend(self._waiting.popleft())
        if self._deaf_until is None:
            return None
        if (left := self._deaf_until - time.monotonic()) > 0:
            return left
        self._deaf_until = None
        self._poller.register(self._listener, self._accept)
        return None

    def _attend(self, conversation: _Conversation) -> None:
        if conversation not in self._peers:
            return
        if conversation.over:
            self._let_go(conversation)
        else:
            events = READ if conversation.flush() else READ | WRITE
            self._poller.register(conversation.socket, conversation.on_event, events)

    def _let_go(self, conversation: _Conversation) -> None:
        self._peers.discard(conversation)
        self._poller.unregister(conversation.socket)
        conversation.release()
        conversation.depart()

    def _shut(self) -> None:
        with self._poller.lock:
            if self._shut_down:
                return
            self._shut_down = True
            self._poller.forget(self._tend)
            if self._deaf_until is None:
                self._poller.unregister(self._listener)
            self._file.remove()
            self._listener.close()
            for conversation in list(self._peers):
                conversation.close("the server is closing")
                self._let_go(conversation)


class _Conversation(Conversation):
    def __init__(
        self, connection: socket.socket, number: int, handler: Handler, server: SharedMemoryServer
    ) -> None:
        super().__init__(f"shared-memory peer {number} ({_process_of(connection)})", handler)
        connection.setblocking(False)
        self.socket = connection
        self._server = server
        self._inbox = Inbox(limits_up(step=0))
        self._slots: _Slots | None = None
        self._sending = threading.Lock()
        self._unsent = bytearray()
        self._released = False

    # -- the thread that polls --

    def on_event(self, events: int) -> None:
        """Reads frames of the client, writes the bytes that it did not take before."""
        if events & WRITE:
            self._server.attend(self)
        if not events & READ or self.over:
            return
        try:
            data = self.socket.recv(_READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self.end(Ending.GONE, "the client is gone: its connection broke")
            return
        try:
            if not self._inbox.held and (step := _STEPS.get(data)) is not None:
                self.take(step)
                return
            for frame in self._inbox.feed(data):
                self.take(frame)
        except ProtocolError as error:
            self.end(Ending.MALFORMED, str(error))

    def flush(self) -> bool:
        """Sends waiting bytes as far as the client takes them; returns whether nothing is left."""
        with self._sending:
            if self._unsent:
                del self._unsent[: self._send_some(self._unsent)]
            return not self._unsent

    def release(self) -> None:
        """Closes the socket and lets the memory go."""
        with self._sending:
            self._released = True
            self.socket.close()
        self._slots = None

    # -- what a carrier adds --

    def _furnish(self, terms: Terms) -> None:
        handle = _make_memory(terms.nbytes)
        try:
            self._slots = _Slots(handle, terms)
            self._push(pack(Kind.OPENED, 0, encode(terms.to_json())), [handle])
        finally:
            os.close(handle)

    def _transmit(self, kind: Kind, lane: int, body: bytes) -> None:
        self._push(pack(kind, lane, body))

    def _transmit_reply(self, lane: int, arrays: Sequence[NDArray[Any]]) -> None:
        slots = self._slots
        if slots is None:
            return
        _fill(slots.down[lane], arrays)
        self._push(_REPLY[lane])

    def _arrays_of(self, terms: Terms, frame: Frame) -> Arrays:
        assert self._slots is not None
        return list(self._slots.up[frame.lane])

    def _hang_up(self, ending: Ending, reason: str) -> None:
        kind = Kind.REFUSED if ending is Ending.REFUSED else Kind.CLOSED
        self._push(pack(kind, 0, encode_reason(reason)))
        self._server.attend(self)

    def _push(self, data: bytes, handles: Sequence[int] = ()) -> None:
        with self._sending:
            if self._released:
                return
            queued = bool(self._unsent)
            sent = 0 if queued else self._send_some(data, handles)
            self._unsent += data[sent:]
            held = len(self._unsent)
        # Handles cannot be queued; a client that reads its answers never needs it.
        if held > _MAX_UNREAD_BYTES or (handles and sent == 0):
            self.end(Ending.MALFORMED, f"the client left {held} bytes unread")
        elif held and not queued:
            self._server.attend(self)

    def _send_some(self, data: bytes | bytearray, handles: Sequence[int] = ()) -> int:
        try:
            if handles:
                return socket.send_fds(self.socket, [data], handles)
            return self.socket.send(data)
        except BlockingIOError:
            return 0
        except OSError:
            return len(data)  # nobody reads it any more; the server's thread finds out by reading


class SharedMemoryClient(Caller):
    """A client on the server's machine; implements :class:`~seedbed.transport.interface.Client`.

    Args:
      path: path of the server's socket.
      timeout: seconds to wait for the server to appear; raises ``ConnectionLost`` after them.
    """

    def __init__(self, path: str, *, timeout: float) -> None:
        super().__init__(PREFIX + path)
        self._socket = _dial(path, timeout)
        self._inbox = Inbox(limits_down(reply=0))
        self._frames: deque[Frame] = deque()
        self._handle: int | None = None
        self._slots: _Slots | None = None
        # Held while the socket is in use, so that its number is not given to another file under a reader or a writer.
        self._reading, self._writing = threading.RLock(), threading.RLock()

    def fileno(self) -> int:
        """Returns the number of the socket, for a selector: a readable one has replies to be received.

        A thread with several clients then receives with ``wait=False`` until there is no reply left.
        """
        return self._socket.fileno()

    def _furnish(self, terms: Terms) -> None:
        with self._reading, self._writing:
            if self._handle is None:
                self._check_alive()  # another thread may have closed it meanwhile
                raise SpecError(f"{self.address}: the server sent no memory")
            self._slots = _Slots(self._handle, terms)
            self._drop_handle()

    def _transmit(self, kind: Kind, lane: int, body: bytes) -> None:
        self._write(pack(kind, lane, body))

    def _write(self, data: bytes) -> None:
        try:
            with self._writing:
                self._socket.sendall(data)
        except OSError as error:
            raise ConnectionLost(f"{self.address}: the server is gone") from error

    def _transmit_step(self, lane: int, arrays: Sequence[NDArray[Any]]) -> None:
        slots = self._slots
        if slots is None:
            raise ConnectionLost(f"{self.address}: closed")
        _fill(slots.up[lane], arrays)
        self._write(_STEP[lane])

    def _arrays_of(self, terms: Terms, frame: Frame) -> Arrays:
        slots = self._slots
        if slots is None:
            raise ProtocolError("the conversation was closed meanwhile")
        return list(slots.down[frame.lane])

    def _next(self, wait: bool) -> Frame | None:
        while not self._frames:
            try:
                data = self._read(wait)
            except BlockingIOError:
                if wait:
                    continue
                return None
            except OSError:
                data = b""
            if not data:
                raise ConnectionLost(f"{self.address}: the server is gone: its connection broke")
            if not self._inbox.held and (reply := _REPLIES.get(data)) is not None:
                return reply
            self._frames.extend(self._inbox.feed(data))
        return self._frames.popleft()

    def _read(self, wait: bool) -> bytes:
        flags = 0 if wait else socket.MSG_DONTWAIT
        with self._reading:
            if self._terms is not None:  # no memory can come any more
                return self._socket.recv(_READ_BYTES, flags)
            flags |= getattr(socket, "MSG_CMSG_CLOEXEC", 0)
            data, handles, _, _ = socket.recv_fds(self._socket, _READ_BYTES, 1, flags)
            for handle in handles:
                self._drop_handle()
                self._handle = handle
            return data

    def _drop_handle(self) -> None:
        handle, self._handle = self._handle, None
        if handle is not None:
            os.close(handle)

    def _shut(self, reason: str) -> None:
        with suppress(OSError):
            self._socket.send(pack(Kind.CLOSED, 0, encode_reason(reason)), socket.MSG_DONTWAIT)
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)  # wakes a thread that reads
        with self._reading, self._writing:
            self._socket.close()
            self._drop_handle()
            self._slots = None


class _Slots:
    """The arrays of every lane, as views of one shared mapping: first all steps up, then all replies.

    Args:
      handle: a file descriptor of the memory; not needed any more afterwards.
      terms: terms of its contents; raises ``SpecError`` if it has another size.
    """

    def __init__(self, handle: int, terms: Terms) -> None:
        size = os.fstat(handle).st_size
        if size != max(terms.nbytes, 1):
            raise SpecError(f"shared memory of {size} bytes; the agreed layouts need {terms.nbytes}")
        memory = memoryview(mmap.mmap(handle, size))
        # Every layout fills whole cache lines, so that each begins on one.
        layouts = [*(lane.up for lane in terms.lanes), *(lane.down for lane in terms.lanes)]
        ends = list(accumulate((layout.nbytes for layout in layouts), initial=0))
        views = [
            layout.views(memory[begin:end])
            for layout, begin, end in zip(layouts, ends, ends[1:], strict=False)
        ]
        self.up, self.down = views[: len(terms.lanes)], views[len(terms.lanes) :]


def _fill(views: Arrays, arrays: Sequence[NDArray[Any]]) -> None:
    for view, array in zip(views, arrays, strict=True):
        np.copyto(view, array, casting="no")


def _make_memory(nbytes: int) -> int:
    """A file descriptor of ``nbytes`` of anonymous memory; raises ``SpecError`` if there is not that much."""
    handle = _anonymous_file()
    try:
        _reserve(handle, max(nbytes, 1))
    except OSError as error:
        os.close(handle)
        raise SpecError(f"no {nbytes} bytes of shared memory: {error.strerror}") from error
    return handle


def _anonymous_file() -> int:
    if hasattr(os, "memfd_create"):
        with suppress(OSError):
            return os.memfd_create("seedbed", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    handle, path = tempfile.mkstemp(prefix="seedbed-")
    os.unlink(path)  # noqa: PTH108
    return handle


def _reserve(handle: int, nbytes: int) -> None:
    os.ftruncate(handle, nbytes)
    if hasattr(os, "posix_fallocate"):
        # Memory that is missing is an error here and now, not a SIGBUS at some later step.
        os.posix_fallocate(handle, 0, nbytes)
    if hasattr(fcntl, "F_ADD_SEALS"):
        # A client that shrank the file would kill the server by SIGBUS. A plain file takes no seals.
        with suppress(OSError):
            fcntl.fcntl(
                handle, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
            )


def _listen(file: SocketFile) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX)
    try:
        with file.binding() as path:
            listener.bind(path)
            listener.listen(MAX_PEERS)
    except OSError as error:
        listener.close()
        raise ConfigError(f"cannot listen at {PREFIX}{file.path}: {error.strerror}") from error
    listener.setblocking(False)
    return listener


def _dial(path: str, timeout: float) -> socket.socket:
    """Connects, and tries again while no server listens: an actor may be started before its learner."""
    check_length(path)
    deadline = time.monotonic() + timeout
    while True:
        connection = socket.socket(socket.AF_UNIX)
        try:
            connection.settimeout(timeout)  # a full backlog is an error then, not a wait without end
            connection.connect(path)
            connection.settimeout(None)
            wake = struct.pack("ll", 0, int(WAKE_SECONDS * 1e6))
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, wake)
            return connection
        except OSError as error:
            connection.close()
            _check_worth_waiting(path, timeout, deadline, error)
        except BaseException:
            connection.close()
            raise
        time.sleep(_RETRY_SECONDS)


def _check_worth_waiting(path: str, timeout: float, deadline: float, error: OSError) -> None:
    if error.errno not in (errno.ENOENT, errno.ECONNREFUSED, errno.EAGAIN):
        raise ConnectionLost(f"cannot reach {PREFIX}{path}: {error.strerror}") from error
    if time.monotonic() + _RETRY_SECONDS > deadline:
        raise ConnectionLost(
            f"cannot reach {PREFIX}{path} within {timeout:g} s: is the learner running there?"
        ) from error


def _process_of(connection: socket.socket) -> str:
    """Returns a name of the process at the other end, for people."""
    if not hasattr(socket, "SO_PEERCRED"):
        return "unknown process"
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
    process: int = struct.unpack("3i", credentials)[0]
    return f"pid {process}"
