"""The thread that copies a run's state to its store, and that the run never waits for but at its end.

A store may be slow, fail for hours, or hang. Training goes on meanwhile: the newest checkpoint is copied when the store
is ready for it, and the ones before that were not copied are left out. An outage is told when it begins, now and then
while it lasts, and when it ends.

The same thread looks whether another session has begun, which ends this one.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from seedbed.errors import StoreError, StoreUnreachable, cause_of
from seedbed.launch.folder import RunFolder
from seedbed.launch.store import Store

_log = logging.getLogger(__name__)
SOON_SECONDS, LATE_SECONDS = 60.0, 600.0
"""Seconds that the end of a run waits for its last copy: of one that was interrupted or failed, and of any other."""
_LOOK_SECONDS = 30.0
"""Seconds between two looks for another session, unless something is copied."""
_RETRY_SECONDS = (5.0, 60.0)
"""Seconds after which a copy that failed is tried again, at first and at most."""
_SAY_SECONDS = 600.0
"""Seconds between two lines about one trouble."""
_CLOSING_SECONDS = 5.0
_HEED_SECONDS = 0.2
"""Seconds within which an interruption is heard while the end of a run waits for its last copy."""


class Copier:
    """Copies of a run's state, made by a thread of its own.

    Args:
      folder: run folder.
      store: store in which this session has been begun, before :meth:`begin`.
      step: step of the checkpoint from which the run goes on; None for a run without one.
      keep: number of checkpoints that stay in the store.
      note: callback for each line for the user; called from any thread.
      retry: seconds after which a copy that failed is tried again, at first and at most.
    """

    def __init__(
        self,
        folder: RunFolder,
        store: Store,
        *,
        step: int | None,
        keep: int,
        note: Callable[[str], None],
        retry: tuple[float, float] = _RETRY_SECONDS,
    ) -> None:
        self._folder = folder
        self._store = store
        self._keep = keep
        self._note = note
        self._retry = retry
        self._changed = threading.Condition()
        self._newest = step
        self._copying: int | None = None
        self._asked = self._done = self._left_out = 0
        self._failure: str | None = None
        self._told, self._said_at = False, float("-inf")
        self._hurrying = self._closing = self._over = False
        self._thread = threading.Thread(target=self._run, name="store", daemon=True)

    def begin(self) -> None:
        """Has the thread copy the state of the run, and whatever is offered later; later calls do nothing."""
        if self._thread.ident is None:
            self._asked += 1
            self._thread.start()

    def offer(self, step: int) -> None:
        """Has a checkpoint that was written copied, unless another one is offered first; returns at once."""
        with self._changed:
            if self._done < self._asked and self._newest not in (None, self._copying):
                self._left_out += 1
            self._newest = step
            self._asked += 1
            self._changed.notify_all()

    def spared(self) -> set[int]:
        """Returns steps of the checkpoints that are copied now or next, and have to stay in the folder."""
        with self._changed:
            return {step for step in (self._copying, self._newest) if step is not None}

    def finish(self, seconds: float, interrupted: threading.Event, soon: float) -> str | None:
        """Has the state copied once more, and waits; returns the reason if it was not copied within some seconds.

        Args:
          seconds: the longest wait.
          interrupted: event that may be set at any time, by a signal too.
          soon: the longest wait from then on, in seconds.
        """
        self.begin()
        hurried = interrupted.is_set()
        limit = min(soon, seconds) if hurried else seconds
        ends = time.monotonic() + limit
        with self._changed:
            self._asked += 1
            last, self._hurrying = self._asked, True
            self._changed.notify_all()
            while not (self._done >= last or self._over) and (left := ends - time.monotonic()) > 0:
                # In slices: a handler of a signal cannot wake what may hold this very lock.
                self._changed.wait(min(left, _HEED_SECONDS))
                if interrupted.is_set() and not hurried:
                    hurried, limit = True, min(soon, left)
                    ends = time.monotonic() + limit
                    self._note(
                        f"interrupted: the last copy has {limit:.0f} s left; Ctrl-C again quits at once"
                    )
            return None if self._done >= last else self._failure or f"not done within {limit:g} s"

    def finish_or_say(self, interrupted: threading.Event, *, soon: bool) -> None:
        """Has the end of the run copied, and says where it is if it was not.

        Args:
          interrupted: event that may be set at any time, by a signal too.
          soon: whether the user waits, since the run was interrupted or has failed.
        """
        if (
            missing := self.finish(SOON_SECONDS if soon else LATE_SECONDS, interrupted, SOON_SECONDS)
        ) is not None:
            self._note(
                f"the end of this run is not in store {self._store} ({missing}), but in {self._folder.path} only: "
                f"'seedbed resume {self._folder.given}' goes on there"
            )

    def close(self) -> None:
        """Ends the thread, unless the store holds it; safe to call twice."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        if self._thread.ident is not None:
            self._thread.join(_CLOSING_SECONDS)

    # -- the thread ---------------------------------------------------------------------------------------

    def _run(self) -> None:
        wait = self._retry[0]
        while (asked := self._next(wait)) is not None:
            try:
                overtaken = self._store.overtaken()
                if overtaken is None and asked > self._done:
                    overtaken = self._store.keep(self._folder, self._copying, self._keep)
            except Exception as error:
                wait = min(2 * wait, self._retry[1]) if self._failure else self._retry[0]
                self._failed(error)
                continue
            if overtaken is not None:
                self._end(overtaken)
                return
            self._copied(asked)

    def _next(self, wait: float) -> int | None:
        """Waits until there is something to copy or to look at; returns the last request; None at the end."""
        with self._changed:
            seen = self._asked if self._failure else self._done
            if not self._failure:
                wait = _LOOK_SECONDS
            elif self._hurrying:
                wait = self._retry[0]
            self._changed.wait_for(lambda: self._closing or self._asked > seen, wait)
            self._copying = self._newest
            return None if self._closing else self._asked

    def _end(self, overtaken: str) -> None:
        with self._changed:
            self._folder.give_up(overtaken)
            self._failure, self._copying, self._over = overtaken, None, True
            self._changed.notify_all()

    def _copied(self, asked: int) -> None:
        with self._changed:
            told, self._told, self._failure = self._told, False, None
            left_out, self._left_out = self._left_out, 0
            self._done, self._copying = asked, None
            self._changed.notify_all()
        missing = f"{left_out} checkpoint{'s were' if left_out > 1 else ' was'} left out"
        if told:
            self._note(f"store {self._store} is written again{f'; {missing}' if left_out else ''}")
        elif left_out:
            self._say(f"store {self._store} is slower than checkpoints come: {missing}")

    def _failed(self, error: Exception) -> None:
        _log.warning("not copied", exc_info=error)
        told = isinstance(error, StoreError | StoreUnreachable)
        cause = str(error) if told else f"store {self._store}: {cause_of(error)}"
        with self._changed:
            self._failure, self._copying = cause, None
            self._changed.notify_all()
        if self._say(f"{cause}; training goes on, and the newest checkpoint is copied as soon as it can be"):
            self._told = True

    def _say(self, line: str) -> bool:
        """Passes a line on, unless the last one is not long past; returns whether it did."""
        now = time.monotonic()
        if self._closing or now - self._said_at < _SAY_SECONDS:
            return False
        self._said_at = now
        self._note(line)
        return True
