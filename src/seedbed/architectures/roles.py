"""Roles that several architectures declare in the same way."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import jax

from seedbed.architectures.program import Edge, Program, Resources, Role, Traffic
from seedbed.architectures.traffic import bytes_of, gradients
from seedbed.config.placement import LearnerSettings, RemoteSettings, TransportSettings
from seedbed.config.settings import RunConfig
from seedbed.seeding import key
from seedbed.types import Agent

LEARNER = "learner"
_ACTOR = "actor"


def learner(config: RunConfig, agent: Agent, *edges: Edge, name: str = LEARNER) -> Role:
    """Returns the role of the head: the process that learns, with all devices in its settings."""
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
    )


def actors(
    config: RunConfig, to: str, traffic: Iterable[Traffic], *, patience: float = 5.0, niceness: int = 0
) -> Role:
    """Returns the role of actors, each a process with a batch of environments.

    Args:
      config: settings of the run.
      to: role that they dial.
      traffic: traffic of that conversation.
      patience: seconds for which an actor waits for that role.
      niceness: niceness of an actor above the head's; more than 0 only if it does not decide itself.
    """
    place = config.placement
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
        elastic=isinstance(place, RemoteSettings) and bool(place.listen),
        niceness=niceness,
    )


def threads(config: RunConfig) -> Role:
    """Returns the role of actors that are threads of the head."""
    place = config.placement
    lag = config.lag if isinstance(place, LearnerSettings) else None
    return Role(
        _ACTOR,
        place.actors,
        near=LEARNER,
        restarts=None if lag is not None and lag.exact else place.actor_restarts,
        silent_after=config.safety.env_timeout,
        late=late_step(config),
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
