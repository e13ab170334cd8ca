"""The carrier between machines: one bidirectional gRPC stream a client, raw frames as its messages.

Alternatives weighed, all with raw bytes and no protobuf. A synchronous server holds two threads a stream, and
its pool is a bound that stays hidden until the next actor hangs; the asyncio server does as many round trips a
second with one thread, and calls the handler from that one. For the client it is the other way round: a
synchronous call waits in plain Python, which another thread or Ctrl-C can interrupt.

A conversation has two calls: ``Challenge``, of which the server sends the only message, and ``Converse``, whose headers
answer it. The server reads no message of a client that it has not let in, so such a one can make it hold no more than
headers and a window of 64 KiB; and it has no place among the peers. Connections without a conversation are closed
after some seconds.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import queue
import ssl
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any
from urllib.parse import quote, unquote

from numpy.typing import NDArray

# gRPC's fork support is a lock around every call, and nothing here forks.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
# What it prints to stderr is raised as an error too.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")

import grpc
import grpc.aio

from seedbed.errors import ConfigError, ConnectionLost, ProtocolError, Refused, SpecError, TransportError
from seedbed.transport.admission import (
    CHALLENGE_SECONDS,
    REFUSAL_SECONDS,
    STRANGER_SECONDS,
    Gate,
    Invitation,
    Refusals,
    most_connections,
)
from seedbed.transport.conversation import (
    CLOSED_BY_CLIENT,
    Arrays,
    Caller,
    Conversation,
    Ending,
    next_of,
    views_of,
)
from seedbed.transport.framing import (
    HEADER_BYTES,
    Frame,
    Kind,
    encode_reason,
    header,
    limits_down,
    limits_up,
    pack,
    unpack,
)
from seedbed.transport.interface import MAX_MESSAGE_BYTES, MAX_PEERS, MAX_QUESTION_BYTES, Handler, Terms
from seedbed.transport.loop_thread import LoopThread
from seedbed.transport.socket_file import SocketFile, check_length
from seedbed.transport.strangers import End, Strangers, end_of
from seedbed.transport.tls import Identity, certificate_at, fingerprint_of, name_in

_log = logging.getLogger(__name__)

UNIX_PREFIX = "unix:"
KEEPALIVE_SECONDS = 10
"""A silent peer is asked for a sign of life after this long, and given up after as long again: a machine that
vanished is noticed within 20 s. A process that died is noticed at once."""

_LINGER_SECONDS = 1.0  # how long an end waits for a client to read what is on its way
_METHOD = "/seedbed.Transport/Converse"
_CHALLENGE = "/seedbed.Transport/Challenge"
_PROOF = "seedbed-proof-bin"
_CALLS_A_CONNECTION = 16
_LOOK_SECONDS, _HURRIED_SECONDS = 0.5, 0.05  # between two looks at the strangers; while there are too many
_MAX_STATUS_CHARACTERS = 1000  # a status travels in HTTP headers, which have a limit of their own
_ATTEMPT_MILLISECONDS = 5000
_STATUS = {
    Ending.GONE: grpc.StatusCode.OK,
    Ending.CLOSED: grpc.StatusCode.ABORTED,
    Ending.REFUSED: grpc.StatusCode.FAILED_PRECONDITION,
    Ending.MALFORMED: grpc.StatusCode.INVALID_ARGUMENT,
}


def _pings() -> list[tuple[str, int]]:
    """The options by which a silent peer is missed."""
    return [
        ("grpc.keepalive_time_ms", KEEPALIVE_SECONDS * 1000),
        ("grpc.keepalive_timeout_ms", KEEPALIVE_SECONDS * 1000),
        # That of every other ping, one of which may be on its way when the peer vanishes; a minute by default.
        ("grpc.http2.ping_timeout_ms", KEEPALIVE_SECONDS * 1000),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.http2.min_ping_interval_without_data_ms", KEEPALIVE_SECONDS * 500),
        ("grpc.http2.min_recv_ping_interval_without_data_ms", KEEPALIVE_SECONDS * 500),
    ]


def _options(max_message_bytes: int, keepalive: bool) -> list[tuple[str, int]]:
    longest = HEADER_BYTES + max(max_message_bytes, MAX_QUESTION_BYTES)
    return [
        *(_pings() if keepalive else []),
        ("grpc.max_receive_message_length", longest),
        ("grpc.max_send_message_length", longest),
        ("grpc.initial_reconnect_backoff_ms", 100),
        ("grpc.max_reconnect_backoff_ms", 1000),
        # Of an attempt, which has that long to connect: a handshake takes a few round trips.
        ("grpc.min_reconnect_backoff_ms", _ATTEMPT_MILLISECONDS),
        ("grpc.enable_retries", 0),
        # Two servers on one port would share the clients out between them.
        ("grpc.so_reuseport", 0),
        # No proxy, and no channel shared with another client of this process.
        ("grpc.enable_http_proxy", 0),
        ("grpc.use_local_subchannel_pool", 1),
    ]


def _of_strangers(most: int) -> list[tuple[str, int]]:
    """The options of a server by which strangers cost it little."""
    return [
        ("grpc.server_handshake_timeout_ms", int(STRANGER_SECONDS * 1000)),
        ("grpc.max_connection_idle_ms", int(STRANGER_SECONDS * 1000)),
        ("grpc.max_concurrent_streams", _CALLS_A_CONNECTION),
        ("grpc.max_allowed_incoming_connections", most_connections(most)),
    ]


class StreamServer:
    """Listens at an address; implements :class:`~seedbed.transport.interface.Server`.

    Args:
      address: ``"HOST:PORT"`` (port 0: a free one, the attribute ``address`` tells which) or ``"unix:PATH"``.
        Raises ``ConfigError`` if it cannot be used.
      handler: handler that answers.
      gate: lets clients in; None for all that reach the address.
      max_message_bytes: longest step or reply.
      keepalive: whether silent clients are missed; False where the handler does it.
    """

    def __init__(
        self,
        address: str,
        handler: Handler,
        *,
        gate: Gate | None = None,
        max_message_bytes: int = MAX_MESSAGE_BYTES,
        keepalive: bool = True,
        most: int = MAX_PEERS,
    ) -> None:
        self.address = address
        self._most = most
        self._gate = gate
        self._identity = gate.identity_at(address) if gate else None
        self._binding = _binding(self._identity)
        self._refusals = Refusals()
        self._handler = gate.vouching(handler) if gate else handler
        self._max = max_message_bytes
        self._keepalive = keepalive
        self._numbers = itertools.count(1)
        self._file: SocketFile | None = None
        self._peers: set[_Conversation] = set()
        self._admitted: set[End] = set()
        self._thread = LoopThread(f"grpc:{address}")
        self._loop = self._thread.loop
        self.address = self._thread.start(self._serve, self._remove_file)

    def __repr__(self) -> str:
        return f"<server {self.address}: {len(self._peers)} peers>"

    def close(self) -> None:
        """See :class:`~seedbed.transport.interface.Server`."""
        self._thread.stop()

    # -- the server's thread --

    def _remove_file(self) -> None:
        if self._file is not None:
            self._file.remove()

    async def _serve(self, listening: Future[str]) -> None:
        try:
            options = [*_options(self._max, self._keepalive), *_of_strangers(self._most)]
            server = grpc.aio.server(options=options)
            server.add_generic_rpc_handlers((_Handlers(self._converse, self._challenge),))
            bound = self._bind(server, self.address)
            await server.start()
        except BaseException as error:
            listening.set_exception(error)
            return
        listening.set_result(bound)
        keeping = self._loop.create_task(self._keep_room(bound)) if self._gate else None
        await self._thread.stopping.wait()
        if keeping is not None:
            keeping.cancel()
        for conversation in list(self._peers):
            conversation.close("the server is closing")
        await server.stop(grace=1.0)

    def _bind(self, server: grpc.aio.Server, address: str) -> str:
        if address.startswith(UNIX_PREFIX):
            file = SocketFile(address.removeprefix(UNIX_PREFIX))
            with _translating_bind(address), file.binding() as path:
                server.add_insecure_port(_target(UNIX_PREFIX + path))
            self._file = file
            return address
        host, _, _ = address.rpartition(":")
        with _translating_bind(address):
            port = self._add_port(server, address)
        return f"{host}:{port}"

    def _add_port(self, server: grpc.aio.Server, address: str) -> int:
        if self._identity is None:
            return int(server.add_insecure_port(address))
        shown = [(self._identity.key, self._identity.certificate)]
        return int(server.add_secure_port(address, grpc.ssl_server_credentials(shown)))

    async def _keep_room(self, bound: str) -> None:
        """Has the connections of strangers leave room for those of newcomers."""
        strangers = Strangers(int(bound.rpartition(":")[2]), max(1, most_connections(self._most) // 2))
        while True:
            look = partial(strangers.shut_surplus, self._admitted, time.monotonic())
            shut = await asyncio.to_thread(look)
            for end in shut:
                self._refuse(f"{end.host}:{end.port}", "too many connections")
            await asyncio.sleep(_HURRIED_SECONDS if shut else _LOOK_SECONDS)

    async def _challenge(self, requests: AsyncIterator[bytes], context: Any) -> None:
        """Gives a client something to answer; reads nothing and keeps nothing."""
        if self._gate is None:
            await context.abort(_STATUS[Ending.REFUSED], "nothing is asked of anybody here: leave --join out")
            return
        await context.write(self._gate.challenge())

    async def _let_in(self, context: Any) -> bool:
        """Returns whether a client has proved that it knows the token; one that has not is told so after a while."""
        if self._gate is None:
            return True
        given = dict(context.invocation_metadata() or ()).get(_PROOF)
        try:
            _require_newest_tls(context)
            answer = self._gate.admit(given if isinstance(given, bytes) else None, self._binding)
        except Refused as refusal:
            self._refuse(context.peer() or "unknown", str(refusal))
            await asyncio.sleep(REFUSAL_SECONDS)
            await context.abort(_STATUS[Ending.REFUSED], str(refusal))
            return False
        await context.send_initial_metadata(((_PROOF, answer),))
        return True

    def _refuse(self, peer: str, reason: str) -> None:
        """Notes a client that was turned away in the log, if it is time for a line."""
        if line := self._refusals.note(peer, reason):
            _log.warning("%s: %s", self.address, line)

    async def _converse(self, requests: AsyncIterator[bytes], context: Any) -> None:
        """One stream, from its first to its last message; cancelled by gRPC when the client is gone."""
        if not await self._let_in(context):
            return
        if len(self._peers) >= self._most:
            await context.abort(_STATUS[Ending.CLOSED], f"the server has {self._most} peers already")
        name = f"grpc peer {next(self._numbers)} ({context.peer() or 'unknown'})"
        end = end_of_peer(context.peer() or "")
        conversation = _Conversation(name, self._handler, self._thread, self._max, end.host if end else "")
        self._peers.add(conversation)
        if end is not None:
            self._admitted.add(end)
        reading = self._loop.create_task(conversation.read(context.read))
        try:
            ending, reason = await conversation.write(context.write)
        except asyncio.CancelledError:
            conversation.end(Ending.GONE, "the client is gone: its connection broke")
            raise
        except grpc.aio.BaseError:
            conversation.end(Ending.GONE, "the client is gone: its connection broke")
            return
        finally:
            reading.cancel()
            self._peers.discard(conversation)
            if end is not None:
                self._admitted.discard(end)
            conversation.depart()
        if ending is not Ending.GONE:
            await context.abort(_STATUS[ending], reason[:_MAX_STATUS_CHARACTERS])


def _target(address: str) -> str:
    """The address as gRPC reads it: a URI, in which a space or a percent sign of a path is written in hex."""
    if not address.startswith(UNIX_PREFIX):
        return address
    if "," in address:
        raise ConfigError(f"{address!r} has a comma, which gRPC takes for the end of a path: choose another")
    return UNIX_PREFIX + quote(address.removeprefix(UNIX_PREFIX))


@contextmanager
def _translating_bind(address: str) -> Iterator[None]:
    """Turns gRPC's error of an address that cannot be listened at into ours."""
    try:
        yield
    except (RuntimeError, OSError) as error:
        raise ConfigError(
            f"cannot listen at {address}: is the port free and the host this machine's? ({error})"
        ) from error


