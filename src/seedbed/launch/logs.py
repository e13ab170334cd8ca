"""Logging: files in the run folder that do not grow without bound, and warnings of environments for the user."""

from __future__ import annotations

import contextlib
import io
import logging
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from seedbed import regular_files
from seedbed.errors import ConfigError, legible

MOST_BYTES = 16 << 20
"""Size of a log beyond which its middle is cut out."""
_KEPT = MOST_BYTES // 4
"""Bytes of its beginning and of its end that stay."""
_LOOK_EVERY = 100
"""Lines of the package's own log after which its size is looked at."""


def shortened(path: Path) -> int | None:
    """Cuts the middle out of a log that has grown beyond :data:`MOST_BYTES`; returns where, or None if it has not.

    Its writers append, so they go on behind the kept part; lines that they write in the very moment of the cut may be
    lost. Errors of the disk are ignored: the next call tries again.
    """
    with contextlib.suppress(OSError):
        if path.stat().st_size > MOST_BYTES:
            return _cut(path)
    return None


def _cut(path: Path) -> int:
    with regular_files.open_to_change(path) as file:
        first = file.read(_KEPT)
        head = first.rfind(b"\n") + 1 or len(first)
        start = file.seek(-_KEPT - 1, os.SEEK_END)  # with the end of the line before, if one begins there
        last = file.read()
        size = start + len(last)
        last = last[last.find(b"\n") + 1 :] or last
        file.seek(head)
        file.write(
            b"[%d bytes are left out here, since the log had become too long]\n" % (size - head - len(last))
        )
        file.write(last)
        file.truncate()
    return head


class Forgiving(io.FileIO):
    """A file to which writing never fails: data are lost on a disk that is full or gone."""

    def write(self, data: Any, /) -> int:
        """Writes as much as there is room for."""
        with contextlib.suppress(OSError):
            super().write(data)
        return memoryview(data).nbytes


def forgive() -> None:
    """Makes printing never fail in this process: a full disk for logs is no fault of an environment that prints."""
    for number, name in ((1, "stdout"), (2, "stderr")):
        lines = name == "stderr" or bool(os.environ.get("PYTHONUNBUFFERED"))
        raw = io.BufferedWriter(Forgiving(number, "w", closefd=False))
        stream = io.TextIOWrapper(raw, encoding="utf-8", errors="backslashreplace", line_buffering=lines)
        setattr(sys, name, stream)


class _Lines(logging.Formatter):
    """A formatter whose lines can be shown on a terminal, though a peer's words may be in them."""

    def format(self, record: logging.LogRecord) -> str:
        """Returns the lines of a record."""
        return legible(super().format(record))


class _LogFile(logging.FileHandler):
    """A bounded log file; on a full disk it drops lines, instead of stopping the run or filling the terminal."""

    def __init__(self, path: Path, **settings: Any) -> None:
        super().__init__(path, **settings)
        self._path = path
        self._written = 0

    def emit(self, record: logging.LogRecord) -> None:
        """Writes a line; looks at the size of the file now and then."""
        super().emit(record)
        self._written += 1
        if self._written % _LOOK_EVERY == 0:
            shortened(self._path)

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
    handler.setFormatter(_Lines("%(asctime)s %(levelname)s %(threadName)s %(name)s: %(message)s"))
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
