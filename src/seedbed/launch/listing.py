"""Lists the run folders at and below the paths that a user gives."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from seedbed.errors import ConfigError
from seedbed.launch.folder import RunFolder

_DEEPEST = 3
"""Levels of folders below a given one in which runs are looked for."""


def run_folders(paths: Sequence[str | Path]) -> list[RunFolder]:
    """Returns the run folders at and below some paths, each once, in the order of the paths and of their names.

    Raises:
      ConfigError: there is none at or below one of the paths.
    """
    found: dict[Path, RunFolder] = {}
    for path in paths:
        here = [RunFolder(each) for each in _runs(Path(path), _DEEPEST)]
        if not here:
            raise ConfigError(
                f"{path} is no run folder and holds none (no config.json in it or in the {_DEEPEST} levels below): "
                "give the folder of a run, or a folder of runs"
            )
        found |= {folder.path: folder for folder in here}
    return list(found.values())


def _runs(path: Path, levels: int) -> Iterator[Path]:
    """Yields a run folder itself, or else the ones below; links are not followed."""
    if RunFolder(path).begun:
        yield path
    elif levels:
        try:
            inside = sorted(entry.name for entry in os.scandir(path) if entry.is_dir(follow_symlinks=False))
        except (OSError, ValueError):  # none, no folder, or one that may not be read
            return
        for name in inside:
            yield from _runs(path / name, levels - 1)
