"""Sebulba: a host's accelerators, some that act and some that learn (Hessel et al. 2021, "Podracer architectures").

::

    one process
    ┌───────────────────────────────────────────────────────────────────────────────┐
    │ actor threads              devices that act            devices that train     │
    │ ┌──────────────┐ observations ┌──────────────┐  unrolls  ┌──────────────────┐ │
    │ │ environments │ ───────────► │ policy,      │ ────────► │ batch ─► updates │ │
    │ │ of the host  │ ◄─────────── │ open unrolls │ ◄──────── │                  │ │
    │ └──────────────┘   actions    └──────────────┘  weights  └──────────────────┘ │
    │        × threads                  × devices                  × devices        │
    └───────────────────────────────────────────────────────────────────────────────┘

Every thread steps its own batch of environments and runs the policy on an accelerator that it shares with other
threads: one thread steps while the policy acts for another. Unrolls grow on the accelerator and go from there to the
training devices, never through the host.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from seedbed.acting.actor_threads import ActorThreads, LearnerGate
from seedbed.acting.rollout import CompiledPolicy
from seedbed.acting.thread_source import ThreadSource, memory_names
from seedbed.architectures.checks import acts, no_actors, too_far_behind
from seedbed.architectures.devices import pick
from seedbed.architectures.interface import Architecture, Setup
from seedbed.architectures.parts import Parts, make_parts, restored_tables
from seedbed.architectures.program import Acts, Environments, Program
from seedbed.architectures.roles import learner, threads, training
from seedbed.config.placement import (
    FOR_REPLAYS,
    EnvironmentSettings,
    HostSettings,
    InferenceDeviceSettings,
    LearnerSettings,
    PrioritySettings,
    TrainingDeviceSettings,
)
from seedbed.config.settings import RunConfig
from seedbed.learning.loop import LearnerLoop
from seedbed.priority import niceness_beside
from seedbed.seeding import key
from seedbed.types import Agent, EnvSpec


@dataclass(frozen=True)
class SebulbaSettings(
    HostSettings,
    LearnerSettings,
    TrainingDeviceSettings,
    InferenceDeviceSettings,
    PrioritySettings,
    EnvironmentSettings,
):
    """Placement of Sebulba's parts."""

    actors: int = 2
    """Actor threads."""
    envs_per_actor: int = 16
    """Environments of each thread; one thread steps while the policy acts for another."""

    replay_on: Literal["host", "device"] = field(default="host", metadata=FOR_REPLAYS)
    """Memory of the replay: the host's, or that of the first training device, where unrolls then stay."""

    @property
    def stepped_together(self) -> int:
        """Environments in each batch that a thread steps, all of its own."""
        return self.envs_per_actor

    @property
    def largest_batch(self) -> int:
        """Environments in the batch that a thread acts for, all of its own."""
        return self.envs_per_actor


def check(config: RunConfig, agent: Agent) -> str | None:
    """Returns the reason why settings do not go together; None if they do."""
    place = config.placement
    if (reason := no_actors(config, "threads")) is not None:
        return reason
    if place.actors < len(place.inference_devices):
        return (
            f"actors is {place.actors}, so of {len(place.inference_devices)} devices that act some have no thread: "
            "give as many --actors or more, or fewer --actor-devices"
        )
    if place.eval_envs and agent.data.replay is None:
        return (
            f"eval_envs is {place.eval_envs}, but threads hand over unrolls of all their environments: leave it out, "
            "or use --arch seed or impala"
        )
    if place.replay_on == "device" and agent.data.replay and agent.data.replay.parts:
        return "replay_on is device, where a host has one part of the replay: leave --replay-parts out"
    return too_far_behind(config, agent)


def build(setup: Setup) -> LearnerLoop:
    """Builds the head, with actor threads that the supervisor starts."""
    place = setup.config.placement
    devices = pick("inference", place.inference_devices)
    on_device = place.replay_on == "device"
    training = pick("training", place.training_devices)[0] if on_device else None
    parts = make_parts(setup, devices, lanes=place.actors, replay_device=training)
    gather = None if setup.agent.data.replay else parts.learner.gather
    return parts.loop(_threads(parts, devices), assemble=gather)


def _threads(parts: Parts, devices: list[Any]) -> ThreadSource:
    """Returns the source whose actors are threads; the policy runs on these devices."""
    setup = parts.setup
    config, place = setup.config, setup.config.placement
    gate = LearnerGate(
        threads=place.actors, store=parts.store, hand_over=parts.hand_over, rounds=parts.rounds
    )
    parts.store.listen(gate.poke)
    parts.memory.listen(gate.poke)
    threads = ActorThreads(
        assignment=parts.assignment,
        program=CompiledPolicy(setup.agent, setup.spec, place.envs_per_actor, key(config.seed, "acting")),
        devices=devices,
        gate=gate,
        ledger=parts.books.ledger,
        log=str(setup.log),
        first_epoch=parts.beginning.first_epoch,
        meters=parts.meters,
        resumable=_states(parts),
        on_host=setup.agent.data.replay is not None and place.replay_on == "host",
        niceness=niceness_beside(devices[0].platform)
        if place.actor_niceness is None
        else place.actor_niceness,
    )
    return ThreadSource(threads, gate, parts.store)


def _states(parts: Parts) -> dict[int, dict[str, Any]]:
    """Returns the state of each thread in the checkpoint, by index, including the agent's recurrent states."""
    setup = parts.setup
    like = setup.agent.initial_state(setup.config.placement.envs_per_actor)
    lanes = {index: lane for (index, _), lane in parts.beginning.lanes.items()}
    names = {index: memory_names(index, setup.agent.data.overlap) for index in lanes}
    kept = restored_tables(parts, lambda: {name: like for each in names.values() for name in each})
    return {
        index: {**lane, "state": kept[names[index][0]], "first": kept[names[index][-1]]}
        for index, lane in lanes.items()
    }


def program(config: RunConfig, agent: Agent, spec: EnvSpec) -> Program:
    """Returns the roles of a run: the learner and its threads, with no traffic between processes."""
    del spec
    place = config.placement
    steps, acts = (
        Environments(place.envs_per_actor),
        Acts(place.envs_per_actor, devices=place.inference_devices),
    )
    head = learner(config, agent, trains=training(config, agent))
    return Program((head, threads(config, steps=steps, acts=acts)), hosts=config.cluster.hosts)


SEBULBA = Architecture("sebulba", SebulbaSettings, build, program, refuses=acts, check=check, policy="thread")
