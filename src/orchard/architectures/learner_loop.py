"""The half of SEED and Sebulba that learns: batches from a queue, updates, weights that are published, and the books.

The two differ in who acts and where; what comes after a complete unroll is the same.
"""

from __future__ import annotations

import logging
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from orchard.acting.crew import Crew
from orchard.acting.desk import Desk
from orchard.acting.example import example_unroll
from orchard.acting.ledger import Ledger
from orchard.acting.pace import updates_per_round
from orchard.architectures.devices import pick, pick_everywhere
from orchard.architectures.interface import progress, records, restore
from orchard.config.settings import RunConfig
from orchard.errors import ConfigError, OrchardError, RunFailed
from orchard.learning.checkpoint import Checkpoint
from orchard.learning.learner import Learner
from orchard.learning.prefetch import Prefetch
from orchard.learning.update import TrainState, require_finite
from orchard.metrics.meters import Episodes, Share, Tally
from orchard.replay.queue import UnrollQueue
from orchard.seeding import key
from orchard.types import Agent, EnvSpec, Tree, Unroll
from orchard.weights.store import WeightStore

_log = logging.getLogger(__name__)
_POLL_SECONDS = 0.2


class LearnerLoop(ABC):
    """What SEED and Sebulba have in common; used by one thread but for :meth:`fail`.

    Args:
      config: the run's settings.
      agent: what is computed.
      spec: of the environments.
      lanes: unrolls are handed over by so many, each of an equal share of the environments.
      checkpoint: where to go on from; None to begin.
    """

    def __init__(
        self, config: RunConfig, agent: Agent, spec: EnvSpec, *, lanes: int, checkpoint: Checkpoint | None
    ) -> None:
        self._config = config
        self._agent = agent
        self._spec = spec
        self._lanes = lanes
        self._lag = 0 if config.deterministic and config.placement.lag == "free" else config.placement.lag
        cluster = config.cluster
        self._host, self._hosts = cluster.host, cluster.hosts
        self._rows = agent.data.batch_size // self._hosts
        self._first_epoch = 0
        self._base_version = 0
        self._failure: BaseException | None = None
        self.ledger = Ledger()
        self.episodes = Episodes()
        # What the other hosts were not told of yet.
        self._others_epoch = 0
        self._untold: deque[tuple[float, int]] = deque()
        self._reported: list[dict[str, int]] = [self.ledger.counts()] * self._hosts
        self.lag = Tally()
        self.learner_time = Share()
        place = config.placement
        planned = place.actors * place.envs_per_actor
        training = pick_everywhere("training", place.training_devices)
        self.learner = Learner(agent, training, key(config.seed, "learner"))
        self._devices = pick("inference", place.inference_devices)
        self._per_round = 1 if self._lag == "free" else self._updates_per_round(planned)
        self._store = WeightStore(self._devices, keep=1 + self._kept_updates())
        self.queue = UnrollQueue(self._queue_capacity(planned), self._rows)
        self._resumable = self._restore(checkpoint) if checkpoint else {}
        self._prefetch: Prefetch[tuple[Unroll, np.ndarray[Any, Any]]] | None = None

    def _updates_per_round(self, planned: int) -> int:
        return self._agent.data.updates_a_batch * updates_per_round(planned, self._rows)

    def _kept_updates(self) -> int:
        return 0 if self._lag == "free" else (int(self._lag) + 1) * self._per_round

    def _queue_capacity(self, planned: int) -> int:
        if self._lag == "free":
            return self._config.placement.queue_size or self._rows
        return planned * (int(self._lag) + 1)

    # What SEED and Sebulba do each in its own way.

    desk: Desk | None = None
    crew: Crew | None = None

    @abstractmethod
    def open(self, addresses: list[str]) -> list[str]:
        """See :class:`~orchard.architectures.interface.Architecture`."""

    @abstractmethod
    def close(self) -> None:
        """Stops everything; safe to call twice."""

    @abstractmethod
    def _on_training_devices(self, unrolls: Sequence[Unroll]) -> Unroll:
        """One batch of these unrolls, each training device its share."""

    @abstractmethod
    def _wait_blocked(self, timeout: float) -> bool:
        """Waits, in lockstep, until acting rests for want of new weights; False when ``timeout`` s have passed."""

    @abstractmethod
    def _lane_states(self) -> dict[tuple[int, int], dict[str, Any]]:
        """What brings every lane back: steps, rounds, actions and the digest of what it shows; only while it rests."""

    @abstractmethod
    def _tables(self) -> dict[str, Tree]:
        """The agent's states, by the name of their tree in a checkpoint; only while acting rests."""

    @property
    @abstractmethod
    def _last_epoch(self) -> int:
        """The highest epoch of an actor so far."""

    # Life.

    def _begin(self) -> None:
        """Compiles the learner, publishes the first weights and begins to make batches."""
        plan = self._agent.data
        self.learner.warm_up(example_unroll(self._agent, self._spec, plan.unroll_length, self._rows))
        self._publish()
        depth = self._config.placement.prefetch if self._lag == "free" else 0
        self._prefetch = Prefetch(self._make_batch, depth, self.fail)

    def _end(self) -> None:
        """Ends what :meth:`_begin` began; safe to call twice."""
        self.queue.close()
        if self._prefetch is not None:
            self._prefetch.close()

    def updates(self, stop: threading.Event) -> Iterator[Mapping[str, Any] | None]:
        """Learns: yields the metrics of each batch's last update (scalars on the device), before its weights are
        published. In deterministic mode acting then rests, so that all counters are reproducible too.

        Yields None now and then while no batch comes; ends when ``stop`` is set.

        Raises:
          RunFailed: a part of the run failed, or too many updates in a row were not finite.
        """
        assert self._prefetch is not None, "open() comes first"
        while not stop.is_set():
            if self._failure is not None:
                raise self._failure
            batch = self._prefetch.take(_POLL_SECONDS)
            if batch is None:
                yield None
                continue
            metrics = self._train(*batch)
            if self._config.deterministic:
                self._rest()
            yield metrics
            self._publish()

    def _train(self, unroll: Unroll, version: np.ndarray[Any, Any]) -> Mapping[str, Any]:
        """The updates on one batch; all weights but the last are published."""
        updates = self.learner.updates(unroll)
        counted = last = False
        while not last:
            self._count_lag(version)
            with self.learner_time:
                metrics, last = next(updates)
            if not counted:
                self.ledger.train(version.size)
                counted = True
            require_finite(self.learner.state.skipped_in_row, self._config.safety.max_skipped_updates)
            if not last:
                self._publish()
        return metrics

    def _count_lag(self, versions: np.ndarray[Any, Any]) -> None:
        self.lag.add(self.version - versions)

    def _publish(self) -> None:
        self._store.publish(self.learner.params, self.version)

    def _rest(self) -> None:
        # Without a time limit: whoever watches the actors notices one that hangs.
        while not self._wait_blocked(_POLL_SECONDS):
            if self._failure is not None:
                raise self._failure

    @property
    def train_state(self) -> TrainState:
        """Parameters, optimizer and counters."""
        return self.learner.state

    @property
    def version(self) -> int:
        """Updates so far."""
        return int(self.learner.state.updates)

    @property
    def frames_per_step(self) -> int:
        """Environment frames in one agent step."""
        return self._spec.frames_per_step

    def fail(self, error: BaseException) -> None:
        """Ends the run with this error; from any thread."""
        if not isinstance(error, OrchardError):
            where = threading.current_thread().name
            _log.error("%s failed", where, exc_info=error)
            error = RunFailed(f"{where}: {type(error).__name__}: {error}")
        if self._failure is None:
            self._failure = error

    # The way of an unroll.

    def _take_unroll(self, unroll: Unroll, episodes: list[tuple[float, int]]) -> bool:
        if not self.queue.offer(unroll):
            return False
        if self._hosts > 1:
            self._untold.extend(episodes)
        else:
            self._count(episodes)
        return True

    def _count(self, episodes: Iterable[tuple[float, int]]) -> None:
        for episode_return, length in episodes:
            self.episodes.add(episode_return, length)

    def _make_batch(self) -> tuple[Unroll, np.ndarray[Any, Any]] | None:
        unrolls = self.queue.take(_POLL_SECONDS)
        if unrolls is None:
            return None
        version = np.concatenate([unroll.version for unroll in unrolls], axis=1)
        return self._on_training_devices(unrolls), version

    # What hosts tell each other.

    def report(self) -> dict[str, Any]:
        """The books, and the episodes that ended since the last report."""
        if self._hosts == 1:
            return {}
        # Those that others add meanwhile are for the next time.
        told = [self._untold.popleft() for _ in range(len(self._untold))]
        return {"ledger": self.ledger.counts(), "episodes": told, "last_epoch": self._last_epoch}

    def merge(self, reports: Sequence[Mapping[str, Any]]) -> None:
        """Counts all hosts' episodes, in the same order on each of them, so that all see the same returns."""
        if self._hosts == 1:
            return
        self._reported = [dict(report["ledger"]) for report in reports]
        self._others_epoch = max(report["last_epoch"] for report in reports)
        for report in reports:
            self._count(report["episodes"])

    def ledgers(self) -> list[dict[str, int]]:
        """The books of each host, as they were last reported; where there is one, its own as they are now."""
        return [self.ledger.counts()] if self._hosts == 1 else self._reported

    # What others read.

    def meters(self) -> dict[str, float]:
        """Metrics since the last call, by name."""
        return {
            **progress(self),
            "queue_fill": len(self.queue) / self.queue.capacity,
            "learner_busy": self.learner_time.take(),
        }

    def members(self) -> list[dict[str, Any]]:
        """There is one agent."""
        return []

    # Checkpoints.

    def snapshot(self, *, alone: bool = False) -> tuple[dict[str, Any], dict[str, list[Any]], dict[str, Any]]:
        """``(trees, blobs, meta)`` of everything that the next update depends on; needs no other host.

        In deterministic mode it waits until every lane has come to the weights that are not published yet, and
        holds their logged actions, the agent's states and the queue too.
        """
        del alone
        exact = self._config.deterministic
        if exact:
            self._rest()
            self._reported[self._host] = self.ledger.counts()
        trees: dict[str, Any] = {"train": self.learner.state}
        blobs: dict[str, list[Any]] = {}
        meta: dict[str, Any] = {
            **records(self),
            "exact": exact,
            # Of all hosts: any of them may go on from this.
            "last_epoch": max(self._last_epoch, self._others_epoch),
            "first_epoch": self._first_epoch,
            "base_version": self._base_version,
            "pace": self._pace(),
        }
        if exact:
            lanes = sorted(self._lane_states().items())
            meta["lanes"] = [
                {"order": order, "steps": s["steps"], "rounds": s["rounds"], "digest": s["digest"]}
                for order, s in lanes
            ]
            blobs["actions"] = [state["actions"] for _, state in lanes]
            queued = jax.device_get(self.queue.contents())
            blobs["queue"] = [leaf for unroll in queued for leaf in jax.tree.leaves(unroll)]
            trees.update(self._tables())
            meta["untold"] = list(self._untold)
        return trees, blobs, meta

    def _pace(self) -> dict[str, int | str]:
        """What an exactly resumed run has to have in common with the run before."""
        return {
            "lag": self._lag,
            "updates in a round": self._per_round,
            "halves of actors": self._lanes,
            "devices that act": len(self._devices),
            "hosts": self._hosts,
        }

    def _restore(self, checkpoint: Checkpoint) -> dict[tuple[int, int], dict[str, Any]]:
        """Takes over a checkpoint; returns what brings the lanes back, if it is an exact one."""
        meta = checkpoint.meta
        self.learner.restore(checkpoint.tree("train", self.learner.state))
        exact = bool(meta["exact"]) and self._config.deterministic
        restore(self, meta, open_steps=exact, host=self._host)
        self._reported = meta["ledgers"]
        if not exact:
            self._first_epoch = meta["last_epoch"] + 1
            self._base_version = self.version
            return {}
        self._first_epoch, self._base_version = meta["first_epoch"], meta["base_version"]
        self._untold.extend((episode_return, length) for episode_return, length in meta["untold"])
        for name, now in self._pace().items():
            if meta["pace"][name] != now:
                raise ConfigError(
                    f"{name} was {meta['pace'][name]} and is {now} now: a deterministic run goes on as it was"
                )
        self._refill_queue(checkpoint.blob("queue"))
        return {
            (int(lane["order"][0]), int(lane["order"][1])): {
                "steps": lane["steps"],
                "rounds": lane["rounds"],
                "digest": lane["digest"],
                "actions": actions,
            }
            for lane, actions in zip(meta["lanes"], checkpoint.blob("actions"), strict=True)
        }

    def _refill_queue(self, leaves: list[Any]) -> None:
        example = example_unroll(self._agent, self._spec, 1, 1)
        structure, size = jax.tree.structure(example), len(jax.tree.leaves(example))
        for start in range(0, len(leaves), size):
            taken = self.queue.offer(jax.tree.unflatten(structure, leaves[start : start + size]))
            assert taken, "the queue is as large as before, since the lag and the actors are the same"
