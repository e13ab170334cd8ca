"""The reason for the end of a process or thread, as data: it travels to the process that watches it.

A process cannot be asked once it has ended, and the last line that it printed may be a library's farewell. So the
launcher names a file, in the variable ``SEEDBED_FAULT``, and the process writes its fault there before it ends
(:func:`leave`). Only of one that died without a word is the last line all that is known (decision 0055).
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import sysconfig
import threading
import traceback
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import dropwhile
from pathlib import Path
from typing import NoReturn

from seedbed import regular_files
from seedbed.errors import described

FILE = "SEEDBED_FAULT"
"""Variable with the path of the file that takes the fault of this process."""
STATUS = 3
"""Exit status of a process that has left its fault."""
_OURS = str(Path(__file__).parent) + os.sep
_PYTHONS = ("<frozen", sysconfig.get_paths()["stdlib"] + os.sep)
_LONGEST_TRACEBACK = 20_000


@dataclass(frozen=True)
class Fault:
    """The reason for the end of a process or a thread.

    Attributes:
      text: the error with its message in one line, or all that is known if there was none.
      kind: type of the error that ended it; empty if it died without a word.
      file: file of the innermost frame that is neither Seedbed's nor Python's own; empty if there is none.
      line: line in that file.
      step: batched steps that the environments had taken; None if it is not a fault of theirs.
      traceback: traceback of the error and its causes.
    """

    text: str
    kind: str = ""
    file: str = ""
    line: int = 0
    step: int | None = None
    traceback: str = ""

    @staticmethod
    def of(error: BaseException) -> Fault:
        """Makes the fault that ``error`` is, or returns the one that it was raised with."""
        if error.args and isinstance(error.args[0], Fault):
            return error.args[0]
        frame = next(filter(None, map(_foreign, _causes(error))), None)
        return Fault(
            described(error),
            type(error).__name__,
            frame.filename if frame else "",
            (frame.lineno or 0) if frame else 0,
            getattr(error, "step", None),
            "".join(traceback.format_exception(error))[-_LONGEST_TRACEBACK:],
        )

    def __str__(self) -> str:
        place = [f"{Path(self.file).name}, line {self.line}"] if self.file else []
        if self.step is not None:
            place.append(f"at step {self.step}")
        return f"{self.text} ({', '.join(place)})" if place else self.text

    def repeats(self, before: Fault | None) -> bool:
        """Returns whether the environments failed at the same place after the same number of steps."""
        return before is not None and self.step is not None and self._place == before._place

    @property
    def _place(self) -> tuple[str, str, int, int | None]:
        return self.kind, self.file, self.line, self.step


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    """The error, and one after the other the errors that it was raised from, each once: they may make a ring."""
    told: list[BaseException] = []
    while error is not None and not any(error is each for each in told):
        yield error
        told.append(error)
        error = error.__cause__


def _foreign(error: BaseException) -> traceback.FrameSummary | None:
    """Returns the innermost frame that is neither ours nor Python's, among the frames that ours have called."""
    frames = traceback.extract_tb(error.__traceback__)
    called = dropwhile(lambda frame: not frame.filename.startswith(_OURS), frames)
    return next((frame for frame in reversed([*called]) if not _is_known(frame.filename)), None)


def _is_known(file: str) -> bool:
    return file.startswith(_OURS) or (file.startswith(_PYTHONS) and "-packages" not in file)


def leave(error: BaseException) -> int:
    """Writes the fault of this process into the launcher's file and on standard error; returns its exit status."""
    fault = Fault.of(error)
    note(fault)
    with contextlib.suppress(OSError, ValueError):  # nobody has to read it
        print(fault.traceback, fault, sep="", file=sys.stderr, flush=True)  # noqa: T201
    return STATUS


def end(status: int) -> NoReturn:
    """Ends this process, also where a thread of foreign code would keep it from ending."""
    if threading.active_count() > 1:
        end_at_once(status)
    raise SystemExit(status)


stuck = threading.Event()
"""Set when foreign code in this process cannot end: it would wait for a machine that is lost, or crash."""


def end_command(status: int) -> NoReturn:
    """Ends the process of a command, and without anybody's exit handlers if something is stuck in it."""
    if stuck.is_set():
        end_at_once(status)
    raise SystemExit(status)


def end_at_once(status: int) -> NoReturn:
    """Ends this process without the exit handlers that are left to run."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError, OSError, ValueError):  # foreign code may have closed it
            stream.flush()
    os._exit(status)


def note(fault: Fault) -> None:
    """Writes a fault into the file that the launcher has named, if it has."""
    if not (path := os.environ.get(FILE)):
        return
    with contextlib.suppress(OSError):  # a full disk: the last line has to do
        regular_files.write_whole(Path(path), json.dumps(asdict(fault)))


def read(path: Path) -> Fault | None:
    """The fault that a process has left; None if it left none."""
    try:
        return Fault(**regular_files.read_object(path))
    except (OSError, ValueError, TypeError):
        return None
