"""Where the hosts of a run meet: they tell each other what they know, and notice when one of them is gone.

::

    host 1 ──► host 0 ◄── host 2      each sends its message, host 0 sends all of them back

JAX carries what the devices exchange. This connection carries what it has no way for: what the host programs decide
together (whether to stop, whether to save), and the loss of a host, which is told at once and in words, while the
devices of the others still wait for it. Messages are bytes with a length before them; nothing in them is executed.
Hosts of one run trust each other, as JAX's own connections between them do: keep them in a network of their own.
"""

from __future__ import annotations

import contextlib
import json
import logging
import queue
import select
import socket
import struct
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from enum import IntEnum
from typing import Any

from seedbed import __version__
from seedbed.errors import ConfigError, ConnectionLost, ProtocolError, RunFailed, cause_of

_log = logging.getLogger(__name__)
_HEADER = struct.Struct("!BQ")
_LENGTH = struct.Struct("!Q")
_MOST_BYTES = 1 << 36
_MOST_OF_A_STRANGER = 1 << 20
_PIECE_BYTES = 1 << 20
_BEATS = 5
_RETRY_SECONDS = 0.2
_STRANGER_SECONDS = 15.0
_CLOSED = "the connection was closed"


class _Kind(IntEnum):
    HELLO = 1
    WELCOME = 2
    REFUSED = 3
    MINE = 4
    ALL = 5
    BEAT = 6
    LEAVE = 7
    FAILED = 8


class _Line:
    """A connection that carries whole messages; may be written by several threads and is read by one."""

    def __init__(self, connection: socket.socket, timeout: float) -> None:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.settimeout(timeout)
        self._connection = connection
        self._timeout = timeout
        self._writing = threading.Lock()

    def send(self, kind: _Kind, content: bytes = b"") -> None:
        """Sends a message; raises :class:`ConnectionLost`."""
        with self._writing:
            self._send(kind, content)

    def send_unless_busy(self, kind: _Kind) -> None:
        """Sends a message without content, unless one is being sent; raises :class:`ConnectionLost`."""
        if self._writing.acquire(blocking=False):
            try:
                self._send(kind, b"")
            finally:
                self._writing.release()

    def _send(self, kind: _Kind, content: bytes) -> None:
        with self._told():
            self._connection.sendall(_HEADER.pack(kind, len(content)))
            # In pieces: the time limit is that of a piece.
            for start in range(0, len(content), _PIECE_BYTES):
                self._connection.sendall(memoryview(content)[start : start + _PIECE_BYTES])

    def receive(self, most: int = _MOST_BYTES) -> tuple[_Kind, bytes]:
        """The next message; raises :class:`ConnectionLost` or, if it is none, :class:`ProtocolError`."""
        with self._told():
            kind, length = _HEADER.unpack(self._exactly(_HEADER.size))
            if kind not in _Kind.__members__.values() or length > most:
                raise ProtocolError(
                    f"a message of kind {kind} with {length} bytes, where at most {most} may come"
                )
            return _Kind(kind), self._exactly(length)

    def _exactly(self, length: int) -> bytes:
        content = bytearray()
        while len(content) < length:
            piece = self._connection.recv(min(_PIECE_BYTES, length - len(content)))
            if not piece:
                raise ConnectionLost(_CLOSED)
            content += piece
        return bytes(content)

    def is_open(self) -> bool:
        """Whether the other side is still there, or has left something to be read."""
        try:
            if not select.select([self._connection], [], [], 0)[0]:
                return True
            return bool(self._connection.recv(1, socket.MSG_PEEK))
        except OSError:
            return False

    @contextlib.contextmanager
    def _told(self) -> Any:
        try:
            yield
        except TimeoutError as error:
            raise ConnectionLost(f"no sign of life for {self._timeout:g} s") from error
        except ConnectionError as error:
            raise ConnectionLost(_CLOSED) from error
        except OSError as error:
            raise ConnectionLost(error.strerror or str(error)) from error

    def wait_at_most(self, seconds: float) -> None:
        """How long the other side may be silent."""
        self._timeout = seconds
        self._connection.settimeout(seconds)

    def close(self) -> None:
        """Closes it; whoever reads it is told."""
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)
        self._connection.close()


