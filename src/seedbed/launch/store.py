"""The store of a run: copies of its state in a bucket, from which it goes on on any machine.

::

    URL/
    ├── identity                          one word, the same as in the folder of the run
    └── sessions/000003/                  all that this session wrote, and no other one ever does
        ├── claim                         its own word: the session has begun
        ├── checkpoints/000000000205/…    files of a checkpoint
        └── copies/000007/                one copy of the run's state
            ├── config.json, metrics.jsonl, …
            └── copy.json                 every file with its object, size and SHA-256; written last

A copy exists once its ``copy.json`` does. It lists all files of a run folder from which a run goes on, small ones of
its own and those of one checkpoint, which several copies may share. A copy whose writer was killed, or which is being
removed, has no ``copy.json``.

A session whose number is not the largest one writes and removes nothing more. What it does before it notices stands
under its own number, below which no other session looks first.

Whatever is read here may be a stranger's: names are those of files in a run folder and of objects of this store, or
the copy is damaged.
"""

from __future__ import annotations

import contextlib
import errno
import re
import secrets
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from seedbed import atomic_folder
from seedbed.config.settings import require_store
from seedbed.errors import Damaged, StoreError, StoreUnreachable
from seedbed.launch.bucket import Bucket
from seedbed.launch.folder import RunFolder
from seedbed.learning.checkpoint import files_of, load
from seedbed.metrics.say import say

_Found = TypeVar("_Found")
_WAITS = (2.0, 4.0, 8.0, 16.0, 30.0)
"""Seconds between the attempts to reach a store with which a run begins."""

_IDENTITY, _SESSIONS, _MARKER = "identity", "sessions", "copy.json"
_SETTINGS = ("config.json", "signature")
_NUMBER = re.compile(r"\d{6}", re.ASCII)
_WORD = re.compile(r"[0-9a-f]{32}")
_CHECKPOINT = re.compile(r"checkpoints/(\d{12})/\w[\w.-]*", re.ASCII)
_SMALL = re.compile(
    r"(config|spec|program|summary)\.json|signature|run_id|metrics\.jsonl|(variants|members)/\d{1,6}/metrics\.jsonl",
    re.ASCII,
)


@dataclass(frozen=True)
class Copy:
    """A copy of a run's state that is in the store.

    Attributes:
      session: number of the session that wrote it.
      number: number of the copy in this session.
      files: by its path in the run folder, each file's ``object``, ``bytes`` and ``sha256``.
      checkpoint: step of the checkpoint in it; None for a run without one.
    """

    session: int
    number: int
    files: Mapping[str, Mapping[str, Any]]
    checkpoint: int | None

    def __str__(self) -> str:
        what = "no checkpoint" if self.checkpoint is None else f"checkpoint {self.checkpoint:012d}"
        return f"copy {self.number} of session {self.session} ({what})"

    @property
    def contents(self) -> frozenset[str]:
        """The objects of its checkpoint; copies of the same one have the same."""
        return frozenset(file["object"] for path, file in self.files.items() if _CHECKPOINT.fullmatch(path))

    def has(self, entries: Mapping[str, Mapping[str, Any]]) -> bool:
        """Returns whether files of the same paths and contents are in it."""
        return all(
            path in self.files and self.files[path]["sha256"] == entry["sha256"]
            for path, entry in entries.items()
        )


