"""Which agent and which settings go with which architecture, and why not."""

from __future__ import annotations

from dataclasses import fields
from typing import get_args, get_type_hints

import jax

from seedbed.config.settings import ParameterServer, Placement, Population, RunConfig, Safety
from seedbed.errors import ConfigError
from seedbed.seeding import key
from seedbed.transport.seam import MAX_MESSAGE_BYTES, MAX_STEP_BYTES
from seedbed.types import Agent, DataPlan

_SENDS_WEIGHTS = ("impala", "apex", "rapid", "gorila", "distbelief")
_WITH_SHARDS = ("gorila", "distbelief")
_PLACED = tuple(field.name for field in fields(Placement))
_FOR_SERVING = ("transport", "listen", "max_envs", "inference_batch", "inference_wait_ms", "batches_per_call")
_FOR_ACTORS = (
    "actors",
    "envs_per_actor",
    "transport",
    "listen",
    "max_envs",
    "inference_batch",
    "inference_wait_ms",
    "inference_devices",
    "queue_size",
    "prefetch",
    "fetch_steps",
)


_FOR_SHARDS = ("shards", "max_staleness", "stale_gradients")
_FOR_WORKERS = ("outlier_deviations", "shard_snapshot_seconds")
_FOR_DATA = ("dataset", "n_fetch", "n_push", "warm_start")
_NO_GRADIENTS = "only under distbelief, gorila and a3c gradients are pushed to shards: leave it out"
_NO_DATA = "only distbelief learns from a data set: leave it out"
_ONE = "only anakin trains several agents in one program: start a run for each"


def require_fit(config: RunConfig, agent: Agent) -> None:
    """Raises :class:`ConfigError` with the reason if they do not go together."""
    if (reason := why_not(config, agent)) is not None:
        raise ConfigError(reason)


ARCHITECTURES: tuple[str, ...] = get_args(get_type_hints(RunConfig)["arch"])
"""All architectures."""


def why_never(arch: str, plan: DataPlan) -> str | None:
    """Why an architecture cannot run an agent that wants such data, however both are set; None if it can."""
    if plan.dataset and arch != "distbelief":
        return "it learns from a data set, which only distbelief has: use --arch distbelief"
    if arch == "distbelief" and not plan.dataset:
        return "distbelief's replicas learn from a data set, and from nothing that the agent does: use --agent bc"
    if plan.replay and arch not in ("seed", "apex", "gorila"):
        return "it samples from a replay, which few architectures have: use --arch seed, --arch apex or --arch gorila"
    if arch == "apex" and not plan.replay:
        return "apex is for agents that sample from a replay: use --agent dqn or r2d2, or --arch impala"
    if arch == "gorila" and not plan.replay:
        return "gorila's workers learn from replays of their own: use --agent dqn or r2d2"
    if arch == "a3c" and not plan.on_policy:
        return (
            "a3c's threads learn once from what they have just done, and the agent is made for more: use --agent a2c, "
            "or --arch a2c"
        )
    return None


def why_not(config: RunConfig, agent: Agent) -> str | None:
    """Why the configuration's architecture cannot run ``agent`` as it is set; None if it can."""
    if (reason := why_never(config.arch, agent.data)) is not None:
        return f"{agent.name} does not run under {config.arch}: {reason}"
    if agent.data.replay and config.cluster.hosts > 1:
        return f"hosts is {config.cluster.hosts}, but {agent.name} samples from the replay of one host: leave it out"
    if config.placement.eval_envs and agent.explore is None:
        return (
            f"eval_envs is {config.placement.eval_envs}, but only agents that explore by chance (dqn, r2d2) have "
            "environments that do not: leave it out"
        )
    if config.arch != "anakin" and (reason := _without_effect(config.population, ("seeds", "sweep"), _ONE)):
        return reason
    if config.arch != "rapid" and (
        reason := _without_effect(
            config.placement,
            ("forward_servers", "publish_updates"),
            "only rapid has forward-pass servers: leave it out",
        )
    ):
        return reason
    if config.arch not in ("a3c", "gorila", "distbelief") and (
        reason := _without_effect(config.server, _FOR_SHARDS + _FOR_WORKERS + _FOR_DATA, _NO_GRADIENTS)
    ):
        return reason
    if (reason := _too_heavy(config, agent)) is not None:
        return reason
    return {
        "seed": _seed,
        "impala": _beside_the_environments,
        "apex": _beside_the_environments,
        "rapid": _rapid,
        "distbelief": _distbelief,
        "gorila": _gorila,
        "a3c": _a3c,
        "a2c": _a2c,
        "anakin": _anakin,
        "sebulba": _sebulba,
    }[config.arch](config, agent)


