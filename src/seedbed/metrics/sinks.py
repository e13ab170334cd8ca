"""Sinks of rows: a file of JSON lines that survives a kill, TensorBoard, and a record that feeds them all."""

from __future__ import annotations

import errno
import json
import logging
import math
import os
import struct
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from seedbed import regular_files
from seedbed.errors import ConfigError, cause_of, legible
from seedbed.metrics import registry
from seedbed.metrics.appending import AppendedFile

_log = logging.getLogger(__name__)

Row = Mapping[str, float]
"""Registered names to numbers, all measured at one moment."""
OnRow = Callable[[dict[str, float]], object]
"""A user's function that is called with each row; what it returns is of no account."""


class Sink(Protocol):
    """Somewhere that rows go. Used by one thread."""

    def write(self, row: Row) -> None:
        """Takes one row."""

    def close(self) -> None:
        """Brings everything to where it belongs; safe to call twice."""


class Handed:
    """A sink that calls a function with each row, as a dict of its own.

    Args:
      take: function that is called, in the thread that trains: training waits for it.
    """

    def __init__(self, take: OnRow) -> None:
        self._take = take

    def __str__(self) -> str:
        return "on_row"

    def write(self, row: Row) -> None:
        """Calls the function."""
        self._take(dict(row))

    def close(self) -> None:
        """Does nothing: nobody is told."""


class Record:
    """Checks the names of every row and hands it to all sinks. Used by one thread.

    Metrics are worth no run: a row that a sink cannot take is missing there, and the user is told when such a gap
    begins and when it ends.

    Args:
      sinks: sinks of the rows.
      note: callback for each line for the user.
    """

    def __init__(self, sinks: Sequence[Sink], note: Callable[[str], None]) -> None:
        self._sinks = tuple(sinks)
        self._note = note
        self._missing = [0] * len(self._sinks)

    def write(self, row: Row) -> None:
        """Hands ``row`` to every sink; raises :class:`ConfigError` for a name that is not registered."""
        registry.check(row)
        for index, sink in enumerate(self._sinks):
            try:
                sink.write(row)
            except Exception as error:
                self._missed(index, error)
            else:
                self._taken(index)

    def _missed(self, index: int, error: Exception) -> None:
        self._missing[index] += 1
        if self._missing[index] == 1:
            _log.warning("a row is missing", exc_info=error)
            self._note(
                f"metrics: {_reason(error)}; training goes on, and rows are missing until they can be written again"
            )

    def _taken(self, index: int) -> None:
        if missing := self._missing[index]:
            self._missing[index] = 0
            rows = "one row is" if missing == 1 else f"{missing:,} rows are"
            self._note(f"metrics: {self._sinks[index]} is written again; {rows} missing in it")

    def close(self) -> None:
        """Closes every sink, also when one of them fails to."""
        for sink in self._sinks:
            try:
                sink.close()
            except Exception as error:
                _log.warning("metrics: not closed", exc_info=error)
                self._note(f"metrics: {_reason(error)}")


def _reason(error: Exception) -> str:
    if isinstance(error, OSError) and error.filename:
        return f"cannot write {error.filename}: {error.strerror}"
    return cause_of(error)


class JsonLines:
    """One JSON object a row and line. Each line is written at once: a kill loses at most the last one.

    Numbers that are not finite become ``null``. A file that exists is continued; a torn last line is cut off.

    Raises:
      ConfigError: there is something else in the place of the file.
    """

    def __init__(self, path: Path) -> None:
        try:
            regular_files.require_room(path)
        except OSError as error:
            if error.errno == errno.EINVAL:  # all else may pass
                raise ConfigError(f"cannot write {path}: {error.strerror}") from error
        self._file = AppendedFile(path, mend=_cut_torn_line)

    def __str__(self) -> str:
        return str(self._file.path)

    def write(self, row: Row) -> None:
        """Appends ``row``; raises :class:`OSError` if the disk does not take it."""
        line = json.dumps({name: _plain(value) for name, value in row.items()}, allow_nan=False)
        self._file.append(line.encode() + b"\n")

    def close(self) -> None:
        """Closes the file."""
        self._file.close()


