"""What the architectures have in common that push gradients from workers to shards: Gorila and DistBelief.

Shards and workers are processes of their own; the process of the run computes nothing: it watches, counts and writes
checkpoints.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from seedbed.architectures.asynchronous import Asynchronous
from seedbed.architectures.interface import Setup
from seedbed.config.resolve import to_json
from seedbed.config.settings import RunConfig
from seedbed.errors import SeedbedError
from seedbed.learning.checkpoint import Contents
from seedbed.learning.update import TrainState, Update
from seedbed.metrics.ledger import COLUMNS, carried_out
from seedbed.parameter_server.server import RemoteShards
from seedbed.parameter_server.shards import Bound, Part, cut, settled
from seedbed.parameter_server.workers import Worker, WorkerRegistry
from seedbed.seeding import key
from seedbed.transport.connect import listen
from seedbed.transport.interface import Server
from seedbed.types import Agent

_log = logging.getLogger(__name__)
PATIENCE_SECONDS = 60.0
"""How long a shard is waited for that is not there."""
_LAST_PATIENCE_SECONDS = 3.0


def bound_of(config: RunConfig) -> Bound:
    """How stale a gradient may be."""
    place = config.placement
    return Bound(place.max_staleness, place.stale_gradients)


class ParameterServerRun(Asynchronous):
    """A :class:`~seedbed.learning.run.Run` of shards and workers: everything but their processes.

    Args:
      setup: what the run is built from.
    """

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        config, agent, token, checkpoint = setup.config, setup.agent, setup.token, setup.checkpoint
        self._token = token
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
        self._addresses: list[str] = []
        self._versions = [self._version] * config.placement.shards
        self._resting = False
        self._server: Server | None = None
        self._newest: Mapping[str, Any] = {}
        self._gone = self.books.ledger.counts()
        self._books: dict[int, dict[str, int]] = {}
        self._made = dict.fromkeys(range(config.placement.actors), 0)
        self._outliers = 0
        self._up, self._down = 0, 0
        # Where each worker stands in what it reads, if it reads.
        self._positions: dict[str, Any] = dict(checkpoint.meta["positions"]) if checkpoint else {}
        self.workers = WorkerRegistry(
            token,
            config.placement.actors,
            job=self._job,
            on_report=self._on_report,
            on_leave=self._on_leave,
            first_epoch=max(setup.first_epoch, checkpoint.meta["last_epoch"] + 1 if checkpoint else 0),
        )

    # Shards.

    def parts(self) -> list[Part]:
        """What each shard begins with."""
        state, count = self._state, self._config.placement.shards
        pairs = zip(cut(state.params, count), cut(state.opt_state, count), strict=True)
        return [Part(*pair, self.version, int(state.skipped)) for pair in pairs]

    def reach(self, shards: Sequence[str]) -> None:
        """Begins conversations with the shards at these addresses; waits for those that are not there yet."""
        self._addresses = list(shards)
        self._shards = RemoteShards(
            self._agent.optimizer,
            self._like,
            shards,
            self._token,
            patience=PATIENCE_SECONDS,
            takes=True,
            given_up=lambda: self._failure.error,
        )

    # Workers.

    def open(self, addresses: list[str]) -> list[str]:
        """Lets workers in, at the first address."""
        self._server = listen(addresses[0], self.workers)
        return [self._server.address]

    def close(self) -> None:
        """Sends the workers home; safe to call twice."""
        if self._server is not None:
            self._server.close()
        if self._shards is not None:
            self._shards.close()

    def rest(self, stop: Callable[[], None]) -> None:
        """See :class:`~seedbed.architectures.asynchronous.Asynchronous`; shards that are gone are not waited for."""
        if self._server is not None:
            self._server.close()
        stop()
        if self._shards is None:
            return
        self._shards.patience = _LAST_PATIENCE_SECONDS
        try:
            self._state, self._versions = self._taken()
        except SeedbedError as error:  # also what has ended the run, if it is given up for that
            _log.error("the parameters are those of the last checkpoint", exc_info=error)
        self._version = int(self._state.updates)
        self._resting = True

    def _job(self, index: int, epoch: int) -> dict[str, Any]:
        """What a worker is told: one that takes another's place makes the steps that this one has left."""
        steps = None
        if (frames := self._config.stop.frames) is not None:
            left = max(0, frames - self._frames_before())
            share = -(-left // (self.frames_per_step * self._config.placement.actors))
            with self._news:
                steps = max(0, share - self._made[index])
        return {
            "run": to_json(self._config),
            "spec": self._spec.to_json(),
            "shards": self._addresses,
            "index": index,
            "epoch": epoch,
            "steps": steps,
            "position": self._positions.get(str(index)),
        }

    def _frames_before(self) -> int:
        """Environment frames of the sessions before this one."""
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
            self._up += int(pushed["up"])
            self._down += int(pushed["down"])
            self._skipped[worker.index, worker.epoch] = int(told["skipped"])
            # One that has just begun, or has made all its steps, has none.
            self._newest = dict(told["metrics"]) or self._newest
            self._metrics = self._newest
            if told.get("position") is not None:
                self._positions[str(worker.index)] = told["position"]
            self._news.notify_all()

    def _on_leave(self, worker: Worker, reason: str) -> None:
        """What a worker had open, or in its replay and never trained on, is gone with it."""
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

    # What others read.

    @property
    def train_state(self) -> TrainState:
        """Parameters, optimizer and counters, as the shards have them now, or had them at the end."""
        if self._shards is not None and not self._resting:
            self._state, self._versions = self._taken()
        return self._state

    def _taken(self) -> tuple[TrainState, list[int]]:
        """What the shards hold, not cut, and their versions."""
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
        """Gradients that the shards have taken, as workers have found it."""
        return self._version

    @property
    def skipped(self) -> int:
        """Gradients that were not finite."""
        with self._news:
            return self._skipped_before + sum(self._skipped.values())

    def meters(self) -> dict[str, float]:
        """Metrics since the last call, by name."""
        return {
            **super().meters(),
            "actors": len(self.workers),
            "gradient_outliers": self._outliers,
            "bytes_from_actors": self._up,
            "bytes_to_actors": self._down,
        }

    def snapshot(self, *, alone: bool = False) -> Contents:
        """Parameters, optimizer and counters; what the workers hold is not kept."""
        del alone
        # The counters first: what is learned meanwhile is in the parameters, and not counted twice.
        with self._news:
            meta = {**self.books.kept(self.version), "exact": False, "positions": dict(self._positions)}
        meta["last_epoch"] = self.workers.last_epoch
        state = self.train_state
        meta["version"], meta["shard_versions"] = int(state.updates), self._versions
        return Contents({"train": state}, meta)


def shapes_of(agent: Agent) -> Any:
    """Shapes and dtypes of an agent's parameters."""
    return jax.eval_shape(agent.init, key(0, "example"))


def plain(metrics: Mapping[str, Any]) -> dict[str, float]:
    """Metrics that can be told: those that are finite, as numbers."""
    numbers = {name: float(value) for name, value in jax.device_get(dict(metrics)).items()}
    return {name: value for name, value in numbers.items() if math.isfinite(value)}
