"""What environments tell people about themselves: their warnings, kept until they can be handed on."""

from __future__ import annotations

import logging
from collections import deque

_MOST, _LONGEST = 8, 2000
"""Notes that are kept, and characters of one."""


class Notes(logging.Handler):
    """Keeps the warnings of :mod:`seedbed.envs` that were logged since they were last taken."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._kept: deque[str] = deque(maxlen=_MOST)
        logging.getLogger("seedbed.envs").addHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        """Keeps one."""
        self._kept.append(record.getMessage())

    @property
    def waiting(self) -> bool:
        """Whether there are any."""
        return bool(self._kept)

    def take(self) -> list[str]:
        """Those since the last time."""
        taken = []
        while self._kept:
            taken.append(self._kept.popleft())
        return taken

    def close(self) -> None:
        """Listens no more."""
        logging.getLogger("seedbed.envs").removeHandler(self)
        super().close()


def notes_of(message: dict[str, object]) -> list[str]:
    """The notes in an actor's report, as far as they are what :meth:`Notes.take` gives."""
    told = message.get("notes", [])
    if not isinstance(told, list):
        return []
    return [note[:_LONGEST] for note in told[:_MOST] if isinstance(note, str)]
