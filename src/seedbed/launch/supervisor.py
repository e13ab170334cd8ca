"""The supervisor of a run: it starts the instances of a program, watches them, and restarts them within a budget."""

from __future__ import annotations

import logging
import queue
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax

from seedbed.architectures.program import Program, Role, Task
from seedbed.errors import RunFailed
from seedbed.faults import Fault
from seedbed.instances import GRACE_SECONDS, Instance, Instances
from seedbed.launch.launcher import Launcher
from seedbed.priority import niceness_beside
from seedbed.transport.tls import is_loopback

_log = logging.getLogger(__name__)
WATCH_SECONDS = 0.2
RESTART_WINDOW_SECONDS = 600.0
FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 1.0, 60.0
"""Time after which a guest that has ended comes again: at first, and at most if it ends again and again."""
STOPPED_SECONDS = 20.0
"""Time for which an instance may owe something if its process is stopped: there is nothing to wait for."""
_NOT_READY = (
    "it was not ready {seconds} s after its start: what it makes or compiles takes longer here (--env-timeout allows "
    "more, and fewer of its kind are faster)"
)

_STOPPED = (
    "its process was stopped by a signal, and has owed something for {seconds} s (kill -CONT lets one go on)"
)


@dataclass
class _Watched:
    """One instance, with the history of earlier ones that had the same index.

    Attributes:
      begun: time (monotonic, s) at which it was started, or at which it began to run on a machine.
      heard: time (monotonic, s) since which it owed something, or at which it owed nothing, when the head knew it last;
        without meaning if that is before its start.
      pause: time in s before a guest comes again.
      returns: time (monotonic, s) at which a guest that has ended comes again; None while it is there.
    """

    role: Role
    index: int
    instance: Instance
    begun: float
    heard: float = 0.0
    restarts: deque[float] = field(default_factory=deque)
    fault: Fault | None = None
    pause: float = 0.0
    returns: float | None = None

    def __str__(self) -> str:
        return f"{'guest ' if self.guest else ''}{self.role.name} {self.index}"

    @property
    def guest(self) -> bool:
        """True if it comes and goes: see :class:`~seedbed.architectures.program.Role`."""
        return self.role.is_guest(self.index)

    @property
    def there(self) -> bool:
        """True if the head has heard of it since it was started: it has compiled, and has made its environments."""
        return self.heard > self.begun

    @property
    def state(self) -> str:
        """See :meth:`Supervisor.standing`."""
        if self.returns is not None:
            return "away"
        return "starting" if self.role.silent_after and not self.there else "running"

    def silent(self, owes: Mapping[int, float | None], now: float) -> float:
        """Returns the seconds for which it has owed something, or has not become ready."""
        if self.index not in owes:
            # One that the head no longer knows, and that lives, owes what it owed then.
            return now - max(self.heard, self.begun)
        since = owes[self.index]
        if since is None:
            self.heard = now if self.there else self.heard
            return 0.0
        self.heard = since
        return now - max(since, self.begun)


