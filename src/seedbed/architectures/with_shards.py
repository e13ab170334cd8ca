"""The common part of Gorila and DistBelief, whose workers push gradients to the shards of a parameter server.

Shards and workers are processes. The head computes nothing: it watches, counts and writes checkpoints.
"""

from __future__ import annotations

import contextlib
import logging
import math
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Protocol

import jax
import numpy as np

from seedbed.architectures.asynchronous import Asynchronous
from seedbed.architectures.interface import Setup
from seedbed.architectures.program import Context
from seedbed.config.settings import RunConfig
from seedbed.errors import CheckpointError, SeedbedError
from seedbed.instances import Instances
from seedbed.learning.checkpoint import Contents, load_latest, save
from seedbed.learning.loop import NOBODY
from seedbed.learning.update import TrainState, Update
from seedbed.metrics.final_info import FinalInfo
from seedbed.metrics.ledger import COLUMNS, carried_out
from seedbed.parameter_server.pushing import PushingLearner
from seedbed.parameter_server.server import RemoteShards, ShardHandler, ShardPulse, empty_part
from seedbed.parameter_server.shards import Bound, Part, Shard, cut, settled
from seedbed.parameter_server.workers import Worker, WorkerRegistry
from seedbed.seeding import key
from seedbed.transport.admission import Invitation
from seedbed.transport.connect import listen
from seedbed.transport.interface import PROTOCOL, Layout, Layouts, Server
from seedbed.types import Agent

_log = logging.getLogger(__name__)
PATIENCE_SECONDS = 60.0
"""Seconds for which a missing shard is waited for."""
_LAST_PATIENCE_SECONDS = 3.0
_REPORT_SECONDS = 0.5
KEPT = 2
"""Number of snapshots of a shard that are kept."""


def bound_of(config: RunConfig) -> Bound:
    """Returns the bound on the staleness of gradients."""
    place = config.placement
    return Bound(place.max_staleness, place.stale_gradients)


