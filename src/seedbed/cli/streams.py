"""The standard streams as a command finds them: open, closed, or of an encoding without some letters."""

from __future__ import annotations

import io
import os
import sys
from pathlib import Path

_STREAMS = (("stdin", "r"), ("stdout", "w"), ("stderr", "w"))


def mend() -> None:
    """Has all three standard streams open, and able to write every letter in some way.

    A closed one is opened on ``/dev/null``: the next file that is opened would otherwise have its number, and take the
    output of this process or of one that it starts.
    """
    for number, (name, mode) in enumerate(_STREAMS):
        if not _is_open(number):
            # The lowest number that is free is given: this one.
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open(mode, encoding="utf-8"))  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


def _is_open(number: int) -> bool:
    try:
        os.fstat(number)
    except OSError:
        return False
    return True
