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

from dataclasses import dataclass
from typing import Any

import numpy as np

from seedbed.acting.assignment import lanes_of
from seedbed.acting.batcher import BatchRule, buckets
from seedbed.acting.inference import Inference
from seedbed.acting.lag_control import BatchControl, FreeBatches, RoundBuffer
from seedbed.acting.opponents import Pool
from seedbed.architectures.checks import acts, too_far_behind
from seedbed.architectures.devices import pick
from seedbed.architectures.interface import Architecture, Setup
from seedbed.architectures.parts import Parts, make_parts, restored_tables
from seedbed.architectures.program import Program
from seedbed.architectures.roles import LEARNER, actors, learner, serving, training
from seedbed.architectures.self_play import pool_of, too_late_for_games
from seedbed.architectures.traffic import steps
from seedbed.config.placement import (
    HostSettings,
    InferenceSettings,
    LearnerSettings,
    OpponentSettings,
    RemoteSettings,
    TrainingDeviceSettings,
    TransportSettings,
)
from seedbed.config.settings import RunConfig
from seedbed.learning.loop import LearnerLoop
from seedbed.seeding import key
from seedbed.serving.inference_service import InferenceService
from seedbed.serving.source import ServedActors
from seedbed.types import Agent, EnvSpec, Tree


@dataclass(frozen=True)
class SeedSettings(
    OpponentSettings,
    RemoteSettings,
    InferenceSettings,
    TransportSettings,
    TrainingDeviceSettings,
    LearnerSettings,
    HostSettings,
):
    """Placement of SEED's parts."""


def check(config: RunConfig, agent: Agent) -> str | None:
    """Returns the reason why settings do not go together; None if they do."""
    place = config.placement
    if place.opponents and (len(place.inference_devices) > 1 or config.cluster.hosts > 1):
        return (
            "opponents need all games on one device that acts, of one host: give one of --inference-devices"
        )
    return too_far_behind(config, agent) or too_late_for_games(config)


def build(setup: Setup) -> LearnerLoop:
    """Builds the head: central inference and the learner."""
    place = setup.config.placement
    devices = pick("inference", place.inference_devices)
    parts = make_parts(setup, devices, lanes=place.actors * lanes_of(place.envs_per_actor)[0])
    pool = pool_of(parts, devices[0])
    return parts.loop(central_inference(parts, devices, pool), beside=pool)


def central_inference(parts: Parts, devices: list[Any], pool: Pool | None = None) -> ServedActors:
    """Returns the source whose actors only step environments; the policy runs here, on these devices.

    With a ``pool``, frozen versions play against it.
    """
    place = parts.setup.config.placement
    collect = RoundBuffer(place.actors * lanes_of(place.envs_per_actor)[0], parts.hand_over)
    services = [_service(parts, index, devices, collect, pool) for index in range(len(devices))]

    def tables() -> dict[str, Tree]:
        return {f"tables_{index}": service.inference.tables() for index, service in enumerate(services)}

    def warm_up() -> None:
        for index, service in enumerate(services):
            service.inference.warm_up(parts.store.newest(index).params)

    for service, kept in zip(services, restored_tables(parts, tables).values(), strict=False):
        service.inference.restore(kept)
    return parts.served(services, warm_up=warm_up, tables=tables)


def _service(
    parts: Parts, index: int, devices: list[Any], collect: RoundBuffer, pool: Pool | None
) -> InferenceService:
    """Returns the service on one device, which serves every ``len(devices)``-th actor from ``index`` on."""
    config, assignment = parts.setup.config, parts.assignment
    place = config.placement
    actors = len(range(index, place.actors, len(devices)))
    rows, full = lanes_of(place.envs_per_actor)[1], place.full_batch(index)
    sizes: tuple[int, ...]
    control: BatchControl
    if parts.lag.exact:
        sizes = (max(1, actors * rows),)
        control = parts.exact_control(index, actors, collect)
    else:
        sizes = buckets(min(rows, full), full)
        rule = BatchRule(full, place.inference_wait_ms / 1e3)
        control = FreeBatches(rule, parts.store, index, parts.hand_over)
    slots = range(place.slots)
    inference = Inference(
        parts.setup.agent,
        parts.setup.spec,
        place.slots,
        sizes,
        devices[index],
        key(config.seed, "acting"),
        np.array([assignment.slot_number(slot) for slot in slots], np.int32),
        assignment.exploration(slots),
    )
    return InferenceService(
        inference,
        control,
        assignment,
        ledger=parts.books.ledger,
        meters=parts.meters,
        full_batch=sizes[-1],
        on_failure=parts.failure.report,
        pool=pool,
    )


def program(config: RunConfig, agent: Agent, spec: EnvSpec) -> Program:
    """Returns the roles of a run: the learner, which runs the policy, and the actors, which send it every step."""
    place = config.placement
    acts = serving(config, place.inference_devices)
    head = learner(config, agent, acts=acts, trains=training(config, agent))
    workers = actors(config, LEARNER, steps(spec), niceness=place.actor_niceness)
    return Program((head, workers), hosts=config.cluster.hosts)


SEED = Architecture("seed", SeedSettings, build, program, refuses=acts, check=check, policy="server")