class ParameterServerRun(Asynchronous):
    """A :class:`~seedbed.learning.run.Run` of shards and workers, which are processes that the supervisor starts.

    Args:
      setup: ingredients of the run.
      workers_role: name of the workers' role.
    """

    def __init__(self, setup: Setup, workers_role: str = "worker") -> None:
        super().__init__(setup)
        config, agent, token, checkpoint = setup.config, setup.agent, setup.token, setup.checkpoint
        self._invitation, self._gate = Invitation(token), setup.gate
        self._workers_role = workers_role
        update = Update(agent, jax.local_devices()[:1])
        state: TrainState = jax.jit(update.begin)(key(config.seed, "learner"))
        if checkpoint is not None:
            state = checkpoint.tree("train", state)
            self.books.restore(checkpoint.meta, open_steps=False)
        self._state: TrainState = jax.device_get(state)
        self._like = jax.eval_shape(lambda: state.params)
        self._version = int(state.updates)
        self._skipped_before = int(state.skipped)
        self._skipped: dict[tuple[int, int], int] = {}
        self._shards: RemoteShards | None = None
        self._pulses: list[ShardPulse] = []
        self._versions = [self._version] * config.placement.shards
        self._resting = False
        self._servers: list[Server] = []
        self._newest: Mapping[str, Any] = {}
        self._gone = self.books.ledger.counts()
        self._books: dict[int, dict[str, int]] = {}
        self._made = dict.fromkeys(range(config.placement.actors), 0)
        self._outliers = 0
        self._up, self._down = 0, 0
        self._info = FinalInfo()
        # The position of each worker in its part of the data set, if there is one.
        self._positions: dict[str, Any] = dict(checkpoint.meta["positions"]) if checkpoint else {}
        self.workers = WorkerRegistry(
            token,
            config.placement.actors,
            job=self._job,
            on_report=self._on_report,
            on_leave=self._on_leave,
            first_epoch=max(setup.first_epoch, checkpoint.meta["last_epoch"] + 1 if checkpoint else 0),
            claim=setup.claim,
        )

    # Shards.

    @property
    def instances(self) -> Mapping[str, Instances]:
        """The shards, with their first checkpoints, and the workers, as the supervisor watches them."""
        return {
            "shard": Instances(owes=self._owed_by_shards, begins=self._begins),
            self._workers_role: Instances(owes=self.workers.owes),
        }

    def _owed_by_shards(self) -> dict[int, float | None]:
        return {index: pulse.asked for index, pulse in enumerate(self._pulses) if pulse.there}

    def _begins(self, index: int) -> Contents:
        return contents_of(self.parts()[index])

    def parts(self) -> list[Part]:
        """Returns the parts with which the shards begin."""
        state, count = self._state, self._config.placement.shards
        pairs = zip(cut(state.params, count), cut(state.opt_state, count), strict=True)
        return [Part(*pair, self.version, int(state.skipped)) for pair in pairs]

    def _reach(self, shards: Sequence[str]) -> None:
        """Dials the shards at these addresses; waits for shards that do not listen yet."""
        self._shards = RemoteShards(
            self._agent.optimizer,
            self._like,
            shards,
            self._invitation,
            patience=PATIENCE_SECONDS,
            takes=True,
            given_up=lambda: self._failure.error,
        )
        self._pulses = [
            ShardPulse(address, self._invitation, part)
            for address, part in zip(shards, self._shards.examples, strict=True)
        ]

    # Workers.

    def open(self, addresses: list[str], dialled: Mapping[str, list[str]] = NOBODY) -> list[str]:
        """Dials the shards, and listens for workers at all addresses."""
        self._reach(dialled["shard"])
        for address in addresses:
            most = self._config.placement.most_actors
            self._servers.append(listen(address, self.workers, gate=self._gate, most=most))
        return [server.address for server in self._servers]

    def close(self) -> None:
        """Closes the connections with workers and shards; safe to call twice."""
        self._hang_up()
        for pulse in self._pulses:
            pulse.close()
        if self._shards is not None:
            self._shards.close()

    def _hang_up(self) -> None:
        for server in self._servers:
            server.close()

    def rest(self, stand_down: Callable[[], None], stop: Callable[[], None]) -> bool:
        """See :class:`~seedbed.learning.run.Run`; a missing shard is waited for only a few seconds."""
        stand_down()
        self._hang_up()
        stop()
        if self._shards is None:
            return True
        self._shards.patience = _LAST_PATIENCE_SECONDS
        try:
            self._state, self._versions = self._taken()
        except SeedbedError as error:  # also the failure that has ended the run
            _log.error("the parameters are those of the last checkpoint", exc_info=error)
        self._version = int(self._state.updates)
        self._resting = True
        return True

    def _job(self, index: int, epoch: int) -> dict[str, Any]:
        """Returns the job of a worker, as JSON values; a restarted worker makes the steps that its predecessor left."""
        steps = None
        if (frames := self._config.stop.frames) is not None:
            left = max(0, frames - self._frames_before())
            share = -(-left // (self.frames_per_step * self._config.placement.actors))
            with self._news:
                steps = max(0, share - self._made[index])
        return {
            "epoch": epoch,
            "steps": steps,
            "position": self._positions.get(str(index)),
        }

    def _frames_before(self) -> int:
        """Returns the number of environment frames of the sessions before this one."""
        with self._news:
            made = sum(self._made.values()) + sum(carried_out(books) for books in self._books.values())
        return (self.books.agent_steps - made) * self.frames_per_step

    def _on_report(self, worker: Worker, told: Mapping[str, Any]) -> None:
        pushed = told["pushed"]
        self.staleness.add(pushed["staleness"])
        with self._news:
            self._books[worker.index] = dict(told["books"])
            self._balance()
            self.books.count((float(earned), int(length)) for earned, length in told["episodes"])
            self._version = max(self._version, int(pushed["version"]))
            self._dropped += int(pushed["dropped"])
            self._outliers += int(pushed["outliers"])
            self._info.merge(told.get("info", {}))
            self._up += int(pushed["up"])
            self._down += int(pushed["down"])
            self._skipped[worker.index, worker.epoch] = int(told["skipped"])
            # A worker that has just begun, or has made all its steps, reports no metrics.
            self._newest = dict(told["metrics"]) or self._newest
            self._metrics = self._newest
            if told.get("position") is not None:
                self._positions[str(worker.index)] = told["position"]
            self._news.notify_all()

    def _on_leave(self, worker: Worker, reason: str) -> None:
        """Counts the steps of a lost worker's open unrolls, and of its replay before training, as dropped."""
        del reason
        with self._news:
            books = self._books.pop(worker.index, None)
            if books is None:
                return
            self._made[worker.index] += carried_out(books)
            for name in ("received", "trained", "resets"):
                self._gone[name] += books[name]
            self._gone["dropped"] += books["dropped"] + books["open"] + books["queued"]
            self._balance()

    def _balance(self) -> None:
        total = {
            name: self._gone[name] + sum(books[name] for books in self._books.values()) for name in COLUMNS
        }
        self.books.ledger.restore(total)

    # Read by the session.

    @property
    def train_state(self) -> TrainState:
        """Parameters, optimizer state and counters, read from the shards now, or at the end of learning."""
        if self._shards is not None and not self._resting:
            self._state, self._versions = self._taken()
        return self._state

    def _taken(self) -> tuple[TrainState, list[int]]:
        """Returns the state of all shards, joined, and their versions."""
        assert self._shards is not None
        parts = settled(self._shards.parts)
        whole = self._shards.whole(parts)
        state = self._state._replace(
            params=whole.params,
            opt_state=whole.opt_state,
            updates=np.int32(whole.version),
            skipped=np.int32(self.skipped),
            target=whole.params if self._agent.data.target_period else None,
        )
        return state, [part.version for part in parts]

    @property
    def version(self) -> int:
        """Number of gradients that the shards have taken, as the workers have last reported it."""
        return self._version

    @property
    def skipped(self) -> int:
        """Number of gradients that were not finite."""
        with self._news:
            return self._skipped_before + sum(self._skipped.values())

    def meters(self) -> dict[str, float]:
        """Returns the metrics since the last call, by name."""
        with self._news:
            info = self._info.means()
        return {
            **super().meters(),
            **info,
            "actors": len(self.workers),
            "gradient_outliers": self._outliers,
            "bytes_from_actors": self._up,
            "bytes_to_actors": self._down,
        }

    def snapshot(self, *, alone: bool = False) -> Contents:
        """Returns parameters, optimizer state and counters; the workers' replays and environments are not kept."""
        del alone
        # The counters first: steps that are learned from meanwhile are in the parameters, and not counted twice.
        with self._news:
            meta = {**self.books.kept(self.version), "exact": False, "positions": dict(self._positions)}
        meta["last_epoch"] = self.workers.last_epoch
        state = self.train_state
        meta["version"], meta["shard_versions"] = int(state.updates), self._versions
        return Contents({"train": state}, meta)


def contents_of(part: Part) -> Contents:
    """Returns a shard's part as the contents of a checkpoint."""
    tree = jax.device_get({"params": part.params, "opt_state": part.opt_state})
    return Contents({"part": tree}, {"version": part.version, "skipped": part.skipped})


def kept(folder: Path, like: Part) -> Part:
    """Returns the newest intact part in a folder.

    Args:
      folder: folder of a shard.
      like: part with the same shapes and dtypes.

    Raises:
      CheckpointError: the folder holds no intact part.
    """
    snapshot = load_latest(folder)
    tree = {"params": like.params, "opt_state": like.opt_state}
    part = jax.device_put(snapshot.tree("part", tree))
    return Part(part["params"], part["opt_state"], snapshot.meta["version"], snapshot.meta["skipped"])


def serve_shard(context: Context) -> None:
    """Serves one shard until it is told to end.

    It begins with its newest snapshot, and writes a snapshot now and then, so that it can be restarted.
    """
    config, agent, folder = context.config, context.agent, Path(context.task.folder)
    like = empty_part(agent.optimizer, shapes_of(agent), context.task.index, config.placement.shards)
    shard = Shard(agent.optimizer, kept(folder, like), bound_of(config))
    assert context.task.listens is not None
    handler = ShardHandler(shard, context.token, context.claim)
    with contextlib.ExitStack() as stack:
        most = config.placement.most_actors
        stack.enter_context(contextlib.closing(listen(context.task.listens, handler, most=most)))
        if abroad := context.task.abroad:
            stack.enter_context(contextlib.closing(listen(abroad, handler, gate=context.gate, most=most)))
        version = shard.part.version
        while not context.over.wait(config.placement.shard_snapshot_seconds):
            if (part := shard.part).version == version:
                continue
            try:
                save(folder, part.version, contents_of(part), keep=KEPT)
                version = part.version
            except CheckpointError as error:
                # The run goes on without this snapshot: the shard tries again later.
                _log.warning("%s", error)


class Work(Protocol):
    """The work of one worker."""

    learner: PushingLearner

    def enough(self, steps: int) -> bool:
        """Returns whether ``steps`` steps of environments or data set are made, and no more are needed now."""

    def updates(self, stop: threading.Event) -> Iterator[Mapping[str, Any] | None]:
        """Learns until ``stop`` is set; yields metrics after updates, and None now and then."""

    def told(self, metrics: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the next report to the head, with the metrics of an update; empty ``metrics`` if there is none."""


Begin = Callable[
    [Context, RemoteShards, Mapping[str, Any]], AbstractContextManager[tuple[Work, Callable[[], None]]]
]
"""A function ``(context, shards, job) -> (work, check)`` that starts a worker's work.

``job`` is the head's answer, and ``check()`` raises :class:`~seedbed.errors.RunFailed` if the work cannot go on."""


def push_gradients(context: Context, begin: Begin) -> None:
    """Runs a worker until it is told to end.

    Args:
      context: context of the instance.
      begin: function that starts the worker's work.

    Raises:
      ConnectionLost: the head is gone.
      RunFailed: the work cannot go on.
    """
    with contextlib.closing(context.dial("head")) as client:
        join = {
            "kind": "join",
            "protocol": PROTOCOL,
            "token": context.invitation.said_at(context.address_of("head")),
            "index": context.task.index,
            "claim": context.claim,
        }
        job = client.ask(join)
        client.open([Layouts(Layout(()), Layout(()))])
        agent = context.agent
        shards = RemoteShards(
            agent.optimizer,
            shapes_of(agent),
            context.task.dials["shard"],
            context.invitation,
            patience=PATIENCE_SECONDS,
            claim=context.claim,
        )
        with contextlib.closing(shards), begin(context, shards, job) as (work, require_alive):
            reported = 0.0
            for metrics in _learned(work, job["steps"], context.over):
                require_alive()
                if time.monotonic() - reported > _REPORT_SECONDS:
                    reported = time.monotonic()
                    client.ask({"kind": "report", **work.told(metrics)})
            work.learner.flush()
            # This worker has made all its steps; others may still be learning.
            while not context.over.wait(_REPORT_SECONDS):
                client.ask({"kind": "report", **work.told({})})


def _learned(work: Work, steps: int | None, over: threading.Event) -> Iterator[Mapping[str, Any]]:
    """Learns until ``steps`` steps are made, or without a limit; yields metrics, empty ones now and then."""
    if steps is not None and work.enough(steps):
        return
    for metrics in work.updates(over):
        yield metrics or {}
        if metrics is not None and steps is not None and work.enough(steps):
            return


def shapes_of(agent: Agent) -> Any:
    """Returns the shapes and dtypes of an agent's parameters."""
    return jax.eval_shape(agent.init, key(0, "example"))


def plain(metrics: Mapping[str, Any]) -> dict[str, float]:
    """Returns the finite metrics as Python numbers, for JSON."""
    numbers = {name: float(value) for name, value in jax.device_get(dict(metrics)).items()}
    return {name: value for name, value in numbers.items() if math.isfinite(value)}
