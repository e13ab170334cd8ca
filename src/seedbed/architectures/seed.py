"""SEED: central inference on the learner's accelerators (Espeholt et al. 2020, "SEED RL", section 3).

::

      actor processes                     the learner's process
    ┌──────────────────┐  observations  ┌────────────────────────────────────────────────┐
    │ environments     │ ─────────────► │ registry ─► lanes ─► inference ─► open unrolls │
    │ (one half steps, │    transport   │                      ▲ weights       │ unrolls │
    │  one half waits) │ ◄───────────── │                      │               ▼         │
    └──────────────────┘    actions     │                  learner ◄─ prefetch ◄─ queue  │
            × actors                    └────────────────────────────────────────────────┘

Actors only step environments. Observations go up and actions come down at every step; recurrent states, frame
stacks and unrolls stay with the learner.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from seedbed.acting.assignment import lanes_of
from seedbed.acting.batcher import BatchRule, buckets
from seedbed.acting.inference import Inference
from seedbed.acting.pace import BatchPace, FreeBatches, Round
from seedbed.architectures.checks import acts, too_far_behind
from seedbed.architectures.interface import Architecture
from seedbed.architectures.with_actors import WithActors, with_actors
from seedbed.config.placement import (
    HostSettings,
    InferenceSettings,
    LearnerSettings,
    RemoteSettings,
    TrainingDeviceSettings,
    TransportSettings,
)
from seedbed.learning.checkpoint import Checkpoint
from seedbed.seeding import key
from seedbed.serving.inference_service import InferenceService
from seedbed.types import Tree


@dataclass(frozen=True)
class SeedSettings(
    RemoteSettings,
    InferenceSettings,
    TransportSettings,
    TrainingDeviceSettings,
    LearnerSettings,
    HostSettings,
):
    """Placement of SEED's parts."""


class Seed(WithActors):
    """One run of SEED: everything but the actors; see :class:`~seedbed.architectures.with_actors.WithActors`."""

    _services: Sequence[InferenceService]

    def _make_services(self) -> Sequence[InferenceService]:
        place = self._config.placement
        rows = lanes_of(place.envs_per_actor)[1]
        collect = Round(self._lanes, self._take_unroll)
        assignment = self._assignment()
        numbers = np.array([assignment.slot_number(slot) for slot in range(place.slots)], np.int32)
        exploration = assignment.exploration(range(place.slots))
        services = []
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
                pace = self._lockstep(index, local, collect)
            inference = Inference(
                self._agent,
                self._spec,
                place.slots,
                sizes,
                device,
                key(self._config.seed, "acting"),
                numbers,
                exploration,
            )
            services.append(
                InferenceService(
                    inference,
                    pace,
                    assignment,
                    ledger=self.ledger,
                    meters=self._meters,
                    full_batch=sizes[-1],
                    on_failure=self.fail,
                )
            )
        return services

    def _warm_up(self) -> None:
        for index, service in enumerate(self._services):
            service.inference.warm_up(self._store.newest(index).params)

    def _tables(self) -> dict[str, Tree]:
        return {f"tables_{index}": service.inference.tables() for index, service in enumerate(self._services)}

    def _restore_tables(self, checkpoint: Checkpoint) -> None:
        for index, service in enumerate(self._services):
            service.inference.restore(checkpoint.tree(f"tables_{index}", service.inference.tables()))


SEED = Architecture(
    "seed", SeedSettings, with_actors(Seed), refuses=acts, check=too_far_behind, policy="server"
)
