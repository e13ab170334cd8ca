"""The actor threads of one process: each steps host environments of its own and acts for them on its accelerator.

Threads that share an accelerator take turns on it without coordination: while one steps its environments, the policy
decides for another (Hessel et al. 2021, "Podracer architectures", section 3.2).
"""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Protocol

import jax
import numpy as np

from seedbed.acting.assignment import Assignment, half_seeds
from seedbed.acting.lag import Rounds
from seedbed.acting.lag_control import HandOver, RoundBuffer
from seedbed.acting.lanes import Script, digest_of
from seedbed.acting.meters import Meters
from seedbed.acting.rollout import CompiledPolicy, Rollout, warm_up
from seedbed.acting.unrolls import Delivery, resets_at, step_arrays
from seedbed.envs.episodes import EpisodeMeter
from seedbed.envs.interface import Environment
from seedbed.envs.make import make, told_by
from seedbed.errors import RunFailed, SpecError
from seedbed.faults import Fault
from seedbed.metrics.ledger import Ledger
from seedbed.priority import step_aside
from seedbed.types import Exploration, TimeStep, Tree, Weights
from seedbed.weights.store import WeightStore

_log = logging.getLogger(__name__)


class Gate(Protocol):
    """The point between two unrolls at which an actor thread hands over one and gets the weights of the next."""

    @property
    def closed(self) -> bool:
        """True once the threads are to stop."""

    def weights(self, index: int, rounds: int, device: int) -> Weights | None:
        """Waits for the weights that the thread ``index`` acts with in its unroll number ``rounds``.

        Returns None once the gate is closed.
        """

    def pass_on(self, index: int, rounds: int, delivery: Delivery) -> bool:
        """Takes an unroll; returns False if it was not taken because the gate is closed."""


class LearnerGate:
    """A gate at which actor threads wait for their learner: for the weights of their next unroll, and for room.

    Args:
      threads: number of threads.
      store: store of the published weights.
      hand_over: function that takes a complete unroll; returns False if there is no room.
      rounds: schedule of the version that each round acts with; None where the lag is free.
    """

    def __init__(
        self, *, threads: int, store: WeightStore, hand_over: HandOver, rounds: Rounds | None
    ) -> None:
        self._threads = threads
        self._store = store
        self._hand_over = hand_over
        self._rounds = rounds
        self._buffer = RoundBuffer(threads, hand_over)
        self._news = threading.Condition()
        self._waiting: dict[int, int] = {}
        self._closed = False

    def poke(self) -> None:
        """Wakes waiting threads: there are new weights, or there is room in the queue."""
        with self._news:
            self._news.notify_all()

    def close(self) -> None:
        """Stops all threads."""
        with self._news:
            self._closed = True
            self._news.notify_all()

    @property
    def closed(self) -> bool:
        """See :class:`Gate`."""
        return self._closed

    def weights(self, index: int, rounds: int, device: int) -> Weights | None:
        """See :class:`Gate`."""
        if self._rounds is None:
            return None if self._closed else self._store.newest(device)
        version = self._rounds.version(rounds)
        with self._news:
            self._waiting[index] = version
            self._news.notify_all()
            self._news.wait_for(lambda: self._closed or self._store.exactly(version, device))
            del self._waiting[index]
            return None if self._closed else self._store.exactly(version, device)

    def pass_on(self, index: int, rounds: int, delivery: Delivery) -> bool:
        """See :class:`Gate`; waits for room."""
        if self._rounds is not None:
            return self._buffer.add(rounds, (index, 0), delivery)
        with self._news:
            while not self._closed:
                if self._hand_over(delivery):
                    return True
                self._news.wait()
            return False

    def wait_blocked(self, timeout: float) -> bool:
        """Waits, in lockstep, until all threads wait for weights; returns False when ``timeout`` s have passed."""
        with self._news:
            return self._news.wait_for(self._blocked, timeout)

    def _blocked(self) -> bool:
        return len(self._waiting) == self._threads and not any(
            self._store.exactly(version) for version in self._waiting.values()
        )


