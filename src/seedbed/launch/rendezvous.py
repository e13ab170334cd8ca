"""The rendezvous of a run's hosts: they exchange messages, and notice the loss of one of them.

::

    host 1 ──► host 0 ◄── host 2      each sends its message, host 0 sends all of them back

JAX carries the arrays that devices exchange. This conversation carries the rest: the common decisions of the host
programs (to stop, to save), and the loss of a host, which is reported at once and with its reason, while the other
hosts' devices still wait for it. Host 0 is a :class:`~seedbed.transport.interface.Handler` on the transport of actors,
with its admission, its limits and its parser. Messages travel on one lane, in pieces; an empty step on another lane,
answered after a while, is the heartbeat of both sides, from the moment at which a host has joined.
"""

from __future__ import annotations

import contextlib
import json
import logging
import queue
import socket
import struct
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from seedbed import __version__
from seedbed.errors import ConfigError, ConnectionLost, Refused, RunFailed, TransportError
from seedbed.transport.admission import Gate, Invitation
from seedbed.transport.connect import connect, listen
from seedbed.transport.conversation import Arrays
from seedbed.transport.interface import Client, Layout, Layouts, Peer

_log = logging.getLogger(__name__)
_LENGTH = struct.Struct("!Q")
_MOST_BYTES = 1 << 36
_PIECE_BYTES = 1 << 15
_BEATS = 5
_GATHERING_SECONDS = 60.0
"""Time without a sign of life, while hosts still come, after which one of them counts as lost."""
_LOOK_SECONDS, _ATTEMPT_SECONDS = 0.2, 20.0
_CLOSED = "the connection was closed"
_ENDED = "this host has ended"
_DISMISSED = "host 0 did not begin: not all hosts came"
_BEGUN = "the run has begun without it"


_PIECE = Layout((((), "int64"), ((), "int64"), ((_PIECE_BYTES,), "uint8")))
"""Layout of a piece: number of bytes after this piece, number of valid bytes in it, and its bytes (uint8)."""
EXCHANGE, BEAT = range(2)
LANES = (Layouts(_PIECE, _PIECE), Layouts(Layout(()), Layout(())))


def piece_of(content: bytes, start: int = 0) -> Arrays:
    """Returns the piece of a message that begins at ``start``, as arrays for the transport."""
    piece = np.frombuffer(content[start : start + _PIECE_BYTES], np.uint8)
    room = np.zeros(_PIECE_BYTES, np.uint8)
    room[: piece.size] = piece
    left = max(0, len(content) - start - _PIECE_BYTES)
    return [np.array(left, np.int64), np.array(piece.size, np.int64), room]


def read(arrays: Sequence[NDArray[Any]]) -> tuple[bytes, int]:
    """Returns the bytes of a piece, and the number of bytes after it."""
    left, size, room = arrays
    return room[: max(0, int(size))].tobytes(), int(left)


class Rendezvous(ABC):
    """Base class of the two ends of a rendezvous; :meth:`exchange` belongs to one thread.

    Args:
      index: number of this host.
    """

    def __init__(self, index: int) -> None:
        self.index = index
        self._lock = threading.Lock()
        self._lost: str | None = None
        self._gone = threading.Event()
        self._on_loss: Callable[[str], None] | None = None
        self._closed = threading.Event()
        self._timeout, self._changed = _GATHERING_SECONDS, threading.Event()

    @abstractmethod
    def exchange(self, message: bytes) -> list[bytes]:
        """Sends a message to all hosts; returns every host's message, in their order, once all have come.

        Raises:
          RunFailed: a host was lost, or has left.
        """

    @abstractmethod
    def _leave(self, failure: str | None) -> None:
        """Tells the others that this host has ended, or failed, and closes the connections."""

    @abstractmethod
    def _wake(self, reason: str) -> None:
        """Reports a loss to the other hosts, and to the thread that waits in ``exchange``."""

    @abstractmethod
    def _beat(self) -> Iterator[tuple[int, float]]:
        """Sends a heartbeat; yields each other host with the time of its last one, in s of :func:`time.monotonic`."""

    @property
    def lost(self) -> str | None:
        """The first loss of a host, with its reason; None while all are alive."""
        with self._lock:
            return self._lost

    def wait_for_loss(self, seconds: float) -> str | None:
        """Returns :attr:`lost`, after waiting up to ``seconds`` for a loss: a device may have noticed it first."""
        self._gone.wait(seconds)
        return self.lost

    def watch(self, on_loss: Callable[[str], None]) -> None:
        """Registers a callback for the first loss of a host, called in a thread of its own with the reason.

        It is called at once if a host is lost already.
        """
        with self._lock:
            self._on_loss, lost = on_loss, self._lost
        if lost is not None:
            _start("loss", on_loss, lost)

    def close(self, failure: str | None = None) -> None:
        """Leaves the rendezvous; ``failure`` is the reason if this host failed. Safe to call twice."""
        with self._lock:
            first = not self._closed.is_set()
            self._closed.set()
            self._changed.set()
            told = None if failure is None or self._lost else f"host {self.index} failed: {failure}"
        if first:
            self._leave(told)

    def begin(self, timeout: float) -> None:
        """Sets the time without a heartbeat, in s, after which another host counts as lost."""
        self._timeout = timeout
        self._changed.set()  # the next heartbeat is due by the new time

    def _pulse(self) -> None:
        """Sends heartbeats and looks for those of the others, as long as this end is open."""
        while True:
            self._changed.wait(self._timeout / _BEATS)
            self._changed.clear()
            if self._closed.is_set():
                return
            for other, heard in self._beat():
                if time.monotonic() - heard > self._timeout:
                    self._miss(other, f"host {other} is gone: no sign of life for {self._timeout:g} s")

    def _miss(self, other: int, reason: str) -> None:
        """Reports a host without a sign of life."""
        self.lose(reason)

    def lose(self, reason: str) -> None:
        """Notes the first loss of a host and reports it: to the log, the other hosts and the registered callback."""
        with self._lock:
            if self._lost is not None or self._closed.is_set():
                return
            self._lost, on_loss = reason, self._on_loss
        _log.error("%s", reason)
        self._gone.set()
        self._wake(reason)
        if on_loss is not None:
            _start("loss", on_loss, reason)