class Rendezvous:
    """One host's place among the hosts of a run; :meth:`exchange` belongs to one thread.

    Args:
      index: which host this is.
      lines: to the others, by their index: host 0 has all of them, each other only that to host 0.
      timeout: seconds without a sign of life after which a host counts as gone.
    """

    def __init__(self, index: int, lines: Mapping[int, _Line], timeout: float) -> None:
        self.index = index
        self._lines = dict(lines)
        self._lock = threading.Lock()
        self._lost: str | None = None
        self._gone = threading.Event()
        self._on_loss: Callable[[str], None] | None = None
        self._closed = threading.Event()
        # What a host has sent; None once nothing more will come from it.
        self._inboxes: dict[int, queue.SimpleQueue[bytes | None]] = {
            other: queue.SimpleQueue() for other in lines
        }
        for other in lines:
            # A heart for each: one that is held up must not make this host seem dead to the others.
            self._start(f"heart for host {other}", self._beat, self._lines[other], timeout / _BEATS)
            self._start(f"ear for host {other}", self._listen, other)

    @staticmethod
    def _start(name: str, function: Callable[..., None], *arguments: Any) -> None:
        threading.Thread(target=function, args=arguments, name=name, daemon=True).start()

    # What is said.

    def exchange(self, message: bytes) -> list[bytes]:
        """Every host's message, in the order of the hosts; waits for all of them.

        Raises:
          RunFailed: a host is gone, or has left.
        """
        if self.index:
            self._send(0, _Kind.MINE, message)
            return _unpack(self._next(0))
        messages = [message, *(self._next(other) for other in sorted(self._lines))]
        for other in self._lines:
            self._send(other, _Kind.ALL, _pack(messages))
        return messages

    def _send(self, other: int, kind: _Kind, content: bytes) -> None:
        try:
            self._lines[other].send(kind, content)
        except ConnectionLost as error:
            # Its ear may know more: what the other said before it went.
            self._lose(self._inboxes[other], f"host {other} is gone: {error}", patience=1.0)
            raise RunFailed(self.lost or "") from error

    def _next(self, other: int) -> bytes:
        message = self._inboxes[other].get()
        if message is None:
            raise RunFailed(self.lost or f"host {other} ended before host {self.index} did")
        return message

    # What is heard.

    def _listen(self, other: int) -> None:
        line, inbox = self._lines[other], self._inboxes[other]
        try:
            while True:
                kind, content = line.receive()
                if kind is _Kind.LEAVE:
                    inbox.put(None)
                    return
                if kind is _Kind.FAILED:
                    self._lose(inbox, content.decode(errors="replace"))
                    return
                if kind is not _Kind.BEAT:
                    inbox.put(content)
        except Exception as error:
            if not self._closed.is_set():
                self._lose(inbox, f"host {other} is gone: {cause_of(error)}")

    def _beat(self, line: _Line, seconds: float) -> None:
        with contextlib.suppress(ConnectionLost):  # whoever listens notices too
            while not self._closed.wait(seconds):
                line.send_unless_busy(_Kind.BEAT)

    def _lose(self, inbox: queue.SimpleQueue[bytes | None], reason: str, patience: float = 0.0) -> None:
        """Notes the loss of a host, tells the others, and whoever waits here."""
        if patience:
            self._closed.wait(patience)
        with self._lock:
            first, on_loss = self._lost is None, self._on_loss
            if first:
                self._lost = reason
        if first:
            self._gone.set()
            _log.error("%s", reason)
            self._tell(_Kind.FAILED, reason)
        for other in (*self._inboxes.values(), inbox):
            other.put(None)
        if first and on_loss is not None:
            self._start("loss", on_loss, reason)

    def _tell(self, kind: _Kind, content: str = "") -> None:
        for line in self._lines.values():
            with contextlib.suppress(ConnectionLost):
                line.send(kind, content.encode())

    @property
    def lost(self) -> str | None:
        """Which host is gone, and why; None while all are there."""
        with self._lock:
            return self._lost

    def wait_for_loss(self, seconds: float) -> str | None:
        """:attr:`lost`, waited for so long: a device may have noticed it first."""
        self._gone.wait(seconds)
        return self.lost

    def watch(self, on_loss: Callable[[str], None]) -> None:
        """Has ``on_loss`` called, in a thread of its own, with the reason once a host is gone; at once if one is."""
        with self._lock:
            self._on_loss, lost = on_loss, self._lost
        if lost is not None:
            self._start("loss", on_loss, lost)

    def close(self, failure: str | None = None) -> None:
        """Leaves; with the reason if this host failed. Safe to call twice."""
        if self._closed.is_set():
            return
        self._closed.set()
        if failure is None:
            self._tell(_Kind.LEAVE)
        elif self.lost is None:
            self._tell(_Kind.FAILED, f"host {self.index} failed: {failure}")
        for line in self._lines.values():
            line.close()


