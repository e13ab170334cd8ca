"""The half that learns: batches from a queue or a replay, updates, weights that are published, and the books.

SEED, IMPALA, Ape-X and Sebulba differ in who acts and where; what comes after a complete unroll is the same.
"""

from __future__ import annotations

import itertools
import logging
import threading
from abc import abstractmethod
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from seedbed.acting.assignment import lanes_of
from seedbed.acting.example import example_unroll
from seedbed.acting.unrolls import Delivery
from seedbed.architectures.devices import pick, pick_everywhere
from seedbed.architectures.memory import (
    Batch,
    QueueMemory,
    ReplayMemory,
    make_replay,
    rounds,
)
from seedbed.architectures.one_agent import OneAgent
from seedbed.architectures.run import progress, records, restore
from seedbed.config.settings import RunConfig
from seedbed.errors import ConfigError
from seedbed.learning.checkpoint import Checkpoint, Contents
from seedbed.learning.learner import Learner
from seedbed.learning.prefetch import Prefetch
from seedbed.learning.update import TrainState, require_finite
from seedbed.metrics.meters import Ratio, Share
from seedbed.replay.queue import UnrollQueue
from seedbed.seeding import key
from seedbed.types import Agent, EnvSpec, Tree, Unroll
from seedbed.weights.store import WeightStore

_log = logging.getLogger(__name__)
_POLL_SECONDS = 0.2


