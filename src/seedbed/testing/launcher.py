"""A launcher that runs a whole program in threads of this process, for tests."""

from __future__ import annotations

import shutil
import threading
from functools import partial
from pathlib import Path

from seedbed.architectures.program import Role, Task
from seedbed.instances import Instance, ThreadInstance
from seedbed.launch.entry import context_of, entry_of
from seedbed.launch.folder import RunFolder
from seedbed.learning.checkpoint import Contents, save


class ThreadLauncher:
    """A :class:`~seedbed.launch.launcher.Launcher` whose instances are threads, with any carrier.

    Args:
      folder: folder of the run.
      transport: name of the carrier that is asked for.

    Attributes:
      started: the tasks of all instances, in the order in which they were started.
    """

    def __init__(self, folder: RunFolder, transport: str) -> None:
        del transport
        self._folder = folder
        self.started: list[Task] = []

    def address(self, role: Role, index: int) -> str:
        """Returns an in-process address."""
        return f"inproc:{self._folder.path.absolute()}/{role.name}-{index}"

    def folder(self, role: Role, index: int) -> str:
        """Returns a folder in the run's."""
        return str(self._folder.path.absolute() / "instances" / f"{role.name}-{index}")

    def prepare(self, role: Role, index: int, contents: Contents) -> None:
        """Writes the checkpoint there."""
        folder = Path(self.folder(role, index))
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        save(folder, contents.meta["version"], contents, keep=1)

    def standing(self, role: Role, index: int) -> str | None:
        """Says nothing: a thread is not started again with its state."""
        del role, index
        return None

    def start(self, role: Role, task: Task) -> Instance:
        """Starts a thread."""
        self.started.append(task)
        over = threading.Event()
        run = partial(entry_of(task), context_of(task, self._folder.token(), over))
        return ThreadInstance(f"{role.name} {task.index}", run, str(self._folder.log), over)

    def close(self) -> None:
        """Nothing is left."""
