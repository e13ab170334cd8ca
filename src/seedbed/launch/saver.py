"""Writes the checkpoints of a run, one at a time, without stopping it for as long as a disk takes.

What a checkpoint is made of is taken between two updates: parameters and counters are copied, and of a replay only its
index, which says what there was at that moment. All else is done by a thread of its own, while acting and learning go
on: the replay's frames are copied piece by piece, and no place is overwritten before it was
(:class:`~seedbed.replay.replay.ReplayPieces`). So neither memory nor a pause grows with the replay.

Alternatives weighed: a copy of the whole replay first (twice the memory, and seconds for some gigabytes), a forked
process that writes what it sees (no process that holds JAX can be forked), and leaving out what is overwritten
meanwhile (a slow disk would lose the more, the slower it is).
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable
from pathlib import Path

from seedbed.errors import CheckpointError
from seedbed.learning.checkpoint import Contents, save

_log = logging.getLogger(__name__)


class Saver:
    """Periodic checkpoints are begun by the thread that learns; the last one may be saved by another.

    Args:
      root: the folder of the run's checkpoints.
      keep: how many of them stay.
      beside: whether :meth:`begin` leaves the writing to a thread of its own.
      saved_version: of the newest checkpoint; -1 if there is none.
      note: is told, in one line, why one could not be written; from any thread.

    Attributes:
      saved_version: of the newest checkpoint that is on the disk.
      saved_at: when the newest one was begun, in seconds of :func:`time.monotonic`.
    """

    def __init__(
        self,
        root: Path,
        *,
        keep: int,
        beside: bool,
        saved_version: int,
        note: Callable[[str], None],
    ) -> None:
        self._root = root
        self._keep = keep
        self._beside = beside
        self._note = note
        self._one = threading.Lock()
        self._thread: threading.Thread | None = None
        self._failure: BaseException | None = None
        self._measured: dict[str, float] = {}
        self.saved_version = saved_version
        self.saved_at = time.monotonic()

    @property
    def busy(self) -> bool:
        """Whether a checkpoint is being written by a thread of its own."""
        return self._thread is not None and self._thread.is_alive()

    def begin(self, version: int, take: Callable[[], Contents]) -> None:
        """Takes a checkpoint now and has it written, after the one that is being written.

        Args:
          version: of the weights in it.
          take: gives what it is made of; what is in its trees may change once this has returned.

        Raises what went wrong in the thread that wrote the one before, if that was no :class:`CheckpointError`.
        """
        self.wait()
        self.saved_at = begun = time.monotonic()
        contents = take()
        if self._beside:
            contents = contents.detached()
            # If the process ends at once this ends with it, and what it has written so far is nobody's checkpoint.
            self._thread = threading.Thread(
                target=self._guarded, args=(version, contents), name="checkpoint", daemon=True
            )
            self._thread.start()
        else:
            self.save(version, contents)
        self._measured["checkpoint_pause_seconds"] = time.monotonic() - begun
        _log.info("checkpoint %d: learning stood still for %.3f s", version, time.monotonic() - begun)

    def _guarded(self, version: int, contents: Contents) -> None:
        try:
            self.save(version, contents)
        except BaseException as error:
            self._failure = error

    def save(self, version: int, contents: Contents) -> str | None:
        """Writes a checkpoint, after the one that is being written; returns why it could not."""
        with self._one, contextlib.closing(contents):
            begun = time.monotonic()
            try:
                save(self._root, version, contents, keep=self._keep)
            except CheckpointError as error:
                # The run goes on: the disk may have room again by the next one, and the earlier ones are intact.
                self._note(str(error))
                return str(error)
            self._measured["checkpoint_seconds"] = time.monotonic() - begun
            _log.info("checkpoint %d: written in %.3f s", version, time.monotonic() - begun)
            self.saved_version = version
            return None

    def wait(self) -> None:
        """Waits until what :meth:`begin` began is written, as long as the disk takes; raises what it does."""
        if self._thread is not None:
            self._thread.join()
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def meters(self) -> dict[str, float]:
        """Gauges by the names of metrics; those of what has not been yet are left out."""
        return dict(self._measured)