def _pack(messages: Sequence[bytes]) -> bytes:
    return b"".join(part for message in messages for part in (_LENGTH.pack(len(message)), message))


def _unpack(content: bytes) -> list[bytes]:
    messages, at = [], 0
    while at < len(content):
        (length,) = _LENGTH.unpack_from(content, at)
        at += _LENGTH.size
        messages.append(content[at : at + length])
        at += length
    return messages


# How they come together.


def free_port(host: str) -> int:
    """A port of ``host``, one of this machine's addresses, that nobody listens at."""
    with _server(host, 0) as server:
        return int(server.getsockname()[1])


def _server(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return socket.create_server((host, port), family=family)


def joined(host: str, port: int) -> str:
    """The address whose parts :func:`split` gives."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def split(address: str) -> tuple[str, int]:
    """``HOST:PORT`` in its parts; raises :class:`ConfigError`."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit() or not 0 < int(port) < 1 << 16:
        raise ConfigError(
            f"coordinator {address!r}: write HOST:PORT, an address of host 0 that the others can reach"
        )
    return host.strip("[]"), int(port)


def only_here(address: str) -> str | None:
    """Why no other machine finds a name that means this machine's loopback; None if it does not.

    So it is of a machine's own name where ``/etc/hosts`` gives it ``127.0.1.1``, as Debian's does.
    """
    host, _ = split(address)
    try:
        found = socket.gethostbyname(host)
    except OSError:
        return None  # whoever listens there says more
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
    timeout: float,
    patience: float,
    judge: Callable[[Mapping[str, Any]], str | None],
    welcome: Callable[[], Mapping[str, Any]],
    look: Callable[[], None] = lambda: None,
) -> Rendezvous:
    """Host 0's side: waits at ``address`` for the others, lets in whom ``judge`` has nothing against, begins.

    Args:
      address: ``HOST:PORT`` to listen at.
      count: hosts of the run, this one too.
      timeout: see :class:`Rendezvous`.
      patience: seconds in which all have to come.
      judge: the reason to turn a host away that says so and so of itself; None if it may come in.
      welcome: gives what all are told when they are complete.
      look: called now and then while they come; what it raises ends the waiting.

    Raises:
      ConfigError: nobody can listen at that address.
      RunFailed: a host did not come.
    """
    host, port = split(address)
    try:
        server = _server(host, port)
    except OSError as error:
        raise ConfigError(
            f"host 0 cannot listen at {address}: {error.strerror}; "
            "--coordinator is an address of host 0, with a free port"
        ) from error
    lines: dict[int, _Line] = {}
    over = time.monotonic() + patience
    with server:
        server.settimeout(_RETRY_SECONDS)
        try:
            while missing := [index for index in range(1, count) if not _is_here(lines.get(index))]:
                look()
                if time.monotonic() > over:
                    named = ", ".join(map(str, missing))
                    raise RunFailed(
                        f"host {named} did not come to {address} within {patience:g} s: start the same command "
                        "there with its --host"
                    )
                with contextlib.suppress(TimeoutError):
                    line = _Line(server.accept()[0], _STRANGER_SECONDS)
                    index = _introduction(line, count, lines, judge)
                    if index is not None:
                        if index in lines:  # it went away, and came back
                            lines[index].close()
                        lines[index] = line
        except BaseException:
            _dismiss(lines, "host 0 did not begin: not all hosts came")
            raise
    told = json.dumps({**welcome(), "timeout": timeout}).encode()
    for line in lines.values():
        line.wait_at_most(timeout)
        with contextlib.suppress(ConnectionLost):  # whoever listens to it will notice
            line.send(_Kind.WELCOME, told)
    return Rendezvous(0, lines, timeout)