def _plain(value: float) -> float | int | None:
    """``value`` as a number that JSON knows (arrays of one element become their element)."""
    number = value if isinstance(value, int) else float(value)
    return number if math.isfinite(number) else None


def _read_number(value: Any) -> float:
    if value is None:
        return math.nan
    if not isinstance(value, int | float):
        raise TypeError(f"{str(value)[:40]!r} is no number")
    float(value)  # refuses whole numbers of hundreds of digits
    return value


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
            yield {str(name): _read_number(value) for name, value in row.items()}
        except (ValueError, AttributeError, TypeError, OverflowError, RecursionError) as error:
            if number == len(lines):
                return  # torn by a kill in mid-write
            raise ConfigError(f"{path}, line {number}: not a row of metrics ({error})") from error


class TensorBoard:
    """TensorBoard event files of tensorboardX's summaries; the x axis is agent steps.

    A curve's tag is the metric below its group, with the metric's sentence as its description; the settings are
    hyperparameters. Records are framed here: tensorboardX's ``SummaryWriter`` hands events to a thread that dies when
    the disk is full, and then waits for it for ever.

    Args:
      folder: folder with the files of all sessions.
      resumed: whether the run goes on: TensorBoard then drops its points from the first row's step on, which the
        session before had come to without keeping them.
      settings: recorded settings of the run, by name.
    """

    def __init__(
        self, folder: Path, *, resumed: bool = False, settings: Mapping[str, Any] | None = None
    ) -> None:
        from tensorboardX.summary import hparams

        self._restarts = resumed
        self._step = -1
        self._described: set[str] = set()
        name = f"events.out.tfevents.{time.time_ns()}.{os.getpid()}"
        begins, self._ends = _record(file_version="brain.Event:2"), b""
        if settings:
            known = hparams(_plain_settings(settings), {registry.in_group("mean_return"): None})
            *first, last = (_record(summary=summary) for summary in known)
            begins, self._ends = begins + b"".join(first), last
        self._file = AppendedFile(folder / name, begins=begins)

    def __str__(self) -> str:
        return str(self._file.path)

    def write(self, row: Row) -> None:
        """Adds every number of ``row`` at its ``agent_steps``, if these have grown: a curve has one point a step.

        Raises :class:`OSError` if the disk does not take them.
        """
        from tensorboardX.proto.event_pb2 import SessionLog
        from tensorboardX.proto.summary_pb2 import Summary

        step = int(row.get("agent_steps", 0))
        if step <= self._step:
            return
        summary = Summary()
        for name, value in row.items():
            if name != "agent_steps":
                summary.MergeFrom(self._point(name, value))
        data = _record(step=step, summary=summary)
        if self._restarts:
            data = _record(step=step, session_log=SessionLog(status=SessionLog.START)) + data
        self._file.append(data)
        self._step, self._restarts = step, False
        self._described.update(row)

    def _point(self, name: str, value: float) -> Any:
        """Returns the summary of one number; the first one of a metric in the file has the metric's sentence."""
        from tensorboardX.summary import scalar

        sentence = "" if name in self._described else registry.find(name).sentence
        point = scalar(registry.in_group(name), value, summary_description=sentence)
        if sentence:  # TensorBoard's reader warns of metadata without the name of a plugin
            point.value[0].metadata.plugin_data.plugin_name = "scalars"
        return point

    def close(self) -> None:
        """Closes the file, with a record that the session has ended."""
        if self._ends and self._step >= 0:
            self._file.append(self._ends)
            self._ends = b""
        self._file.close()


def _plain_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """``settings`` as values of TensorBoard's hyperparameters; a list becomes its text, and any text is UTF-8."""
    return {
        name: value if isinstance(value, bool | int | float) else legible(str(value))
        for name, value in settings.items()
        if value is not None
    }


def _record(**content: Any) -> bytes:
    """An event as a record of TensorBoard's files."""
    from tensorboardX.proto.event_pb2 import Event
    from tensorboardX.record_writer import masked_crc32c

    data: bytes = Event(wall_time=time.time(), **content).SerializeToString()
    size = struct.pack("<Q", len(data))
    checks = [struct.pack("<I", masked_crc32c(part)) for part in (size, data)]
    return size + checks[0] + data + checks[1]