def _start(name: str, function: Callable[..., None], *arguments: Any) -> None:
    threading.Thread(target=function, args=arguments, name=name, daemon=True).start()


# Host 0.


@dataclass
class _Guest:
    """Another host, as host 0 knows it.

    Attributes:
      peer: the conversation with it.
      inbox: its messages; None marks the end.
      pieces: bytes received so far of its current message.
      answer: all hosts' messages, packed, while the host fetches them; None while it sends its own.
      fetched: number of bytes of the answer that the host has received.
      heard: time of its last heartbeat or message, in seconds of :func:`time.monotonic`.
      owed: whether the host waits for the reply to a heartbeat.
      ended: whether the host has left in an orderly way.
    """

    peer: Peer
    inbox: queue.SimpleQueue[bytes | None] = field(default_factory=queue.SimpleQueue)
    pieces: bytearray = field(default_factory=bytearray)
    answer: bytes | None = None
    fetched: int = 0
    heard: float = field(default_factory=time.monotonic)
    owed: bool = False
    ended: bool = False

    def give(self, answer: bytes) -> None:
        """Sends the next piece of all hosts' messages."""
        piece = piece_of(answer, self.fetched)
        self.fetched += int(piece[1])
        self.answer = answer if piece[0] else None
        self.peer.reply(EXCHANGE, piece)


