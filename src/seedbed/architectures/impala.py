"""IMPALA: the policy runs beside the environments, and unrolls go to one learner (Espeholt et al. 2018, section 3).

::

      actor processes                                the learner's process
    ┌──────────────────────────────┐    unrolls    ┌──────────────────────────────────┐
    │ environments ─► policy,      │ ────────────► │ registry ─► service ─► queue     │
    │       ▲        open unrolls  │   transport   │                ▲        │ unrolls│
    │       └── actions ──┘        │ ◄──────────── │                │ weights▼        │
    └──────────────────────────────┘    weights    │             learner ◄─ prefetch  │
               × actors                            └──────────────────────────────────┘

Actors hold a copy of the policy. Each fetches the newest weights when it begins an unroll, if they have changed, and
acts with them to the unroll's end: by then the learner has made further updates, a lag that V-trace corrects. Recurrent
states, frame stacks and open unrolls stay with the actors.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from seedbed.acting.assignment import lanes_of
from seedbed.acting.lag_control import FreeControl, LagControl, RoundBuffer
from seedbed.acting.opponents import Pool
from seedbed.architectures.checks import acts_and_queues, not_exact, too_far_behind, too_heavy
from seedbed.architectures.devices import pick
from seedbed.architectures.interface import Architecture, Setup
from seedbed.architectures.parts import Parts, make_parts
from seedbed.architectures.program import Acts, Program
from seedbed.architectures.roles import LEARNER, actors, learner, training
from seedbed.architectures.self_play import pool_of
from seedbed.architectures.traffic import snapshots, unrolls
from seedbed.config.placement import (
    FetchSettings,
    HostSettings,
    LearnerSettings,
    RemoteSettings,
    TrainingDeviceSettings,
    TransportSettings,
)
from seedbed.config.resolve import to_json
from seedbed.config.settings import RunConfig
from seedbed.learning.loop import LearnerLoop
from seedbed.serving.source import ServedActors
from seedbed.serving.unroll_service import UnrollService
from seedbed.types import Agent, EnvSpec


@dataclass(frozen=True)
class ImpalaSettings(
    HostSettings, FetchSettings, LearnerSettings, TrainingDeviceSettings, RemoteSettings, TransportSettings
):
    """Placement of IMPALA's parts."""


def build(setup: Setup) -> LearnerLoop:
    """Builds the head: the learner, and the service that takes unrolls."""
    return learning_from_actors(setup, fetch_steps=setup.config.placement.fetch_steps or 0)


def learning_from_actors(
    setup: Setup, *, fetch_steps: int = 0, publish_every: int = 0, servers: int = 0
) -> LearnerLoop:
    """Builds a learner whose actors run the policy themselves.

    Args:
      setup: ingredients of the run.
      fetch_steps: steps between two fetches of the weights, under a free lag.
      publish_every: updates between two publications of the weights; 0: whenever they are due.
      servers: number of forward-pass servers between the actors and this process.
    """
    place = setup.config.placement
    lanes = place.actors * lanes_of(place.envs_per_actor)[0]
    # Actors fetch weights from the first of the training devices.
    devices = pick("training", place.training_devices)[:1]
    parts = make_parts(setup, devices, lanes=lanes, publish_every=publish_every)
    pool = pool_of(parts, devices[0])
    source = _unrolls_of_actors(parts, lanes, parts.lag.every(fetch_steps), servers, pool)
    return parts.loop(source, beside=pool)


def _unrolls_of_actors(
    parts: Parts, lanes: int, fetch_steps: int, servers: int, pool: Pool | None
) -> ServedActors:
    """Returns the source of unrolls that actors send whole, with the service that gives them weights."""
    config, agent = parts.setup.config, parts.setup.agent
    control: LagControl = FreeControl(parts.store, 0, parts.hand_over)
    if parts.lag.exact:
        collect = RoundBuffer(lanes, parts.hand_over)
        control = parts.exact_control(0, config.placement.actors, collect)
    service = UnrollService(
        agent,
        control,
        parts.assignment,
        parts.store,
        policy=to_json(config),
        fetch_steps=fetch_steps,
        # A replay is made for inserts of at most so many rows.
        largest=config.placement.largest_batch if agent.data.replay else None,
        ledger=parts.books.ledger,
        meters=parts.meters,
        on_failure=parts.failure.report,
        pool=pool,
    )
    return parts.served([service], servers=servers)


def check(config: RunConfig, agent: Agent) -> str | None:
    """Returns the reason why settings do not go together; None if they do."""
    fetch_steps = config.placement.fetch_steps
    if fetch_steps is not None and config.lag.exact:
        return (
            f"fetch_steps is {fetch_steps}, but with an exact lag every unroll has its version: leave it out"
        )
    return (
        not_exact(
            config,
            "the agent's states are with the actors, and no checkpoint could hold them (--lag 0 alone is reproducible "
            "while nothing is interrupted)",
        )
        or too_far_behind(config, agent)
        or too_heavy(config, agent)
    )


def program_with(config: RunConfig, agent: Agent, spec: EnvSpec, fetch_steps: int = 0) -> Program:
    """Returns the roles of a learner, and of actors that send it whole unrolls and fetch its weights.

    Args:
      config: settings of the run.
      agent: the agent.
      spec: spec of the environments.
      fetch_steps: steps of an environment between two fetches; 0: whenever there are newer weights.
    """
    rows = lanes_of(config.placement.envs_per_actor)[1]
    weights = replace(
        snapshots(agent), what=f"weights, {fetch_steps or agent.data.unroll_length} steps apart or more"
    )
    edge = (*unrolls(agent, spec, rows), weights)
    head = learner(config, agent, trains=training(config, agent))
    return Program((head, actors(config, LEARNER, edge, acts=Acts(rows))), hosts=config.cluster.hosts)


def program(config: RunConfig, agent: Agent, spec: EnvSpec) -> Program:
    """Returns the roles of a run: learner and actors."""
    return program_with(config, agent, spec, config.placement.fetch_steps or 0)


IMPALA = Architecture(
    "impala", ImpalaSettings, build, program, refuses=acts_and_queues, check=check, policy="actor"
)
