"""From an address to a carrier: the one place that knows them all."""

from __future__ import annotations

import re
import socket

from seedbed.errors import ConfigError
from seedbed.transport.admission import Gate, Invitation
from seedbed.transport.in_process import InProcessClient, InProcessServer
from seedbed.transport.interface import MAX_PEERS, Client, Handler, Server
from seedbed.transport.poller import Poller
from seedbed.transport.sockets import SocketClient, SocketServer
from seedbed.transport.tls import SOCKET_PREFIX, needs_tls, within_machine

FORMS = (
    "inproc:NAME (a thread of this process), shm:PATH, unix:PATH (this machine), HOST:PORT, or socket: before one of "
    "the last two (without gRPC)"
)

CARRIERS = {"inproc": "inproc", "shm": "shm", "grpc": "unix"}
"""Prefixes of addresses on this machine, by the setting ``transport``."""

_HOST_PORT = re.compile(r"(?P<host>[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.%]+\]):(?P<port>\d{1,5})")

_UNIX = re.compile(f"({SOCKET_PREFIX})?unix:")

_EVERY_INTERFACE = ("0.0.0.0", "[::]")


def listen(
    address: str,
    handler: Handler,
    *,
    gate: Gate | None = None,
    keepalive: bool = True,
    poller: Poller | None = None,
    most: int = MAX_PEERS,
) -> Server:
    """Starts a server.

    Args:
      address: one of

        - ``inproc:NAME``: another thread of this process;
        - ``shm:PATH``: another process of this machine, arrays in shared memory (PATH: of a Unix socket);
        - ``unix:PATH``: another process of this machine, a gRPC stream over a Unix socket;
        - ``HOST:PORT``: another machine, a gRPC stream over TCP (PORT 0 when listening: a free one);
        - ``socket:unix:PATH``, ``socket:HOST:PORT``: the same places, for frames without gRPC.
      handler: handler that answers.
      gate: lets clients in at ``HOST:PORT``; None for all that reach the address. (Sockets are this user's own.)
      keepalive: whether a gRPC stream's silent client is missed; False where the handler does it.
      poller: poller of the thread that hears the clients of ``shm:PATH``; None for a thread of the server's own, as
        all others have.
      most: conversations at once; one more client is sent away, and may come again.

    Raises:
      ConfigError: the address is none, or cannot be listened at, or strangers could without a gate.
    """
    carrier, place = _parse(address)
    if carrier == "inproc":
        return InProcessServer(place, handler)
    if carrier == "shm":
        from seedbed.transport.shared_memory import SharedMemoryServer  # not on Windows

        return SharedMemoryServer(place, handler, poller, most=most)
    if within_machine(address):
        gate = None
    elif gate is None and needs_tls(address):
        raise ConfigError(f"nothing keeps strangers from {address}: give a gate, or listen at 127.0.0.1")
    if carrier == "socket":
        return SocketServer(address, handler, gate=gate, most=most)
    from seedbed.transport.streams import StreamServer  # gRPC takes a while to import

    return StreamServer(address, handler, gate=gate, keepalive=keepalive, most=most)


def seen_from_elsewhere(address: str) -> str:
    """``HOST:PORT`` as another machine can dial it: this machine's name in place of "every interface"."""
    prefix = SOCKET_PREFIX if address.startswith(SOCKET_PREFIX) else ""
    host, _, port = address.removeprefix(prefix).rpartition(":")
    return f"{prefix}{socket.gethostname()}:{port}" if host in _EVERY_INTERFACE else address


def is_free(address: str) -> bool:
    """Returns whether nobody listens at ``HOST:PORT`` on this machine, as far as can be told without listening."""
    host, _, port = address.removeprefix(SOCKET_PREFIX).rpartition(":")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        socket.create_server((host.strip("[]"), int(port)), family=family).close()
    except (OSError, ValueError, OverflowError):
        return False
    return True


def connect(
    address: str, *, timeout: float, invitation: Invitation | None = None, keepalive: bool = True
) -> Client:
    """Reaches a server.

    Args:
      address: the server's ``address``.
      timeout: seconds to wait for it to appear.
      invitation: token and certificate of the server at ``HOST:PORT``; None where nothing is asked.
      keepalive: whether a gRPC stream's silent server is missed.

    Raises:
      ConfigError: the address is none.
      ConnectionLost: no server listens there.
      Refused: the server is not the one of the invitation, or does not let this client in.
    """
    carrier, place = _parse(address)
    if carrier == "inproc":
        return InProcessClient(place, timeout=timeout)
    if carrier == "shm":
        from seedbed.transport.shared_memory import SharedMemoryClient

        return SharedMemoryClient(place, timeout=timeout)
    if carrier == "socket":
        return SocketClient(address, timeout=timeout, invitation=invitation)
    from seedbed.transport.streams import StreamClient

    return StreamClient(address, timeout=timeout, invitation=invitation, keepalive=keepalive)


def _parse(address: str) -> tuple[str, str]:
    """Returns the carrier (inproc, shm, socket, grpc) and the rest of the address; raises ``ConfigError``."""
    prefix, _, place = address.partition(":")
    if not hasattr(socket, "AF_UNIX") and (prefix == "shm" or _UNIX.match(address)):
        raise ConfigError(f"{address}: this system has no Unix sockets; let the learner listen at HOST:PORT")
    if prefix in ("inproc", "shm"):
        if place:
            return prefix, place
    elif _is_stream(address.removeprefix(SOCKET_PREFIX)):
        return "socket" if address.startswith(SOCKET_PREFIX) else "grpc", address
    raise ConfigError(f"not an address: {address!r}; write {FORMS}")


def _is_stream(address: str) -> bool:
    if address.startswith("unix:"):
        return len(address) > len("unix:")
    match = _HOST_PORT.fullmatch(address)
    return match is not None and int(match["port"]) < 1 << 16
