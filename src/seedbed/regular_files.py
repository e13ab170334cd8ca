"""Regular files: opened at once or refused, though a stranger may have put anything into their place.

Opening a pipe waits for somebody at its other end, a device may never end (or act when it is opened), and a link leads
to a file of somebody else's choice, which would be written over. So the kind of a file is looked at before
it is opened, and once more when it is open. In a run folder or a data set no link is followed; a file that the user
names may be behind one, as certificates and mounted secrets are.

All refusals are an :class:`OSError`, with the kind of thing that is there instead in its ``strerror``.
"""

from __future__ import annotations

import contextlib
import errno
import io
import json
import os
import secrets
import shutil
import stat
import sys
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

if sys.platform == "win32":
    import msvcrt
else:
    import fcntl

MOST_BYTES = 64 << 20
"""Largest file of text that is read as a whole."""
_KINDS: tuple[tuple[Callable[[int], bool], str], ...] = (
    (stat.S_ISLNK, "it is a link"),
    (stat.S_ISDIR, "it is a folder"),
    (stat.S_ISFIFO, "it is a pipe"),
    (stat.S_ISSOCK, "it is a socket"),
    (stat.S_ISCHR, "it is a device"),
    (stat.S_ISBLK, "it is a device"),
)
# Windows has neither pipes nor links in the place of files, and changes the ends of lines unless it is told not to.
_GUARDS: int = getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
_NO_LINK: int = getattr(os, "O_NOFOLLOW", 0)


def current_folder() -> Path | None:
    """Returns the folder that this process is in; None if it has been removed."""
    try:
        return Path.cwd()
    except FileNotFoundError:
        return None


def require(path: str | Path, *, links: bool = False) -> os.stat_result:
    """Returns the status of a regular file.

    Args:
      path: the file.
      links: whether it may be behind a link.

    Raises:
      OSError: there is none, or something else in its place.
    """
    try:
        found = Path(path).stat(follow_symlinks=links)
    except ValueError as error:  # a null character, or half of a pair of surrogates
        raise OSError(errno.EINVAL, f"no file can have this name ({error})", os.fspath(path)) from error
    if not stat.S_ISREG(found.st_mode):
        kind = next((words for is_kind, words in _KINDS if is_kind(found.st_mode)), "it is something else")
        raise OSError(errno.EINVAL, f"{kind}, and has to be a file", os.fspath(path))
    return found


def require_room(path: str | Path, *, links: bool = False) -> None:
    """Raises :class:`OSError` if there is something at ``path`` that is no regular file: none may be written there."""
    try:
        require(path, links=links)
    except FileNotFoundError:
        if links and Path(path).is_symlink():
            raise  # it leads nowhere


def open_to_read(path: str | Path, *, links: bool = False) -> io.BufferedReader:
    """Opens a file for reading; raises :class:`OSError` as :func:`require` does."""
    require(path, links=links)
    return os.fdopen(_opened(path, os.O_RDONLY, links), "rb")


def open_to_append(path: str | Path, *, links: bool = False, empty: bool = False) -> io.FileIO:
    """Opens a file, which need not exist, for appending without a buffer.

    Args:
      path: the file.
      links: whether it may be behind a link.
      empty: whether its content is dropped first.

    Raises:
      OSError: it cannot be written, or there is something else in its place.
    """
    require_room(path, links=links)
    how = os.O_WRONLY | os.O_CREAT | os.O_APPEND | (os.O_TRUNC if empty else 0)
    return io.FileIO(_opened(path, how, links), "ab")


def open_to_change(path: str | Path) -> io.BufferedRandom:
    """Opens a file for reading and writing; raises :class:`OSError` as :func:`require` does."""
    require(path)
    return os.fdopen(_opened(path, os.O_RDWR, links=False), "r+b")


def _opened(path: str | Path, how: int, links: bool) -> int:
    """A descriptor; another thing that came into the file's place after the look is refused too, without waiting."""
    handle = os.open(path, how | _GUARDS | (0 if links else _NO_LINK), 0o666)
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise OSError(errno.EINVAL, "it has to be a file", os.fspath(path))
    return handle


def lock(file: IO[bytes] | int) -> None:
    """Locks an open file, until it is closed or this process ends, against :func:`lock` by others.

    Raises:
      BlockingIOError: another process, or another opening of the file, has the lock.
      OSError: its file system has no locks.
    """
    if sys.platform == "win32":
        try:
            msvcrt.locking(file if isinstance(file, int) else file.fileno(), msvcrt.LK_NBLCK, 1)
        except PermissionError as error:  # it says that the byte is locked
            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN)) from error
    else:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def read(path: str | Path, most: int | None = MOST_BYTES, *, links: bool = False) -> bytes:
    """Returns the content of a file; raises :class:`OSError` as :func:`require` does, and if it is too long."""
    with open_to_read(path, links=links) as file:
        content = file.read() if most is None else file.read(most + 1)
    if most is not None and len(content) > most:
        raise OSError(errno.EFBIG, f"it has more than {most:,} bytes", os.fspath(path))
    return content


def read_object(path: str | Path) -> dict[str, Any]:
    """Returns the JSON object in a file.

    Raises:
      OSError: as for :func:`read`.
      ValueError: it is no JSON object, or a name stands twice in one.
    """
    return object_of(read(path))


def object_of(text: bytes) -> dict[str, Any]:
    """Returns the JSON object in a text; raises :class:`ValueError` as :func:`read_object` does."""
    try:
        found = json.loads(text, object_pairs_hook=_once)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    if not isinstance(found, dict):
        raise ValueError("it is no JSON object")
    return found


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"{next(name for name in names if names.count(name) > 1)!r} is there twice")
    return found


def write_whole(path: Path, content: str | bytes, mode: int = 0o666, *, lasting: bool = False) -> None:
    """Writes a file that is never seen half-written; a link in its place is replaced and not followed.

    Args:
      path: the file.
      content: its content.
      mode: its permissions, if it is new.
      lasting: whether the content is on the disk before it takes the place of the old one, as a loss of power asks for.

    Raises:
      OSError: it cannot be written.
    """
    draft = path.with_name(path.name + "~")
    draft.unlink(missing_ok=True)
    _fill(draft, content, mode, lasting)
    draft.rename(path)


def write_new(path: Path, content: str | bytes, mode: int = 0o666, *, lasting: bool = False) -> None:
    """Writes a file as :func:`write_whole` does, where there is none: of several processes only one gets past this.

    Raises:
      FileExistsError: there is something at ``path``.
      OSError: it cannot be written.
    """
    draft = path.with_name(f".{path.name}-{secrets.token_hex(8)}")
    try:
        _fill(draft, content, mode, lasting)
        try:
            os.link(draft, path)
        except FileExistsError:
            raise
        except OSError:  # a file system without links: it is empty there for a moment
            path.touch(mode, exist_ok=False)
            draft.rename(path)
    finally:
        draft.unlink(missing_ok=True)


def _fill(draft: Path, content: str | bytes, mode: int, lasting: bool) -> None:
    with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
        file.write(content.encode() if isinstance(content, str) else content)
        if lasting:
            file.flush()
            os.fsync(file.fileno())


def remove(path: Path) -> None:
    """Removes a file, a link (and not its aim) or a folder, as far as it can be; nothing if there is none."""
    if path.is_symlink() or not path.is_dir():
        with contextlib.suppress(OSError):
            path.unlink(missing_ok=True)
    else:
        shutil.rmtree(path, ignore_errors=True)
