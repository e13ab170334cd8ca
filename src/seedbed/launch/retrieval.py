"""The way back of a run from its store into a run folder, on a machine that has none or an old one."""

from __future__ import annotations

from pathlib import Path

from seedbed import regular_files
from seedbed.errors import CheckpointError, ConfigError, Damaged, StoreError
from seedbed.launch.folder import RunFolder
from seedbed.launch.store import Copy, Store
from seedbed.metrics.say import say


def bring_back(folder: RunFolder, store: Store) -> None:
    """Fetches the newest whole copy of a run into its folder, if there is no run in it, or an older state.

    An older state was left by a session of this run after which it went on elsewhere; its folder is kept under another
    name. Nothing is done if the store holds no run.

    Args:
      folder: run folder; the one of a run is complete, or none.
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


def _fetch(folder: RunFolder, store: Store) -> None:
    """Fetches the newest whole copy into a folder that does not exist, or is empty; it appears there at once."""
    skipped: list[str] = []
    draft = RunFolder(folder.path.with_name(f"{folder.path.name}.fetched"))
    for copy in store.copies():
        try:
            if isinstance(copy, Damaged):
                raise copy
            _fetch_copy(copy, draft, folder, store)
        except (Damaged, CheckpointError) as error:
            skipped.append(f"{copy if isinstance(copy, Copy) else 'copy'} passed over: {error}")
            say(skipped[-1])
            continue
        except OSError as error:
            raise ConfigError(
                f"cannot write {error.filename or draft.path} ({error.strerror}): give a --run-dir that can be "
                "written, and that does not exist or is empty"
            ) from error
        say(f"fetched {copy} from store {store} to {folder.given}")
        return
    if skipped:
        raise StoreError(f"no copy of the run in store {store} is intact: {'; '.join(skipped)}")


def _fetch_copy(copy: Copy, draft: RunFolder, folder: RunFolder, store: Store) -> None:
    draft.path.mkdir(parents=True, exist_ok=True)
    with draft.held():
        try:
            for left in draft.path.iterdir():  # by one that was killed
                if left.name not in ("lock", "logs"):
                    regular_files.remove(left)
            store.fetch(copy, draft.path)
            draft.keep_identity(store.identity() or "")
            draft.keep_session(copy.session)
            draft.path.rename(folder.path)
        except BaseException:
            regular_files.remove(draft.path)
            raise
