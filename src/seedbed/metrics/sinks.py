"""Sinks of rows: a file of JSON lines that survives a kill, TensorBoard, and a record that feeds them all."""

from __future__ import annotations

import json
import math
import os
import struct
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from seedbed import regular_files
from seedbed.errors import ConfigError, RunFailed
from seedbed.metrics import registry

Row = Mapping[str, float]
"""Registered names to numbers, all measured at one moment."""


class Sink(Protocol):
    """Somewhere that rows go. Used by one thread."""

    def write(self, row: Row) -> None:
        """Takes one row."""

    def close(self) -> None:
        """Brings everything to where it belongs; safe to call twice."""


class Record:
    """Checks the names of every row and hands it to all sinks. Used by one thread."""

    def __init__(self, sinks: Sequence[Sink]) -> None:
        self._sinks = tuple(sinks)

    def write(self, row: Row) -> None:
        """Hands ``row`` to every sink; raises :class:`ConfigError` for a name that is not registered."""
        registry.check(row)
        for sink in self._sinks:
            sink.write(row)

    def close(self) -> None:
        """Closes every sink, also when one of them fails to; then raises the first error."""
        failures: list[Exception] = []
        for sink in self._sinks:
            try:
                sink.close()
            except Exception as error:
                failures.append(error)
        if failures:
            raise failures[0]


class JsonLines:
    """One JSON object a row and line. Each line is written at once: a kill loses at most the last one.

    Numbers that are not finite become ``null``. A file that exists is continued; a torn last line is cut off.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = _opened(path, _cut_torn_line)

    def write(self, row: Row) -> None:
        """Appends ``row``; raises :class:`RunFailed` if the disk does not take it."""
        line = json.dumps({name: _plain(value) for name, value in row.items()}, allow_nan=False)
        _append(self._file, self._path, line.encode() + b"\n")

    def close(self) -> None:
        """Closes the file."""
        self._file.close()


def _plain(value: float) -> float | int | None:
    """``value`` as a number that JSON knows (arrays of one element become their element)."""
    number = value if isinstance(value, int) else float(value)
    return number if math.isfinite(number) else None


def _cut_torn_line(path: Path) -> None:
    if not os.path.lexists(path):
        return
    with regular_files.open_to_change(path) as file:
        data = file.read()
        whole = data.rfind(b"\n") + 1
        if whole != len(data):
            os.truncate(file.fileno(), whole)


def read_rows(path: Path) -> list[dict[str, float]]:
    """Reads a file of :class:`JsonLines`; ``null`` becomes NaN, and a torn last line is left out.

    Raises :class:`ConfigError` if the file is missing, or if any line but the last is not a row.
    """
    try:
        lines = regular_files.read(path, most=None).split(b"\n")
    except OSError as error:
        raise ConfigError(f"cannot read metrics {path}: {error.strerror}") from error
    return list(_rows(path, lines))


def _rows(path: Path, lines: list[bytes]) -> Iterator[dict[str, float]]:
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
            yield {str(name): math.nan if value is None else value for name, value in row.items()}
        except (ValueError, AttributeError) as error:
            if number == len(lines):
                return  # torn by a kill in mid-write
            raise ConfigError(f"{path}, line {number}: not a row of metrics ({error})") from error


class TensorBoard:
    """TensorBoard event files, in tensorboardX's format; the x axis is agent steps.

    The records are written here: tensorboardX's ``SummaryWriter`` hands events to a thread that dies when the
    disk is full, and then waits for it for ever.

    Args:
      folder: folder with the files of all sessions.
      resumed: whether the run goes on: TensorBoard then drops its points from the first row's step on, which the
        session before had come to without keeping them.
    """

    def __init__(self, folder: Path, *, resumed: bool = False) -> None:
        self._restarts = resumed
        self._step = -1
        self._path = folder / f"events.out.tfevents.{time.time_ns()}.{os.getpid()}"
        self._file = _opened(self._path)
        self._add(file_version="brain.Event:2")

    def write(self, row: Row) -> None:
        """Adds every number of ``row`` at its ``agent_steps``, if these have grown: a curve has one point a step.

        Raises :class:`RunFailed` if the disk is full.
        """
        from tensorboardX.proto.event_pb2 import SessionLog
        from tensorboardX.proto.summary_pb2 import Summary

        values = [
            Summary.Value(tag=name, simple_value=float(value))
            for name, value in row.items()
            if name != "agent_steps"
        ]
        step = int(row.get("agent_steps", 0))
        if step <= self._step:
            return
        self._step = step
        if self._restarts:
            self._restarts = False
            self._add(step=step, session_log=SessionLog(status=SessionLog.START))
        self._add(step=step, summary=Summary(value=values))

    def _add(self, **content: Any) -> None:
        from tensorboardX.proto.event_pb2 import Event
        from tensorboardX.record_writer import masked_crc32c

        data = Event(wall_time=time.time(), **content).SerializeToString()
        size = struct.pack("<Q", len(data))
        checks = [struct.pack("<I", masked_crc32c(part)) for part in (size, data)]
        _append(self._file, self._path, size + checks[0] + data + checks[1])

    def close(self) -> None:
        """Closes the file."""
        self._file.close()


def _opened(path: Path, mend: Callable[[Path], None] = lambda path: None) -> Any:
    """The file to append to, mended and with its folder; raises :class:`ConfigError` if it cannot be written."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        mend(path)
        return regular_files.open_to_append(path)
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror}") from error


def _append(file: Any, path: Path, data: bytes) -> None:
    """Writes all of ``data``; raises :class:`RunFailed` if the disk does not take it."""
    try:
        written = file.write(data)
    except OSError as error:
        raise RunFailed(
            f"metrics: cannot write {path}: {error.strerror}; free or change the disk, then resume"
        ) from error
    if written != len(data):
        raise RunFailed(f"metrics: cannot write {path}: the disk is full; free space, then resume")
