"""Waiting for many sockets at once, and for other threads."""

from __future__ import annotations

import selectors
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress

READ, WRITE = selectors.EVENT_READ, selectors.EVENT_WRITE

_READ_BYTES = 1 << 16


class Poller:
    """Calls functions when sockets are ready; one thread polls, any thread wakes it.

    Another thread that changes the state of these functions holds :attr:`lock` meanwhile.
    """

    def __init__(self) -> None:
        self.lock = threading.RLock()
        """Lock that is held while functions are called, not during the wait."""
        self.since = self.looked = time.monotonic()
        """Earliest time (monotonic, s) of the present events, and time of the last look."""
        self._selector = selectors.DefaultSelector()
        self._tending: list[Callable[[], float | None]] = []
        self._soon: float | None = None
        self._gone: set[int] = set()  # taken out since the last wait began
        self._bell, self._ear = socket.socketpair()
        self._bell.setblocking(False)
        self._ear.setblocking(False)
        self.register(self._ear, self._hear)

    def register(self, subject: socket.socket, ready: Callable[[int], None], events: int = READ) -> None:
        """Registers a function for the events of a socket, in place of another one."""
        if subject.fileno() in self._selector.get_map():
            self._selector.modify(subject, events, ready)
        else:
            self._selector.register(subject, events, ready)

    def unregister(self, subject: socket.socket) -> None:
        """Takes a socket out; to be called before the socket is closed."""
        self._gone.add(subject.fileno())
        self._selector.unregister(subject)

    def tend(self, function: Callable[[], float | None]) -> None:
        """Adds a function to call after every look.

        The function returns the time in s after which to call it even if nothing happens, or None.
        """
        self._tending.append(function)

    def forget(self, function: Callable[[], float | None]) -> None:
        """Takes a function of :meth:`tend` out."""
        self._tending.remove(function)

    def wake(self) -> None:
        """Ends the present or the next wait; from any thread, also once the poller is closed."""
        with suppress(OSError):  # a full bell rings already
            self._bell.send(b"!")

    def poll(self, timeout: float | None) -> None:
        """Waits for events, up to ``timeout`` s (None: for ever), and calls their functions."""
        self._gone.clear()
        ready = self._selector.select(0)
        self.since = self.looked
        if not ready and timeout != 0:
            soon = [seconds for seconds in (timeout, self._soon) if seconds is not None]
            ready = self._selector.select(min(soon, default=None))
            self.since = time.monotonic()
        self.looked = time.monotonic()
        with self.lock:
            for key, events in ready:
                if key.fd not in self._gone:
                    key.data(events)
            again = [seconds for tend in list(self._tending) if (seconds := tend()) is not None]
            self._soon = min(again, default=None)

    def close(self) -> None:
        """Frees everything; to be called after the last :meth:`poll`."""
        self._selector.close()
        self._bell.close()
        self._ear.close()

    def _hear(self, events: int) -> None:
        with suppress(BlockingIOError):
            self._ear.recv(_READ_BYTES)
