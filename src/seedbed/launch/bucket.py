"""A bucket behind a URL: objects with names, by fsspec.

An error of a library is a :class:`~seedbed.errors.StoreError` if the same call fails again, since there is no such
bucket, and else a :class:`~seedbed.errors.StoreUnreachable`.

A bucket has no rename, no lock and no links, and an object is there whole or not at all. A plain folder (``file:///…``)
has all of these and lacks the last, so no reader may rely on either. A folder may also be a stranger's: links in it are
not followed, and nothing but regular files is read.
"""

from __future__ import annotations

import contextlib
import hashlib
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from seedbed import regular_files
from seedbed.errors import Damaged, SeedbedError, StoreError, StoreUnreachable, cause_of
from seedbed.installation import extra_line

_BLOCK = 1 << 20
_WRONG = (
    FileNotFoundError,
    NotADirectoryError,
    IsADirectoryError,
    NotImplementedError,
    TypeError,
    ValueError,
)
"""Exceptions of libraries that come again with every attempt: there is no such bucket, or no such name."""
_ADVICE = (
    "give a URL that can be written, read and deleted from here (credentials are given to the store's package, by its "
    "own variables or files)"
)


class Bucket:
    """The objects below a URL; their names are paths with slashes.

    Args:
      url: URL of a bucket or of a part of it, as fsspec knows them.

    Raises:
      StoreError: fsspec does not know such URLs, or a package is missing.
      StoreUnreachable: the store does not answer, or says no.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self._files, root = _opened(url)
        self._root = root.rstrip("/")

    def __str__(self) -> str:
        return self.url

    def try_out(self) -> None:
        """Writes, reads and removes a small object.

        Raises:
          StoreError, StoreUnreachable: one of them fails.
        """
        name, word = f"trial-{secrets.token_hex(8)}", secrets.token_bytes(8)
        try:
            self.write(name, word)
            if self.read(name) != word:
                raise StoreError(f"store {self}: what was written is not what is read")
            self.remove(name)
        except StoreError as error:
            raise StoreError(f"{error}: {_ADVICE}") from error
        except StoreUnreachable as error:
            raise StoreUnreachable(f"{error}: {_ADVICE}", denied=error.denied) from error

    def names(self, folder: str) -> list[str]:
        """Returns the names of all that is directly in a folder, in order; empty if there is no such folder."""
        with self._told(f"list {folder}"):
            self._files.invalidate_cache()  # others write here too
            self._require_no_link(folder)
            try:
                found = self._files.ls(self._path(folder), detail=False)
            except FileNotFoundError:
                return []
            return sorted({str(path).rstrip("/").rpartition("/")[2] for path in found})

    def read(self, name: str) -> bytes | None:
        """Returns the content of a small object; None if there is none of that name."""
        with self._told(f"read {name}"):
            try:
                with self._reading(name) as file:
                    content: bytes = file.read(regular_files.MOST_BYTES + 1)
            except FileNotFoundError:
                return None
        if len(content) > regular_files.MOST_BYTES:
            raise StoreError(f"store {self}: {name} has more than {regular_files.MOST_BYTES:,} bytes")
        return content

    def fetch(self, name: str, to: Path, size: int) -> str:
        """Copies an object into a new file, but no more than ``size`` bytes and one.

        Returns:
          The SHA-256 of the bytes that were copied, in hex.

        Raises:
          Damaged: there is no such object, or something else in its place.
          StoreError, StoreUnreachable: it cannot be read.
          OSError: the file cannot be written.
        """
        digest, left = hashlib.sha256(), size + 1
        with contextlib.ExitStack() as opened:
            with self._told(f"read {name}"):
                try:
                    source = opened.enter_context(self._reading(name))
                except FileNotFoundError as error:
                    raise Damaged(f"store {self}: {name} is missing") from error
            file = opened.enter_context(to.open("xb"))
            while block := self._block(name, source, min(_BLOCK, left)):
                digest.update(block)
                file.write(block)
                left -= len(block)
        return digest.hexdigest()

    def write(self, name: str, content: bytes) -> None:
        """Writes a small object; one of that name is replaced."""
        with self._told(f"write {name}"):
            self._make_room(name)
            self._files.pipe_file(self._path(name), content)

    def create(self, name: str, content: bytes) -> bool:
        """Writes a small object unless there is one of that name; returns whether it was written.

        It is one step only where the bucket, and its package, know conditional writing.
        """
        with self._told(f"write {name}"):
            self._make_room(name)
            try:
                self._files.pipe_file(self._path(name), content, mode="create")
            except FileExistsError:
                return False
        return self.read(name) == content

    def send(self, file: Path, name: str) -> None:
        """Copies a file into an object; one of that name is replaced."""
        with self._told(f"write {name}"):
            self._make_room(name)
            self._files.put_file(str(file), self._path(name))

    def remove(self, name: str) -> None:
        """Removes an object; nothing if there is none."""
        with self._told(f"delete {name}"), contextlib.suppress(FileNotFoundError):
            self._files.rm_file(self._path(name))

    def remove_folder(self, folder: str) -> None:
        """Removes a folder with all that is in it; nothing if there is none."""
        with self._told(f"delete {folder}"), contextlib.suppress(FileNotFoundError):
            self._files.invalidate_cache()
            self._files.rm(self._path(folder), recursive=True)

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}"

    def _make_room(self, name: str) -> None:
        """Makes the folder of an object, where the store has folders."""
        folder = name.rpartition("/")[0]
        self._require_no_link(folder)
        self._files.makedirs(self._path(folder).rstrip("/"), exist_ok=True)

    def _reading(self, name: str) -> Any:
        self._require_no_link(name)
        info = self._files.info(self._path(name))
        if info["type"] != "file":
            raise Damaged(f"store {self}: {name} has to be a file, and is something else ({info['type']})")
        return self._files.open(self._path(name), "rb")

    def _block(self, name: str, source: Any, size: int) -> bytes:
        """Returns the next bytes of an object, at most ``size``; none at its end, or if none are wanted."""
        with self._told(f"read {name}"):
            block: bytes = source.read(size)
            return block

    def _require_no_link(self, name: str) -> None:
        """Refuses links in a folder that stands in for a bucket: they lead to files of somebody else's choice."""
        if not _is_folder(self._files):
            return
        path = Path(self._root)
        for part in name.split("/"):
            path /= part
            if path.is_symlink():
                raise Damaged(f"store {self}: {path} is a link, and has to be a file or a folder")

    @contextlib.contextmanager
    def _told(self, what: str) -> Iterator[None]:
        try:
            yield
        except SeedbedError:
            raise
        except Exception as error:  # of any library of any bucket
            line = f"store {self}: cannot {what} ({cause_of(error)})"
            denied = isinstance(error, PermissionError)
            if isinstance(error, _WRONG) or (denied and _is_folder(self._files)):
                raise StoreError(line) from error
            raise StoreUnreachable(line, denied=denied) from error


def _opened(url: str) -> tuple[Any, str]:
    """Returns the file system of a URL, and the path in it."""
    try:
        from fsspec.core import url_to_fs
    except ImportError:
        raise StoreError(f"store {url} needs the package fsspec: {extra_line('store')}") from None
    try:
        files, path = url_to_fs(url)
    except ImportError as error:
        raise StoreError(
            f"store {url} needs a package of its own beside fsspec, which is missing: {error} (pip install it where "
            "the run is started)"
        ) from error
    except Exception as error:
        line = f"store is {url}, and cannot be opened ({cause_of(error)})"
        if not isinstance(error, _WRONG):  # some connect here already, or look for credentials
            denied = isinstance(error, PermissionError) or not isinstance(error, OSError)
            raise StoreUnreachable(line, denied=denied) from error
        raise StoreError(
            f"{line}: give s3://BUCKET/RUN, gs://BUCKET/RUN, file:///FOLDER or another URL that fsspec knows"
        ) from error
    return files, path


def _is_folder(files: Any) -> bool:
    from fsspec.implementations.local import LocalFileSystem

    return isinstance(files, LocalFileSystem)
