"""SEED: central inference on the learner's accelerators (Espeholt et al. 2020, "SEED RL", section 3).

::

      actor processes                     the learner's process
    ┌──────────────────┐  observations  ┌────────────────────────────────────────────────┐
    │ environments     │ ─────────────► │ desk ─► lanes ─► inference ─► open unrolls     │
    │ (one half steps, │    transport   │                  ▲ weights        │ unrolls    │
    │  one half waits) │ ◄───────────── │                  │                ▼            │
    └──────────────────┘    actions     │              learner ◄─ prefetch ◄─ queue      │
            × actors                    └────────────────────────────────────────────────┘

Actors only step environments. Observations go up and actions come down at every step; recurrent states, frame
stacks and unrolls stay with the learner.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
import numpy as np

from orchard.acting.batcher import BatchRule, buckets
from orchard.acting.desk import Desk
from orchard.acting.example import example_unroll
from orchard.acting.inference import Inference
from orchard.acting.lanes import Member
from orchard.acting.ledger import Ledger
from orchard.acting.pace import Free, Lockstep, Pace, Round, updates_per_round
from orchard.acting.recipe import Recipe, lanes_of
from orchard.acting.worker import Meters, Worker
from orchard.architectures.devices import pick
from orchard.architectures.interface import progress
from orchard.config.resolve import env_options
from orchard.config.settings import RunConfig
from orchard.errors import ConfigError, OrchardError, RunFailed
from orchard.learning.checkpoint import Checkpoint
from orchard.learning.learner import Learner
from orchard.learning.prefetch import Prefetch
from orchard.learning.update import TrainState, require_finite
from orchard.metrics.meters import Episodes, Share, Tally
from orchard.replay.queue import UnrollQueue
from orchard.seeding import key
from orchard.transport.connect import listen
from orchard.transport.seam import Server
from orchard.types import Agent, EnvSpec, Unroll
from orchard.weights.store import WeightStore

_log = logging.getLogger(__name__)
_POLL_SECONDS = 0.2
_REMOTE_BATCH = 64


class Seed:
    """One run of SEED: everything but the actors, which join by ``addresses``.

    Args:
      config: the run's settings.
      agent: what is computed.
      spec: of the environments.
      token: what actors must know.
      checkpoint: where to go on from; None to begin.
      on_join, on_leave: called with actors that come and go (from other threads).
    """

    def __init__(
        self,
        config: RunConfig,
        agent: Agent,
        spec: EnvSpec,
        *,
        token: str,
        checkpoint: Checkpoint | None = None,
        on_join: Callable[[Member], None] = lambda member: None,
        on_leave: Callable[[Member, str], None] = lambda member, reason: None,
    ) -> None:
        self._config = config
        self._agent = agent
        self._spec = spec
        self._lag = 0 if config.deterministic and config.placement.lag == "free" else config.placement.lag
        self._first_epoch = 0
        self._base_version = 0
        self._failure: BaseException | None = None
        self._servers: list[Server] = []
        self.ledger = Ledger()
        self.episodes = Episodes()
        self.lag = Tally()
        self.learner_time = Share()
        place = config.placement
        planned = place.actors * place.envs_per_actor
        self.learner = Learner(agent, pick("training", place.training_devices), key(config.seed, "learner"))
        self._devices = pick("inference", place.inference_devices)
        self._per_round = 1 if self._lag == "free" else self._updates_per_round(planned)
        self._store = WeightStore(self._devices, keep=1 + self._kept_updates())
        self.queue = UnrollQueue(self._queue_capacity(planned), agent.data.batch_size)
        resumable = self._restore(checkpoint) if checkpoint else {}
        self._meters = Meters()
        self.desk = Desk(
            self._recipe(token),
            self._workers(planned),
            place.slots,
            resumable=resumable,
            first_epoch=self._first_epoch,
            on_join=on_join,
            on_leave=on_leave,
        )
        if checkpoint and resumable:
            for index, worker in enumerate(self.desk.workers):
                worker.inference.restore(checkpoint.tree(f"tables_{index}", worker.inference.tables()))
        for wake in (worker.poke for worker in self.desk.workers):
            self._store.listen(wake)
            self.queue.listen(wake)
        depth = place.prefetch if self._lag == "free" else 0
        self._prefetch = Prefetch(self._make_batch, depth, self.fail)

    # Construction.

    def _updates_per_round(self, planned: int) -> int:
        data = self._agent.data
        return data.updates_a_batch * updates_per_round(planned, data.batch_size)

    def _kept_updates(self) -> int:
        return 0 if self._lag == "free" else (int(self._lag) + 1) * self._per_round

    def _queue_capacity(self, planned: int) -> int:
        if self._lag == "free":
            return self._config.placement.queue_size or self._agent.data.batch_size
        return planned * (int(self._lag) + 1)

    def _recipe(self, token: str) -> Recipe:
        config = self._config
        return Recipe(
            env=config.env,
            options=env_options(config),
            spec=self._spec,
            actors=config.placement.actors,
            envs=config.placement.envs_per_actor,
            seed=config.seed,
            unroll_length=self._agent.data.unroll_length,
            token=token,
            keep_log=config.deterministic,
            lockstep=self._lag != "free",
        )

    def _workers(self, planned: int) -> list[Worker]:
        place = self._config.placement
        lanes, rows = lanes_of(place.envs_per_actor)
        collect = Round(place.actors * lanes, self._take_unroll)
        workers = []
        for index, device in enumerate(self._devices):
            local = len(range(index, place.actors, len(self._devices)))
            full = max(place.inference_batch or local * rows or _REMOTE_BATCH, rows)
            pace: Pace
            if self._lag == "free":
                sizes = buckets(min(rows, full), full)
                rule = BatchRule(full, place.inference_wait_ms / 1e3)
                pace = Free(rule, self._store, index, self._take_unroll)
            else:
                sizes = (max(1, local * rows),)
                halves = dict.fromkeys(range(lanes), local)
                pace = Lockstep(
                    lag=int(self._lag),
                    updates_per_round=self._per_round,
                    halves=halves,
                    store=self._store,
                    device=index,
                    collect=collect,
                    base=self._base_version,
                )
            inference = Inference(
                self._agent,
                self._spec,
                place.slots,
                sizes,
                device,
                key(self._config.seed, "acting"),
            )
            workers.append(
                Worker(
                    inference,
                    pace,
                    self._recipe(""),
                    ledger=self.ledger,
                    meters=self._meters,
                    full_batch=sizes[-1],
                    on_failure=self.fail,
                )
            )
        return workers

    # Life.

    def open(self, addresses: list[str]) -> list[str]:
        """Compiles, publishes the first weights and listens; returns the addresses that actors can reach."""
        plan = self._agent.data
        self.learner.warm_up(example_unroll(self._agent, self._spec, plan.unroll_length, plan.batch_size))
        self._publish()
        for index, worker in enumerate(self.desk.workers):
            worker.inference.warm_up(self._store.newest(index).params)
            worker.start()
        for address in addresses:
            self._servers.append(listen(address, self.desk))
        return [server.address for server in self._servers]

    def updates(self, stop: threading.Event) -> Iterator[Mapping[str, Any] | None]:
        """Learns: yields the metrics of each batch's last update (scalars on the device), before its weights are
        published. In deterministic mode acting then rests, so that all counters are reproducible too.

        Yields None now and then while no batch comes; ends when ``stop`` is set.

        Raises:
          RunFailed: a part of the run failed, or too many updates in a row were not finite.
        """
        while not stop.is_set():
            if self._failure is not None:
                raise self._failure
            batch = self._prefetch.take(_POLL_SECONDS)
            if batch is None:
                yield None
                continue
            metrics = self._train(*batch)
            if self._config.deterministic:
                self._wait_blocked()
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
            require_finite(self.learner.state, self._config.safety.max_skipped_updates)
            if not last:
                self._publish()
        return metrics

    def _publish(self) -> None:
        self._store.publish(self.learner.state.params, self.version)

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

    @property
    def env_frames(self) -> int:
        """Environment frames so far."""
        return self.ledger.counts()["received"] * self._spec.frames_per_step

    def close(self) -> None:
        """Stops everything; safe to call twice."""
        for server in self._servers:
            server.close()
        self.queue.close()
        self.desk.stop()
        self._prefetch.close()

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
        for episode_return, length in episodes:
            self.episodes.add(episode_return, length)
        return True

    def _make_batch(self) -> tuple[Unroll, np.ndarray[Any, Any]] | None:
        unroll = self.queue.take(_POLL_SECONDS)
        return None if unroll is None else (self.learner.put(unroll), np.asarray(unroll.version))

    def _count_lag(self, versions: np.ndarray[Any, Any]) -> None:
        self.lag.add(self.version - versions)

    # What others read.

    def meters(self) -> dict[str, float]:
        """Metrics since the last call, by name."""
        return {
            **progress(self),
            **self._meters.take(),
            "actors": len(self.desk.members()),
            "queue_fill": len(self.queue) / self.queue.capacity,
            "learner_busy": self.learner_time.take(),
        }

    # Checkpoints.

    def snapshot(self) -> tuple[dict[str, Any], dict[str, list[Any]], dict[str, Any]]:
        """``(trees, blobs, meta)`` of everything that the next update depends on.

        In deterministic mode it waits until every lane has come to the weights that are not published yet, and
        holds their logged actions, the tables and the queue too.
        """
        trees: dict[str, Any] = {"train": self.learner.state}
        blobs: dict[str, list[Any]] = {}
        meta: dict[str, Any] = {
            "version": self.version,
            "ledger": self.ledger.counts(),
            "episodes": self.episodes.to_json(),
            "lag": self.lag.to_json(),
            "exact": self._config.deterministic,
            "last_epoch": self.desk.last_epoch,
            "first_epoch": self._first_epoch,
            "base_version": self._base_version,
            "pace": self._pace(),
        }
        if self._config.deterministic:
            self._wait_blocked()
            meta["ledger"] = self.ledger.counts()
            meta["episodes"] = self.episodes.to_json()
            lanes = self.desk.lane_states()
            meta["lanes"] = [
                {"order": order, "steps": s["steps"], "rounds": s["rounds"], "digest": s["digest"]}
                for order, s in sorted(lanes.items())
            ]
            blobs["actions"] = [state["actions"] for _, state in sorted(lanes.items())]
            blobs["queue"] = [leaf for unroll in self.queue.contents() for leaf in jax.tree.leaves(unroll)]
            for index, worker in enumerate(self.desk.workers):
                trees[f"tables_{index}"] = worker.inference.tables()
        return trees, blobs, meta

    def _pace(self) -> dict[str, int | str]:
        """What an exactly resumed run has to have in common with the run before."""
        place = self._config.placement
        return {
            "lag": self._lag,
            "updates in a round": self._per_round,
            "halves of actors": place.actors * lanes_of(place.envs_per_actor)[0],
            "devices that act": len(self._devices),
        }

    def _wait_blocked(self) -> None:
        # Without a time limit: whoever watches the actors notices one that hangs.
        for worker in self.desk.workers:
            while not worker.wait_blocked(_POLL_SECONDS):
                if self._failure is not None:
                    raise self._failure

    def _restore(self, checkpoint: Checkpoint) -> dict[tuple[int, int], dict[str, Any]]:
        """Takes over a checkpoint; returns what brings the lanes back, if it is an exact one."""
        meta = checkpoint.meta
        self.learner.restore(checkpoint.tree("train", self.learner.state))
        self.episodes.restore(meta["episodes"])
        self.lag.restore(meta["lag"])
        exact = bool(meta["exact"]) and self._config.deterministic
        counts = dict(meta["ledger"])
        if not exact:
            counts["dropped"] += counts["open"] + counts["queued"]
            counts["open"] = counts["queued"] = 0
        self.ledger.restore(counts)
        if not exact:
            self._first_epoch = meta["last_epoch"] + 1
            self._base_version = self.version
            return {}
        self._first_epoch, self._base_version = meta["first_epoch"], meta["base_version"]
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