class Store:
    """The copies of one run's state behind a URL.

    Args:
      bucket: objects behind the URL.
    """

    def __init__(self, bucket: Bucket) -> None:
        self.bucket = bucket
        self._session = -1
        self._word = b""
        self._copies = 0
        self._began = False

    @staticmethod
    def open(url: str) -> Store:
        """Returns the store at a URL.

        Raises:
          ConfigError: it is none, or nothing can be written there.
          StoreUnreachable: it does not answer, or says no.
        """
        require_store(url)
        bucket = Bucket(url)
        bucket.try_out()
        return Store(bucket)

    def __str__(self) -> str:
        return self.bucket.url

    # -- sessions -----------------------------------------------------------------------------------------

    def require_empty(self) -> None:
        """Raises :class:`StoreError` if a run is in the store."""
        if not self._is_empty():
            raise StoreError(
                f"store {self} already holds a run: go on with it by --begin-or-resume, or give another --store"
            )

    def _is_empty(self) -> bool:
        """Returns whether no session has got as far as its first copy; a run is in the store from then on."""
        return next(self.copies(), None) is None

    def identity(self) -> str | None:
        """Returns the word by which the run is known; None if there is no run yet."""
        found = self.bucket.read(_IDENTITY)
        if found is None:
            return None
        if not _WORD.fullmatch(word := found.decode("ascii", errors="replace")):
            raise StoreError(f"store {self} holds no run: its object {_IDENTITY} is not Seedbed's")
        return word

    def require_same(self, folder: RunFolder) -> None:
        """Raises :class:`StoreError` if another run than the one in the folder is in the store."""
        known = self.identity()
        if known is None or known == folder.identity() or self._is_empty():
            return
        raise StoreError(
            f"store {self} holds another run than {folder.path}: give the one of this run, or a new one"
        )

    def claim(self, folder: RunFolder, least: int) -> int:
        """Begins a session; from then on no earlier one writes here, and no other run can begin here.

        A store that is empty gets a first copy, of the settings alone. Of several runs that begin here in the same
        moment one goes on at most: each looks for the first copies of others after its claim, and for their claims
        after its own first copy.

        Args:
          folder: the run folder; it gets the store's word for the run.
          least: number of the session as the folder counts them.

        Returns:
          The number of the session, larger than that of every other one here.

        Raises:
          StoreError: another run is in the store, or begins there at this moment.
          StoreUnreachable: it cannot be read and written.
        """
        self.require_same(folder)
        self._began = self._is_empty()
        self._word = secrets.token_hex(16).encode()
        self._session = max([least, *(number + 1 for number in self._sessions())])
        while not self.bucket.create(f"{_place(self._session)}/claim", self._word):
            self._session += 1
        try:
            if self._began and not self._is_empty():
                raise self._another()
            word = self._named(folder)
            folder.keep_identity(word)
            if self._began:
                self._copy_settings(folder, word)
        except StoreError:
            self._leave()
            raise
        return self._session

    def _leave(self) -> None:
        """Removes this session, or its number would end the run that goes on."""
        self.bucket.remove(f"{_place(self._session)}/claim")
        if all(isinstance(copy, Damaged) or copy.session != self._session for copy in self.copies()):
            # Not so where a bucket writes without a condition, and both have the same number.
            self.bucket.remove_folder(_place(self._session))

    def _named(self, folder: RunFolder) -> str:
        """Returns the word of the run in the folder, which is the store's from now on."""
        known = self.identity()
        word = folder.identity() or secrets.token_hex(16)
        if known is None and not self.bucket.create(_IDENTITY, word.encode()):
            raise self._another()
        if known not in (None, word):  # of a session that began there, and copied nothing
            self.bucket.write(_IDENTITY, word.encode())
        return word

    def _copy_settings(self, folder: RunFolder, word: str) -> None:
        """Writes the first copy of a run; raises :class:`StoreError` if another one begins at this moment."""
        place = self._next_place()
        settings = [(path, content) for path, content in folder.state() if path in _SETTINGS]
        self._complete(place, self._small(place, settings))
        if self.identity() != word or self.overtaken() is not None:
            self.bucket.remove(f"{place}/{_MARKER}")
            raise self._another()

    def _another(self) -> StoreError:
        return StoreError(f"another run has begun in store {self} at this moment: give another --store")

    def withdraw(self) -> None:
        """Takes a run that could not start out of the store again, as far as that can be done.

        Nothing is removed if this session did not begin the run, or if anything was trained.
        """
        if not self._began:
            return
        with contextlib.suppress(StoreError, StoreUnreachable, Damaged):
            found = list(self.copies())
            own = [copy for copy in found if isinstance(copy, Copy) and copy.session == self._session]
            if len(own) == len(found) and all(copy.checkpoint is None for copy in own):
                for copy in own:
                    self.bucket.remove(f"{_place(copy.session)}/copies/{copy.number:06d}/{_MARKER}")

    def overtaken(self) -> str | None:
        """Returns a line that says so if a later session has begun here; None while this one is the newest."""
        newest = max(self._sessions(), default=self._session)
        claimed = self.bucket.read(f"{_place(self._session)}/claim")
        if newest <= self._session and claimed in (None, self._word):
            return None
        return (
            f"another session of this run has begun in store {self} (number {newest}): this one, number "
            f"{self._session}, ends and writes nothing more there"
        )

    def _sessions(self) -> list[int]:
        return _numbers(self.bucket.names(_SESSIONS))

    # -- copies -------------------------------------------------------------------------------------------

    def copies(self) -> Iterator[Copy | Damaged]:
        """Yields all whole copies, the newest first; a damaged ``copy.json`` is yielded as the error."""
        for session, number in self._places():
            try:
                text = self.bucket.read(f"{_place(session)}/copies/{number:06d}/{_MARKER}")
                if text is not None:  # else it is half-copied
                    yield _read(text, session, number)
            except Damaged as error:
                yield Damaged(f"copy {number} of session {session} in store {self} is damaged: {error}")

    def newest_session(self) -> int | None:
        """Returns the number of the session that wrote the newest whole copy; None if there is none."""
        return next((copy.session for copy in self.copies() if isinstance(copy, Copy)), None)

    def _places(self) -> Iterator[tuple[int, int]]:
        """Yields session and number of all copies, whole or not, the newest first."""
        for session in reversed(self._sessions()):
            for number in reversed(_numbers(self.bucket.names(f"{_place(session)}/copies"))):
                yield session, number

    def keep(self, folder: RunFolder, step: int | None, keep: int) -> str | None:
        """Copies the state of the run, and removes copies that are too old.

        Args:
          folder: the run folder.
          step: step of the checkpoint in it that is copied; None for a run without one.
          keep: number of checkpoints that stay in the store.

        Returns:
          A line that says so if another session has begun meanwhile: nothing was copied then; None otherwise.

        Raises:
          StoreError, StoreUnreachable: the store cannot be written.
          CheckpointError: there is no such checkpoint.
          OSError: a file of the folder cannot be read.
        """
        known = [copy for copy in self.copies() if isinstance(copy, Copy)]
        place = self._next_place()
        files = {} if step is None else self._checkpoint(folder, step, known)
        files |= self._small(place, folder.state())
        if (overtaken := self.overtaken()) is not None:  # copying takes its time
            return overtaken
        self._complete(place, files)
        self._prune([Copy(self._session, self._copies - 1, files, step), *known], keep)
        return None

    def _next_place(self) -> str:
        self._copies += 1
        return f"{_place(self._session)}/copies/{self._copies - 1:06d}"

    def _small(self, place: str, state: Iterable[tuple[str, bytes]]) -> dict[str, Any]:
        """Copies small files of a run; returns their entries."""
        files = {}
        for path, content in state:
            self.bucket.write(f"{place}/{path}", content)
            files[path] = {"object": f"{place}/{path}", **atomic_folder.entry(content)}
        return files

    def _complete(self, place: str, files: Mapping[str, Any]) -> None:
        self.bucket.write(f"{place}/{_MARKER}", atomic_folder.sealed({"files": files}).encode())

    def _checkpoint(self, folder: RunFolder, step: int, known: list[Copy]) -> dict[str, Any]:
        """Copies the files of a checkpoint, unless a copy has them; returns their entries."""
        found = files_of(folder.checkpoints, step)
        entries = {f"checkpoints/{step:012d}/{name}": entry for name, entry in found.items()}
        for copy in known:
            if copy.has(entries):
                return {path: dict(copy.files[path]) for path in entries}
        for path in entries:
            self.bucket.send(folder.path / path, f"{_place(self._session)}/{path}")
        return {
            path: {"object": f"{_place(self._session)}/{path}", **entry} for path, entry in entries.items()
        }

    def _prune(self, copies: list[Copy], keep: int) -> None:
        """Removes all copies but the newest of each of the newest checkpoints, and files that no copy has.

        A copy without a checkpoint stays only while it is the newest one.
        """
        kept: dict[frozenset[str], Copy] = {}
        for copy in copies:
            if copy.contents not in kept and len(kept) < keep and (copy.contents or not kept):
                kept[copy.contents] = copy
        stays = {(copy.session, copy.number) for copy in kept.values()}
        for session, number in list(self._places()):
            if session <= self._session and (session, number) not in stays:
                place = f"{_place(session)}/copies/{number:06d}"
                self.bucket.remove(
                    f"{place}/{_MARKER}"
                )  # first: a half-removed copy is never taken for a whole one
                self.bucket.remove_folder(place)
        used = {name.rpartition("/")[0] for contents in kept for name in contents}
        for session in (each for each in self._sessions() if each <= self._session):
            for step in self.bucket.names(f"{_place(session)}/checkpoints"):
                if (folder := f"{_place(session)}/checkpoints/{step}") not in used:
                    self.bucket.remove_folder(folder)

    # -- coming back --------------------------------------------------------------------------------------

    def fetch(self, copy: Copy, folder: Path) -> None:
        """Fetches all files of a copy into an empty folder.

        Raises:
          Damaged: a file differs from the one that was copied.
          StoreError, StoreUnreachable: the store cannot be read.
          CheckpointError: the checkpoint in it is damaged.
          OSError: the folder cannot be written, or has no room for the sizes that the copy says.
        """
        size, free = sum(file["bytes"] for file in copy.files.values()), shutil.disk_usage(folder).free
        if size > free:
            raise OSError(
                errno.ENOSPC, f"{copy} has {size:,} bytes, and {free:,} are free there", str(folder)
            )
        for path, file in copy.files.items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            found = self.bucket.fetch(file["object"], folder / path, file["bytes"])
            if found != file["sha256"]:
                raise Damaged(f"{file['object']} does not have the SHA-256 that it was copied with")
        if copy.checkpoint is not None:
            load(folder / "checkpoints", copy.checkpoint)


