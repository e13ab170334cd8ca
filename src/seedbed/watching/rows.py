"""Rows of metrics and lines of logs, read while another process appends to their files."""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from seedbed import regular_files

_MOST_AT_ONCE = 16 << 20
_LINE = re.compile(r"(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)(?:,\d+)? (WARNING|ERROR|CRITICAL) \S+ \S+: (.*)")


class GrowingRows:
    """The rows of a ``metrics.jsonl``, in the order in which they are written; used by one thread.

    Args:
      path: the file, which need not exist yet.
      last: most bytes of its present end to read; None for all.
    """

    def __init__(self, path: Path, last: int | None = None) -> None:
        self._path = path
        self._last = last
        self._offset = 0
        self._identity: tuple[int, int] | None = None

    def new(self) -> list[dict[str, float]]:
        """Returns the rows since the last call; lines that are no rows, or not whole yet, are left out.

        A file that was replaced or cut is read from its beginning.
        """
        rows: list[dict[str, float]] = []
        while lines := self._lines():
            for line in lines.split(b"\n"):
                try:
                    row = json.loads(line)
                    rows.append(
                        {name: math.nan if value is None else float(value) for name, value in row.items()}
                    )
                except (ValueError, AttributeError, TypeError, OverflowError, RecursionError):
                    continue
        return rows

    def _lines(self) -> bytes:
        """Returns the next whole lines; none if there are no more."""
        try:
            with regular_files.open_to_read(self._path) as file:
                found = os.fstat(file.fileno())
                identity = (found.st_dev, found.st_ino)
                if identity != self._identity or found.st_size < self._offset:
                    self._identity = identity
                    self._offset = max(0, found.st_size - self._last) if self._last else 0
                file.seek(self._offset)
                data = file.read(_MOST_AT_ONCE)
        except OSError:
            return b""
        whole = data[: data.rfind(b"\n") + 1]
        self._offset += len(whole)
        return whole


@dataclass(frozen=True)
class LogLine:
    """A line of a log that tells of a fault.

    Attributes:
      time: local time, as it was written.
      level: WARNING, ERROR or CRITICAL.
      text: message, with the lines of a traceback below it.
    """

    time: str
    level: str
    text: str


def faults(path: Path, most: int = 20, last: int = 1 << 16) -> list[LogLine]:
    """Returns the last warnings and errors of a log; none if it cannot be read.

    Args:
      path: the log.
      most: most of them.
      last: most bytes of its end to read.
    """
    try:
        with regular_files.open_to_read(path) as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - last))
            text = file.read().decode("utf-8", "replace")
    except OSError:
        return []
    return list(_faults(text.splitlines()))[-most:]


def _faults(lines: list[str]) -> Iterator[LogLine]:
    open_line: LogLine | None = None
    for line in lines:
        begins = _LINE.match(line)
        if begins or re.match(r"\d{4}-\d\d-\d\d ", line):
            if open_line:
                yield open_line
            open_line = LogLine(*begins.groups()) if begins else None
        elif open_line:
            open_line = LogLine(open_line.time, open_line.level, f"{open_line.text}\n{line}")
    if open_line:
        yield open_line