class Supervisor:
    """A supervisor, which keeps the instances of a program alive; one thread watches all roles in the same way.

    Args:
      program: the declared roles.
      launcher: starter of instances that are not threads of the head.
      instances: the instances as the head knows them, by the name of the role.
      run: settings of the run, as JSON values.
      spec: spec of the environments, as JSON values.
      on_failure: callback for the error that should end the run.
      note: callback for each line for the user.
      version: function that returns the number of updates so far.

    Attributes:
      restarts: number of instances that were restarted.
    """

    def __init__(
        self,
        program: Program,
        launcher: Launcher,
        instances: Mapping[str, Instances],
        *,
        run: dict[str, Any],
        spec: dict[str, Any],
        on_failure: Callable[[BaseException], None],
        note: Callable[[str], None],
        version: Callable[[], int],
    ) -> None:
        self._program = program
        self._launcher = launcher
        self._known = instances
        self._run_settings = run
        self._spec = spec
        self._on_failure = on_failure
        self._note = note
        self._version = version
        self.restarts = 0
        self._addresses: dict[str, list[str]] = {}
        self._watched: dict[str, dict[int, _Watched]] = {role.name: {} for role in program.roles}
        self._to_start: queue.SimpleQueue[Role] = queue.SimpleQueue()
        self._stopping = threading.Event()
        self._looked = time.monotonic()
        self._begun: float | None = None
        self._head_seen: float | None = None
        self._thread = threading.Thread(target=self._run, name="supervisor", daemon=True)
        launcher.watch(lambda reason: on_failure(RunFailed(reason)))

    def start(self, roles: Sequence[Role], head: list[str] | None = None) -> dict[str, list[str]]:
        """Has the supervisor's thread start all instances of these roles, in order; does not wait for it.

        Args:
          roles: roles of the program.
          head: addresses of the head, for the roles that dial it.

        Returns:
          The addresses of the roles that listen, by role.
        """
        if head is not None:
            self._addresses[self._program.head] = head
        for role in roles:
            if role.listens:
                self._addresses[role.name] = [
                    self._launcher.address(role, index) for index in range(role.count)
                ]
            if (begins := self._of(role).begins) is not None:
                for index in range(role.count):
                    self._launcher.prepare(role, index, begins(index))
            self._to_start.put(role)
        if self._thread.ident is None:
            self._thread.start()
        return {role.name: self._addresses[role.name] for role in roles if role.listens}

    def begin(self) -> None:
        """Notes that the head has compiled: instances have to become ready within their time from now on."""
        self._begun = time.monotonic()

    def seen(self) -> None:
        """Notes that the head has made progress; it is watched from the first such call on."""
        self._head_seen = time.monotonic()

    def stand_down(self) -> None:
        """Stops the replacement of instances that end."""
        self._stopping.set()

    def stop(self, roles: Sequence[Role] | None = None) -> None:
        """Stops watching and ends the instances of these roles, or of all; safe to call twice.

        Instances that dial the head learn from their connections that the run is over; the others are asked to end.
        """
        self._stopping.set()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(2 * GRACE_SECONDS)  # a launcher's call may wait for machines that are lost
        for role in reversed(self._program.roles if roles is None else roles):
            watched = list(self._watched[role.name].values())
            if role in self._program.before:
                for each in watched:
                    each.instance.ask_to_end()
            over = time.monotonic() + GRACE_SECONDS
            for each in watched:
                each.instance.finish(max(0.0, over - time.monotonic()))
        if roles is None:
            self._launcher.close()

    def standing(self) -> list[dict[str, Any]]:
        """Returns the instances as JSON values, from any thread: role, index, state, machine, restarts, fault, log.

        The state is ``away`` for a guest that has ended, ``starting`` until the head has heard of an instance, where it
        knows its debts, and else ``running``. Instances that have joined by themselves are told, too, without a log.
        """
        return [each for name in list(self._watched) for each in self._standing_of(name)]

    def _standing_of(self, name: str) -> Iterator[dict[str, Any]]:
        watched = list(self._watched[name].values())
        for each in watched:
            yield {
                "role": name,
                "index": each.index,
                "state": each.state,
                "machine": each.instance.machine,
                "restarts": len(each.restarts),
                "fault": None if each.fault is None else str(each.fault),
                "log": each.instance.log,
            }
        started = {each.index for each in watched}
        for index, place in sorted(self._known.get(name, Instances()).elsewhere().items()):
            if index not in started:
                machine = socket.gethostname() if not place or is_loopback(place) else place
                yield {"role": name, "index": index, "state": "running", "machine": machine, "restarts": 0}

    def _of(self, role: Role) -> Instances:
        return self._known.get(role.name, Instances())

    # The supervisor's thread.

    def _run(self) -> None:
        try:
            while not self._stopping.is_set():
                self._start_what_is_due()
                self._watch()
                for line in self._launcher.look_after():
                    self._note(line)
                self._stopping.wait(WATCH_SECONDS)
        except BaseException as error:
            self._on_failure(error)

    def _start_what_is_due(self) -> None:
        while not self._to_start.empty():
            role = self._to_start.get()
            for index in range(role.count + role.guests):
                if self._stopping.is_set():
                    return
                _log.info("%s %d starts", role.name, index)
                begun = time.monotonic()
                self._watched[role.name][index] = _Watched(role, index, self._begin(role, index), begun)

    def _begin(self, role: Role, index: int) -> Instance:
        if role.entry is None:
            start = self._of(role).start
            assert start is not None, "a role without an entry is started by the head"
            return start(index)
        task = Task(
            role.name,
            index,
            role.entry,
            self._run_settings,
            self._spec,
            {edge.to: self._addresses[edge.to] for edge in role.dials if edge.to != role.name},
            role.patience,
            self._addresses[role.name][index] if role.listens else None,
            self._launcher.folder(role, index),
            self._niceness(role),
        )
        return self._launcher.start(role, task)

    def _niceness(self, role: Role) -> int:
        """Returns the niceness of a role's processes; those on other machines have no head beside them."""
        if role.niceness is not None:
            return role.niceness
        return 0 if self._launcher.listens else niceness_beside(jax.default_backend())

    def _watch(self) -> None:
        for role in self._program.roles:
            late = self._late(role)
            for index, watched in list(self._watched[role.name].items()):
                if watched.returns is not None:
                    self._have_come_again(watched)
                elif (reason := watched.instance.ended()) is not None:
                    self._replace(watched, reason)
                elif index in late:
                    self._replace(watched, self._kill(watched, late[index]))
        self._look_at_the_head()

    def _late(self, role: Role) -> dict[int, float]:
        """Returns the silent instances of a role, and for how many seconds each has owed something.

        A role that the head does not know is not watched. No instance is late if this process itself stood still
        (Ctrl-Z): their messages may wait to be read.
        """
        if not role.silent_after or role.name not in self._known:
            return {}
        owes, now, late = self._of(role).owes(), time.monotonic(), {}
        stood_still = now - self._looked > 10 * WATCH_SECONDS
        # An instance that starts may first have to wait for the roles that it dials.
        starting = max(role.silent_after, role.starts_within + role.patience)
        for index, each in self._watched[role.name].items():
            if each.instance.begun is None:  # no machine has room for it
                continue
            each.begun = max(each.begun, each.instance.begun)
            silent = each.silent(owes, now)
            allowed = role.silent_after if each.there else starting
            if not each.there:  # one that starts may wait for the head, which compiles on the same cores
                silent = min(silent, 0.0 if self._begun is None else now - self._begun)
            if stood_still or silent <= min(allowed, STOPPED_SECONDS):
                continue
            if silent > allowed or each.instance.stopped():
                late[index] = silent
        return late

    def _look_at_the_head(self) -> None:
        """Warns once if the head has made no progress for too long."""
        self._looked = now = time.monotonic()
        role, seen = self._program[self._program.head], self._head_seen
        if seen is not None and role.silent_after and now - seen > role.silent_after:
            self._head_seen = None
            line = (
                f"the {role.name} has made no update and waited for no batch for {now - seen:.0f} s: a device or a "
                "network may hang; Ctrl-C twice ends the run"
            )
            _log.warning(line)
            self._note(line)

    def _kill(self, watched: _Watched, seconds: float) -> Fault:
        said = watched.role.late if watched.there else _NOT_READY
        if watched.instance.stopped():
            said = _STOPPED
        reason = Fault(said.replace("{seconds}", f"{seconds:.0f}"))
        if not watched.instance.kill():
            raise RunFailed(
                f"{watched}: {reason}, and a thread cannot be killed and started again, as a process can "
                f"(--transport shm, where the architecture has it; log: {watched.instance.log})"
            )
        return reason

    def _replace(self, watched: _Watched, reason: Fault) -> None:
        if self._stopping.is_set():
            return
        if watched.guest:
            self._let_go(watched, reason)
            return
        role, history, now = watched.role, watched.restarts, time.monotonic()
        while history and now - history[0] > RESTART_WINDOW_SECONDS:
            history.popleft()
        why = _why_not_again(role, reason, watched.fault, len(history))
        if why is not None:
            raise RunFailed(f"{watched}: {reason} (log: {watched.instance.log}); {why}")
        line = f"{watched}: {reason}; restart {len(history) + 1} of {role.restarts}"
        _log.warning("%s (log: %s)", line, watched.instance.log)  # before anybody can see that it is counted
        history.append(now)
        watched.fault = reason
        self.restarts += 1
        self._note(line)
        if (standing := self._launcher.standing(role, watched.index)) is not None:
            self._note(f"{watched} {standing}; the others have come to {self._version()}")
        self._start_again(watched)

    def _let_go(self, watched: _Watched, reason: Fault) -> None:
        """Notes that a guest has ended, and when it comes again: later each time, if it ends soon after its start."""
        now = time.monotonic()
        lasted = now - watched.begun > LONGEST_PAUSE_SECONDS
        longer = FIRST_PAUSE_SECONDS if lasted else max(FIRST_PAUSE_SECONDS, 2 * watched.pause)
        watched.pause = min(longer, LONGEST_PAUSE_SECONDS)
        watched.returns = now + watched.pause
        line = f"{watched}: {reason}; it comes again in {watched.pause:.0f} s"
        _log.warning("%s (log: %s)", line, watched.instance.log)
        if str(reason) != str(watched.fault):  # many may say the same every minute
            self._note(line)
        watched.fault = reason

    def _have_come_again(self, watched: _Watched) -> None:
        """Starts a guest again, if its pause is over."""
        if watched.returns is not None and time.monotonic() >= watched.returns:
            watched.returns = None
            self._start_again(watched)

    def _start_again(self, watched: _Watched) -> None:
        _log.info("%s starts again", watched)
        watched.begun = time.monotonic()
        watched.instance = self._begin(watched.role, watched.index)


def _why_not_again(role: Role, reason: Fault, before: Fault | None, restarts: int) -> str | None:
    """Returns the reason why an ended instance is not restarted; None if it is.

    Args:
      role: role of the instance.
      reason: fault with which the instance ended.
      before: fault of the instance before it with the same index; None if there was none.
      restarts: number of restarts within the last :data:`RESTART_WINDOW_SECONDS`.
    """
    if role.restarts is None:
        return "a run with an exact lag cannot go on without it: 'seedbed resume' goes on from the last checkpoint"
    if reason.repeats(before):
        return (
            "it was the same before its restart, so that another one would come to the same: mend what the log shows, "
            "then 'seedbed resume'"
        )
    if restarts >= role.restarts:
        return (
            f"it was restarted {restarts} times already, and --actor-restarts allows no more: mend what the log shows, "
            "then 'seedbed resume'"
        )
    return None
