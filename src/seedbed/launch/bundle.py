"""A bundle: some instances of a role on one machine of a cluster, and the process of the engine that starts them there.

The engine runs :class:`Bundle` as one of its own actors, and runs its constructor again elsewhere if the machine is
lost. So the constructor does all that there is to do, and nobody has to tell a new one anything. The instances are
processes, as on one machine; nothing that they send to each other passes through here. Imports no JAX.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import secrets
import shutil
import socket
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from seedbed import regular_files
from seedbed.architectures.program import Task
from seedbed.faults import Fault
from seedbed.launch import entry
from seedbed.launch.processes import ON_PROCESSOR, Guard, ProcessInstance, name_of, start_task
from seedbed.launch.runtime_folder import runtime_folder
from seedbed.transport.admission import Invitation

_TAIL_BYTES = 1 << 16


@dataclass(frozen=True)
class Plan:
    """The work of a bundle.

    Attributes:
      tasks: tasks of its instances, with the addresses that hold on the head's machine.
      elsewhere: addresses of the roles that are dialled from other machines, in the order of their instances, by name.
      node: id of the engine's node on which the head stands.
      invitation: knowledge by which the head admits instances from other machines.
      claim: secret of the session by which the head knows them for its own.
      run: run folder, which other machines may share.
      folder: current folder of the head, where modules of the user's own are looked for.
      variables: environment variables that are to be as they are for the head; None for one that is not set there.
      niceness: the head's niceness, which the engine has raised for its own processes.
      grace: seconds in which its instances may end by themselves once the engine's process is gone.
      trains: whether its instances train, each on a machine of its own, with the devices of that.
    """

    tasks: tuple[Task, ...]
    elsewhere: Mapping[str, Sequence[str]]
    node: str
    invitation: Invitation
    claim: str = field(repr=False)
    run: str
    folder: str
    variables: Mapping[str, str | None]
    niceness: int
    grace: float
    trains: bool = False

    def on(self, node: str) -> tuple[Task, ...]:
        """Returns the tasks for a node of the engine: on the head's own, shared memory takes the network's place."""
        if node == self.node:
            return self.tasks
        return tuple(
            replace(task, dials={role: [*self.elsewhere[role]] for role in task.dials}) for task in self.tasks
        )


@dataclass(frozen=True)
class Report:
    """The state of a bundle.

    Attributes:
      machine: name of its machine.
      shares_folder: whether the run folder is the head's own, so that logs are there.
      lives: for each instance, a word for the process that has its index, and the fault with which that has ended.
    """

    machine: str
    shares_folder: bool
    lives: Mapping[int, tuple[str, Fault | None]]


class Bundle:
    """The process of the engine on one machine that starts the instances of a bundle, and ends them with itself.

    Its methods may be called at the same time, and twice: a call that comes late, to a bundle that was begun anew
    meanwhile, changes nothing.

    Args:
      plan: its work.
      node: id of the engine's node on which it is.
    """

    def __init__(self, plan: Plan, node: str = "") -> None:
        self._plan = plan
        self._tasks = {task.index: task for task in plan.on(node or _node())}
        self._lock = threading.Lock()
        self._words = (f"{secrets.token_hex(4)}.{number}" for number in itertools.count())
        self._lives: dict[int, str] = {}
        self._faults: dict[int, Fault | None] = {}
        self._processes: dict[int, ProcessInstance] = {}
        for name, value in plan.variables.items():  # the engine has set some of them
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value
        with contextlib.suppress(OSError):
            os.chdir(plan.folder)
        self._shares = _holds(Path(plan.run) / "token", plan.invitation.token)
        self._scratch = None if self._shares else self._own_folder()
        self._guard = Guard(apart=True, grace=plan.grace)
        with self._lock:
            for index in self._tasks:
                self._begin(index)

    def _own_folder(self) -> Path:
        first = next(iter(self._tasks.values()))
        folder = runtime_folder() / f"{self._plan.claim[:8]}-{name_of(first.role, first.index)}"
        folder.mkdir(mode=0o700, exist_ok=True)
        return folder

    @property
    def _logs(self) -> Path:
        return self._scratch or Path(self._plan.run) / "logs"

    def _begin(self, index: int) -> None:
        self._lives[index], self._faults[index] = next(self._words), None
        plan = self._plan
        beside = {**({} if plan.trains else ON_PROCESSOR), **entry.secrets(plan.invitation, plan.claim)}
        process = start_task(
            self._tasks[index], self._logs, self._logs, self._guard, beside, trains=plan.trains
        )
        self._processes[index] = process
        with contextlib.suppress(OSError):  # that may take rights
            os.setpriority(os.PRIO_PROCESS, process.pid, self._plan.niceness)

    def report(self) -> Report:
        """Returns the state of all instances; keeps the guard in its place, and logs within bounds."""
        with self._lock:
            if self._processes:
                self._guard.look_after()
            for index, process in self._processes.items():
                process.look_after()
                if self._faults[index] is None:
                    self._faults[index] = process.ended()
            lives = {index: (life, self._faults[index]) for index, life in self._lives.items()}
            return Report(socket.gethostname(), self._shares, lives)

    def start(self, index: int, before: str) -> None:
        """Starts an instance again, unless its process is no longer the one that is to be replaced.

        Args:
          index: index of the instance.
          before: word for the process that is to be replaced.
        """
        with self._lock:
            if self._lives.get(index) == before:
                self._processes[index].kill()
                self._begin(index)

    def ask_to_end(self, index: int, life: str) -> None:
        """Asks the process of this word to end, if it is there."""
        with self._lock:
            if self._lives.get(index) == life:
                self._processes[index].ask_to_end()

    def kill(self, index: int, life: str) -> None:
        """Kills the process of this word, with what it has started, if it is there."""
        with self._lock:
            if self._lives.get(index) == life and self._faults[index] is None:
                self._processes[index].kill()

    def tail(self, index: int) -> bytes:
        """Returns the end of an instance's log; empty if there is none."""
        task = self._tasks[index]
        try:
            with regular_files.open_to_read(self._logs / f"{name_of(task.role, index)}.log") as file:
                file.seek(max(0, file.seek(0, os.SEEK_END) - _TAIL_BYTES))
                return file.read()
        except OSError:
            return b""

    def close(self) -> None:
        """Ends all instances, and removes what they have left on this machine."""
        with self._lock:
            for process in self._processes.values():
                process.finish(0.0)
            self._processes.clear()
            self._lives.clear()
            self._guard.close()
            if self._scratch is not None:
                shutil.rmtree(self._scratch, ignore_errors=True)


def _holds(path: Path, text: str) -> bool:
    """Returns whether a file has this text: nobody but the run itself has its token."""
    try:
        return regular_files.read(path).decode().strip() == text
    except (OSError, UnicodeDecodeError):
        return False


def _node() -> str:
    import ray

    context: Any = ray.get_runtime_context()
    return str(context.get_node_id())
