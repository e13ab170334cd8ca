"""The carrier for programs without gRPC: frames on a socket, over TCP or at a socket file (docs/wire.md).

Alternatives weighed: WebSockets and HTTP/2 (a library in every language, for a stream of bytes that TCP is already); a
selector and a state machine of one's own for TLS (asyncio has both). A server is one asyncio loop in one thread, which
calls the handler; a client is a socket that is never waited on with a lock held, so that one thread can send while
another receives, also through TLS.

Over TCP the server speaks first: CHALLENGE, which the client answers with PROOF, and the server with ADMITTED. Until
then it takes one frame of 88 bytes and no other, and the connection ends after some seconds.
"""

from __future__ import annotations

import asyncio
import errno
import itertools
import logging
import selectors
import socket
import ssl
import threading
import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import suppress
from typing import Any

from numpy.typing import NDArray

from seedbed.errors import ConfigError, ConnectionLost, ProtocolError, Refused, SpecError
from seedbed.transport.admission import (
    ANSWER_BYTES,
    CHALLENGE_BYTES,
    CHALLENGE_SECONDS,
    PROOF_BYTES,
    REFUSAL_SECONDS,
    STRANGER_SECONDS,
    Gate,
    Invitation,
    Refusals,
    most_connections,
)
from seedbed.transport.conversation import WAKE_SECONDS, Arrays, Caller, Conversation, Ending, views_of
from seedbed.transport.framing import (
    Frame,
    Inbox,
    Kind,
    Limits,
    encode_reason,
    header,
    limits_down,
    limits_up,
    pack,
)
from seedbed.transport.interface import MAX_MESSAGE_BYTES, MAX_PEERS, MAX_QUESTION_BYTES, Handler, Terms
from seedbed.transport.loop_thread import LoopThread
from seedbed.transport.socket_file import SocketFile, check_length
from seedbed.transport.strangers import End, end_of, surplus
from seedbed.transport.tls import SOCKET_PREFIX, require_certificate, secured, within_machine

_UNIX = "unix:"
_INTERNET = (socket.AF_INET, socket.AF_INET6)
_READ_BYTES = 1 << 18
_MAX_UNREAD_BYTES = 4 * MAX_QUESTION_BYTES
_LINGER_SECONDS = 1.0  # how long an end waits for a client to read what is on its way
_DEAF_SECONDS = 0.5
_RETRY_SECONDS = 0.1
KEEPALIVE_SECONDS = 10
"""A silent machine is asked for a sign of life after this long, and given up within as long again."""

# ``poll`` costs no file of its own; Windows has ``select`` alone.
_Selector: type[selectors.BaseSelector] = getattr(selectors, "PollSelector", selectors.SelectSelector)

_log = logging.getLogger(__name__)


