"""The writer of a run's checkpoints, one at a time, which does not stop the run for as long as a disk takes.

The contents of a checkpoint are taken between two updates: parameters and counters are copied, and of a replay only its
index, which fixes the items of that moment. A thread of its own does the rest, while acting and learning go on: it
copies the replay's frames piece by piece, and no slot is overwritten before it was copied
(:class:`~seedbed.replay.replay.ReplayPieces`). So neither memory nor the pause grows with the replay.

Alternatives weighed: a copy of the whole replay first (twice the memory, and seconds for some gigabytes), a forked
process that writes its copy of the memory (no process that holds JAX can be forked), and leaving out items that are
overwritten meanwhile (the slower the disk, the more is lost).
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Collection
from pathlib import Path

from seedbed.errors import CheckpointError, Overtaken
from seedbed.learning.checkpoint import Contents, save

_log = logging.getLogger(__name__)


class Saver:
    """A writer of checkpoints; the learner's thread begins periodic ones, and another thread may save the last one.

    Args:
      root: folder of the run's checkpoints.
      keep: number of checkpoints that are kept.
      beside: whether :meth:`begin` leaves the writing to a thread of its own.
      saved_version: version of the newest checkpoint; -1 if there is none.
      note: callback for a line with the reason why a checkpoint could not be written; called from any thread.
      overtaken: function that returns the reason why nothing may be written any more; None while it may.
      saved: callback for the version of each checkpoint that was written; called from any thread.
      spared: function that returns versions of old checkpoints that stay, since they are being copied.

    Attributes:
      saved_version: version of the newest checkpoint on the disk.
      saved_at: time at which the newest checkpoint was begun, in seconds of :func:`time.monotonic`.
    """

    def __init__(
        self,
        root: Path,
        *,
        keep: int,
        beside: bool,
        saved_version: int,
        note: Callable[[str], None],
        overtaken: Callable[[], str | None] = lambda: None,
        saved: Callable[[int], None] = lambda version: None,
        spared: Callable[[], Collection[int]] = tuple,
    ) -> None:
        self._root = root
        self._overtaken = overtaken
        self._saved = saved
        self._spared = spared
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
        """True while a checkpoint is being written by a thread of its own."""
        return self._thread is not None and self._thread.is_alive()

    def begin(self, version: int, take: Callable[[], Contents]) -> None:
        """Takes a checkpoint now and has it written; waits first for the one that is being written.

        An error in the writing of the checkpoint before, other than :class:`CheckpointError`, is raised here.

        Args:
          version: version of the weights in it.
          take: function that returns its contents; their arrays may change once this method has returned.
        """
        self.wait()
        self.saved_at = begun = time.monotonic()
        contents = take()
        if self._beside:
            contents = contents.detached()
            # If the process ends at once, so does this thread; an unfinished checkpoint is never taken for one.
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
        """Writes a checkpoint, after the one that is being written; returns the reason if it cannot be written.

        Raises:
          Overtaken: another session goes on with the run.
        """
        with self._one, contextlib.closing(contents):
            if (reason := self._overtaken()) is not None:
                raise Overtaken(reason)
            begun = time.monotonic()
            try:
                save(self._root, version, contents, keep=self._keep, spared=self._spared())
            except CheckpointError as error:
                # The run goes on: the disk may have room again by the next one, and the earlier ones are intact.
                self._note(str(error))
                return str(error)
            self._measured["checkpoint_seconds"] = time.monotonic() - begun
            _log.info("checkpoint %d: written in %.3f s", version, time.monotonic() - begun)
            self.saved_version = version
            self._saved(version)
            return None

    def wait(self) -> None:
        """Waits until the checkpoint that :meth:`begin` took is written, without a limit; raises the writer's error."""
        if self._thread is not None:
            self._thread.join()
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def meters(self) -> dict[str, float]:
        """Returns the seconds of the last pause and the last writing, by name of metric; empty before the first."""
        return dict(self._measured)
