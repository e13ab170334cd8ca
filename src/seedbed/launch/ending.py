"""The end of a session: its last checkpoint and its summary, which are written once, whoever ends it.

A run is ended by its own thread, or, if that is blocked on another host, by the thread that learns of that host's loss.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
from collections.abc import Callable
from typing import Any, NoReturn, Protocol

from seedbed.errors import Overtaken, RunFailed, SeedbedError, cause_of
from seedbed.launch.folder import RunFolder
from seedbed.launch.hosts import Hosts
from seedbed.launch.saver import Saver
from seedbed.learning.checkpoint import Contents
from seedbed.learning.run import Run
from seedbed.metrics.reports import Summary
from seedbed.metrics.say import say

_log = logging.getLogger(__name__)
_HEARSAY_SECONDS = 2.0
"""Seconds between a failure and the report of a lost host that caused it, at most, in either order."""
_LAST_SECONDS = 60.0
"""Seconds for the last checkpoint and the summary after the loss of a host, before the process ends anyway."""


class TakeContents(Protocol):
    """A function that takes the contents of a checkpoint."""

    def __call__(self, run: Run, /, *, alone: bool = False) -> Contents:
        """Takes them; ``alone`` without the other hosts."""


class Ending:
    """The end of a session.

    Args:
      folder: run folder.
      hosts: the hosts of the run, as this one sees them.
      saver: writer of checkpoints.
      paused: whether acting has to be paused for a checkpoint, so that none can be taken after a failure.
      contents: function that takes the contents of a checkpoint.
      summary: function that makes the summary of a run from the reason for its end and the counts at that moment.

    Attributes:
      reason: reason for the end; empty until the run's own thread has one.
    """

    def __init__(
        self,
        folder: RunFolder,
        hosts: Hosts,
        saver: Saver,
        *,
        paused: bool,
        contents: TakeContents,
        summary: Callable[[Run, str, dict[str, Any]], Summary],
    ) -> None:
        self._run: Run | None = None
        self._begun_at = saver.saved_version, 0
        self.reason = ""
        self._folder = folder
        self._hosts = hosts
        self._saver = saver
        self._paused = paused
        self._contents = contents
        self._summary = summary
        self._back, self._lock = threading.Event(), threading.Lock()

    @property
    def run(self) -> Run | None:
        """The parts of the run; None until they are built."""
        return self._run

    @run.setter
    def run(self, run: Run) -> None:
        self._run = run
        self._begun_at = self._saver.saved_version, run.books.agent_steps

    def _is_new(self, run: Run) -> bool:
        """Whether the run has anything that its newest checkpoint has not.

        That is another version of the weights, or, before the first update of this session, steps that fill a replay:
        of several sessions that are shorter than that, each goes on from the one before.
        """
        if run.version != self._saver.saved_version:
            return True
        version, steps = self._begun_at
        alone = self._hosts.count == 1 and not self._paused
        return alone and version == self._saver.saved_version and run.books.agent_steps > steps

    def failure(self, error: Exception) -> SeedbedError:
        """Returns the error that ends the run, with component, cause and log; the traceback goes to the log."""
        _log.error("the run failed", exc_info=error)
        if not isinstance(error, SeedbedError) and (lost := self._hosts.lost(_HEARSAY_SECONDS)):
            error = RunFailed(lost)  # a device has failed since that host is gone
        component = "" if isinstance(error, SeedbedError) else "learner: "
        message = component + cause_of(error)
        return RunFailed(message if "(log: " in message else f"{message} (log: {self._folder.log})")

    def last_snapshot(self, run: Run) -> Contents | None:
        """Takes the contents of the last checkpoint while all hosts are alive; returns None if nothing is new.

        If that fails, the reason is logged and :meth:`write` tries again without the others.
        """
        self._saver.wait()
        if not self._is_new(run):
            return None
        try:
            return self._contents(run)
        except Exception as error:
            _log.error("no snapshot", exc_info=error)
            return None

    def come_back(self) -> None:
        """Says that the run's own thread is not blocked: it will end the run itself."""
        self._back.set()

    def end(
        self,
        run: Run,
        reason: str,
        standing: dict[str, Any],
        taken: Contents | None,
        failure: SeedbedError | None,
    ) -> Summary:
        """Writes the last checkpoint and the summary, in the run's own thread.

        A session that another one has overtaken writes neither.

        Args:
          run: the parts of the run.
          reason: reason for the end.
          standing: counts at that moment.
          taken: contents of the last checkpoint, from :meth:`last_snapshot`; None to take them now, if any are new.
          failure: error that ends the run; None if there is none.

        Raises:
          SeedbedError: ``failure``, or the error of the writing.
        """
        with self._lock:
            self.reason = reason
            return self._end(run, reason, standing, taken, failure)

    def watch(self, standing: Callable[[Run], dict[str, Any]], close: Callable[[], None]) -> None:
        """Ends the process if another host is lost and the run's own thread stays blocked on it.

        Args:
          standing: function that returns the counts at this moment.
          close: function that closes the progress display.
        """
        self._hosts.watch(lambda lost: self._end_without(lost, standing, close))

    def _end_without(
        self, lost: str, standing: Callable[[Run], dict[str, Any]], close: Callable[[], None]
    ) -> None:
        """Ends the process with the state before the update that waits for a lost host.

        A device that waits for another host's device cannot be interrupted.
        """
        if self._back.wait(_HEARSAY_SECONDS):
            return
        with self._lock:
            if self._back.is_set():
                return
            failure = self.failure(RunFailed(lost))
            last_resort = threading.Timer(_LAST_SECONDS, _quit, (failure, close))
            last_resort.daemon = True
            last_resort.start()
            try:
                if self.run is not None:
                    self._end(self.run, f"failed: {failure}", standing(self.run), None, failure)
            finally:
                _quit(failure, close)

    def _end(
        self,
        run: Run,
        reason: str,
        standing: dict[str, Any],
        taken: Contents | None,
        failure: SeedbedError | None,
    ) -> Summary:
        if (overtaken := self._folder.overtaken()) is not None:
            raise Overtaken(overtaken) from failure
        unsaved = self._save(run, taken, failure)
        if unsaved and not failure:
            failure = RunFailed(unsaved)
            reason = f"{reason}, and {unsaved}"
        try:
            summary = self._summary(run, reason, standing)
            summary.write(self._folder.summary)
        except Exception as error:
            if failure:
                _log.error("no summary", exc_info=error)
                raise failure from None
            raise self.failure(error) from None
        if failure:
            raise failure
        if reason != "interrupted":
            for instances in run.instances.values():
                instances.say_over()
        return summary

    def _save(self, run: Run, taken: Contents | None, failure: SeedbedError | None) -> str | None:
        """Writes the last checkpoint if anything is new; returns the reason if it cannot be written."""
        try:
            self._saver.wait()
            if not self._is_new(run):
                return None
            if failure and self._paused:
                return None  # acting can no longer be paused: the checkpoint before stays the newest
            return self._saver.save(run.version, taken or self._contents(run, alone=self._hosts.count > 1))
        except Exception as error:
            _log.error("no last checkpoint", exc_info=error)
            return cause_of(error)


def _quit(failure: SeedbedError, close: Callable[[], None]) -> NoReturn:
    """Ends the process at once, with the message and exit status of a failed command."""
    close()
    say(f"seedbed: {failure}", sys.stderr)
    os._exit(1)
