"""The way back of a run from its store into a run folder, on a machine that has none or an old one."""

from __future__ import annotations

import errno
import os
from collections.abc import Container, Iterator
from pathlib import Path

from seedbed import regular_files
from seedbed.errors import CheckpointError, ConfigError, Damaged, StoreError
from seedbed.launch.folder import CONFIG, SECRETS, RunFolder
from seedbed.launch.store import Copy, Store
from seedbed.metrics.say import say

_OWN = ("lock", "logs")
"""Names in every run folder, on each machine its own."""
_INSTALLING = "installing"
"""Name of a file in a folder while a fetched run is brought into it."""
_LISTINGS = 3
"""Times that the newest copies are looked for again after one of them was not whole."""


def bring_back(folder: RunFolder, store: Store) -> None:
    """Fetches the newest whole copy of a run into its folder, if there is no run in it, or an older state.

    An older state was left by a session of this run after which it went on elsewhere; its folder is kept under another
    name. Nothing is done if the store holds no run.

    Args:
      folder: run folder; the one of a run is complete, or none. What an engine has put there for a run that is to begin
        (its token, logs) stays.
      store: store of the run.

    Raises:
      ConfigError: another run is in the store or in the folder, no copy is intact, or the folder cannot be written.
      StoreUnreachable: the store cannot be read; the same call goes on.
    """
    if not folder.begun:
        _fetch(folder, store)
        return
    store.require_same(folder)
    newest = store.newest_session()
    if newest is not None and newest > (last := folder.last_session):
        with folder.held():
            aside = _move_aside(folder.path, last)
            _keep_secrets(aside, folder.path)
        say(
            f"session {newest} of this run went on elsewhere: {folder.path}, of session {last}, is {aside} now"
        )
        _fetch(folder, store)


def _move_aside(path: Path, session: int) -> Path:
    aside = path.with_name(f"{path.name}.session-{session}")
    number = 1
    while aside.exists():
        number += 1
        aside = path.with_name(f"{path.name}.session-{session}-{number}")
    try:
        path.rename(aside)
    except OSError as error:
        raise ConfigError(
            f"{path} is older than the run's store, and cannot be renamed ({error.strerror}): give another --run-dir"
        ) from error
    return aside


def _keep_secrets(aside: Path, path: Path) -> None:
    """Takes over the words by which a run's actors and hosts know it, which are in no store."""
    try:
        for file in (aside / name for name in SECRETS):
            if os.path.lexists(file):
                path.mkdir(exist_ok=True)
                file.rename(path / file.name)
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror}") from error


def _fetch(folder: RunFolder, store: Store) -> None:
    """Fetches the newest whole copy into a folder that does not exist, or has no run in it."""
    passed_over: dict[str, str] = {}
    newest = 0
    draft = RunFolder(folder.path.with_name(f"{folder.path.name}.fetched"))
    for copy in _untried(store, passed_over):
        try:
            if isinstance(copy, Damaged):
                raise copy
            newest = max(newest, copy.session)
            _fetch_copy(copy, draft, folder, store, newest)
        except (Damaged, CheckpointError) as error:
            line = f"{copy if isinstance(copy, Copy) else 'copy'} passed over: {error}"
            passed_over[str(copy)] = line
            say(line)
            continue
        except OSError as error:
            raise ConfigError(
                f"cannot write {error.filename or draft.path} ({error.strerror}): give a --run-dir that can be "
                "written, and that does not exist or is empty, but for logs and a token"
            ) from error
        say(f"fetched {copy} from store {store} to {folder.given}")
        return
    if passed_over:
        raise StoreError(f"no copy of the run in store {store} is intact: {'; '.join(passed_over.values())}")


def _untried(store: Store, passed_over: Container[str]) -> Iterator[Copy | Damaged]:
    """Yields copies that were not passed over, the newest first.

    A learner that was given up may still write new copies, and remove old ones, while one is fetched. So the newest one
    is looked for again after each of the first that were passed over.
    """
    for _ in range(_LISTINGS):
        copy = next((each for each in store.copies() if str(each) not in passed_over), None)
        if copy is None:
            return
        yield copy
    yield from (each for each in store.copies() if str(each) not in passed_over)


def _fetch_copy(copy: Copy, draft: RunFolder, folder: RunFolder, store: Store, session: int) -> None:
    """Fetches a copy into a folder, which then has the state of a session, though perhaps by a copy of an older one."""
    draft.path.mkdir(parents=True, exist_ok=True)
    with draft.held():
        try:
            for left in draft.path.iterdir():  # by one that was killed
                if left.name not in _OWN:
                    regular_files.remove(left)
            store.fetch(copy, draft.path)
            draft.keep_identity(store.identity() or "")
            draft.keep_session(session)
            if draft.summary.exists() and copy.session == session:  # it is that of its session
                os.utime(draft.summary)
            _install(draft, folder)
        except BaseException:
            regular_files.remove(draft.path)
            raise


def _install(draft: RunFolder, folder: RunFolder) -> None:
    """Brings a fetched run to its place at once; into a folder that has only logs and secrets, its settings last."""
    try:
        draft.path.rename(folder.path)
        return
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise
        strange = any(path.name not in SECRETS.union(_OWN) for path in folder.path.iterdir())
        if strange and not os.path.lexists(folder.path / _INSTALLING):
            raise
    with folder.held():
        regular_files.write_whole(folder.path / _INSTALLING, "", 0o666)
        for path in sorted(draft.path.iterdir(), key=lambda path: path.name == CONFIG):
            if path.name not in _OWN:
                regular_files.remove(folder.path / path.name)  # of one that was killed here
                path.rename(folder.path / path.name)
        regular_files.remove(folder.path / _INSTALLING)
    regular_files.remove(draft.path)
