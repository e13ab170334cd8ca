"""The standing of a run while it trains, in a small file of its folder, for programs that watch it."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import psutil

from seedbed import limits, regular_files
from seedbed.metrics.sinks import Row


class LiveFile:
    """A sink that writes, with every row, the process of the run and its instances; whole or not at all.

    Args:
      path: the file.
      instances: function that returns the instances of the run as JSON values.
    """

    def __init__(self, path: Path, instances: Callable[[], Sequence[dict[str, Any]]]) -> None:
        self._path = path
        self._instances = instances
        process = psutil.Process()
        self._of_process = {
            "machine": socket.gethostname(),
            "pid": process.pid,
            "begun": process.create_time(),
            "cores": limits.cores(),
        }

    def __str__(self) -> str:
        return str(self._path)

    def write(self, row: Row) -> None:
        """Writes the standing; raises :class:`OSError` if the disk does not take it."""
        standing = {**self._of_process, "instances": list(self._instances())}
        regular_files.write_whole(self._path, json.dumps(standing) + "\n")

    def close(self) -> None:
        """Does nothing: the file tells of the last row."""
