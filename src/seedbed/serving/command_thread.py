"""A thread that alone owns some state; other threads send it commands, which it runs in order."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from seedbed.transport.poller import Poller


class CommandThread:
    """A thread that runs commands, and after each batch of them the work that is due.

    It hears messages from :meth:`start` on, and runs commands from :meth:`begin` on. Between the two calls another
    thread may compile what commands use.

    Args:
      name: name of the thread.
      turn: function that does all work that is due, and returns the time in s to wait for commands (None: until there
        is one).
      on_failure: function that is called with the exception that ended the thread.
    """

    def __init__(
        self, name: str, turn: Callable[[], float | None], on_failure: Callable[[BaseException], None]
    ) -> None:
        self._turn = turn
        self._on_failure = on_failure
        self._news = threading.Condition()
        self._inbox: list[tuple[Callable[..., None], tuple[Any, ...]]] = []
        self._poked = False
        self._stopping = False
        self._idle = False
        self._started = 0.0
        self.begun = 0.0
        """Time (monotonic, s) of :meth:`begin`; 0 before."""
        self._poller: Poller | None = None
        self._answered = True
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    # Called by other threads.

    def wait_at(self, poller: Poller) -> None:
        """Has the thread wait for commands at ``poller``, and run what that calls; to be called before :meth:`start`.

        It then hears of messages itself, and does not share the interpreter with a thread that would tell it.
        """
        self._poller = poller

    def start(self) -> None:
        """Starts the thread, whose commands wait for :meth:`begin`."""
        self._started = time.monotonic()
        self._thread.start()

    def begin(self) -> None:
        """Has the thread run commands from now on."""
        with self._news:
            self.begun = time.monotonic()
            self._notify()

    def submit(self, command: Callable[..., None], *arguments: Any) -> None:
        """Queues a command for the thread, which runs commands in order."""
        with self._news:
            self._inbox.append((command, arguments))
            self._notify()

    def beats(self) -> bool:
        """Returns whether the thread has run a command since the last call; for one other thread."""
        if not self._answered:
            return False
        self._answered = False
        self.submit(self._beat)
        return True

    def _beat(self) -> None:
        self._answered = True

    def poke(self) -> None:
        """Wakes the thread: the work that is due may be another one."""
        with self._news:
            self._poked = True
            self._notify()

    def stop(self) -> None:
        """Ends the thread; its state is left as it is."""
        with self._news:
            self._stopping = True
            self._notify()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join()

    def _notify(self) -> None:
        self._news.notify_all()
        if self._poller is not None and self._idle and not self._is_here:
            self._poller.wake()

    @property
    def _is_here(self) -> bool:
        return threading.get_ident() == self._thread.ident

    def wait_idle(self, holds: Callable[[], bool], timeout: float) -> bool:
        """Waits until the thread has run all commands and ``holds()``; returns False when ``timeout`` s have passed."""

        def idle() -> bool:
            return self._idle and not self._inbox and not self._poked and holds()

        with self._news:
            return self._news.wait_for(idle, timeout)

    def clock(self) -> float:
        """Returns the time (monotonic, s) at which a message came that is handled now; the earliest possible one."""
        if self._poller is not None and self._is_here:
            return self._poller.since
        return time.monotonic()

    def unheard(self) -> float:
        """Returns the time in s for which the thread has looked at no message, since it is busy or has not begun."""
        if self._started and not self.begun:
            return time.monotonic() - self._started
        if self._poller is None or self._idle:
            return 0.0
        return max(0.0, time.monotonic() - self._poller.looked)

    # Run by the thread.

    def _run(self) -> None:
        try:
            wait: float | None = None
            self._wait_until_begun()
            while self._wait_for_news(wait):
                wait = self._turn()
        except BaseException as error:
            self._on_failure(error)

    def _wait_until_begun(self) -> None:
        with self._news:
            self._idle = True
            if self._poller is None:
                self._news.wait_for(lambda: bool(self.begun or self._stopping))
        while not (self.begun or self._stopping):
            assert self._poller is not None
            self._poller.poll(None)

    def _wait_for_news(self, timeout: float | None) -> bool:
        with self._news:
            self._idle = True
            self._news.notify_all()
            if self._poller is None:
                self._news.wait_for(self._has_news, timeout)
            elif self._has_news():
                timeout = 0.0
        if self._poller is not None:
            self._poller.poll(timeout)
        with self._news:
            self._idle = False
            inbox, self._inbox, self._poked = self._inbox, [], False
            if self._stopping:
                return False
        for action, arguments in inbox:
            action(*arguments)
        return True

    def _has_news(self) -> bool:
        return bool(self._inbox or self._poked or self._stopping)