def _too_heavy(config: RunConfig, agent: Agent) -> str | None:
    """Why the weights, where they travel, do not fit into a message; looked at before anything is compiled."""
    arch, place = config.arch, config.placement
    if arch not in _SENDS_WEIGHTS:
        return None
    params = jax.eval_shape(agent.init, key(0, "example"))
    # Workers take from a shard, once, what its optimizer keeps too.
    sent = (params, jax.eval_shape(agent.optimizer.init, params)) if arch in _WITH_SHARDS else params
    needed = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(sent))
    needed //= config.server.shards if arch in _WITH_SHARDS else 1
    limit = MAX_MESSAGE_BYTES if place.transport == "grpc" or place.listen else MAX_STEP_BYTES
    if needed <= limit:
        return None
    more = (
        ", more --shards" if arch in _WITH_SHARDS else ", or --arch seed, whose weights stay where they are"
    )
    return (
        f"the weights take {needed / 2**20:,.0f} MiB, and a message of {arch} holds {limit / 2**20:,.0f} MiB at most: "
        f"choose a smaller --network, --hidden or --lstm{more}"
    )


_NO_PROGRAM = "{} has no compiled program of many batches: leave it out"
_FETCHES = "only the actors of impala and apex fetch weights: leave it out"


def _seed(config: RunConfig, agent: Agent) -> str | None:
    place = config.placement
    return (
        _too_far_behind(config, agent)
        or _without_effect(place, ("batches_per_call",), _NO_PROGRAM.format("seed"))
        or _without_effect(place, ("fetch_steps",), _FETCHES)
    )


def _beside_the_environments(config: RunConfig, agent: Agent) -> str | None:
    """IMPALA and Ape-X: actors run the policy."""
    arch, place = config.arch, config.placement
    if config.deterministic:
        return (
            f"what the policy remembers is with the actors under {arch}, and no checkpoint could hold it: leave "
            "--deterministic out (--lag 0 alone is reproducible while nothing is interrupted), or use --arch seed"
        )
    if place.fetch_steps is not None and place.lag != "free":
        return f"fetch_steps is {place.fetch_steps}, but with an exact lag every unroll has its version: leave it out"
    return (
        _too_far_behind(config, agent)
        or _without_effect(place, ("batches_per_call",), _NO_PROGRAM.format(arch))
        or _without_effect(
            place,
            ("inference_batch", "inference_wait_ms", "inference_devices"),
            f"{arch}'s actors run the policy, each for its own environments: leave it out",
        )
    )


def _rapid(config: RunConfig, agent: Agent) -> str | None:
    place = config.placement
    if config.deterministic:
        return (
            "what the policy remembers is with the forward-pass servers under rapid, and no checkpoint could hold it: "
            "leave --deterministic out (--lag 0 alone is reproducible while nothing is interrupted), or use --arch seed"
        )
    if place.actors < place.forward_servers:
        return (
            f"actors is {place.actors}, so of {place.forward_servers} forward-pass servers some have nobody to act "
            "for: give as many --actors or more, or fewer --forward-servers"
        )
    return (
        _too_far_behind(config, agent)
        or _without_effect(
            place,
            ("listen", "max_envs"),
            "rapid's rollout workers join the forward-pass servers of their own host: leave it out",
        )
        or _without_effect(place, ("batches_per_call",), _NO_PROGRAM.format("rapid"))
        or _without_effect(
            place, ("fetch_steps",), "rapid's servers fetch all weights that are published: leave it out"
        )
    )


def _sebulba(config: RunConfig, agent: Agent) -> str | None:
    place = config.placement
    if place.actors == 0:
        return "actors is 0, but only sebulba's own threads act: give one or more"
    if place.actors < len(place.inference_devices):
        return (
            f"actors is {place.actors}, so of {len(place.inference_devices)} devices that act some have no thread: "
            "give as many --actors or more, or fewer --actor-devices"
        )
    return _too_far_behind(config, agent) or _without_effect(
        place,
        (*_FOR_SERVING, "fetch_steps"),
        "sebulba's threads act each for their own environments: leave it out",
    )


def _too_far_behind(config: RunConfig, agent: Agent) -> str | None:
    lag = 0 if config.deterministic and config.placement.lag == "free" else config.placement.lag
    if not agent.data.on_policy:
        return None
    newest = f"{agent.name} learns only from what its newest weights did"
    if lag != 0:
        return f"{newest}, and the lag is {lag}: add --lag 0"
    place, batch_size = config.placement, agent.data.batch_size
    round_of_all = place.actors * place.envs_per_actor * config.cluster.hosts
    if round_of_all > batch_size:
        return (
            f"{newest}, and {round_of_all} environments are more than a batch of {batch_size}: what the "
            f"rest did would be trained on an update late. Use --batch-size {round_of_all}, or fewer --actors or "
            "--envs-per-actor"
        )
    return None


