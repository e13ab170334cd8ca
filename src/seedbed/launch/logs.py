"""What the package logs, and what instances print, in files of the run folder that do not grow without bound."""

from __future__ import annotations

import contextlib
import io
import logging
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

MOST_BYTES = 16 << 20
"""Size of a log beyond which its middle is cut out."""
_KEPT = MOST_BYTES // 4
"""Bytes of its beginning and of its end that stay."""
_LOOK_EVERY = 100
"""Lines of the package's own log after which its size is looked at."""


def shortened(path: Path) -> int | None:
    """Cuts the middle out of a log that has grown beyond :data:`MOST_BYTES`; returns where, or None if it has not.

    Its writers append: they go on behind what is kept. What they write in the very moment of the cut may be lost. An
    error of the disk is none of a run: the next call tries again.
    """
    with contextlib.suppress(OSError):
        if path.stat().st_size > MOST_BYTES:
            return _cut(path)
    return None


def _cut(path: Path) -> int:
    with path.open("r+b") as file:
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
    """A file to which writing never fails: on a disk that is full or gone, what is written is lost."""

    def write(self, data: Any, /) -> int:
        """Writes what finds room."""
        with contextlib.suppress(OSError):
            super().write(data)
        return memoryview(data).nbytes


def forgive() -> None:
    """Has what this process prints never fail: a full disk for logs is no fault of an environment that prints."""
    for number, name in ((1, "stdout"), (2, "stderr")):
        lines = name == "stderr" or bool(os.environ.get("PYTHONUNBUFFERED"))
        raw = io.BufferedWriter(Forgiving(number, "w", closefd=False))
        stream = io.TextIOWrapper(raw, encoding="utf-8", errors="backslashreplace", line_buffering=lines)
        setattr(sys, name, stream)


class _LogFile(logging.FileHandler):
    """A file of log lines, within bounds; a disk that is full does not stop the run, nor fill the terminal."""

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

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802
        """Drops the line."""

    def close(self) -> None:
        """Drops what it could not write; the file is closed all the same."""
        with contextlib.suppress(OSError):
            super().close()


@contextlib.contextmanager
def logging_to(path: Path) -> Iterator[None]:
    """Sends what the package logs to a file too."""
    logger = logging.getLogger("seedbed")
    handler = _LogFile(path, delay=True, encoding="utf-8")
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
"""Whose warnings are for people too."""
_MOST_NOTES = 8


class ShownNotes(logging.Handler):
    """Shows the warnings of environments, each kind once; those of other processes are handed to :meth:`hear`.

    Args:
      show: takes one line for people.
    """

    def __init__(self, show: Callable[[str], None]) -> None:
        super().__init__(logging.WARNING)
        self._show = show
        self._seen: set[str] = set()

    def emit(self, record: logging.LogRecord) -> None:
        """Shows one, if it is new."""
        note = record.getMessage()
        if not self._is_known(note):
            self._seen.add(_kind(note))
            self._show(note)

    def hear(self, note: str) -> None:
        """Logs what another process warned of, if it is new."""
        if not self._is_known(note):
            ENVIRONMENTS.warning("%s", note)

    def _is_known(self, note: str) -> bool:
        return _kind(note) in self._seen or len(self._seen) >= _MOST_NOTES


def _kind(note: str) -> str:
    """What a note is about: which observation, and not which numbers it showed."""
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
