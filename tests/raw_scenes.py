"""The scene of each carrier's own tests: a server, a client that keeps the rules, and others that need not."""

from __future__ import annotations

import socket
from contextlib import suppress

from seedbed.testing.transport import DOWN, PATIENCE, UP, FakeHandler, example, opened, received
from seedbed.transport.admission import Gate
from seedbed.transport.connect import connect
from seedbed.transport.framing import Inbox, Kind
from seedbed.transport.interface import Server


class Scene:
    """A server, a client that keeps the rules, and raw connections.

    Args:
      server: server of ``handler``; the scene closes it.
      handler: its handler.
      gate: its gate; None if it asks for nothing.
    """

    def __init__(self, server: Server, handler: FakeHandler, gate: Gate | None = None) -> None:
        self.server, self.handler = server, handler
        self.address = server.address.replace("0.0.0.0", "127.0.0.1")
        invitation = gate.invitation(server.address) if gate else None
        self.good = opened(connect(self.address, timeout=PATIENCE, invitation=invitation), handler)

    def raw(self) -> socket.socket:
        """A connection that has said nothing yet."""
        place = self.address.removeprefix("socket:").removeprefix("shm:").removeprefix("unix:")
        if place.startswith("/"):
            connection = socket.socket(socket.AF_UNIX)
            connection.settimeout(PATIENCE)
            connection.connect(place)
            return connection
        host, port = place.rsplit(":", 1)
        return socket.create_connection((host, int(port)), PATIENCE)

    def check_others(self) -> None:
        """Checks that a step of the client that keeps the rules is answered."""
        self.good.send(0, example(UP, 0))
        while True:  # steps of the others stand in the same queue
            peer, lane, arrays = self.handler.delivered.get(timeout=PATIENCE)
            peer.reply(lane, example(DOWN, 0))
            if arrays[0].any():
                break
        assert received(self.good)[0] == 0

    def close(self) -> None:
        """Ends the client and the server."""
        self.good.close()
        self.server.close()


def said(connection: socket.socket, limits: dict[Kind, int]) -> list[tuple[Kind, bytes]]:
    """All frames that the server sends until it hangs up, each within the limit of its kind."""
    inbox, frames = Inbox(limits), []
    connection.settimeout(PATIENCE)
    with suppress(ConnectionResetError):
        while data := connection.recv(1 << 16):
            frames += [(Kind(frame.kind), bytes(frame.body)) for frame in inbox.feed(data)]
    return frames