class SocketServer:
    """Listens at an address; implements :class:`~seedbed.transport.interface.Server`.

    Args:
      address: ``"socket:HOST:PORT"`` (port 0: a free one, the attribute ``address`` tells which) or
        ``"socket:unix:PATH"``. Raises ``ConfigError`` if it cannot be used.
      handler: handler that answers.
      gate: lets clients in; None for all that reach the address.
      max_message_bytes: longest step or reply.
    """

    def __init__(
        self,
        address: str,
        handler: Handler,
        *,
        gate: Gate | None = None,
        max_message_bytes: int = MAX_MESSAGE_BYTES,
        most: int = MAX_PEERS,
    ) -> None:
        self.address = address
        self.most = most
        self.gate = gate
        identity = gate.identity_at(address) if gate else None
        self.binding = bytes.fromhex(identity.fingerprint) if identity else b""
        self._tls = identity.context() if identity else None
        self.handler = gate.vouching(handler) if gate else handler
        self.longest = max_message_bytes
        self.peers: set[_Conversation] = set()
        self.refusals = Refusals()
        self._numbers = itertools.count(1)
        self._open: set[_Conversation] = set()
        self._file: SocketFile | None = None
        self.closing = False
        self.thread = LoopThread(address)
        self.loop = self.thread.loop
        self.address = self.thread.start(self._serve, self._remove_file)

    def __repr__(self) -> str:
        return f"<server {self.address}: {len(self.peers)} peers>"

    def close(self) -> None:
        """See :class:`~seedbed.transport.interface.Server`."""
        self.thread.stop()

    # -- the server's thread --

    def _remove_file(self) -> None:
        if self._file is not None:
            self._file.remove()

    async def _serve(self, listening: Future[str]) -> None:
        try:
            listener, address = self._bind()
        except BaseException as error:
            listening.set_exception(error)
            return
        listening.set_result(address)
        accepting = self.loop.create_task(self._accept(listener))
        await self.thread.stopping.wait()
        accepting.cancel()
        with suppress(asyncio.CancelledError):
            await accepting
        listener.close()
        self.closing = True
        for conversation in list(self._open):
            conversation.close("the server is closing")
        deadline = self.loop.time() + _LINGER_SECONDS
        while self._open and self.loop.time() < deadline:
            await asyncio.sleep(0.01)
        for conversation in list(self._open):
            conversation.abort()
        await asyncio.sleep(0)  # the ends of the connections are told

    def _bind(self) -> tuple[socket.socket, str]:
        address, place = self.address, self.address.removeprefix(SOCKET_PREFIX)
        try:
            if place.startswith(_UNIX):
                self._file = SocketFile(place.removeprefix(_UNIX))
                listener = socket.socket(socket.AF_UNIX)
                with self._file.binding() as path:
                    listener.bind(path)
                    listener.listen(MAX_PEERS)
            else:
                host, _, port = place.rpartition(":")
                name = host.strip("[]")
                family = socket.AF_INET6 if ":" in name else socket.AF_INET
                listener = socket.create_server((name, int(port)), family=family, backlog=MAX_PEERS)
                address = f"{SOCKET_PREFIX}{host}:{listener.getsockname()[1]}"
        except OSError as error:
            raise ConfigError(
                f"cannot listen at {self.address}: is the port free and the host this machine's? ({error})"
            ) from error
        listener.setblocking(False)
        return listener, address

    async def _accept(self, listener: socket.socket) -> None:
        tasks: set[asyncio.Task[None]] = set()
        try:
            while True:
                try:
                    connection, _ = await self.loop.sock_accept(listener)
                except OSError as error:
                    # Out of file descriptors, most likely. The client in the backlog would come on and on.
                    _log.warning("%s takes no clients for %g s: %s", self.address, _DEAF_SECONDS, error)
                    await asyncio.sleep(_DEAF_SECONDS)
                    continue
                if len(self._open) >= most_connections(self.most):
                    connection.close()
                    continue
                task = self.loop.create_task(self._take_in(connection))
                tasks.add(task)
                task.add_done_callback(tasks.discard)
        finally:
            for task in tasks:
                task.cancel()

    async def _take_in(self, connection: socket.socket) -> None:
        number, place = next(self._numbers), _place(connection)
        name = f"socket peer {number} ({_origin(connection)})"
        conversation = _Conversation(name, self, connection, End(place, number))
        self._open.add(conversation)
        if self.gate is not None:
            self._keep_room()
        patience = {} if self._tls is None else {"ssl_handshake_timeout": STRANGER_SECONDS}
        try:
            _keep_alive(connection)
            await self.loop.connect_accepted_socket(
                lambda: conversation, connection, ssl=self._tls, **patience
            )
        except (OSError, asyncio.CancelledError):
            connection.close()
            self._open.discard(conversation)

    def _keep_room(self) -> None:
        """Shuts the connections of strangers that leave no room for those of newcomers."""
        strangers = {each.client: each for each in self._open if each.is_stranger}
        since = {client: float(client.port) for client in strangers}  # numbers, in the order of arrival
        for client in surplus(since, max(1, most_connections(self.most) // 2)):
            strangers[client].shut()
            if line := self.refusals.note(client.host or "this machine", "too many connections"):
                _log.warning("%s: %s", self.address, line)

    def forget(self, conversation: _Conversation) -> None:
        """Lets go of a connection that is closed."""
        self._open.discard(conversation)


class _Conversation(Conversation, asyncio.Protocol):
    """The server's end of one connection: a stranger until its proof is right, if there is a gate, then a peer.

    Args:
      name: name of the peer, for people.
      server: server of the connection.
      connection: the connection, which asyncio owns.
      client: address of the client's machine, and the number of the connection.
    """

    def __init__(self, name: str, server: SocketServer, connection: socket.socket, client: End) -> None:
        super().__init__(name, server.handler, client.host)
        self.client = client
        self._connection = connection
        self._server = server
        self._transport: Any = None
        self._inbox = Inbox({Kind.PROOF: PROOF_BYTES})
        self._most_unread = _MAX_UNREAD_BYTES
        self._stranger = server.gate is not None
        self._heard = False  # a wrong proof
        self._shut = False

    # -- asyncio.Protocol, in the server's thread --

    def connection_made(self, transport: Any) -> None:
        """Asks a stranger for its proof, and takes others in."""
        self._transport = transport
        if self._server.gate is None:
            self._become_peer()
            return
        self._server.loop.call_later(STRANGER_SECONDS, self._expire)
        transport.write(pack(Kind.CHALLENGE, 0, self._server.gate.challenge()))

    def data_received(self, data: bytes) -> None:
        """Takes the frames that are complete; nothing after the end."""
        if self.over or self._heard or self._shut:
            return
        try:
            for frame in self._inbox.feed(data):
                if not self._stranger:
                    self.take(frame)
                elif not self._admit(bytes(frame.body)):
                    return
        except ProtocolError as error:
            self.end(Ending.MALFORMED, str(error))

    def connection_lost(self, error: Exception | None) -> None:
        """Tells the handler, if it has not heard of the end before."""
        self.end(Ending.GONE, "the client is gone: its connection broke")
        self._leave()
        self._server.forget(self)

    def _admit(self, proof: bytes) -> bool:
        """Returns whether a stranger is let in; one that is not is told so after a while, and read no further."""
        gate = self._server.gate
        assert gate is not None, "only strangers prove"
        try:
            answer = gate.admit(proof, self._server.binding)
        except Refused as refusal:
            self._heard = True
            self._transport.pause_reading()
            if line := self._server.refusals.note(self.name, str(refusal)):
                _log.warning("%s: %s", self._server.address, line)
            self._server.loop.call_later(REFUSAL_SECONDS, self.end, Ending.REFUSED, str(refusal))
            return False
        self._stranger = False
        self._transport.write(pack(Kind.ADMITTED, 0, answer))
        self._become_peer()
        return True

    def _become_peer(self) -> None:
        # As long a step as a question, until the layouts say how long.
        self._inbox.limits = limits_up(MAX_QUESTION_BYTES)
        if len(self._server.peers) >= self._server.most:
            self.end(Ending.CLOSED, f"the server has {self._server.most} peers already")
            return
        self._server.peers.add(self)

    def _expire(self) -> None:
        if self._stranger:
            self.abort()

    @property
    def is_stranger(self) -> bool:
        """True while nobody is let in, and the connection is not shut."""
        return self._stranger and not self._shut

    def shut(self) -> None:
        """Has the connection end, also one whose handshake is not over; nothing more is read."""
        self._shut = True
        with suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)

    def abort(self) -> None:
        """Closes the connection at once."""
        if self._transport is not None:
            self._transport.abort()

    def _leave(self) -> None:
        self._server.peers.discard(self)
        self.depart()

    # -- what a carrier adds --

    def _furnish(self, terms: Terms) -> None:
        if terms.longest > self._server.longest:
            raise SpecError(
                f"a message of {terms.longest} bytes; this server takes {self._server.longest}: use fewer "
                "environments an actor"
            )
        self._inbox.limits = limits_up(terms.longest_up)
        self._most_unread = _MAX_UNREAD_BYTES + terms.nbytes
        super()._furnish(terms)

    def _transmit(self, kind: Kind, lane: int, body: bytes) -> None:
        self._call(self._write, pack(kind, lane, body))

    def _transmit_reply(self, lane: int, arrays: Sequence[NDArray[Any]]) -> None:
        assert self._terms is not None
        down = self._terms.lanes[lane].down
        self._call(self._write, down.join(arrays, header(Kind.REPLY, lane, down.nbytes)))

    def _arrays_of(self, terms: Terms, frame: Frame) -> Arrays:
        return views_of(terms.lanes[frame.lane].up, frame)

    def _hang_up(self, ending: Ending, reason: str) -> None:
        # Never at once: the handler hears of the end, which may come from inside of it.
        self._server.thread.soon(self._finish, ending, reason)

    def _call(self, function: Any, *arguments: Any) -> None:
        if self._server.thread.is_here:
            function(*arguments)
        else:
            self._server.thread.soon(function, *arguments)

    def _write(self, data: bytes) -> None:
        if self._transport.is_closing():
            return
        self._transport.write(data)
        held = self._transport.get_write_buffer_size()
        if held > self._most_unread:
            self.end(Ending.MALFORMED, f"the client left {held} bytes unread")

    def _finish(self, ending: Ending, reason: str) -> None:
        if self._transport is None:  # its handshake is under way
            return
        if not self._transport.is_closing():
            kind = Kind.REFUSED if ending is Ending.REFUSED else Kind.CLOSED
            self._transport.write(pack(kind, 0, encode_reason(reason)))
            if self._server.closing or ending is Ending.GONE:
                self._transport.close()
            else:
                # Closed by the client first: unread bytes of its would take back what is on the way to it.
                self._transport.resume_reading()
                self._server.loop.call_later(_LINGER_SECONDS, self.abort)
        self._leave()


def _place(connection: socket.socket) -> str:
    """Returns the address of a client's machine; empty if it is this one's socket file, or the client is gone."""
    if connection.family not in (socket.AF_INET, socket.AF_INET6):
        return ""
    try:
        return end_of(*connection.getpeername()[:2]).host
    except OSError:
        return ""


def _origin(connection: socket.socket) -> str:
    """Returns a name of the place that a connection comes from, for people."""
    if connection.family not in _INTERNET:
        return "this machine"
    try:
        host, port = connection.getpeername()[:2]
        return f"{host}:{port}"
    except OSError:
        return "it is gone"


def _keep_alive(connection: socket.socket) -> None:
    """Has the system miss a machine that fell silent."""
    connection.setblocking(False)
    if connection.family not in _INTERNET:
        return
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (
        ("TCP_KEEPIDLE", KEEPALIVE_SECONDS),
        ("TCP_KEEPINTVL", KEEPALIVE_SECONDS // 2),
        ("TCP_KEEPCNT", 2),
        ("TCP_USER_TIMEOUT", 2000 * KEEPALIVE_SECONDS),
    ):
        if hasattr(socket, name):
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


class SocketClient(Caller):
    """A client of a :class:`SocketServer`; implements :class:`~seedbed.transport.interface.Client`.

    Args:
      address: ``"socket:HOST:PORT"`` or ``"socket:unix:PATH"``.
      timeout: seconds to wait for the server to appear; raises ``ConnectionLost`` after them.
      invitation: token and certificate of the server; None where nothing is asked. Raises ``Refused`` if the server
        is another one.
      max_message_bytes: longest step or reply.
    """

    def __init__(
        self,
        address: str,
        *,
        timeout: float,
        invitation: Invitation | None = None,
        max_message_bytes: int = MAX_MESSAGE_BYTES,
    ) -> None:
        super().__init__(address)
        self._longest = max_message_bytes
        # A challenge that nobody expects is answered by an error that says so.
        challenged: Limits = {Kind.CHALLENGE: CHALLENGE_BYTES, Kind.ADMITTED: ANSWER_BYTES}
        self._inbox = Inbox({**limits_down(max_message_bytes), **challenged})
        self._frames: deque[Frame] = deque()
        self._reading = threading.RLock()
        connection, binding = _dial(address, timeout, invitation)
        self._line = _Line(connection)
        try:
            if invitation is not None and not within_machine(address):
                self._prove(invitation, binding)
        except BaseException:
            self.close()
            raise

    def fileno(self) -> int:
        """The number of the socket, which is readable when :meth:`receive` may have something; for ``select``."""
        return self._line.fileno()

    def _prove(self, invitation: Invitation, binding: bytes) -> None:
        """Proves to the server that this side knows the token, and has it prove the same."""
        challenge = self._expect(Kind.CHALLENGE, "it asks for nothing: leave --join out")
        proof = invitation.prove(challenge, binding)
        self._transmit(Kind.PROOF, 0, proof)
        invitation.check(self._expect(Kind.ADMITTED, "it does not answer"), proof, binding)

    def _expect(self, kind: Kind, otherwise: str) -> bytes:
        over = time.monotonic() + CHALLENGE_SECONDS
        while time.monotonic() < over:
            if (frame := self._frame_within(min(WAKE_SECONDS, CHALLENGE_SECONDS))) is None:
                continue
            if frame.kind == kind:
                return bytes(frame.body)
            if frame.kind in (Kind.REFUSED, Kind.CLOSED):
                raise Refused(bytes(frame.body).decode(errors="replace"))
            break
        raise Refused(f"{self.address} is no server of this version that lets clients in: {otherwise}")

    def _furnish(self, terms: Terms) -> None:
        if terms.longest > self._longest:
            raise SpecError(f"a message of {terms.longest} bytes; this client takes {self._longest}")

    def _transmit(self, kind: Kind, lane: int, body: bytes) -> None:
        self._send(pack(kind, lane, body))

    def _transmit_step(self, lane: int, arrays: Sequence[NDArray[Any]]) -> None:
        up = self._opened().lanes[lane].up
        self._send(up.join(arrays, header(Kind.STEP, lane, up.nbytes)))

    def _send(self, data: bytes) -> None:
        try:
            self._line.write(data)
        except OSError as error:
            raise ConnectionLost(f"{self.address}: the server is gone") from error

    def _arrays_of(self, terms: Terms, frame: Frame) -> Arrays:
        return views_of(terms.lanes[frame.lane].down, frame)

    def _next(self, wait: bool) -> Frame | None:
        while True:
            frame = self._frame_within(WAKE_SECONDS if wait else 0.0)
            if frame is not None and frame.kind == Kind.CHALLENGE:
                raise Refused("wrong token: none was given; copy the whole line that the learner printed")
            if frame is not None or not wait:
                return frame

    def _frame_within(self, seconds: float) -> Frame | None:
        """The next frame; None if there is none within ``seconds``."""
        if not self._frames:
            try:
                with self._reading:
                    data = self._line.read(seconds)
            except OSError:
                data = b""
            if data is None:
                return None
            if not data:
                raise ConnectionLost(f"{self.address}: the server is gone: its connection broke")
            self._frames.extend(self._inbox.feed(data))
        return self._frames.popleft() if self._frames else None

    def _shut(self, reason: str) -> None:
        self._line.end(pack(Kind.CLOSED, 0, encode_reason(reason)))
        with self._reading:  # a thread that reads has been woken
            self._line.close()


class _Line:
    """A socket that one thread writes to while another one reads; neither waits with the lock.

    An object of OpenSSL is not to be used by two threads at once, so every call is made under the lock, without
    waiting; the waits are for the socket.
    """

    def __init__(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        self._connection = connection
        self._lock = threading.Lock()
        self._over = False
        self._readable, self._writable = _Selector(), _Selector()
        self._readable.register(connection, selectors.EVENT_READ)
        self._writable.register(connection, selectors.EVENT_WRITE)

    def fileno(self) -> int:
        """The number of the socket."""
        return self._connection.fileno()

    def read(self, seconds: float) -> bytes | None:
        """The bytes that are there, or come within ``seconds``; None if none do, ``b""`` at the end."""
        data = self._read_some()
        if data is None and seconds:
            self._readable.select(seconds)
            data = self._read_some()
        return data

    def _read_some(self) -> bytes | None:
        with self._lock:
            if self._over:
                return b""
            try:
                return self._connection.recv(_READ_BYTES)
            except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
                return None

    def write(self, data: bytes) -> None:
        """Sends all bytes."""
        left = memoryview(data)
        while left:
            sent = self._write_some(left)
            left = left[sent:]
            if not sent:
                self._writable.select(WAKE_SECONDS)

    def _write_some(self, data: Any) -> int:
        with self._lock:
            if self._over:
                raise OSError(errno.ENOTCONN, "closed")
            try:
                return self._connection.send(data)
            except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
                return 0

    def end(self, last: bytes) -> None:
        """Says a last word if there is room for it, and wakes a thread that waits."""
        with suppress(OSError):
            self._write_some(last)
        with self._lock, suppress(OSError):
            self._over = True
            # As a plain socket: TLS would wait for the other side.
            socket.socket.shutdown(self._connection, socket.SHUT_RDWR)

    def close(self) -> None:
        """Frees the socket; no thread uses it any more."""
        with self._lock:
            self._connection.close()


def _dial(address: str, timeout: float, invitation: Invitation | None) -> tuple[socket.socket, bytes]:
    """Connects, and tries again while no server listens; returns the fingerprint that ties proofs to it, too."""
    place = address.removeprefix(SOCKET_PREFIX)
    if place.startswith(_UNIX):
        check_length(place.removeprefix(_UNIX))
    deadline = time.monotonic() + timeout
    while True:
        try:
            return _connected(address, max(_RETRY_SECONDS, deadline - time.monotonic()), invitation)
        except ssl.SSLCertVerificationError as error:
            authority = invitation.authority if invitation else ""
            raise Refused(
                f"the certificate at {address} is not one that {authority} vouches for: {error.verify_message}"
            ) from error
        except OSError as error:
            if time.monotonic() + _RETRY_SECONDS > deadline:
                raise ConnectionLost(
                    f"cannot reach {address} within {timeout:g} s: is the learner running there? "
                    f"({error.strerror or error})"
                ) from error
        time.sleep(_RETRY_SECONDS)


def _connected(address: str, seconds: float, invitation: Invitation | None) -> tuple[socket.socket, bytes]:
    place = address.removeprefix(SOCKET_PREFIX)
    if place.startswith(_UNIX):
        connection = socket.socket(socket.AF_UNIX)
        try:
            connection.settimeout(seconds)
            connection.connect(place.removeprefix(_UNIX))
        except BaseException:
            connection.close()
            raise
        return connection, b""
    host, _, port = place.rpartition(":")
    connection = socket.create_connection((host.strip("[]"), int(port)), seconds)
    try:
        if invitation is None or not invitation.wants_tls(address):
            _keep_alive(connection)
            return connection, b""
        encrypted = secured(connection, host.strip("[]"), invitation.authority)
    except BaseException:
        connection.close()
        raise
    try:
        fingerprint = require_certificate(encrypted, address, invitation.fingerprint)
        _keep_alive(encrypted)
    except BaseException:
        encrypted.close()
        raise
    return encrypted, bytes.fromhex(fingerprint)
