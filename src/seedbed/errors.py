"""Every error that Seedbed raises on purpose.

::

    SeedbedError
    ├── ConfigError           a setting, a name or a file that the user gave is wrong
    │   ├── CheckpointError   a checkpoint cannot be written or read
    │   ├── DatasetError      a data set cannot be written or read, or does not fit
    │   ├── StoreError        a run's store is none, holds another run or no intact copy
    │   ├── InUse             another process trains in the run folder
    │   └── Damaged           files differ from the written ones
    ├── SpecError             shapes or dtypes differ from the agreed ones
    ├── EnvironmentFault      an environment raised, hung or broke its contract
    ├── TransportError        arrays could not travel
    │   ├── ProtocolError     a peer sent something malformed
    │   ├── Refused           the other side said no, and why
    │   │   └── NotNow        it said: not now, come again later
    │   └── ConnectionLost    the other side is gone
    ├── StoreUnreachable      a run's store cannot be written or read now
    ├── ExecuteAgain          nothing is wrong: the same command will do
    └── RunFailed             a run cannot go on; names the component, the cause and the log
        └── Overtaken         another session goes on with it

Each message names the given value, the needed one and the remedy. Errors of the operating system and of gRPC
are translated where they enter (``transport/``, ``learning/checkpoint.py``, ``replay/dataset.py``), never passed
through.
"""

from __future__ import annotations

import difflib
import re
import traceback
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

_COMMAND_LINES = ("argparse", "optparse")
"""Modules of Python that end a program whose command line is another than they expect."""
_MOST_LETTERS = 2000
"""Of a message of foreign code in one line; tracebacks in the log have more of it."""
_OBEYED = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
"""Characters that a terminal obeys, but for the end of a line and the tabulator; and halves of characters."""


class SeedbedError(Exception):
    """Base of all errors that Seedbed raises on purpose."""


class ConfigError(SeedbedError):
    """A setting, a name or a file that the user gave is wrong."""


class CheckpointError(ConfigError):
    """A checkpoint cannot be written or read."""


class DatasetError(ConfigError):
    """A data set cannot be written or read, or does not fit the run."""


class StoreError(ConfigError):
    """A run's store is none, holds another run, or holds no intact copy: the same command fails again."""


class Damaged(ConfigError):
    """Files differ from the written ones; the message names the file and the difference."""


class InUse(ConfigError):
    """Another process trains in the run folder."""


class SpecError(SeedbedError):
    """Shapes or dtypes differ from the agreed ones."""


class EnvironmentFault(SeedbedError):
    """An environment raised, hung or broke its contract.

    Attributes:
      step: batched steps that it had taken by then; None if that is not known.
      environment: index in its batch; None if that is not known, or said in the message.
    """

    step: int | None = None
    environment: int | None = None


class TransportError(SeedbedError):
    """Arrays could not travel."""


class ProtocolError(TransportError):
    """A peer sent something malformed."""


class Refused(TransportError):
    """The other side said no; the message is its reason."""


class NotNow(Refused):
    """A server's answer to a client that may come again: it ends the conversation, and the client hears the reason.

    The client raises :class:`ConnectionLost`, as after any other end that is not final; a policy that is served
    elsewhere raises this, where there is no room for a batch.
    """


class ConnectionLost(TransportError):
    """The other side is gone.

    Attributes:
      said: its own words for the end; None if it said nothing.
    """

    def __init__(self, message: str, said: str | None = None) -> None:
        super().__init__(message)
        self.said = said


class StoreUnreachable(SeedbedError):
    """A run's store cannot be written or read now: no network, an outage, or credentials that have expired.

    Attributes:
      denied: whether the store answered, and said no.
    """

    def __init__(self, message: str, *, denied: bool = False) -> None:
        super().__init__(message)
        self.denied = denied


class ExecuteAgain(SeedbedError):
    """Nothing is wrong, and nothing was lost: the same command will do what this one could not."""


class RunFailed(SeedbedError):
    """A run cannot go on; the message names the component, the cause and the log."""


class Overtaken(RunFailed):
    """Another session goes on with the run, here or elsewhere: this one has to leave it alone."""


def cause_of(error: BaseException) -> str:
    """An error's message, with its type before it unless Seedbed raised it on purpose."""
    return str(error) if isinstance(error, SeedbedError) else described(error)


def described(error: BaseException) -> str:
    """An error's type and message in one line.

    Of a message that carries a whole traceback (a callback that failed on a device) the first and the last line; for
    want of a message, the line of code that raised the error.
    """
    kind, text = type(error).__name__, _text(error)
    if "Traceback (most recent call last)" in text:
        text = f"{text.splitlines()[0]} … {text.splitlines()[-1]}"
    if len(text) > _MOST_LETTERS:
        text = f"{text[:_MOST_LETTERS]} … ({len(text):,} letters)"
    text = legible(" ".join(text.split()))
    frames = traceback.extract_tb(error.__traceback__)
    if isinstance(error, SystemExit):
        reads = any(Path(frame.filename).stem in _COMMAND_LINES for frame in frames)
        why = ", since it reads the command line: do that under if __name__ == '__main__'" if reads else ""
        return f"it ended the program ({' '.join(f'{kind}: {text}'.split()).rstrip(':')}){why}"
    if not text:
        return f"{kind} in the line '{frames[-1].line}'" if frames and frames[-1].line else kind
    return " ".join(f"{kind}: {text}".split())


def _text(error: BaseException) -> str:
    """The message of an error; empty where the error cannot say it."""
    try:
        return str(error).strip()
    except Exception:  # foreign code: an error is told, whatever else is wrong with it
        return ""


def legible(text: str) -> str:
    """Returns the text with each character that a terminal would obey, or cannot show, written as Python writes it.

    Words of a peer, of a stranger's folder or of foreign code would else move its cursor, or show what is not there.
    """
    return _OBEYED.sub(lambda found: repr(found[0])[1:-1], text)


def listed(names: Sequence[str], last: str = "and") -> str:
    """Returns names as people list them: ``a, b and c``."""
    return f" {last} ".join(filter(None, [", ".join(names[:-1]), *names[-1:]]))


def unknown_name(
    kind: str, given: str, known: Iterable[str], spoken: Callable[[str], str] = str.casefold
) -> str:
    """Returns one line about a name that does not exist: the name, the nearest ones, and all of them if few.

    Args:
      kind: noun of that which the name should name.
      given: the name.
      known: names that exist.
      spoken: function from a name to the part that people remember; names with the same part are the nearest.
    """
    names = sorted(known)
    alike: dict[str, list[str]] = {}
    for name in names:
        alike.setdefault(spoken(name), []).append(name)
    near = difflib.get_close_matches(given, alike.get(spoken(given), ()), n=3, cutoff=0.0)
    near = near or difflib.get_close_matches(given, names, n=3, cutoff=0.5)
    if not near:
        sounds = difflib.get_close_matches(spoken(given), alike, n=3, cutoff=0.5)
        near = [alike[sound][-1] for sound in sounds]
    if near:
        return f"unknown {kind} {given!r}: did you mean {' or '.join(near)}?"
    shown = ", ".join(names[:12]) + (", …" if len(names) > 12 else "")
    return f"unknown {kind} {given!r}: known are {shown}"