def patiently(
    attempt: Callable[[], _Found],
    *,
    note: Callable[[str], object] = say,
    wait: Callable[[float], object] = time.sleep,
) -> _Found:
    """Returns the result of an attempt, which is made again for about a minute while the store cannot be reached.

    Args:
      attempt: function that may be called again after it has failed.
      note: callback for the line that says so.
      wait: function that waits for some seconds, and returns a true value if there is no time to wait any longer.

    Raises:
      StoreUnreachable: the store could not be reached all the time.
    """
    waits = iter(_WAITS)
    told = False
    while True:
        try:
            return attempt()
        except StoreUnreachable as error:
            seconds = next(waits, None)
            if seconds is None:
                remedy = "give credentials that hold there" if error.denied else "execute the command again"
                raise StoreUnreachable(
                    f"{error}; tried for {sum(_WAITS):.0f} s: {remedy}", denied=error.denied
                ) from error
            if not told:
                note(f"{error}; tried again for {sum(_WAITS):.0f} s")
                told = True
            if wait(seconds):
                raise


def _place(session: int) -> str:
    return f"{_SESSIONS}/{session:06d}"


def _numbers(names: list[str]) -> list[int]:
    return sorted(int(name) for name in names if _NUMBER.fullmatch(name))


def _read(text: bytes, session: int, number: int) -> Copy:
    """Returns the copy of a ``copy.json``; raises :class:`Damaged` if it is none, or names anything else's files."""
    files = atomic_folder.unsealed(text, _MARKER).get("files")
    if not isinstance(files, dict) or "config.json" not in files:
        raise Damaged(f"{_MARKER} lists no config.json")
    steps = set()
    for path, file in files.items():
        atomic_folder.require_entry(path, file)
        if (found := _CHECKPOINT.fullmatch(path)) is not None:
            steps.add(int(found[1]))
            place = rf"{_SESSIONS}/\d{{6}}"  # of this session, or of an earlier one
        elif _SMALL.fullmatch(path):
            place = f"{_place(session)}/copies/{number:06d}"
        else:
            raise Damaged(f"{path!r} is no file of a run")
        if not re.fullmatch(f"{place}/{re.escape(path)}", str(file.get("object")), re.ASCII):
            raise Damaged(f"{path} is said to be {file.get('object')!r}, which is no object for it")
    if len(steps) > 1:
        raise Damaged(f"{_MARKER} lists several checkpoints")
    return Copy(session, number, files, next(iter(steps), None))