class _Center(Rendezvous):
    """Host 0's end: the handler of the other hosts' conversations.

    Args:
      address: ``HOST:PORT`` to listen at.
      count: number of hosts.
      gate: admission of the other hosts.
      judge: function that takes a host's hello and returns the reason to refuse it, or None.
    """

    def __init__(
        self, address: str, count: int, gate: Gate, judge: Callable[[Mapping[str, Any]], str | None]
    ) -> None:
        super().__init__(0)
        self._count = count
        self._judge = judge
        self._guests: dict[int, _Guest] = {}
        self._begun = False
        self._came = threading.Condition(self._lock)
        self._server = listen(address, self, gate=gate, keepalive=False)
        _start("pulse of host 0", self._pulse)

    def wait_for_hosts(self, patience: float, look: Callable[[], None]) -> list[int]:
        """Waits until all hosts have joined, at most ``patience`` s; returns the numbers of the missing hosts."""
        over = time.monotonic() + patience
        while True:
            look()
            with self._came:
                if self._begun or time.monotonic() > over:
                    return self._missing()
                self._came.wait(_LOOK_SECONDS)

    def _missing(self) -> list[int]:
        return [index for index in range(1, self._count) if index not in self._guests]

    def dismiss(self) -> None:
        """Closes the conversations with all hosts, since some are missing."""
        self._closed.set()
        self._leave(_DISMISSED)

    def begin(self, timeout: float) -> None:
        """See :class:`Rendezvous`."""
        for guest in self._guests.values():
            guest.heard = time.monotonic()
        super().begin(timeout)

    def exchange(self, message: bytes) -> list[bytes]:
        """See :class:`Rendezvous`."""
        messages = [message, *(self._next(other) for other in sorted(self._guests))]
        content = _packed(messages)
        for guest in self._guests.values():
            guest.fetched = 0
            guest.give(content)
        return messages

    def _next(self, other: int) -> bytes:
        inbox = self._guests[other].inbox
        message = None if self.lost else inbox.get()
        if message is None:
            inbox.put(None)  # a later call finds the end too
            raise RunFailed(self.lost or f"host {other} ended before host 0 did")
        return message

    # The handler's methods, called by the server.

    def answer(self, peer: Peer, message: dict[str, Any]) -> dict[str, Any]:
        """Checks a host's hello, admits it and opens its lanes; raises :class:`Refused` if it may not join."""
        index = message.get("host")
        if type(index) is not int or not isinstance(message.get("settings"), dict | None):
            raise Refused("not what a host says to host 0")
        if (reason := self._against(index, message)) is not None:
            _log.warning("host %s was turned away: %s", index, reason)
            raise Refused(f"host 0 turns host {index} away: {reason}")
        with self._came:
            begun = self._begun
            if not begun:
                self._guests[index] = _Guest(peer)
                self._begun = not self._missing()  # not later: a host that leaves from now on is lost
                self._came.notify_all()
        if begun:
            peer.close(_BEGUN)
        else:
            peer.open(LANES)
        return {}

    def _against(self, index: int, hello: Mapping[str, Any]) -> str | None:
        """Returns the reason to refuse a host; None if it may join."""
        if hello.get("version") != __version__:
            return f"it has version {hello.get('version')} of Seedbed, host 0 has {__version__}"
        if hello.get("hosts") not in (self._count, None):
            return f"it was told of {hello['hosts']} hosts, host 0 of {self._count}"
        if not 0 < index < self._count:
            return f"there are {self._count} hosts, 0 to {self._count - 1}"
        if index in self._guests and not self._begun:
            return "another has come with that index"
        return self._judge(hello)

    def deliver(self, peer: Peer, lane: int, arrays: Arrays) -> None:
        """Takes a heartbeat or a piece of a message, or sends the next piece of all messages."""
        _, guest = self._whose(peer)
        if guest is None:
            return
        guest.heard = time.monotonic()
        if lane == BEAT:
            guest.owed = True
        elif guest.answer is not None:
            guest.give(guest.answer)
        else:
            self._take(guest, *read(arrays))

    def _take(self, guest: _Guest, piece: bytes, left: int) -> None:
        guest.pieces += piece
        if len(guest.pieces) > _MOST_BYTES:
            guest.peer.close(f"a message of more than {_MOST_BYTES} bytes")
        elif left > 0:
            guest.peer.reply(EXCHANGE, piece_of(b""))
        else:
            guest.inbox.put(bytes(guest.pieces))
            guest.pieces.clear()

    def left(self, peer: Peer, reason: str) -> None:
        """Notes the loss of a host; before the run has begun, the host may join again."""
        other, guest = self._whose(peer)
        if guest is None:
            return
        with self._came:
            if not self._begun:
                del self._guests[other]
                return
        guest.ended = reason == _ENDED
        if not guest.ended:
            _log.warning("host %d: %s", other, reason)
            told = reason.startswith(f"host {other} failed")
            self.lose(reason if told else f"host {other} is gone: {_CLOSED}")
        guest.inbox.put(None)

    def _whose(self, peer: Peer) -> tuple[int, _Guest | None]:
        with self._lock:
            found = ((other, guest) for other, guest in self._guests.items() if guest.peer is peer)
            return next(found, (0, None))

    # Messages to the other hosts.

    def _beat(self) -> Iterator[tuple[int, float]]:
        with self._lock:
            guests = list(self._guests.items())
        for other, guest in guests:
            if guest.owed:
                guest.owed = False
                guest.peer.reply(BEAT, [])
            if not guest.ended:
                yield other, guest.heard

    def _miss(self, other: int, reason: str) -> None:
        with self._lock:
            waiting = None if self._begun else self._guests.get(other)
        if waiting is None:
            self.lose(reason)
        else:  # another may come in its place
            _log.warning("%s", reason)
            waiting.peer.close(reason)

    def _wake(self, reason: str) -> None:
        for guest in self._guests.values():
            guest.peer.close(reason)
            guest.inbox.put(None)

    def _leave(self, failure: str | None) -> None:
        with self._lock:
            guests = list(self._guests.values())
        for guest in guests:
            guest.peer.close(failure or _ENDED)
        self._server.close()


# The others.


