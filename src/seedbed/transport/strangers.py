"""Connections on which nobody has been let in: a bound on them that keeps no newcomer out.

gRPC owns the connections of its server, bounds their number, and tells nothing about one that never makes a call. So a
stranger who holds all of them would keep newcomers out. This module therefore finds a server's connections among the
open files of the process, and shuts those that are too many: the oldest ones of the machine that has the most. A
newcomer from another machine is never meant; one from the same machine or behind the same router has the time in which
so many newer ones come.

Alternatives weighed: a relay before the server that accepts connections itself (a copy of every message, in a thread
that the run needs); a shorter limit of time (an actor on a busy machine takes seconds for its handshake, and a stranger
opens hundreds of connections a second); a firewall, which not everybody may set up.
"""

from __future__ import annotations

import heapq
import ipaddress
import os
import socket
import stat
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

_OPEN_FILES = Path("/dev/fd")
_LONGEST_SECONDS = 60.0
"""Seconds after which a connection is shut on which nobody has been let in: calls keep it from being idle."""


class End(NamedTuple):
    """The client's end of a connection: the address of its machine, and its port."""

    host: str
    port: int


def end_of(host: str, port: int) -> End:
    """Returns an end, with its address in one form: without a scope, and IPv4 as IPv4."""
    address = ipaddress.ip_address(host.partition("%")[0])
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return End(str(mapped or address), port)


def surplus(strangers: Mapping[End, float], most: int) -> list[End]:
    """Returns the connections that are too many.

    Args:
      strangers: time (monotonic, s) at which each connection was first seen.
      most: number of connections that may stay.

    Returns:
      The oldest ones of the machine that has the most, then of the one that has the most without them, and so on.
    """
    by_host: defaultdict[str, list[End]] = defaultdict(list)
    for end in sorted(strangers, key=lambda end: (-strangers[end], end)):
        by_host[end.host].append(end)
    heap = [(-len(ends), strangers[ends[-1]], host) for host, ends in by_host.items()]
    heapq.heapify(heap)
    found = []
    for _ in range(len(strangers) - most):
        ends = by_host[heap[0][2]]
        found.append(ends.pop())
        if ends:
            heapq.heapreplace(heap, (-len(ends), strangers[ends[-1]], ends[-1].host))
        else:
            heapq.heappop(heap)
    return found


class Strangers:
    """The connections to a port of this process on which nobody has been let in.

    Args:
      port: port at which a server of this process listens.
      most: number of such connections that may stay.
    """

    def __init__(self, port: int, most: int) -> None:
        self._port = port
        self._most = most
        self._seen: dict[End, float] = {}

    def shut_surplus(self, admitted: Collection[End], now: float) -> list[End]:
        """Shuts the connections that are too many or have been there too long; one thread at a time calls it.

        Args:
          admitted: clients that were let in.
          now: the time (monotonic, s).

        Returns:
          The connections that were shut.
        """
        there = dict(self._connections())
        try:
            self._seen = {end: self._seen.get(end, now) for end in there if end not in admitted}
            there_too_long = [end for end, since in self._seen.items() if now - since > _LONGEST_SECONDS]
            too_many = {*surplus(self._seen, self._most), *there_too_long} - {*admitted}
            for end in too_many:
                # gRPC reads the end of the connection, and closes its own file.
                with suppress(OSError):
                    there[end].shutdown(socket.SHUT_RDWR)
            return sorted(too_many)
        finally:
            for connection in there.values():
                connection.close()

    def _connections(self) -> Iterator[tuple[End, socket.socket]]:
        """Yields the connections to the port, each with a file of its own: the number of gRPC's may pass to another."""
        for name in os.listdir(_OPEN_FILES):  # noqa: PTH208 (the names alone: the files come and go)
            with suppress(OSError, ValueError):
                if not stat.S_ISSOCK(os.fstat(int(name)).st_mode):
                    continue
                connection = socket.socket(fileno=os.dup(int(name)))
                try:
                    end = self._end(connection)
                except BaseException:
                    connection.close()
                    raise
                if end is None:
                    connection.close()
                else:
                    yield end, connection

    def _end(self, connection: socket.socket) -> End | None:
        if connection.family not in (socket.AF_INET, socket.AF_INET6):
            return None
        if connection.type != socket.SOCK_STREAM or connection.getsockname()[1] != self._port:
            return None
        host, port = connection.getpeername()[:2]
        return end_of(host, port)
