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

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from orchard.acting.batcher import BatchRule, buckets
from orchard.acting.desk import Desk
from orchard.acting.inference import Inference
from orchard.acting.lanes import Member
from orchard.acting.meters import Meters
from orchard.acting.pace import BatchPace, FreeBatches, Lockstep, Round
from orchard.acting.recipe import lanes_of
from orchard.acting.worker import Worker
from orchard.architectures.learner_loop import LearnerLoop
from orchard.config.settings import RunConfig
from orchard.learning.checkpoint import Checkpoint
from orchard.replay.queue import join
from orchard.seeding import key
from orchard.transport.connect import listen
from orchard.transport.seam import Server
from orchard.types import Agent, EnvSpec, Tree, Unroll


class Seed(LearnerLoop):
    """One run of SEED: everything but the actors, which join by ``addresses``.

    Args:
      config: the run's settings.
      agent: what is computed.
      spec: of the environments.
      token: what actors must know.
      checkpoint: where to go on from; None to begin.
      on_join, on_leave: called with actors that come and go (from other threads).
    """

    desk: Desk

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
        place = config.placement
        lanes = place.actors * lanes_of(place.envs_per_actor)[0]
        super().__init__(config, agent, spec, lanes=lanes, checkpoint=checkpoint)
        self._servers: list[Server] = []
        self._meters = Meters()
        self._workers = self._make_workers()
        self.desk = Desk(
            self._recipe(token),
            self._workers,
            place.slots,
            resumable=self._resumable,
            first_epoch=self._first_epoch,
            on_join=on_join,
            on_leave=on_leave,
        )
        if checkpoint and self._resumable:
            for index, worker in enumerate(self._workers):
                worker.inference.restore(checkpoint.tree(f"tables_{index}", worker.inference.tables()))
        for wake in (worker.poke for worker in self._workers):
            self._store.listen(wake)
            self._memory.listen(wake)

    # Construction.

    def _make_workers(self) -> list[Worker]:
        place = self._config.placement
        lanes, rows = lanes_of(place.envs_per_actor)
        collect = Round(self._lanes, self._take_unroll)
        recipe = self._recipe("")
        numbers = np.array([recipe.slot_number(slot) for slot in range(place.slots)], np.int32)
        places = np.array([recipe.place(slot) for slot in range(place.slots)], np.float32)
        workers = []
        for index, device in enumerate(self._devices):
            local = len(range(index, place.actors, len(self._devices)))
            full = place.full_batch(index)
            pace: BatchPace
            if self._lag == "free":
                sizes = buckets(min(rows, full), full)
                rule = BatchRule(full, place.inference_wait_ms / 1e3)
                pace = FreeBatches(rule, self._store, index, self._take_unroll)
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
                    filling=self._filling,
                )
            inference = Inference(
                self._agent,
                self._spec,
                place.slots,
                sizes,
                device,
                key(self._config.seed, "acting"),
                numbers,
                places,
            )
            workers.append(
                Worker(
                    inference,
                    pace,
                    recipe,
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
        self._begin()
        for index, worker in enumerate(self._workers):
            worker.inference.warm_up(self._store.newest(index).params)
            worker.start()
        for address in addresses:
            self._servers.append(listen(address, self.desk))
        return [server.address for server in self._servers]

    def close(self) -> None:
        """Stops everything; safe to call twice."""
        for server in self._servers:
            server.close()
        self._end()
        self.desk.stop()

    def _on_training_devices(self, unrolls: Sequence[Unroll]) -> Unroll:
        return self.learner.put(join(unrolls))

    def _wait_blocked(self, timeout: float) -> bool:
        return all(worker.wait_blocked(timeout) for worker in self._workers)

    # What others read.

    def meters(self) -> dict[str, float]:
        """Metrics since the last call, by name."""
        return {**super().meters(), **self._meters.take(), "actors": len(self.desk.members())}

    def _lane_states(self) -> dict[tuple[int, int], dict[str, Any]]:
        return self.desk.lane_states()

    def _tables(self) -> dict[str, Tree]:
        return {f"tables_{index}": worker.inference.tables() for index, worker in enumerate(self._workers)}

    @property
    def _last_epoch(self) -> int:
        return self.desk.last_epoch
