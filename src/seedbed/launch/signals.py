"""Handling of Ctrl-C, SIGTERM and a closed terminal.

The first of these signals ends a run in an orderly way, a second Ctrl-C or SIGTERM at once; a benchmark ends at the
first. A closed terminal is heard as the first only, and does not count: a shell passes SIGHUP on to its jobs, the
kernel sends it again as the shell ends, and engines send it beside SIGTERM, before or after. Nor does a signal count
that is sent again at once: ``timeout`` sends its own to the command and to the group of both.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

_COUNTED = (signal.SIGINT, signal.SIGTERM)
_CLOSED = [signal.SIGHUP] if sys.platform != "win32" else []
_ENDING = (*_COUNTED, *_CLOSED)
_HURRY_SECONDS = 3.0
_ONE_SECONDS = 0.5
"""Seconds within which a signal that comes again is the same one, sent twice."""


class Interruption(threading.Event):
    """An event that is set when a run is interrupted.

    Attributes:
      by: name of the signal, such as SIGTERM; empty while it is not set, or where it was set otherwise.
    """

    by = ""


class Terminated(KeyboardInterrupt):
    """SIGTERM or a closed terminal, where nothing but an exception ends the work."""


@contextlib.contextmanager
def heeding_signals(interrupted: Interruption) -> Iterator[None]:
    """Handles signals while the block runs: the first sets ``interrupted``; Ctrl-C or SIGTERM again raise an exception.

    It is :class:`KeyboardInterrupt`. Outside the main thread nothing is handled.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def handle(number: int, frame: Any) -> None:
        interrupted.by = signal.Signals(number).name
        interrupted.set()

    with _hurrying() as heard, _handling(handle, heard):
        yield


@contextlib.contextmanager
def ending_as_by_ctrl_c() -> Iterator[None]:
    """Raises :class:`Terminated` by SIGTERM and by a closed terminal while the block runs; main thread only.

    Ctrl-C raises :class:`KeyboardInterrupt`, as ever. So does an error into which a library has turned it, and the end
    of the block if a library has swallowed it.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    raised: list[type[KeyboardInterrupt]] = []

    def handle(number: int, frame: Any) -> None:
        raised.append(KeyboardInterrupt if number == signal.SIGINT else Terminated)
        raise raised[0]

    with _handling(handle):
        try:
            yield
        except Exception as error:
            if raised:  # JAX, interrupted while it traces, may raise an error of its own
                raise raised[0] from error
            raise
    if raised:  # where an exception is only printed, as in a destructor or a callback
        raise raised[0]


@contextlib.contextmanager
def _handling(handle: Callable[[int, Any], Any], heard: Callable[[int], int] | None = None) -> Iterator[None]:
    """Calls ``handle`` for the first signal, and raises :class:`KeyboardInterrupt` for each further one that counts.

    ``heard`` returns how many have counted so far, with the one that it is given.
    """
    # A process that was started to ignore its terminal (nohup) goes on ignoring it.
    heeded = [number for number in _ENDING if number not in _CLOSED or not _ignored(number)]
    heard = heard or Counted().add
    begun, known = False, 1

    def hear(number: int, frame: Any) -> None:
        nonlocal begun, known
        first, begun, count = not begun, True, heard(number)
        if first:
            handle(number, frame)
        elif count > known:
            known = count
            raise KeyboardInterrupt

    before = {number: signal.signal(number, hear) for number in heeded}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class Counted:
    """Counts the signals by which somebody asks for an end; from any thread.

    Attributes:
      signals: number of those that count.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.signals = 0
        self._clock = clock
        self._last: tuple[int, float] | None = None

    def add(self, number: int) -> int:
        """Notes a signal that comes now; returns the number of those that count."""
        now = self._clock()
        sent_twice = self._last is not None and self._last[0] == number and now - self._last[1] < _ONE_SECONDS
        if number in _COUNTED and not sent_twice:
            self._last = number, now
            self.signals += 1
        return self.signals


def _ignored(number: int) -> bool:
    return signal.getsignal(number) is signal.SIG_IGN


@contextlib.contextmanager
def _hurrying() -> Iterator[Callable[[int], int]]:
    """Ends the process a moment after a second signal, also during a compilation.

    A handler in Python runs only when the main thread is in Python, and a compilation may take a minute. So signals
    are counted as they come, by a thread, and not as they are handled; the block has the count, for handlers.
    """
    ear, bell = socket.socketpair()
    for end in (ear, bell):
        end.setblocking(False)
    before = signal.set_wakeup_fd(bell.fileno(), warn_on_full_buffer=False)
    counted, over, turn = Counted(), threading.Event(), threading.RLock()

    def count() -> bool:
        """Counts what has come; returns whether more may come."""
        with turn, contextlib.suppress(BlockingIOError):
            while data := ear.recv(1):
                counted.add(data[0])
            return False
        return True

    def listen() -> None:
        with ear, selectors.DefaultSelector() as coming:
            coming.register(ear, selectors.EVENT_READ)
            while coming.select() and count():
                if counted.signals > 1:
                    if not over.wait(_HURRY_SECONDS):
                        os._exit(128 + signal.SIGINT)
                    return

    def heard(number: int) -> int:
        count()
        with contextlib.suppress(BlockingIOError):
            bell.send(b"\0")  # no signal: the thread looks at the count, of which it may have read nothing
        return counted.signals

    threading.Thread(target=listen, name="signals", daemon=True).start()
    try:
        yield heard
    finally:
        over.set()
        signal.set_wakeup_fd(before)
        bell.close()
