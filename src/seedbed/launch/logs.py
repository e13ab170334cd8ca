"""What the package logs, in a file of the run folder."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from pathlib import Path


class _LogFile(logging.FileHandler):
    """A file of log lines; a disk that is full does not stop the run, nor fill the terminal."""

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
