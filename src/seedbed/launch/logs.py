"""Logging: a file in the run folder, and warnings of environments for the user."""

from __future__ import annotations

import contextlib
import io
import logging
from collections.abc import Callable, Iterator
from pathlib import Path

from seedbed import regular_files
from seedbed.errors import ConfigError


class _LogFile(logging.FileHandler):
    """A log file that drops lines when the disk is full, instead of stopping the run or filling the terminal."""

    def _open(self) -> io.TextIOWrapper:
        """Opens the file; something else in its place is an :class:`OSError`, as a disk that cannot be written."""
        file = io.BufferedWriter(regular_files.open_to_append(self.baseFilename))
        return io.TextIOWrapper(file, encoding=self.encoding, errors=self.errors)

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802
        """Drops the line."""

    def close(self) -> None:
        """Closes the file; drops lines that could not be written."""
        with contextlib.suppress(OSError):
            super().close()


@contextlib.contextmanager
def logging_to(path: Path) -> Iterator[None]:
    """Writes the package's log lines of level INFO and above to a file, while the block runs.

    Raises:
      ConfigError: there is something else in the file's place.
    """
    try:
        regular_files.require_room(path)
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror}") from error
    logger = logging.getLogger("seedbed")
    handler = _LogFile(path, delay=True, encoding="utf-8", errors="backslashreplace")
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(threadName)s %(name)s: %(message)s"))
    before = logger.level
    logger.addHandler(handler)
    logger.setLevel(min(before or logging.INFO, logging.INFO))
    try:
        yield
    finally:
        logger.setLevel(before)
        logger.removeHandler(handler)
        handler.close()


ENVIRONMENTS = logging.getLogger("seedbed.envs")
"""The logger of environments, whose warnings the user sees too."""
_MOST_NOTES = 8


class ShownNotes(logging.Handler):
    """A handler that shows the warnings of environments, each kind once; :meth:`hear` takes other processes' warnings.

    Args:
      show: callback for each line for the user.
    """

    def __init__(self, show: Callable[[str], None]) -> None:
        super().__init__(logging.WARNING)
        self._show = show
        self._seen: set[str] = set()

    def emit(self, record: logging.LogRecord) -> None:
        """Shows a warning, if its kind is new."""
        note = record.getMessage()
        if not self._is_known(note):
            self._seen.add(_kind(note))
            self._show(note)

    def hear(self, note: str) -> None:
        """Logs a warning of another process, if its kind is new."""
        if not self._is_known(note):
            ENVIRONMENTS.warning("%s", note)

    def _is_known(self, note: str) -> bool:
        return _kind(note) in self._seen or len(self._seen) >= _MOST_NOTES


def _kind(note: str) -> str:
    """Returns the subject of a warning, such as the observation, without the numbers."""
    return note.partition(" shows ")[0].partition(" is ")[0]


@contextlib.contextmanager
def showing_notes(show: Callable[[str], None]) -> Iterator[ShownNotes]:
    """Shows the warnings of environments while the block runs."""
    notes = ShownNotes(show)
    ENVIRONMENTS.addHandler(notes)
    try:
        yield notes
    finally:
        ENVIRONMENTS.removeHandler(notes)
