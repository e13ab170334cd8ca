"""The launcher of a cluster: Ray finds machines for the instances, and others when machines are lost.

::

      driver: the head                 one bundle a machine                the instances
    ┌───────────────────────┐        ┌───────────────────────┐        ┌──────────────────┐
    │ supervisor ─► launcher│ ─Ray─► │ Ray actor, no JAX     │ starts │ processes, under │
    │                       │ ◄───── │ starts, ends, reports │ ─────► │ a guard          │
    │ registry              │        └───────────────────────┘        └──────────────────┘
    └───────────────────────┘ ◄──────── shared memory or gRPC with TLS ────────┘

Ray owns machines, the supervisor processes: a lost machine is no fault of an instance, and counts against no budget of
restarts. Steps, unrolls and weights travel as they do on one machine; none of them is an object of Ray's (decision
0076).
"""

from __future__ import annotations

import hashlib
import logging
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import import_module
from pathlib import Path
from typing import Any

from seedbed import regular_files
from seedbed.architectures.program import Role, Task
from seedbed.errors import ConfigError
from seedbed.faults import Fault
from seedbed.instances import GRACE_SECONDS, Instance
from seedbed.launch.bundle import Bundle, Plan, Report
from seedbed.launch.cluster_connection import (
    NAMESPACE,
    ClusterWatch,
    cause,
    connected,
    end_without_ray,
)
from seedbed.launch.folder import RunFolder
from seedbed.launch.local import LocalLauncher
from seedbed.launch.processes import name_of
from seedbed.launch.rendezvous import free_port, joined
from seedbed.learning.checkpoint import Contents
from seedbed.transport.admission import Invitation

_log = logging.getLogger(__name__)
_MOST_IN_A_BUNDLE = 8


def bundle_size(room: Sequence[int], count: int) -> int:
    """Returns the most instances in a bundle that fill every machine without a rest.

    Args:
      room: number of instances for which each machine has cores.
      count: number of instances.
    """
    most = min(_MOST_IN_A_BUNDLE, count, max(room, default=1))
    return max((size for size in range(1, most + 1) if all(each % size == 0 for each in room)), default=1)


_ASK_SECONDS = 0.5
"""Seconds between two reports of a bundle."""
_MISSED_SECONDS = 3.0
"""Seconds without a report after which a bundle counts as waiting for a machine."""
_DEATHS = 3
"""Answers in a row that a bundle is dead, after which it is: one that is begun anew has none meanwhile."""
_CALLS_AT_ONCE = 4
_LEAVE_SECONDS = 60.0
"""Seconds for the end of all that was placed, with its logs, and of the connection."""
_AS_HERE = ("OMP_NUM_THREADS", "XLA_FLAGS", "JAX_PLATFORMS")
"""Environment variables on which results may depend, and of which Ray sets some."""


class PlacedInstance:
    """An instance somewhere on the cluster, as the driver knows it by the reports of its bundle.

    Args:
      held: its bundle.
      index: its index.
      log: path of its log.
      before: word for the process that it replaces; empty for the first one.
    """

    def __init__(self, held: _Held, index: int, log: str, before: str = "") -> None:
        self.log = log
        self.before = before
        self.life = ""
        self.begun: float | None = None
        self.fault: Fault | None = None
        self._held = held
        self._index = index

    @property
    def machine(self) -> str:
        """See :class:`~seedbed.instances.Instance`."""
        report = self._held.report
        return report.machine if report is not None and self.begun is not None else ""

    def hear(self, life: str, fault: Fault | None) -> bool:
        """Takes the bundle's word on it; returns False if the bundle still has the process that it is to replace."""
        if life == self.before:
            return False
        if life != self.life or self.begun is None:
            self.life, self.begun = life, time.monotonic()
        self.fault = fault
        return True

    def stopped(self) -> bool:
        """See :class:`~seedbed.instances.Instance`; a stopped process of another machine answers no ping."""
        return False

    def ended(self) -> Fault | None:
        """See :class:`~seedbed.instances.Instance`; the loss of its machine is none if the engine finds another."""
        return self.fault

    def ask_to_end(self) -> None:
        """See :class:`~seedbed.instances.Instance`."""
        self._held.tell("ask_to_end", self._index, self.life)

    def kill(self) -> bool:
        """See :class:`~seedbed.instances.Instance`; does not wait for it."""
        self._held.tell("kill", self._index, self.life)
        return True

    def finish(self, seconds: float) -> None:
        """See :class:`~seedbed.instances.Instance`; one that waits for a machine has nothing to end."""
        over = time.monotonic() + seconds
        while self.fault is None and self.begun is not None and time.monotonic() < over:
            self._held.look(min(0.1, seconds))
        if self.fault is None and self.life:
            self.kill()