def seed_of(run_seed: int, index: int, epoch: int) -> int:
    """Derives the seed of the environments of the ``epoch``-th thread at ``index`` among the threads of all hosts.

    Two threads have the seeds of the two halves of one actor process.
    """
    return half_seeds(run_seed, index // 2, epoch, 2)[index % 2]


class ActorThread:
    """An actor thread, an :class:`~seedbed.instances.Instance`; its attributes may be read by other threads.

    Attributes:
      log: path of the log file that has its traceback.
      machine: name of this machine.
      steps: number of decisions so far.
      rounds: number of unrolls cut so far.
      busy_since: time (monotonic, s) at which its environments began to reset or step; None while they do neither.
      acts: whether its environments are made and reset.
    """

    def __init__(self, threads: ActorThreads, index: int, epoch: int) -> None:
        self.log = threads.log
        self.machine = socket.gethostname()
        self.steps = self.rounds = 0
        self.busy_since: float | None = None
        self.acts = False
        self._threads = threads
        self._index = index
        assignment, rows = threads.assignment, threads.assignment.envs
        self._device = index % len(threads.devices)
        own = range(index * rows, (index + 1) * rows)
        slots = np.array([assignment.slot_number(slot) for slot in own], np.int32)
        rank, evaluates = assignment.exploration(own)
        exploration = Exploration(np.array(rank, np.float32), np.array(evaluates, np.bool_))
        self._evaluates = exploration.evaluates
        self._streams = np.array(own, np.int64) | np.int64(epoch) << 32
        self._rollout = Rollout(threads.program, threads.devices[self._device], slots, epoch, exploration)
        self._seed = seed_of(assignment.seed, assignment.actor_number(index), epoch)
        self._meter = EpisodeMeter(rows)
        self._finished: list[tuple[float, int]] = []
        self._actions: list[Any] = []
        self._timestep: TimeStep
        self._script: Script | None = None
        self._error: BaseException | None = None
        self.begun = time.monotonic()
        if (kept := threads.resumable.pop(index, None)) is not None:
            self.steps, self.rounds = kept["steps"], kept["rounds"]
            self._script = Script(kept["actions"], kept["digest"])
            self._rollout.restore(kept["state"], kept["first"], kept["shared"])
        self._thread = threading.Thread(target=self._run, name=f"actor {index}", daemon=True)
        self._thread.start()

    def __repr__(self) -> str:
        doing = "waits" if self.busy_since is None else "steps"
        return f"<actor thread {self._index}: {doing}, step {self.steps}, round {self.rounds}>"

    # Called by the supervisor.

    def stopped(self) -> bool:
        """See :class:`~seedbed.instances.Instance`."""
        return False

    def ended(self) -> Fault | None:
        """Returns the fault with which it ended; None while it lives."""
        if self._thread.is_alive():
            return None
        return Fault.of(self._error) if self._error else Fault("ended")

    def ask_to_end(self) -> None:
        """Does nothing: closing the gate ends the thread."""

    def kill(self) -> bool:
        """Returns whether it has ended: a thread cannot be killed."""
        return not self._thread.is_alive()

    def finish(self, seconds: float) -> None:
        """Waits up to ``seconds`` for its end."""
        self._thread.join(seconds)

    def state(self) -> dict[str, Any]:
        """Returns the state of its lane, for an exact resumption; only while it waits for weights."""
        assignment = self._threads.assignment
        none = np.empty((0, assignment.envs, *assignment.spec.action.shape), assignment.spec.action.dtype)
        return {
            "steps": self.steps,
            "rounds": self.rounds,
            "actions": np.stack(self._actions) if self._actions else none,
            "digest": digest_of(step_arrays(self._timestep)),
            "shared": self._rollout.shared(),
        }

    def memory(self) -> tuple[Tree, Tree]:
        """Returns the agent's recurrent states now and before the open unroll; only while it waits for weights."""
        return self._rollout.state, self._rollout.first

    # Run by the thread.

    def _run(self) -> None:
        try:
            assignment = self._threads.assignment
            with contextlib.closing(self._made()) as environment:
                if environment.spec != assignment.spec:
                    raise SpecError(f"the actor made {environment.spec}, and {assignment.spec} is needed")
                self._begin(environment)
                while not self._threads.gate.closed and self._unroll(environment):
                    pass
        except BaseException as error:
            _log.exception("actor %d", self._index)
            self._error = error
            self._threads.ledger.drop(open_steps=self._rollout.transitions)
        finally:
            self.busy_since = None

    def _made(self) -> Environment:
        """Makes the environments, in a thread whose priority those have that the environments start.

        A thread of its own, since none may raise its priority again: this one decides, and does not step aside.
        """
        assignment, niceness = self._threads.assignment, self._threads.niceness
        if not niceness:
            return make(assignment.env, assignment.envs, assignment.options)
        made: Future[Environment] = Future()

        def run() -> None:
            try:
                step_aside(niceness)
                made.set_result(make(assignment.env, assignment.envs, assignment.options))
            except BaseException as error:
                made.set_exception(error)

        threading.Thread(target=run, name=f"maker {self._index}", daemon=True).start()
        return made.result()

    def _begin(self, environment: Environment) -> None:
        self._timestep = environment.reset(self._seed)
        self._meter.add(self._timestep)
        self.acts = True
        if self._script is not None:
            self._replay(environment, self._script)

    def _replay(self, environment: Environment, script: Script) -> None:
        """Brings the environments back by replaying their actions; episodes that end meanwhile were counted before."""
        for action in script.actions:
            self._step(environment, action)
        self._finished = []
        if digest_of(step_arrays(self._timestep)) != script.digest:
            raise RunFailed(
                f"cannot resume exactly: actor {self._index} of {self._threads.assignment.env} does not come back to "
                "where it was when its actions are played again; the environment is not deterministic given its seed. "
                "Resume without --deterministic."
            )

    def _step(self, environment: Environment, action: Any) -> None:
        self.busy_since = time.monotonic()
        environment.send(action)
        self._timestep = environment.receive()
        self.busy_since = None
        finished = self._meter.add(self._timestep)
        if self._threads.assignment.evaluating:
            rows = self._meter.finished
            finished = [each for row, each in zip(rows, finished, strict=True) if self._evaluates[row]]
        self._finished += finished
        if self._threads.assignment.keep_log:
            self._actions.append(action)

    def _unroll(self, environment: Environment) -> bool:
        """Acts for one unroll and passes it on; returns False if the gate was closed meanwhile."""
        threads, rows = self._threads, self._threads.assignment.envs
        weights = threads.gate.weights(self._index, self.rounds, self._device)
        if weights is None:
            return False
        while not self._rollout.full:
            begun = time.monotonic()
            action = self._rollout.act(weights.params, self._timestep, self.steps)
            threads.meters.add(rows, rows, time.monotonic() - begun)
            threads.ledger.decide(rows, resets_at(self._timestep))
            self.steps += 1
            self._step(environment, action)
            # A complete unroll is passed on even then.
            if threads.gate.closed and not self._rollout.full:
                return False
        counted = self._rollout.transitions
        unroll = self._rollout.cut(self._timestep, weights.version)
        if threads.on_host:
            unroll = jax.device_get(unroll)
        threads.ledger.cut(counted)
        threads.meters.tell(told_by(environment))
        finished, self._finished = self._finished, []
        self.rounds += 1
        delivery = Delivery(unroll, finished, self._streams, self.steps, ~self._evaluates, counted)
        return threads.gate.pass_on(self._index, self.rounds - 1, delivery)


@dataclass
class ActorThreads:
    """The actor threads of one process.

    Attributes:
      assignment: the run's assignment; its ``envs`` is the number of environments of one thread.
      program: compiled policy that they run on their accelerators.
      devices: the JAX devices that act; threads are divided among them by index.
      gate: gate at which they get weights and hand over unrolls.
      ledger: ledger in which steps are booked.
      log: path of the log file that has their tracebacks.
      first_epoch: epoch of the first thread at each index.
      resumable: states in a checkpoint by index: :meth:`ActorThread.state`, and as ``state`` and ``first`` the agent's
        recurrent states.
      on_host: whether unrolls are handed over as arrays of the host, and not on the device that acted.
      meters: meters of acting.
      niceness: niceness of the threads that environments start, see :mod:`seedbed.priority`.
      threads: the newest thread at each index.
    """

    assignment: Assignment
    program: CompiledPolicy
    devices: Sequence[Any]
    gate: Gate
    ledger: Ledger
    log: str
    first_epoch: int = 0
    resumable: dict[int, dict[str, Any]] = field(default_factory=dict)
    on_host: bool = False
    meters: Meters = field(default_factory=Meters)
    niceness: int = 0
    threads: dict[int, ActorThread] = field(default_factory=dict)
    _epochs: dict[int, int] = field(default_factory=dict)

    def warm_up(self, weights: Sequence[Weights]) -> None:
        """Compiles for every device; ``weights`` holds a snapshot on each of them."""
        for device, those in zip(self.devices, weights, strict=True):
            warm_up(self.program, device, those)

    def start(self, index: int) -> ActorThread:
        """Starts the thread ``index``, or a new one in the place of one that ended."""
        epoch = self._epochs.get(index, self.first_epoch - 1) + 1
        self._epochs[index] = epoch
        self.threads[index] = ActorThread(self, index, epoch)
        return self.threads[index]

    @property
    def last_epoch(self) -> int:
        """Highest epoch so far; a resumed run counts on from it."""
        return max(self._epochs.values(), default=self.first_epoch)

    def owes(self) -> dict[int, float | None]:
        """Returns the time (monotonic, s) since which each thread's environments make one step; None between steps.

        A thread whose environments are still made is left out.
        """
        return {index: each.busy_since for index, each in list(self.threads.items()) if each.acts}

    def alive(self) -> int:
        """Returns the number of living threads."""
        return sum(each.ended() is None for each in list(self.threads.values()))

    def states(self) -> Mapping[int, dict[str, Any]]:
        """Returns each thread's :meth:`ActorThread.state`, by index; only while all wait for weights."""
        return {index: each.state() for index, each in self.threads.items()}

    def memories(self) -> dict[int, tuple[Tree, Tree]]:
        """Returns each thread's :meth:`ActorThread.memory`, by index; only while all wait for weights."""
        return {index: each.memory() for index, each in self.threads.items()}
