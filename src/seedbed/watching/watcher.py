"""All runs at and below some paths, watched together."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from seedbed.errors import ConfigError
from seedbed.launch.folder import RunFolder
from seedbed.launch.listing import run_folders
from seedbed.watching.run import Standing, WatchedRun

_LIST_SECONDS = 5.0
"""Seconds between two looks for new runs."""


class Watcher:
    """A reader of all runs at and below some paths; new ones are found while it watches.

    Args:
      paths: run folders, or folders of runs.
      last: most bytes of the present end of each run's metrics to read; None for all.
      clock: seconds that only grow.

    Raises:
      ConfigError: there is no run at or below one of the paths.
    """

    def __init__(
        self,
        paths: Sequence[str | Path],
        last: int | None = 1 << 16,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._paths = paths
        self._last = last
        self._clock = clock
        self._runs: dict[Path, WatchedRun] = {}
        self._list(run_folders(paths))

    def look(self) -> list[Standing]:
        """Returns the standing of every run: those that are not over first, then the newest."""
        if self._clock() - self._listed > _LIST_SECONDS:
            self._list([folder for path in self._paths for folder in _still_there(path)])
        found = [run.look() for run in self._runs.values()]
        return sorted(found, key=lambda each: (each.is_over, -_begun(each.folder)))

    @property
    def runs(self) -> Mapping[Path, WatchedRun]:
        """The readers, by the path of the folder."""
        return self._runs

    def _list(self, folders: Sequence[RunFolder]) -> None:
        self._listed = self._clock()
        known = self._runs
        self._runs = {each.path: known.get(each.path) or WatchedRun(each, self._last) for each in folders}


def _still_there(path: str | Path) -> list[RunFolder]:
    try:
        return run_folders([path])
    except ConfigError:  # the last one was removed
        return []


def _begun(folder: RunFolder) -> float:
    try:
        return (folder.path / "config.json").stat().st_mtime
    except OSError:
        return 0.0