class _Handlers(grpc.GenericRpcHandler):  # type: ignore[misc]
    """Knows the two methods."""

    def __init__(self, converse: Callable[..., Awaitable[None]], challenge: Callable[..., Any]) -> None:
        self._handlers = {
            _METHOD: grpc.stream_stream_rpc_method_handler(converse),
            _CHALLENGE: grpc.stream_stream_rpc_method_handler(challenge),
        }

    def service(self, details: Any) -> Any:
        return self._handlers.get(details.method)


def _binding(identity: Identity | None) -> bytes:
    """Returns the fingerprint of the certificate, which ties proofs to the conversation; empty in plain text."""
    return bytes.fromhex(identity.fingerprint) if identity else b""


def end_of_peer(peer: str) -> End | None:
    """Returns the end of a connection by gRPC's name for the client; None if it is of this machine's sockets."""
    kind, _, rest = peer.partition(":")
    if kind not in ("ipv4", "ipv6"):
        return None
    host, _, port = unquote(rest).rpartition(":")
    return end_of(host.strip("[]"), int(port))


def _require_newest_tls(context: Any) -> None:
    (version,) = context.auth_context().get("ssl_tls_version") or (b"TLSv1.3",)
    if version != b"TLSv1.3":
        raise Refused(f"the client speaks {version.decode()}, and this server TLSv1.3")