def _is_here(line: _Line | None) -> bool:
    """Whether a host has come, and has not gone away since."""
    return line is not None and line.is_open()


def _introduction(
    line: _Line, count: int, known: Mapping[int, _Line], judge: Callable[[Mapping[str, Any]], str | None]
) -> int | None:
    """The index of the host that calls; None if it was turned away."""
    # However slowly a stranger speaks.
    patience = threading.Timer(_STRANGER_SECONDS, line.close)
    patience.start()
    try:
        kind, content = line.receive(_MOST_OF_A_STRANGER)
        hello = json.loads(content)
        index = hello["host"]
        if (
            kind is not _Kind.HELLO
            or type(index) is not int
            or not isinstance(hello.get("settings"), dict | None)
        ):
            raise ProtocolError("no introduction")
    except Exception as error:  # anything may come from a stranger
        _log.warning("somebody who is no host called: %s", error)
        line.close()
        return None
    finally:
        patience.cancel()
    if hello.get("version") != __version__:
        reason: str | None = f"it has version {hello.get('version')} of Seedbed, host 0 has {__version__}"
    elif hello.get("hosts") not in (count, None):
        reason = f"it was told of {hello['hosts']} hosts, host 0 of {count}"
    elif not 0 < index < count:
        reason = f"there are {count} hosts, 0 to {count - 1}"
    elif _is_here(known.get(index)):
        reason = "another has come with that index"
    else:
        reason = judge(hello)
    if reason is None:
        return index
    _log.warning("host %s was turned away: %s", index, reason)
    with contextlib.suppress(ConnectionLost):
        line.send(_Kind.REFUSED, f"host 0 turns host {index} away: {reason}".encode())
    line.close()
    return None


def _dismiss(lines: Mapping[int, _Line], reason: str) -> None:
    for line in lines.values():
        with contextlib.suppress(ConnectionLost):
            line.send(_Kind.FAILED, reason.encode())
        line.close()


def go_to(
    address: str, index: int, *, patience: float, hello: Mapping[str, Any]
) -> tuple[Rendezvous, dict[str, Any]]:
    """Another host's side: goes to host 0, introduces itself and waits until all have come.

    Returns:
      The rendezvous and what host 0 tells.

    Raises:
      ConfigError: host 0 turned it away; the message is the reason.
      RunFailed: host 0 is not there.
    """
    try:
        line = _Line(dial(address, time.monotonic() + patience), patience)
    except OSError as error:
        raise RunFailed(
            f"host 0 is not at {address}: {error.strerror or error}; start it with the same --coordinator"
        ) from error
    try:
        line.send(_Kind.HELLO, json.dumps({"version": __version__, "host": index, **hello}).encode())
        kind, content = line.receive()
    except (ConnectionLost, ProtocolError) as error:
        line.close()
        raise RunFailed(f"host 0 at {address} is gone: {error}") from error
    if kind is not _Kind.WELCOME:
        line.close()
        raise ConfigError(content.decode(errors="replace"))
    told = json.loads(content)
    line.wait_at_most(told["timeout"])
    return Rendezvous(index, {0: line}, told["timeout"]), told


def dial(address: str, over: float) -> socket.socket:
    """A connection to ``address``, where nobody may listen yet; raises :class:`OSError` when it is ``over``, in s."""
    while True:
        try:
            return socket.create_connection(split(address), timeout=max(0.1, over - time.monotonic()))
        except OSError:
            if time.monotonic() + _RETRY_SECONDS > over:
                raise
            time.sleep(_RETRY_SECONDS)
