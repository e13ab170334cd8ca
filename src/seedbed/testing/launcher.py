"""A launcher that runs a whole program in threads of this process, for tests."""

from __future__ import annotations

from seedbed.architectures.program import Role, Task
from seedbed.instances import Instance
from seedbed.launch.folder import RunFolder
from seedbed.launch.local import LocalLauncher


class ThreadLauncher(LocalLauncher):
    """The launcher of this machine, whose instances are threads with any carrier.

    Args:
      folder: folder of the run.
      transport: name of the carrier that is asked for.

    Attributes:
      started: the tasks of all instances, in the order in which they were started.
    """

    def __init__(self, folder: RunFolder, transport: str) -> None:
        del transport
        super().__init__(folder, "inproc")
        self.started: list[Task] = []

    def start(self, role: Role, task: Task) -> Instance:
        """Starts a thread, and keeps its task."""
        self.started.append(task)
        return super().start(role, task)
