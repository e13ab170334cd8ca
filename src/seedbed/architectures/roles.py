"""Roles that several architectures declare in the same way."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import jax

from seedbed.acting.assignment import lanes_of
from seedbed.acting.lag import ExactLag
from seedbed.architectures.program import Acts, Edge, Environments, Program, Resources, Role, Traffic, Trains
from seedbed.architectures.traffic import bytes_of, gradients
from seedbed.config.placement import LearnerSettings, RemoteSettings, TransportSettings
from seedbed.config.settings import RunConfig
from seedbed.seeding import key
from seedbed.types import Agent

LEARNER = "learner"
_ACTOR = "actor"


def learner(
    config: RunConfig,
    agent: Agent,
    *edges: Edge,
    name: str = LEARNER,
    steps: Environments | None = None,
    acts: Acts | None = None,
    trains: Trains | None = None,
) -> Role:
    """Returns the role of the head: the process that learns, with all devices in its settings.

    Args:
      config: settings of the run.
      agent: the agent.
      *edges: conversations that it begins.
      name: name of the role.
      steps, acts, trains: parts of the loop that it runs.
    """
    place = config.placement
    devices: set[int] = set()
    for group in ("training_devices", "inference_devices"):
        devices.update(getattr(place, group, ()))
    hosts = config.cluster.hosts
    if hosts > 1:
        nbytes = bytes_of(jax.eval_shape(agent.init, key(0, "example")))
        edges = (*edges, Edge(name, (Traffic("gradient, all-reduced", "up", nbytes, "update"),)))
    return Role(
        name,
        1,
        needs=Resources(cores=1.0, accelerators=max(len(devices), 1)),
        dials=edges,
        silent_after=max(config.safety.env_timeout, 60.0),
        accelerated=True,
        steps=steps,
        acts=acts,
        trains=trains,
    )


def training(config: RunConfig, agent: Agent) -> Trains:
    """Returns the updates of a learner whose batches come from a queue or a replay."""
    plan, place, lag = agent.data, config.placement, config.lag
    rows = plan.batch_size // config.cluster.hosts
    planned = getattr(place, "planned", rows)
    queued = 1.0
    if plan.replay is None:
        queued = lag.queue_capacity(planned, getattr(place, "queue_size", None) or rows) / rows
    return Trains(
        steps=plan.acted_a_batch / config.cluster.hosts,
        unroll=plan.unroll_length,
        updates=plan.updates_a_batch,
        waiting=queued + lag.ahead(getattr(place, "prefetch", 0)),
        devices=getattr(place, "training_devices", (0,)),
        lag=lag.rounds if isinstance(lag, ExactLag) else None,
        samples=plan.replay is not None,
    )


def stepping(config: RunConfig) -> Environments:
    """Returns the environments of an actor process: in two lanes, if there are enough of them."""
    lanes, rows = lanes_of(config.placement.envs_per_actor)
    return Environments(rows, lanes)


def serving(config: RunConfig, devices: tuple[int, ...]) -> Acts:
    """Returns the policy that acts for the lanes of many actors, in batches of its own choice."""
    place = config.placement
    return Acts(place.full_batch(0), place.inference_wait_ms / 1e3, devices)


def actors(
    config: RunConfig,
    to: str,
    traffic: Iterable[Traffic],
    *,
    patience: float = 5.0,
    niceness: int | None = 0,
    acts: Acts | None = None,
) -> Role:
    """Returns the role of actors, each a process with a batch of environments.

    Args:
      config: settings of the run.
      to: role that they dial.
      traffic: traffic of that conversation.
      patience: seconds for which an actor waits for that role.
      niceness: niceness of an actor above the head's; 0 if it decides itself.
      acts: the policy, where an actor runs it.
    """
    place = config.placement
    guests = getattr(place, "guests", 0)
    return Role(
        _ACTOR,
        place.actors,
        entry="seedbed.acting.actor:run",
        dials=(Edge(to, tuple(traffic)),),
        near=to,
        restarts=None if config.lag.exact else place.actor_restarts,
        silent_after=config.safety.env_timeout,
        patience=patience,
        late=late_step(config),
        elastic=bool(guests) or (isinstance(place, RemoteSettings) and bool(place.listen)),
        guests=guests,
        niceness=niceness,
        steps=stepping(config),
        acts=acts,
    )


def threads(config: RunConfig, *, steps: Environments | None = None, acts: Acts | None = None) -> Role:
    """Returns the role of actors that are threads of the head.

    Args:
      config: settings of the run.
      steps, acts: parts of the loop that a thread runs.
    """
    place = config.placement
    lag = config.lag if isinstance(place, LearnerSettings) else None
    return Role(
        _ACTOR,
        place.actors,
        near=LEARNER,
        restarts=None if lag is not None and lag.exact else place.actor_restarts,
        silent_after=config.safety.env_timeout,
        late=late_step(config),
        steps=steps,
        acts=acts,
    )


def late_step(config: RunConfig) -> str:
    """Returns the reason for ending an actor whose environments hang; ``{seconds}`` in it is filled in later."""
    return f"its environments ({config.env}) took more than {{seconds}} s for one step (--env-timeout allows more)"


def with_shards(
    config: RunConfig, agent: Agent, noun: str, entry: str, *edges: Edge, **pushes: int
) -> Program:
    """Returns the program of a parameter server: shards, the head that watches, and workers that push gradients.

    Args:
      config: settings of the run.
      agent: the agent.
      noun: name of the workers' role.
      entry: entry of the workers.
      *edges: further conversations of the workers.
      **pushes: ``n_push`` and ``n_fetch`` of :func:`~seedbed.architectures.traffic.gradients`.
    """
    place, traffic = config.placement, gradients(agent, **pushes)
    watched: dict[str, Any] = {"restarts": place.actor_restarts, "silent_after": config.safety.env_timeout}
    shard = Role(
        "shard",
        place.shards,
        entry="seedbed.architectures.with_shards:serve_shard",
        listens=True,
        **watched,
    )
    worker = Role(
        noun,
        place.actors,
        entry=entry,
        needs=Resources(cores=1.0, accelerators=1),
        dials=(Edge("shard", traffic), Edge("head"), *edges),
        patience=30.0,
        **watched,
    )
    return Program((shard, learner(config, agent, Edge("shard"), name="head"), worker), head="head")


def carrier_of(config: RunConfig) -> str:
    """Returns the name of the carrier between the roles on one machine."""
    place = config.placement
    return place.transport if isinstance(place, TransportSettings) else "inproc"
