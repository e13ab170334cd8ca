"""The launcher of this machine: instances are processes, or threads where the carrier is in-process."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

import jax

from seedbed import regular_files
from seedbed.architectures.program import Role, Task
from seedbed.errors import CheckpointError
from seedbed.instances import Instance, ThreadInstance
from seedbed.launch.entry import context_of, entry_of, secrets
from seedbed.launch.folder import RunFolder
from seedbed.launch.processes import ON_PROCESSOR, Guard, ProcessInstance, name_of, start_task
from seedbed.learning.checkpoint import Contents, load_latest, save
from seedbed.transport.admission import Invitation
from seedbed.transport.connect import CARRIERS


class LocalLauncher:
    """A :class:`~seedbed.launch.launcher.Launcher` of processes, or threads, on this machine.

    Args:
      folder: run folder.
      transport: name of the carrier; with ``inproc`` the instances are threads.
    """

    def __init__(self, folder: RunFolder, transport: str) -> None:
        self._folder = folder
        self._carrier = CARRIERS[transport]
        self._in_threads = transport == "inproc"
        self._guards: dict[float, Guard] = {}
        self._processes: dict[tuple[str, int], ProcessInstance] = {}
        self._listening: set[str] = set()
        self._claim = ""

    def address(self, role: Role, index: int) -> str:
        """See :class:`~seedbed.launch.launcher.Launcher`."""
        # Short, since the length of a socket's path is limited.
        initials = "".join(word[0] for word in role.name.replace("-", " ").split())
        # The head has the path without a suffix, which users know.
        suffix = "" if role.entry is None else f".{initials}{index}"
        address = f"{self._carrier}:{self._folder.socket()}{suffix}"
        self._listening.add(address)
        return address

    def folder(self, role: Role, index: int) -> str:
        """See :class:`~seedbed.launch.launcher.Launcher`."""
        return str((self._folder.path / "instances" / name_of(role.name, index)).absolute())

    def prepare(self, role: Role, index: int, contents: Contents) -> None:
        """See :class:`~seedbed.launch.launcher.Launcher`."""
        folder = Path(self.folder(role, index))
        regular_files.remove(folder)
        folder.mkdir(parents=True)
        save(folder, contents.meta["version"], contents, keep=1)

    def standing(self, role: Role, index: int) -> str | None:
        """See :class:`~seedbed.launch.launcher.Launcher`."""
        folder = Path(self.folder(role, index))
        if not folder.exists():
            return None
        try:
            return f"goes on from its snapshot of version {load_latest(folder).step}"
        except CheckpointError as error:
            return f"has no snapshot to go on from ({error})"

    @property
    def advice(self) -> str:
        """See :class:`~seedbed.launch.launcher.Launcher`."""
        return "the logs of the run show what they wait for"

    @property
    def listens(self) -> Sequence[str]:
        """See :class:`~seedbed.launch.launcher.Launcher`: all instances are on this machine."""
        return ()

    def meet(self, invitation: Invitation, claim: str, identity: Sequence[str]) -> None:
        """See :class:`~seedbed.launch.launcher.Launcher`."""
        self._claim = claim

    def reach_head(self, addresses: Sequence[str]) -> None:
        """See :class:`~seedbed.launch.launcher.Launcher`."""

    def start(self, role: Role, task: Task) -> Instance:
        """See :class:`~seedbed.launch.launcher.Launcher`."""
        invitation = Invitation(self._folder.token())
        if self._in_threads:
            over = threading.Event()
            run = partial(entry_of(task), context_of(task, over, invitation))
            return ThreadInstance(f"{role.name} {task.index}", run, str(self._folder.log), over)
        if role.grace not in self._guards:
            self._guards[role.grace] = Guard(grace=role.grace)
        beside = {**_platform_of(role), **secrets(invitation, self._claim)}
        logs = self._folder.logs
        process = start_task(task, logs, logs, self._guards[role.grace], beside, trains=role.has_machine)
        self._processes[role.name, task.index] = process
        return process

    def watch(self, on_loss: Callable[[str], None]) -> None:
        """See :class:`~seedbed.launch.launcher.Launcher`; processes here are lost one by one."""

    def look_after(self) -> Sequence[str]:
        """See :class:`~seedbed.launch.launcher.Launcher`: keeps logs within bounds, and a guard in its place."""
        for guard in self._guards.values():
            guard.look_after()
        for process in self._processes.values():
            process.look_after()
        return ()

    def close(self) -> None:
        """See :class:`~seedbed.launch.launcher.Launcher`."""
        for guard in self._guards.values():
            guard.close()
        for address in self._listening:  # an instance that was killed leaves its socket
            carrier, _, path = address.partition(":")
            if carrier != "inproc":
                Path(path).unlink(missing_ok=True)


def _platform_of(role: Role) -> Mapping[str, str]:
    """Returns the environment variables by which the JAX of an instance finds its platform."""
    if role.has_machine:  # as the head does, whose JAX may not be asked before all hosts are there
        return {}
    if not role.accelerated:
        return ON_PROCESSOR
    if jax.default_backend() == "cpu":
        return {"JAX_PLATFORMS": "cpu"}
    # JAX finds the same platform as here; the head has allocated most of its memory already.
    return {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
