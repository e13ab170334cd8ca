"""Compatibility checks that several architectures share; each returns the reason for a refusal, or None."""

from __future__ import annotations

from dataclasses import fields

import jax

from seedbed.acting.lag import ExactLag
from seedbed.architectures.shares import fitting_batch, uneven_shares
from seedbed.config.placement import EnvironmentSettings, RemoteSettings, ShardSettings, has_meaning
from seedbed.config.settings import RunConfig
from seedbed.errors import ConfigError
from seedbed.learning.memory import rounds
from seedbed.seeding import key
from seedbed.transport.interface import MAX_MESSAGE_BYTES, MAX_STEP_BYTES
from seedbed.types import Agent, DataPlan


def acts_and_queues(plan: DataPlan) -> str | None:
    """Refuses agents that need a data set or a replay."""
    return acts(plan) or (
        "it samples from a replay, and here unrolls are learned from as they come" if plan.replay else None
    )


def acts(plan: DataPlan) -> str | None:
    """Refuses agents that learn from a data set."""
    return "it learns from a data set, and here agents act" if plan.dataset else None


def acts_and_samples(plan: DataPlan) -> str | None:
    """Refuses agents without a replay."""
    return acts(plan) or (None if plan.replay else "it has no replay, and here batches are sampled from one")


def too_far_behind(config: RunConfig, agent: Agent) -> str | None:
    """Refuses on-policy agents with a lag above 0 or more environments than a batch has unrolls, and uneven rounds."""
    if not agent.data.on_policy:
        return uneven_rounds(config, agent)
    newest = f"{agent.name} learns only from what its newest weights did"
    if config.lag != ExactLag(0):
        return f"{newest}, and the lag is {config.lag}: add --lag 0"
    round_of_all, batch_size = config.placement.planned * config.cluster.hosts, agent.data.batch_size
    if round_of_all > batch_size:
        larger = fitting_batch(config, least=round_of_all)
        batch = f"{larger}, or " if larger else ""
        return (
            f"{newest}, and {round_of_all} environments are more than a batch of {batch_size}: what the "
            f"rest did would be trained on an update late. Use {batch}fewer --actors or "
            "--envs-per-actor"
        )
    return uneven_rounds(config, agent)


def uneven_parts(config: RunConfig, agent: Agent) -> str | None:
    """Refuses parts of a replay that hosts or environments cannot be divided among equally."""
    plan, hosts = agent.data.replay, config.cluster.hosts
    if plan is None or (plan.parts is None and hosts == 1):
        return None
    parts = plan.parts or hosts
    if parts % hosts:
        return f"replay_parts is {parts}, and {hosts} hosts cannot share them equally: use --replay-parts {hosts}"
    place, here = config.placement, parts // hosts
    if here == 1:
        return None
    if isinstance(place, ShardSettings) or not isinstance(place, EnvironmentSettings):
        return f"replay_parts is {parts}, but no replay of {config.arch} has parts: leave it out"
    if place.eval_envs or place.actors % here:
        return (
            f"replay_parts is {parts}, {here} on each host, and their environments have to be equally many: "
            f"leave --eval-envs out, and give --actors {here} or a multiple of it"
        )
    return None


def uneven_rounds(config: RunConfig, agent: Agent) -> str | None:
    """Refuses an exact lag if rounds of acting do not divide evenly into batches."""
    place = config.placement
    if not config.lag.exact:
        return None
    try:
        rounds(agent.data, place.planned - place.eval_envs, agent.data.batch_size // config.cluster.hosts)
    except ConfigError as error:
        return uneven_shares(config) or str(error)  # the former names flags that mend it
    return None


def no_actors(config: RunConfig, noun: str) -> str | None:
    """Refuses a run without actors, for architectures that remote actors cannot join."""
    return (
        None
        if config.placement.actors
        else f"actors is 0, but only the run's own {noun} act: give one or more"
    )


def not_exact(config: RunConfig, reason: str) -> str | None:
    """Refuses ``--deterministic``, for the given reason."""
    return f"{reason}: leave --deterministic out" if config.deterministic else None


def processes_alone(config: RunConfig, nouns: str) -> str | None:
    """Refuses the in-process transport, for architectures whose parts are processes."""
    if config.placement.transport != "inproc":
        return None
    return f"transport is inproc, but {nouns} are processes: use --transport shm or --transport grpc"


def meaningless(config: RunConfig) -> str | None:
    """Refuses settings that have no effect with the run's agent."""
    for part in fields(config.placement):
        given = getattr(config.placement, part.name)
        if given != part.default and not has_meaning(part, type(config.settings)):
            return f"{part.name} is {given}, but {config.agent} has no use for it: leave it out"
    return None


def guests_elsewhere(config: RunConfig) -> str | None:
    """Refuses guests without a cluster that has room for them, and guests under an exact lag."""
    if not (guests := getattr(config.placement, "guests", 0)):
        return None
    if config.cluster.hosts > 1:
        return f"guests is {guests}, and hosts is {config.cluster.hosts}: each host has its own actors; leave one out"
    if config.on == "here":
        return (
            f"guests is {guests}, and on is here, where no machines come and go: give --on ray, or --guests 0"
        )
    if config.lag.exact:
        return (
            f"guests is {guests}, and the lag is exact ({config.lag}), which needs the same actors at every moment: "
            "leave --guests out, or give --lag free, without --deterministic"
        )
    return None


def too_heavy(config: RunConfig, agent: Agent) -> str | None:
    """Refuses weights that do not fit into a message, before anything is compiled.

    With a parameter server the optimizer's state is counted too, since a shard sends it once.
    """
    place = config.placement
    shards = place.shards if isinstance(place, ShardSettings) else 0
    params = jax.eval_shape(agent.init, key(0, "example"))
    sent = (params, jax.eval_shape(agent.optimizer.init, params)) if shards else params
    needed = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(sent)) // max(shards, 1)
    remote = config.on != "here" or (isinstance(place, RemoteSettings) and bool(place.listen))
    limit = MAX_MESSAGE_BYTES if place.transport == "grpc" or remote else MAX_STEP_BYTES
    if needed <= limit:
        return None
    more = ", more --shards" if shards else ", or an architecture whose weights stay where they are"
    return (
        f"the weights take {needed / 2**20:,.0f} MiB, and a message of {config.arch} holds {limit / 2**20:,.0f} MiB at "
        f"most: choose a smaller --network, --hidden or --lstm{more}"
    )