class _Conversation(Conversation):
    """The server's end of one stream: a task that reads, a task that writes, and a queue between them.

    The queue holds at most a reply a lane and the answers to the questions of a client that does not wait for
    them; past ``_MAX_UNSENT`` messages such a client is sent away.
    """

    _MAX_UNSENT = 256

    def __init__(self, name: str, handler: Handler, thread: LoopThread, max_bytes: int, place: str) -> None:
        super().__init__(name, handler, place)
        self._thread = thread
        self._max = max_bytes
        self._limits = limits_up(MAX_QUESTION_BYTES)
        self._outgoing: asyncio.Queue[bytes | tuple[Ending, str]] = asyncio.Queue()
        self._patience = asyncio.timeout(None)  # how long ``write`` may take; without end until the end

    async def read(self, read: Callable[[], Awaitable[Any]]) -> None:
        """Takes the client's messages until there are no more."""
        while not self.over:
            try:
                message = await read()
            except grpc.aio.BaseError:
                return  # gRPC cancels the stream; why is told there
            if message is grpc.aio.EOF:
                self.end(Ending.GONE, CLOSED_BY_CLIENT)
                return
            self._take_message(message)

    def _take_message(self, message: bytes) -> None:
        try:
            self.take(unpack(message, self._limits))
        except ProtocolError as error:
            self.end(Ending.MALFORMED, str(error))

    async def write(self, write: Callable[[bytes], Awaitable[None]]) -> tuple[Ending, str]:
        """Sends the queued messages until the conversation ends; returns its ending."""
        with suppress(TimeoutError):
            async with self._patience:
                while True:
                    item = await self._outgoing.get()
                    if isinstance(item, tuple):
                        return item
                    await write(item)
        assert self._over is not None
        return self._over

    def _furnish(self, terms: Terms) -> None:
        if terms.longest > self._max:
            raise SpecError(
                f"a message of {terms.longest} bytes; this server takes {self._max}: use fewer environments an actor, "
                "or, if it is the weights (for those who run the policy), a smaller network or --transport shm"
            )
        self._limits = limits_up(terms.longest_up)
        super()._furnish(terms)

    def _transmit(self, kind: Kind, lane: int, body: bytes) -> None:
        self._enqueue(pack(kind, lane, body))

    def _transmit_reply(self, lane: int, arrays: Sequence[NDArray[Any]]) -> None:
        assert self._terms is not None
        down = self._terms.lanes[lane].down
        self._enqueue(down.join(arrays, header(Kind.REPLY, lane, down.nbytes)))

    def _arrays_of(self, terms: Terms, frame: Frame) -> Arrays:
        return views_of(terms.lanes[frame.lane].up, frame)

    def _hang_up(self, ending: Ending, reason: str) -> None:
        self._enqueue((ending, reason))

    def _enqueue(self, item: bytes | tuple[Ending, str]) -> None:
        self._thread.soon(self._enqueue_here, item)

    def _enqueue_here(self, item: bytes | tuple[Ending, str]) -> None:
        self._outgoing.put_nowait(item)
        if isinstance(item, tuple):
            with suppress(RuntimeError):  # the stream is over already
                self._patience.reschedule(self._thread.loop.time() + _LINGER_SECONDS)
        if self._outgoing.qsize() > self._MAX_UNSENT:
            self.end(Ending.MALFORMED, f"the client left {self._outgoing.qsize()} messages unread")