def _a3c(config: RunConfig, agent: Agent) -> str | None:
    del agent
    if config.deterministic:
        return (
            "a3c's threads race, so that no two runs are alike: leave --deterministic out, or use --arch a2c, which is "
            "the same without the race"
        )
    if config.placement.actors == 0:
        return "actors is 0, but only a3c's own threads act: give one or more"
    if len(config.placement.inference_devices) > 1:
        return f"inference_devices is {config.placement.inference_devices}, but all of a3c is on one device: give one"
    if config.placement.envs_per_actor not in (Placement.envs_per_actor, config.settings.batch_size):
        return (
            f"envs_per_actor is {config.placement.envs_per_actor}, but each environment of a thread gives an unroll to "
            "every gradient: leave it out; the number of a thread's environments is --batch-size"
        )
    if config.server.stale_gradients != "drop" and config.server.max_staleness is None:
        return "stale_gradients is scale, and a3c takes gradients however stale they are: add --max-staleness"
    return (
        _without_lag(config)
        or _without_effect(
            config.placement,
            (*_FOR_SERVING, "queue_size", "prefetch", "fetch_steps", "training_devices"),
            "a3c's threads act and learn each for their own environments: leave it out",
        )
        or _without_effect(config.server, _FOR_WORKERS, "a3c's shards are in its own process: leave it out")
        or _without_effect(config.server, _FOR_DATA, _NO_DATA)
    )


def _gorila(config: RunConfig, agent: Agent) -> str | None:
    place = config.placement
    del agent
    if config.deterministic:
        return (
            "gorila's workers race, and their replays are in no checkpoint: leave --deterministic out (with --actors 1 "
            "--lag 0 a run is reproducible while nothing is interrupted), or use --arch seed"
        )
    if place.actors == 0:
        return "actors is 0, but only the run's own workers act: give one or more"
    if place.transport == "inproc":
        return "transport is inproc, but gorila's workers and shards are processes: use shm or grpc"
    if place.eval_envs % place.actors:
        return (
            f"eval_envs is {place.eval_envs}, and {place.actors} workers cannot share them equally: use --eval-envs "
            f"{-(-place.eval_envs // place.actors) * place.actors}"
        )
    return _without_effect(
        place,
        ("listen", "max_envs", "inference_devices", "training_devices", "fetch_steps", "batches_per_call"),
        "gorila's workers act and learn each in a process of its own on this machine: leave it out",
    ) or _without_effect(config.server, _FOR_DATA, _NO_DATA)


def _distbelief(config: RunConfig, agent: Agent) -> str | None:
    place = config.placement
    del agent
    if config.server.dataset is None:
        return "distbelief learns from a data set: add --dataset DIR (seedbed collect RUN makes one)"
    if config.deterministic:
        return "distbelief's replicas race, so that no two runs are alike: leave --deterministic out"
    if place.actors == 0:
        return "actors is 0, and they are the replicas that learn: give one or more"
    if place.transport == "inproc":
        return "transport is inproc, but distbelief's replicas and shards are processes: use shm or grpc"
    unused = tuple(name for name in _PLACED if name not in ("actors", "transport"))
    return _without_effect(place, unused, "nobody acts under distbelief: leave it out")


def _a2c(config: RunConfig, agent: Agent) -> str | None:
    del agent
    return _without_lag(config) or _without_effect(
        config.placement,
        (*_FOR_ACTORS, "batches_per_call"),
        "a2c has one actor, in the learner's process: leave it out; the number of its environments is --batch-size",
    )


def _anakin(config: RunConfig, agent: Agent) -> str | None:
    del agent  # Any: what is learned from is what the newest weights did.
    advice = "anakin has no actors: leave it out; the number of environments in its program is --batch-size"
    return (
        _without_lag(config)
        or _without_effect(config.placement, _FOR_ACTORS, advice)
        or _without_effect(config.safety, ("actor_restarts",), advice)
    )


def _without_lag(config: RunConfig) -> str | None:
    if config.placement.lag in ("free", 0):
        return None
    return (
        f"lag is {config.placement.lag}, and {config.arch} always learns from what its newest weights did: "
        "leave it out"
    )


def _without_effect(
    section: Placement | Safety | Population | ParameterServer, names: tuple[str, ...], advice: str
) -> str | None:
    for part in fields(section):
        given = getattr(section, part.name)
        if part.name in names and given != part.default:
            return f"{part.name} is {given}, but {advice}"
    return None
