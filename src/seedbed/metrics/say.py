"""Lines for people on streams that may be gone, full, held, or of an encoding without some letters.

A line may hold words of a peer or of a stranger's folder. Characters in them that move a terminal's cursor, or have it
show what is not there, are shown and not obeyed.
"""

from __future__ import annotations

import contextlib
import os
import select
import sys
from typing import IO

from seedbed.errors import RunFailed, legible

_PATIENCE_SECONDS = 2.0
"""Time for a slow reader to take the contents of a full pipe."""


def say(text: str, stream: IO[str] | None = None, *, patience: float = _PATIENCE_SECONDS) -> bool:
    """Writes one line at once, and nothing if the reader has left: output must not end the work that it is about.

    Args:
      text: the line.
      stream: stream to write to; None for standard output.
      patience: seconds to wait for room in a pipe that is full, or for a terminal that is held.

    Returns whether there is still a reader.
    """
    stream = sys.stdout if stream is None else stream
    if stream is None or not has_room(stream, patience):
        return stream is not None
    try:
        print(_encodable(text, stream), file=stream, flush=True)
    except (OSError, ValueError):  # gone, or closed
        let_go(stream)
        return False
    return True


def flush(text: str = "") -> None:
    """Writes ``text``, and the lines that still wait, to standard output, whose reader needs it.

    Raises:
      BrokenPipeError: the reader has left.
      RunFailed: it cannot be written.
    """
    try:
        sys.stdout.write(legible(text))
        sys.stdout.flush()
    except BrokenPipeError:
        let_go(sys.stdout)
        raise
    except OSError as error:
        let_go(sys.stdout)
        raise RunFailed(f"cannot write to standard output: {error.strerror}") from error


def has_room(stream: IO[str], patience: float) -> bool:
    """Returns whether a line can be written after at most that many seconds; a write that waits hears no Ctrl-C."""
    try:
        return bool(select.select([], [stream.fileno()], [], patience)[1])
    except (OSError, ValueError):  # no file, or a closed one
        return True


def _encodable(text: str, stream: IO[str]) -> str:
    """``text``, legible, without the letters that the stream's encoding has not."""
    encoding = getattr(stream, "encoding", None) or "utf-8"
    return legible(text).encode(encoding, "replace").decode(encoding)


def let_go(stream: IO[str]) -> None:
    """Sends the rest of the stream's buffer nowhere, or Python would try again at its end and complain."""
    with contextlib.suppress(OSError, ValueError):
        number = stream.fileno()
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, number)
        os.close(nowhere)
