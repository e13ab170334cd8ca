"""The error that ends a run, reported by any of its parts."""

from __future__ import annotations

import logging
import threading

from seedbed.errors import RunFailed, SeedbedError

_log = logging.getLogger(__name__)


class Failure:
    """The first error of a run's parts: any thread may report one, the run's own thread raises it."""

    def __init__(self) -> None:
        self.error: SeedbedError | None = None

    def report(self, error: BaseException) -> None:
        """Keeps the error if it is the first one.

        Any exception but a :class:`SeedbedError` is logged with its traceback and kept as :class:`RunFailed`.
        """
        if not isinstance(error, SeedbedError):
            where = threading.current_thread().name
            _log.error("%s failed", where, exc_info=error)
            error = RunFailed(f"{where}: {type(error).__name__}: {error}")
        if self.error is None:
            self.error = error

    def check(self) -> None:
        """Raises the error that was reported, if any."""
        if self.error is not None:
            raise self.error