@dataclass
class _Held:
    """A bundle, as the driver knows it.

    Attributes:
      ray: the engine's module.
      role: role of its instances.
      tasks: tasks of its instances, by index.
      lock: lock of the launcher.
      handle: the engine's handle of it; None before it is begun.
      instances: its instances, by index.
      placed: whether it is on a machine.
      report: its last report.
    """

    ray: Any
    role: Role
    tasks: dict[int, Task]
    lock: threading.RLock
    handle: Any = None
    instances: dict[int, PlacedInstance] = field(default_factory=dict)
    placed: bool = False
    report: Report | None = None
    _asked: Any = None
    _since: float = 0.0
    _deaths: int = 0

    def begin(self, plan: Plan, place: Mapping[str, Any]) -> None:
        """Has the engine find a machine for it, under a name by which other commands find it.

        Under an exact lag (a role without restarts) a lost machine ends the run, so the engine looks for no other.

        Args:
          plan: its work.
          place: the engine's options that say what it takes of a machine, and of which one.
        """
        names = " ".join(name_of(self.role.name, index) for index in self.tasks)
        remote = self.ray.remote(Bundle).options(
            max_restarts=0 if self.role.restarts is None else -1,
            max_task_retries=0,
            max_concurrency=_CALLS_AT_ONCE,
            name=f"{_title(plan.run, plan.invitation.token)} {names}",
            namespace=NAMESPACE,
            **place,
        )
        self.handle, self._asked, self._deaths = remote.remote(plan), None, 0

    @property
    def dead(self) -> bool:
        """True if the engine has given it up."""
        return self._deaths >= _DEATHS

    def tell(self, method: str, *arguments: Any) -> None:
        """Calls a method of the bundle, and waits for no answer: the next report shows what came of it."""
        if self.handle is not None and not self.dead:
            getattr(self.handle, method).remote(*arguments)

    def look(self, wait: float = 0.0) -> None:
        """Takes its report if it has come, and asks for the next one if that is due.

        Args:
          wait: seconds to wait for a report.
        """
        if not self.lock.acquire(timeout=wait or -1):
            return  # whoever has it may wait for a head that is lost
        try:
            self._look(wait)
        finally:
            self.lock.release()

    def _look(self, wait: float) -> None:
        now = time.monotonic()
        if self.handle is None or self.dead:
            return
        if self._asked is None and (wait or now - self._since > _ASK_SECONDS):
            self._asked, self._since = self.handle.report.remote(), now
        if self._asked is None:
            return
        if self.ray.wait([self._asked], timeout=wait)[0]:
            answer, self._asked = self._asked, None
            self._take(answer)
        elif now - self._since > _MISSED_SECONDS:
            self._miss()

    def _take(self, answer: Any) -> None:
        try:
            self.report = report = self.ray.get(answer)
        except self.ray.exceptions.ActorDiedError as error:
            self._miss()
            self._deaths += 1
            if self.dead:
                _log.warning("bundle of %s: %s", self.role.name, error)
                gone = Fault(f"its place on the cluster is gone: {cause(error)}")
                for instance in self.instances.values():
                    instance.fault = instance.fault or gone
            return
        except self.ray.exceptions.RayError as error:
            _log.info("bundle of %s: %s", self.role.name, error)
            self._miss()
            return
        self.placed, self._deaths = True, 0
        for index, (life, fault) in report.lives.items():
            if not self.instances[index].hear(life, fault):
                self.tell("start", index, life)  # it has not heard of that, or not yet

    def _miss(self) -> None:
        self.placed = False
        for instance in self.instances.values():
            instance.begun = None


