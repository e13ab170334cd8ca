"""A bucket in memory whose faults a test chooses, and run folders that were never trained in."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from fsspec import register_implementation
from fsspec.implementations.memory import MemoryFileSystem

from seedbed.config.resolve import configure
from seedbed.launch.directory import SESSION
from seedbed.launch.folder import RunFolder
from seedbed.launch.store import Store
from seedbed.learning.checkpoint import Contents, save


def no_fault(what: str, path: str) -> None:
    """A bucket without faults."""


class Faulty(MemoryFileSystem):
    """``faulty://…``: before an object is read or written, ``fault`` may raise, or wait."""

    protocol = "faulty"
    store: ClassVar[dict[str, Any]] = {}
    pseudo_dirs: ClassVar[list[str]] = [""]
    fault: ClassVar[Callable[[str, str], None]] = staticmethod(no_fault)

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return str(super()._strip_protocol(path.replace("faulty://", "memory://")))

    def _open(self, path: str, mode: str = "rb", **given: Any) -> Any:
        type(self).fault("read" if mode == "rb" else "write", path)
        return super()._open(path, mode, **given)

    @classmethod
    def reset(cls) -> None:
        """Empties it and mends it."""
        cls.store.clear()
        cls.pseudo_dirs[:] = [""]
        cls.fault = staticmethod(no_fault)  # type: ignore[assignment]


register_implementation("faulty", Faulty, clobber=True)


def never_trained(path: Path, **settings: Any) -> RunFolder:
    """A run folder with a row of metrics and without checkpoints."""
    folder = RunFolder.create(configure("toy:catch", run_dir=str(path), preset="none", **settings))
    folder.metrics.write_text('{"agent_steps": 1}\n{"agent_steps": 2, "mea')
    return folder


def checkpoint(folder: RunFolder, step: int) -> None:
    """Adds a checkpoint."""
    save(folder.checkpoints, step, Contents({"train": {"w": np.full(3, step)}}, {"version": step}), keep=99)


def copied(folder: RunFolder, url: str, *steps: int, keep: int = 9) -> Store:
    """The store after a session of the run has copied checkpoints of these steps."""
    store = Store.open(url)
    folder.keep_session(store.claim(folder, folder.session(resumed=(folder.path / SESSION).exists())))
    for step in steps:
        checkpoint(folder, step)
        assert store.keep(folder, step, keep) is None
    return store


def steps_in(store: Store) -> list[int | None]:
    """Steps of the checkpoints of all whole copies, newest first."""
    return [copy.checkpoint for copy in store.copies()]  # type: ignore[union-attr]