class StreamClient(Caller):
    """A client of a :class:`StreamServer`; implements :class:`~seedbed.transport.interface.Client`.

    Args:
      address: ``"HOST:PORT"`` or ``"unix:PATH"``.
      timeout: seconds to wait for the server to appear; raises ``ConnectionLost`` after them.
      invitation: token and certificate of the server; None where nothing is asked. Raises ``Refused`` if the server
        is another one.
      max_message_bytes: longest step or reply.
      keepalive: whether a silent server on another machine is missed. One of this machine closes its socket when it
        ends, and while it is only stopped (Ctrl-Z) nothing is lost.
    """

    def __init__(
        self,
        address: str,
        *,
        timeout: float,
        invitation: Invitation | None = None,
        max_message_bytes: int = MAX_MESSAGE_BYTES,
        keepalive: bool = True,
    ) -> None:
        super().__init__(address)
        elsewhere = not address.startswith(UNIX_PREFIX)
        if not elsewhere:
            check_length(address.removeprefix(UNIX_PREFIX))
        self._max = max_message_bytes
        self._limits = limits_down(max_message_bytes)
        self._outgoing: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._incoming: queue.SimpleQueue[Frame | TransportError] = queue.SimpleQueue()
        self._over = False
        over = time.monotonic() + timeout
        binding = self._dial(_options(max_message_bytes, keepalive and elsewhere), invitation, timeout)
        try:
            self._wait_until_ready(max(0.0, over - time.monotonic()), timeout)
            self._call = self._begin(invitation, binding)
        except BaseException:
            self._channel.close()
            raise
        self._reader = threading.Thread(target=self._read, name=f"replies of {address}", daemon=True)
        self._reader.start()

    def _dial(self, options: list[tuple[str, Any]], invitation: Invitation | None, timeout: float) -> bytes:
        """Makes the channel; returns the fingerprint that ties proofs to it."""
        if invitation is None or not invitation.wants_tls(self.address):
            self._channel = grpc.insecure_channel(_target(self.address), options)
            return b""
        certificate = certificate_at(
            self.address,
            timeout=timeout,
            fingerprint=invitation.fingerprint,
            authority=invitation.authority,
        )
        host = self.address.rpartition(":")[0].strip("[]")
        # That certificate and no other is taken from here on.
        root = grpc.ssl_channel_credentials(ssl.DER_cert_to_PEM_cert(certificate).encode())
        named = ("grpc.ssl_target_name_override", name_in(certificate, host))
        self._channel = grpc.secure_channel(self.address, root, [*options, named])
        return bytes.fromhex(fingerprint_of(certificate))

    def _wait_until_ready(self, seconds: float, timeout: float) -> None:
        try:
            grpc.channel_ready_future(self._channel).result(seconds)
        except grpc.FutureTimeoutError as error:
            raise ConnectionLost(
                f"cannot reach {self.address} within {timeout:g} s: is the learner running there?"
            ) from error

    def _begin(self, invitation: Invitation | None, binding: bytes) -> Any:
        """The conversation's call, once each side has proved to the other that it knows the token."""
        converse = self._channel.stream_stream(_METHOD)
        outgoing = iter(self._outgoing.get, None)
        if invitation is None or self.address.startswith(UNIX_PREFIX):
            return converse(outgoing)
        answer = None
        try:
            asked = self._channel.stream_stream(_CHALLENGE)(iter(()), timeout=CHALLENGE_SECONDS)
            proof = invitation.prove(next(asked, b""), binding)
            call = converse(outgoing, metadata=((_PROOF, proof),))
            answer = dict(call.initial_metadata() or ()).get(_PROOF)
            if answer is None:
                next(call)  # which raises why there is none
            invitation.check(answer or b"", proof, binding)
        except grpc.RpcError as error:
            raise _translated(self.address, error) from error
        finally:
            if answer is None:
                self._outgoing.put(None)  # ends the thread that waits for messages
        return call

    def _read(self) -> None:
        """The reader's thread: gRPC's replies cannot be asked for without waiting, a queue's can."""
        try:
            for message in self._call:
                self._incoming.put(unpack(message, self._limits))
            self._end(ConnectionLost(f"{self.address}: the server ended the conversation"))
        except grpc.RpcError as error:
            self._end(_translated(self.address, error))
        except ProtocolError as error:
            self._end(error)
            self._call.cancel()

    def _end(self, error: TransportError) -> None:
        self._over = True
        self._incoming.put(error)

    def _furnish(self, terms: Terms) -> None:
        if terms.longest > self._max:
            raise SpecError(f"a message of {terms.longest} bytes; this client takes {self._max}")

    def _transmit(self, kind: Kind, lane: int, body: bytes) -> None:
        self._post(pack(kind, lane, body))

    def _transmit_step(self, lane: int, arrays: Sequence[NDArray[Any]]) -> None:
        up = self._opened().lanes[lane].up
        self._post(up.join(arrays, header(Kind.STEP, lane, up.nbytes)))

    def _post(self, message: bytes) -> None:
        if self._over:
            raise ConnectionLost(self.address)
        self._outgoing.put(message)

    def _arrays_of(self, terms: Terms, frame: Frame) -> Arrays:
        return views_of(terms.lanes[frame.lane].down, frame)

    def _next(self, wait: bool) -> Frame | None:
        item = next_of(self._incoming, wait)
        if isinstance(item, TransportError):
            self._incoming.put(item)  # the end stays the end
            raise item
        return item

    def _shut(self, reason: str) -> None:
        self._outgoing.put(pack(Kind.CLOSED, 0, encode_reason(reason)))
        self._outgoing.put(None)
        self._incoming.put(ConnectionLost(f"{self.address}: this side closed the conversation"))
        # The stream ends when the server has read the last message; a server that hangs is not waited for.
        self._reader.join(timeout=1.0)
        self._call.cancel()
        self._channel.close()


def _translated(address: str, error: grpc.RpcError) -> TransportError:
    code, details = error.code(), error.details() or "no reason given"
    if code is grpc.StatusCode.FAILED_PRECONDITION:
        return Refused(details)
    if code is grpc.StatusCode.UNIMPLEMENTED:
        return ConnectionLost(f"{address}: something listens there, but no Seedbed server ({details})")
    if code is grpc.StatusCode.UNAVAILABLE:
        return ConnectionLost(f"{address}: the server is gone ({details})")
    return ConnectionLost(f"{address}: {details}", said=details if code is _STATUS[Ending.CLOSED] else None)