class _Follower(Rendezvous):
    """Another host's end: a client of host 0.

    Args:
      index: number of this host.
      client: an open conversation.
    """

    def __init__(self, index: int, client: Client) -> None:
        super().__init__(index)
        self._client = client
        self._sending = threading.Lock()
        self._heard = time.monotonic()
        self._may_beat = True
        self._replies: queue.SimpleQueue[tuple[bytes, int] | None] = queue.SimpleQueue()
        _start(f"ear of host {index}", self._listen)
        _start(f"pulse of host {index}", self._pulse)

    def exchange(self, message: bytes) -> list[bytes]:
        """See :class:`Rendezvous`."""
        for start in range(0, max(1, len(message)), _PIECE_BYTES):
            piece, left = self._call(piece_of(message, start))
        whole = bytearray(piece)
        while left > 0:
            piece, left = self._call(piece_of(b""))
            whole += piece
        return _unpacked(bytes(whole))

    def _call(self, piece: Arrays) -> tuple[bytes, int]:
        """Sends a piece and waits for the reply, also a piece."""
        if self.lost is None:
            with contextlib.suppress(ConnectionLost):  # the listening thread learns the reason
                self._send(EXCHANGE, piece)
        reply = self._replies.get()
        if reply is None:
            self._replies.put(None)  # a later call finds the end too
            raise RunFailed(self.lost or f"host 0 ended before host {self.index} did")
        return reply

    def _send(self, lane: int, arrays: Arrays) -> None:
        with self._sending:
            self._client.send(lane, arrays)

    def _listen(self) -> None:
        try:
            while True:
                reply = self._client.receive(idle=True)
                assert reply is not None
                lane, arrays = reply
                self._heard = time.monotonic()
                if lane == BEAT:
                    self._may_beat = True
                else:
                    self._replies.put(read(arrays))
        except TransportError as error:
            said = error.said if isinstance(error, ConnectionLost) else str(error)
            if said != _ENDED:
                self.lose(said or f"host 0 is gone: {_CLOSED}")
            self._replies.put(None)

    def _beat(self) -> Iterator[tuple[int, float]]:
        if self._may_beat:
            self._may_beat = False
            with contextlib.suppress(ConnectionLost):
                self._send(BEAT, [])
        yield 0, self._heard

    def _wake(self, reason: str) -> None:
        self._replies.put(None)

    def _leave(self, failure: str | None) -> None:
        self._client.close(failure or _ENDED)


def _packed(messages: Sequence[bytes]) -> bytes:
    return b"".join(part for message in messages for part in (_LENGTH.pack(len(message)), message))


def _unpacked(content: bytes) -> list[bytes]:
    messages, at = [], 0
    while at < len(content):
        (length,) = _LENGTH.unpack_from(content, at)
        at += _LENGTH.size
        messages.append(content[at : at + length])
        at += length
    return messages


# The start.


