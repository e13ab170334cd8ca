"""The warnings of an actor's environments, kept until they are sent to the learner."""

from __future__ import annotations

import logging
from collections import deque

_MOST, _LONGEST = 8, 2000
"""Largest number of notes that are kept, and of characters in one."""


class Notes(logging.Handler):
    """A log handler that keeps the warnings of :mod:`seedbed.envs` until they are taken."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._kept: deque[str] = deque(maxlen=_MOST)
        logging.getLogger("seedbed.envs").addHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        """Keeps a warning."""
        self._kept.append(record.getMessage())

    @property
    def waiting(self) -> bool:
        """True while there are warnings to take."""
        return bool(self._kept)

    def take(self) -> list[str]:
        """Returns the warnings since the last call."""
        taken = []
        while self._kept:
            taken.append(self._kept.popleft())
        return taken

    def close(self) -> None:
        """Removes the handler from its logger."""
        logging.getLogger("seedbed.envs").removeHandler(self)
        super().close()


def notes_of(message: dict[str, object]) -> list[str]:
    """Returns the notes in an actor's report; values that :meth:`Notes.take` cannot have returned are left out."""
    told = message.get("notes", [])
    if not isinstance(told, list):
        return []
    return [note[:_LONGEST] for note in told[:_MOST] if isinstance(note, str)]
