"""A thread with an asyncio loop, in which a server listens until it is told to end."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from contextlib import suppress
from typing import Any


class LoopThread:
    """Runs one coroutine in a thread and a loop of its own.

    Attributes:
      loop: the loop, which exists before the thread does.
      stopping: event for the coroutine that is set when it is to end.

    Args:
      name: name of the thread, for people.
    """

    def __init__(self, name: str) -> None:
        self._runner = asyncio.Runner(loop_factory=asyncio.new_event_loop)
        self.loop = self._runner.get_loop()
        self.stopping = asyncio.Event()
        self._name = name
        self._thread: threading.Thread | None = None
        self._due: deque[tuple[Callable[..., object], tuple[Any, ...]]] = deque()
        self._woken = False

    def start(
        self, serve: Callable[[Future[str]], Coroutine[Any, Any, None]], after: Callable[[], None]
    ) -> str:
        """Starts the thread, and returns the address that ``serve`` sets once it listens; raises what it sets.

        Args:
          serve: the coroutine function; it goes on until :attr:`stopping` is set.
          after: function that is called in the thread at its end, also if ``serve`` could not listen.
        """
        listening: Future[str] = Future()

        def run() -> None:
            try:
                with self._runner:
                    self._runner.run(serve(listening))
            finally:
                after()

        self._thread = threading.Thread(target=run, name=self._name, daemon=True)
        self._thread.start()
        try:
            return listening.result()
        except BaseException:
            self.stop()
            raise

    @property
    def is_here(self) -> bool:
        """True in the thread itself."""
        return threading.current_thread() is self._thread

    def soon(self, function: Callable[..., object], *arguments: Any) -> None:
        """Has the loop call a function, in the order of these calls; from any thread.

        The loop is woken once for all functions until its next look: a wake-up takes longer than most of them. Does
        nothing once the loop is closed.
        """
        self._due.append((function, arguments))
        if self._woken:
            return
        self._woken = True
        with suppress(RuntimeError):  # the loop is closed already
            self.loop.call_soon_threadsafe(self._call_due)

    def _call_due(self) -> None:
        self._woken = False  # before the look: what comes after it wakes the loop again
        while self._due:
            function, arguments = self._due.popleft()
            try:
                function(*arguments)
            except Exception as error:  # the others are called all the same, as a loop does it
                self.loop.call_exception_handler({"message": f"{function} raised", "exception": error})

    def stop(self) -> None:
        """Has the coroutine end, and waits for it unless this is its own thread. Safe to call twice."""
        self.soon(self.stopping.set)
        if self._thread is not None and not self.is_here:
            self._thread.join()
