"""Files that grow by whole pieces, on disks that may be full, fail, or be taken away and come back."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Callable
from io import FileIO
from pathlib import Path

from seedbed import regular_files


class AppendedFile:
    """A file to which pieces are added, each at once and whole; used by one thread.

    It is opened with the first piece. The rest of a failed attempt is taken back by the next one that works, and a file
    that was removed meanwhile is begun anew, with its folder.

    Args:
      path: path of the file; one that exists is continued.
      mend: function that is called with the path before the file is opened for the first time.
      begins: bytes with which a new file begins.

    Attributes:
      path: path of the file.
    """

    def __init__(
        self, path: Path, *, mend: Callable[[Path], None] = lambda path: None, begins: bytes = b""
    ) -> None:
        self.path = path
        self._mend: Callable[[Path], None] | None = mend
        self._begins = begins
        self._file: FileIO | None = None
        self._identity: tuple[int, int] | None = None
        self._whole = 0

    def append(self, data: bytes) -> None:
        """Adds a piece; raises :class:`OSError`, with the path as its ``filename``, if the disk does not take it."""
        try:
            file = self._opened()
            if not self._whole and self._begins:
                self._write(file, self._begins)
            self._write(file, data)
        except OSError as error:
            # Opened again the next time: a disk that was away may have another file by that name.
            self.close()
            raise OSError(error.errno, error.strerror, str(self.path)) from error

    def _write(self, file: FileIO, data: bytes) -> None:
        if file.write(data) != len(data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self._whole += len(data)

    def _opened(self) -> FileIO:
        if self._file is not None:
            if os.fstat(self._file.fileno()).st_nlink:
                return self._file
            self._identity = None  # its number may be given to the new one
            self.close()
        self.path.parent.mkdir(parents=True, exist_ok=True)
        if self._mend is not None:
            self._mend(self.path)
            self._mend = None
        file = regular_files.open_to_append(self.path)
        try:
            self._go_on(file)
        except OSError:
            file.close()
            raise
        self._file = file
        return file

    def _go_on(self, file: FileIO) -> None:
        """Takes back a piece that is not whole, if the file is the same as before."""
        found = os.fstat(file.fileno())
        identity = (found.st_dev, found.st_ino)
        if identity == self._identity and found.st_size > self._whole:
            file.truncate(self._whole)
            return
        self._identity, self._whole = identity, found.st_size

    def close(self) -> None:
        """Closes the file; safe to call twice."""
        if self._file is not None:
            file, self._file = self._file, None
            with contextlib.suppress(OSError):  # said already, or there is nothing more to write
                file.close()