class LearnerLoop(OneAgent):
    """What SEED, IMPALA, Ape-X and Sebulba have in common; used by one thread but for :meth:`fail`.

    Args:
      config: the run's settings.
      agent: what is computed.
      spec: of the environments.
      lanes: unrolls are handed over by so many, each of an equal share of the environments.
      checkpoint: where to go on from; None to begin.
      first_epoch: of the first actor at each index, or a higher one if the checkpoint has come further.
    """

    def __init__(
        self,
        config: RunConfig,
        agent: Agent,
        spec: EnvSpec,
        *,
        lanes: int,
        checkpoint: Checkpoint | None,
        first_epoch: int = 0,
    ) -> None:
        super().__init__(config, agent, spec)
        self._lanes = lanes
        self._rows = agent.data.batch_size // self._hosts
        self._first_epoch = first_epoch
        self._base_version = 0
        # What the other hosts were not told of yet.
        self._others_epoch = 0
        self._untold: deque[tuple[float, int]] = deque()
        self._reported: list[dict[str, int]] = [self.ledger.counts()] * self._hosts
        self.learner_time = Share()
        self.reuse = Ratio()
        place = config.placement
        planned = place.actors * place.envs_per_actor
        self.learner = self._make_learner(pick_everywhere("training", place.training_devices))
        self._devices = self._acting_devices()
        self._acting = planned - place.eval_envs
        self._filling, batches = 0, 1
        if self._lag != "free":
            self._filling, batches = rounds(agent.data, self._acting, self._rows)
        self._per_round = batches * agent.data.updates_a_batch
        older = 0 if self._lag == "free" else (int(self._lag) + 1) * batches
        self._store = WeightStore(self._devices, keep=1 + older)
        self._memory: QueueMemory | ReplayMemory = self._make_memory(planned)
        self._resumable = self._restore(checkpoint) if checkpoint else {}
        self._prefetch: Prefetch[tuple[Unroll, Batch]] | None = None

    def _make_learner(self, devices: Sequence[Any]) -> Learner:
        """Who makes updates, on these devices."""
        return Learner(self._agent, devices, key(self._config.seed, "learner"))

    def _acting_devices(self) -> list[Any]:
        """The devices that read the weights."""
        return pick("inference", self._config.placement.inference_devices)

    @property
    def _stream(self) -> int:
        """Which of the run's learners this is: each draws numbers of its own."""
        return self._host

    def _make_memory(self, planned: int) -> QueueMemory | ReplayMemory:
        place, plan = self._config.placement, self._agent.data
        if plan.replay is None:
            capacity = (
                planned * (int(self._lag) + 1) if self._lag != "free" else place.queue_size or self._rows
            )
            queue = UnrollQueue(capacity, self._rows)
            return QueueMemory(queue, self.ledger, exact=self._config.deterministic)
        replay = make_replay(
            self._config,
            self._agent,
            self._spec,
            lag=self._lag,
            batch_size=self._rows,
            acting=self._acting,
            index=self._stream,
        )
        return ReplayMemory(replay, self._agent, self.ledger, None if self._lag == "free" else self._lanes)

    # What each of them does in its own way.

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
        self.learner.warm_up(example_unroll(self._agent, self._spec, plan.trained_length, self._rows))
        if isinstance(self._memory, ReplayMemory):
            rows = lanes_of(self._config.placement.envs_per_actor)[1]
            length = plan.overlap + plan.unroll_length
            self._memory.warm_up(example_unroll(self._agent, self._spec, length, rows)._replace(weight=None))
        self._publish()
        depth = self._config.placement.prefetch if self._lag == "free" else 0
        self._prefetch = Prefetch(self._make_batch, depth, self.fail)

    def _end(self) -> None:
        """Ends what :meth:`_begin` began; safe to call twice."""
        self._memory.close()
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

    def _train(self, unroll: Unroll, batch: Batch) -> Mapping[str, Any]:
        """The updates on one batch. Whoever acts freely has the weights of each but the last, which comes later."""
        updates = self.learner.updates(unroll)
        counted = last = False
        while not last:
            self._count_lag(batch.version)
            with self.learner_time:
                metrics, last = next(updates)
            self.reuse.add(batch.version.size / self._agent.data.minibatches, 0 if counted else batch.fresh)
            if not counted:
                self._memory.learned(batch, lambda: self.learner.priorities)
                counted = True
            require_finite(self.learner.state.skipped_in_row, self._config.safety.max_skipped_updates)
            if not last and self._lag == "free":
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
    def skipped(self) -> int:
        """How many of them were skipped."""
        return int(self.learner.state.skipped)

    # The way of an unroll.

    def _take_unroll(self, delivery: Delivery) -> bool:
        if not self._memory.offer(delivery):
            return False
        if self._hosts > 1:
            self._untold.extend(delivery.episodes)
        else:
            self._count(delivery.episodes)
        return True

    def _make_batch(self) -> tuple[Unroll, Batch] | None:
        batch = self._memory.take(_POLL_SECONDS)
        return None if batch is None else (self._on_training_devices(batch.unrolls), batch)

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
        meters = {
            **progress(self),
            **self._memory.meters(),
            "learner_busy": self.learner_time.take(),
        }
        reuse = self.reuse.take()
        return meters if reuse is None else {**meters, "sample_reuse": reuse}

    # Checkpoints.

    def snapshot(self, *, alone: bool = False) -> Contents:
        """Everything that the next update depends on; needs no other host.

        In deterministic mode it waits until every lane has come to the weights that are not published yet, and
        holds their logged actions, the agent's states and the queue too.
        """
        del alone
        exact = self._config.deterministic
        if exact:
            self._rest()
            self._reported[self._host] = self.ledger.counts()
        kept = self._memory.snapshot()
        trees: dict[str, Any] = {"train": self.learner.state}
        blobs = dict(kept.blobs)
        meta: dict[str, Any] = {
            **kept.meta,
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
            blobs["shared"] = [array for _, state in lanes for array in state["shared"]]
            meta["shared"] = [len(state["shared"]) for _, state in lanes]
            trees.update(self._tables())
            meta["untold"] = list(self._untold)
        return Contents(trees, meta, blobs, kept.pieces)

    def _pace(self) -> dict[str, int | str]:
        """What an exactly resumed run has to have in common with the run before."""
        return {
            "lag": self._lag,
            "updates in a round": self._per_round,
            "halves of actors": self._lanes,
            "devices that act": len(self._devices),
            "hosts": self._hosts,
        }

    def _require_pace(self, before: Mapping[str, Any]) -> None:
        for name, now in self._pace().items():
            if before[name] != now:
                raise ConfigError(
                    f"{name} was {before[name]} and is {now} now: a deterministic run goes on as it was"
                )

    def _restore(self, checkpoint: Checkpoint) -> dict[tuple[int, int], dict[str, Any]]:
        """Takes over a checkpoint; returns what brings the lanes back, if it is an exact one."""
        meta = checkpoint.meta
        self.learner.restore(checkpoint.tree("train", self.learner.state))
        exact = bool(meta["exact"]) and self._config.deterministic
        if exact:
            self._require_pace(meta["pace"])
        example = example_unroll(self._agent, self._spec, 1, 1)._replace(weight=None)
        queued = self._memory.restore(checkpoint, example if exact else None)
        if isinstance(self._memory, ReplayMemory) and not exact and self._lag != "free":
            self._filling = self._memory.begin_anew(self._acting * self._agent.data.items)
        restore(self, meta, open_steps=exact, host=self._host, queued=queued)
        self._reported = meta["ledgers"]
        if not exact:
            self._first_epoch = max(meta["last_epoch"] + 1, self._first_epoch)
            self._base_version = self.version
            return {}
        self._first_epoch, self._base_version = meta["first_epoch"], meta["base_version"]
        self._untold.extend((episode_return, length) for episode_return, length in meta["untold"])
        shared = iter(checkpoint.blob("shared"))
        return {
            (int(lane["order"][0]), int(lane["order"][1])): {
                "steps": lane["steps"],
                "rounds": lane["rounds"],
                "digest": lane["digest"],
                "actions": actions,
                "shared": list(itertools.islice(shared, count)),
                "record": example.record,
            }
            for lane, actions, count in zip(
                meta["lanes"], checkpoint.blob("actions"), meta["shared"], strict=True
            )
        }