def free_port(host: str) -> int:
    """Returns a free port of ``host``, which is one of this machine's addresses."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.create_server((host, 0), family=family) as server:
        return int(server.getsockname()[1])


def joined(host: str, port: int) -> str:
    """Returns ``HOST:PORT``, the inverse of :func:`split`."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def split(address: str) -> tuple[str, int]:
    """Splits ``HOST:PORT`` into its parts; raises :class:`ConfigError` if it has another form."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit() or not 0 < int(port) < 1 << 16:
        raise ConfigError(
            f"coordinator {address!r}: write HOST:PORT, an address of host 0 that the others can reach"
        )
    return host.strip("[]"), int(port)


def address_towards(address: str) -> str:
    """Returns the address of this machine from which it reaches ``HOST:PORT``; nothing is sent.

    Raises:
      OSError: the host has no address, or there is no way to it.
    """
    host, port = split(address)
    family, kind, _, _, where = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind) as probe:
        probe.connect(where)
        return str(probe.getsockname()[0])


def only_here(address: str) -> str | None:
    """Returns a warning if an address's host name means this machine's loopback, which no other reaches; else None.

    A machine's own name is such a name where ``/etc/hosts`` gives it ``127.0.1.1``, as on Debian.
    """
    host, _ = split(address)
    try:
        found = socket.gethostbyname(host)
    except OSError:
        return None  # listening at the address raises a better error
    if host in (found, "localhost") or not found.startswith("127."):
        return None
    return (
        f"{host} is {found} on this machine, which no other can reach: "
        "give --coordinator an address of this machine that they can (hostname -I lists them)"
    )


def receive_hosts(
    address: str,
    count: int,
    *,
    gate: Gate,
    timeout: float,
    patience: float,
    judge: Callable[[Mapping[str, Any]], str | None],
    welcome: Callable[[], Mapping[str, Any]],
    look: Callable[[], None] = lambda: None,
    advice: str = "start the same command there with its --host",
    renamed: float = 0.0,
) -> Rendezvous:
    """Waits, as host 0, until all other hosts have joined, and starts the rendezvous.

    Args:
      address: ``HOST:PORT`` to listen at.
      count: number of hosts, including this one.
      gate: admission of the other hosts.
      timeout: seconds without a heartbeat after which a host counts as lost.
      patience: seconds within which all hosts have to join.
      judge: function that takes a host's hello and returns the reason to refuse it, or None.
      welcome: function that returns the JSON values for all hosts, called once they are complete.
      look: function that is called now and then during the wait, and may end it by raising.
      advice: remedy for the user if a host does not join.
      renamed: seconds within which the address may yet become one of this machine: names of pods come after the pods,
        and may be of the ones before.

    Raises:
      ConfigError: the address cannot be listened at.
      RunFailed: a host did not join in time.
    """
    split(address)
    until = time.monotonic() + renamed
    while True:
        try:
            center = _Center(address, count, gate, judge)
            break
        except ConfigError as error:
            if time.monotonic() >= until:
                raise ConfigError(
                    f"host 0 cannot listen at {address}: {error}; --coordinator is an address of host 0, with a free "
                    "port"
                ) from error
        look()
        time.sleep(_LOOK_SECONDS)
    try:
        if missing := center.wait_for_hosts(patience, look):
            named = ", ".join(map(str, missing))
            raise RunFailed(f"host {named} did not come to {address} within {patience:g} s: {advice}")
        told = json.dumps({**welcome(), "timeout": timeout}).encode()
    except BaseException:
        center.dismiss()
        raise
    center.begin(timeout)
    # A loss by now is raised at the next exchange.
    with contextlib.suppress(RunFailed):
        center.exchange(told)
    return center


def go_to(
    address: str,
    index: int,
    *,
    invitation: Callable[[], Invitation],
    patience: float,
    hello: Mapping[str, Any],
) -> tuple[Rendezvous, dict[str, Any]]:
    """Connects to host 0, as any other host, and waits until all hosts have joined.

    Args:
      address: address of host 0.
      index: number of this host.
      invitation: function that returns this host's credentials, called once host 0 listens.
      patience: seconds within which host 0 has to listen.
      hello: this host's number of hosts and settings, if it has any, for host 0 to compare with its own.

    Returns:
      The rendezvous, and the JSON values that host 0 sends to all.

    Raises:
      ConfigError: host 0 refused this host, or is not the host of the invitation; the message is the reason.
      RunFailed: host 0 did not listen in time.
    """
    over = time.monotonic() + patience
    client = _introduced(address, invitation, {"version": __version__, "host": index, **hello}, over)
    rendezvous = _Follower(index, client)
    try:
        told = json.loads(rendezvous.exchange(b"")[0])
    except RunFailed as error:
        rendezvous.close()
        raise (ConfigError if str(error) == _DISMISSED else RunFailed)(str(error)) from error
    rendezvous.begin(told["timeout"])
    return rendezvous, told


def _introduced(
    address: str, invitation: Callable[[], Invitation], hello: dict[str, Any], over: float
) -> Client:
    """Opens a conversation with host 0, which has to listen before ``over``, in seconds of :func:`time.monotonic`."""
    while True:
        _wait_for_server(address, over)
        client: Client | None = None
        try:
            client = connect(address, timeout=_ATTEMPT_SECONDS, invitation=invitation(), keepalive=False)
            client.ask(hello)
            client.open(LANES)
            return client
        except TransportError as error:
            if client is not None:
                client.close()
            if isinstance(error, Refused):
                raise ConfigError(str(error)) from error
            # An earlier session of the run is ending at that address; the session that resumes it will follow.
            if getattr(error, "said", None) != _BEGUN or time.monotonic() > over:
                raise RunFailed(f"host 0 at {address} is gone: {error}") from error
            time.sleep(_LOOK_SECONDS)


def _wait_for_server(address: str, over: float) -> None:
    """Waits until a server listens at ``address``; raises :class:`RunFailed` after the deadline ``over``."""
    while True:
        try:
            socket.create_connection(split(address), _ATTEMPT_SECONDS).close()
            return
        except OSError as error:
            if time.monotonic() > over:
                raise RunFailed(
                    f"host 0 is not at {address}: {error.strerror or error}; start it with the same --coordinator"
                ) from error
            time.sleep(_LOOK_SECONDS)