class Progress:
    """The lines that say how many instances have a machine.

    Args:
      clock: seconds.
    """

    _SECONDS = 5.0

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._told: dict[str, tuple[int, int]] = {}
        self._since: dict[str, tuple[tuple[int, int], float]] = {}

    def line(self, role: Role, placed: int, guests: int = 0) -> str | None:
        """Returns a line if one is due: at once when all have a machine, else when their number stays for a while.

        Args:
          role: role of the instances.
          placed: number of instances on machines, without guests.
          guests: number of guests on machines.
        """
        now, found = self._clock(), (placed, guests)
        seen, since = self._since.get(role.name, (None, now))
        if found != seen:
            since = now
            self._since[role.name] = found, now
        waiting = role.count + role.guests - placed - guests
        if found == self._told.get(role.name) or (waiting and now - since < self._SECONDS):
            return None
        self._told[role.name] = found
        groups = [f"{role.name}s {placed} of {role.count}"] if role.count or not role.guests else []
        groups += [f"{guests} of {role.guests} guests"] if role.guests else []
        rest = f" ({waiting} {'waits' if waiting == 1 else 'wait'} for machines)" if waiting else ""
        return f"{' and '.join(groups)} placed{rest}"


class ClusterLauncher:
    """A :class:`~seedbed.launch.launcher.Launcher` of processes on the machines of a Ray cluster.

    Args:
      folder: run folder.
      transport: name of the carrier to instances on the head's own machine.

    Raises:
      ConfigError: Ray is not installed, or there is no cluster.
    """

    def __init__(self, folder: RunFolder, transport: str) -> None:
        self._folder = folder
        self._here = LocalLauncher(folder, transport)
        self._ray, self._own_connection = connected()
        self._node = str(self._ray.get_runtime_context().get_node_id())
        self._watch = ClusterWatch(self._ray.nodes, self._node)
        self._lock = threading.RLock()
        self._bundles: list[_Held] = []
        self._sizes: dict[str, int] = {}
        self._groups: dict[str, Any] = {}
        self._head: Sequence[str] = ()
        self._abroad: dict[str, dict[int, str]] = {}
        self._identity: Sequence[str] = ()
        self._invitation: Invitation | None = None
        self._claim = ""
        self._progress = Progress()
        self._closed = self._left = False

    def address(self, role: Role, index: int) -> str:
        """See :class:`~seedbed.launch.launcher.Launcher`.

        A role that listens stands on the head's machine, where others dial it at this address, and has another one for
        the other machines.
        """
        if role.listens:
            self._abroad.setdefault(role.name, {})[index] = joined(self._host, free_port(self._host))
        return self._here.address(role, index)

    @property
    def _host(self) -> str:
        return str(self._ray.util.get_node_ip_address())

    def folder(self, role: Role, index: int) -> str:
        """See :class:`~seedbed.launch.launcher.Launcher`."""
        return self._here.folder(role, index)

    def prepare(self, role: Role, index: int, contents: Contents) -> None:
        """See :class:`~seedbed.launch.launcher.Launcher`; only a role that listens, here, begins from a checkpoint."""
        if not role.listens:
            raise NotImplementedError(
                f"{role.name} {index} begins from a checkpoint, which no other machine has"
            )
        self._here.prepare(role, index, contents)

    def standing(self, role: Role, index: int) -> str | None:
        """See :class:`~seedbed.launch.launcher.Launcher`."""
        return self._here.standing(role, index) if role.listens else None

    @property
    def advice(self) -> str:
        """See :class:`~seedbed.launch.launcher.Launcher`."""
        return "each needs a machine other than this one: see 'ray status' and 'seedbed doctor --on ray'"

    @property
    def listens(self) -> Sequence[str]:
        """See :class:`~seedbed.launch.launcher.Launcher`: a free port at the address that Ray's nodes know."""
        return (joined(self._host, 0),)

    def meet(self, invitation: Invitation, claim: str, identity: Sequence[str]) -> None:
        """See :class:`~seedbed.launch.launcher.Launcher`."""
        self._invitation, self._claim, self._identity = invitation, claim, identity
        self._here.meet(invitation, claim, identity)

    def reach_head(self, addresses: Sequence[str]) -> None:
        """See :class:`~seedbed.launch.launcher.Launcher`."""
        self._head = addresses

    def start(self, role: Role, task: Task) -> Instance:
        """See :class:`~seedbed.launch.launcher.Launcher`.

        The engine is asked for a machine once all tasks of a bundle are there: its constructor starts them all. An
        instance that listens is started on this machine.
        """
        if role.listens:
            abroad = self._abroad[role.name][task.index]
            return self._here.start(role, replace(task, abroad=abroad, identity=tuple(self._identity)))
        with self._lock:
            held = self._bundle_of(role, task.index)
            held.tasks[task.index] = task
            log = str(self._folder.logs / f"{name_of(role.name, task.index)}.log")
            old = held.instances.get(task.index)
            instance = PlacedInstance(held, task.index, log, old.life if old else "")
            held.instances[task.index] = instance
            if old is not None:
                self._keep_log(held, task.index)
            if held.dead or (held.handle is None and len(held.tasks) == self._size(role, task.index)):
                held.begin(self._plan(held), self._place(held))
            elif old is not None:
                held.tell("start", task.index, old.life)
            return instance

    def _bundle_of(self, role: Role, index: int) -> _Held:
        for held in self._bundles:
            if held.role.name == role.name and (index in held.tasks or held.handle is None):
                return held
        self._bundles.append(_Held(self._ray, role, {}, self._lock))
        return self._bundles[-1]

    def _size(self, role: Role, index: int) -> int:
        """Returns the number of instances in the bundle of an index.

        A bundle is placed as a whole. As many are in it as fill every machine without a rest, so that no cores stay
        free in parts that are too small for one. A host has a machine to itself, and a guest is alone, so that it finds
        room wherever there is any.
        """
        if role.has_machine or role.is_guest(index):
            return 1
        if (size := self._sizes.get(role.name)) is None:
            cores = [node["Resources"].get("CPU", 0) for node in self._ray.nodes() if node["Alive"]]
            size = bundle_size([int(each // role.needs.cores) for each in cores], role.count)
            self._sizes[role.name] = size
        return min(size, role.count - index // size * size)

    def _place(self, held: _Held) -> dict[str, Any]:
        """Returns the engine's options on what a bundle takes of a machine, and of which one."""
        if not held.role.has_machine:
            return {"num_cpus": held.role.needs.cores * len(held.tasks), "scheduling_strategy": "SPREAD"}
        group, each = self._machines_for(held.role)
        number = sum(other.role.name == held.role.name for other in self._bundles) - 1
        strategy = import_module("ray.util.scheduling_strategies").PlacementGroupSchedulingStrategy
        return {
            "num_cpus": each["CPU"],
            "num_gpus": each["GPU"],
            "scheduling_strategy": strategy(group, placement_group_bundle_index=number),
        }

    def _machines_for(self, role: Role) -> tuple[Any, Mapping[str, float]]:
        """Returns machines for all instances of a role, each another one than the head's, and what is taken of each.

        They are found together or not at all. All accelerators of a machine are taken, as many as the head's has,
        unless JAX is told to use none.
        """
        here = next(node["Resources"] for node in self._ray.nodes() if node["NodeID"] == self._node)
        each = {
            "CPU": min(role.needs.cores, here.get("CPU") or role.needs.cores),
            "GPU": 0.0 if os.environ.get("JAX_PLATFORMS") == "cpu" else here.get("GPU", 0.0),
        }
        if role.name not in self._groups:
            elsewhere = {"ray.io/node-id": f"!{self._node}"}
            self._groups[role.name] = self._ray.util.placement_group(
                [{name: amount for name, amount in each.items() if amount}] * role.count,
                strategy="STRICT_SPREAD",
                bundle_label_selector=[elsewhere] * role.count,
            )
        return self._groups[role.name], each

    def _plan(self, held: _Held) -> Plan:
        assert self._invitation is not None, "meet() comes first"
        return Plan(
            tuple(held.tasks.values()),
            {edge.to: [*self._abroad.get(edge.to, {}).values()] or self._head for edge in held.role.dials},
            self._node,
            self._invitation,
            self._claim,
            str(self._folder.path),
            str(Path.cwd()),
            {name: os.environ.get(name) for name in _AS_HERE},
            os.getpriority(os.PRIO_PROCESS, 0),
            held.role.grace,
            held.role.has_machine,
        )

    def watch(self, on_loss: Callable[[str], None]) -> None:
        """See :class:`~seedbed.launch.launcher.Launcher`: all of it is lost with the cluster's head, or this node."""
        self._watch.begin(on_loss)

    def look_after(self) -> Sequence[str]:
        """See :class:`~seedbed.launch.launcher.Launcher`: hears the reports of all bundles."""
        self._here.look_after()
        with self._lock:
            for held in self._bundles:
                held.look()
            roles = {held.role.name: held.role for held in self._bundles}
            lines = [self._progress.line(role, *self._placed(role)) for role in roles.values()]
        return [line for line in lines if line]

    def _placed(self, role: Role) -> tuple[int, int]:
        """Returns the numbers of instances that have a machine: those that are no guests, and guests."""
        placed = [held for held in self._bundles if held.placed and held.role.name == role.name]
        guests = sum(role.is_guest(index) for held in placed for index in held.tasks)
        return sum(len(held.tasks) for held in placed) - guests, guests

    def _keep_log(self, held: _Held, index: int) -> None:
        """Writes the end of an instance's log into the run folder, if its machine does not share that."""
        if held.report is None or held.report.shares_folder or held.dead:
            return
        try:
            text = self._ray.get(held.handle.tail.remote(index), timeout=GRACE_SECONDS)
            regular_files.write_whole(Path(held.instances[index].log), text.decode(errors="replace"))
        except (self._ray.exceptions.RayError, OSError) as error:
            _log.warning("no log of %s %d: %s", held.role.name, index, error)

    def close(self) -> None:
        """See :class:`~seedbed.launch.launcher.Launcher`.

        Ray waits for a head that is away, and for as long as it is: a thread takes the leave, and may be left behind.
        """
        if self._closed:
            return
        self._closed = True
        self._watch.close()
        leaving = threading.Thread(target=self._leave, name="leave", daemon=True)
        leaving.start()
        try:
            leaving.join(_LEAVE_SECONDS if self._watch.lost is None else 2 * GRACE_SECONDS)
        finally:  # also after a second Ctrl-C
            if not self._left:
                end_without_ray(self._ray)
            self._here.close()

    def _leave(self) -> None:
        """Ends all bundles and the connection, and notes it."""
        try:
            self._left = self._has_left()
        except Exception as error:  # of Ray, whose head may be lost just now
            _log.warning("the leave of the cluster failed: %s", cause(error))

    def _has_left(self) -> bool:
        """Ends all bundles and the connection; returns False, without an end of the latter, if the cluster is lost."""
        with self._lock:
            begun = [held for held in self._bundles if held.handle is not None]
            for held in begun:
                for index in held.tasks if held.placed else ():
                    self._keep_log(held, index)
            ends = [held.handle.close.remote() for held in begun if held.placed]
            if ends:
                self._ray.wait(ends, num_returns=len(ends), timeout=2 * GRACE_SECONDS)
            if self._watch.lost is not None:
                return False
            for held in begun:
                self._ray.kill(held.handle, no_restart=True)
            for group in self._groups.values():
                self._ray.util.remove_placement_group(group)
            if self._own_connection:
                self._ray.shutdown()
            return True


def tail_of(folder: RunFolder, name: str) -> bytes:
    """Returns the end of the log of an instance whose machine does not share the run folder, while the run goes on.

    Args:
      folder: run folder.
      name: name of the instance: ``actor-3``.

    Raises:
      ConfigError: it is on no machine, or there is no cluster.
    """
    ray, own = connected()
    try:
        run = _title(str(folder.path), folder.token())
        titles = [title.split() for title in ray.util.list_named_actors(all_namespaces=False)]
        for title in titles:
            if title[0] == run and name in title[1:]:
                bundle = ray.get_actor(" ".join(title), namespace=NAMESPACE)
                tail: bytes = ray.get(bundle.tail.remote(int(name.rpartition("-")[2])), timeout=GRACE_SECONDS)
                return tail
    except (ray.exceptions.RayError, ValueError) as error:
        raise ConfigError(f"no log of {name}: {cause(error)}") from error
    finally:
        if own:
            ray.shutdown()
    raise ConfigError(f"there is no log of {name} in {folder.given}, and no machine has {name} now")


def _title(run: str, token: str) -> str:
    """Returns the first word of the names of a run's bundles.

    Args:
      run: run folder; one on another machine's own disk may have the same path.
      token: token of the run, which is no other's.
    """
    return hashlib.sha256(os.fsencode(run) + token.encode()).hexdigest()[:16]
