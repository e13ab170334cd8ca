"""Ape-X: actors fill a prioritized replay, one learner samples it (Horgan et al. 2018, algorithms 1 and 2).

::

      actor processes                                 the learner's process
    ┌──────────────────────────────┐  transitions,  ┌──────────────────────────────────┐
    │ environments ─► policy,      │  priorities    │ registry ─► service ─► replay    │
    │       ▲        open unrolls, │ ─────────────► │              ▲       ▲ │ batches,│
    │       │        priorities    │   transport    │      weights │  new  │ │ weights │
    │       └── actions ──┘        │ ◄───────────── │              │ prio- │ ▼         │
    └──────────────────────────────┘    weights     │              │ rities│ learner   │
               × actors                             └──────────────────────────────────┘

The diagram is IMPALA's, with a replay in the place of the queue. Each actor explores with its own share of random
actions, computes the initial priorities of its transitions from the values that it recorded while acting, and fetches
the newest weights every so many steps. R2D2's actors send sequences in the same way (Kapturowski et al. 2019, section
2.3).
"""

from __future__ import annotations

from dataclasses import dataclass

from seedbed.architectures.checks import acts_and_samples
from seedbed.architectures.impala import check, learning_from_actors, program_with
from seedbed.architectures.interface import Architecture, Setup
from seedbed.architectures.program import Program
from seedbed.config.placement import (
    FetchSettings,
    HostSettings,
    LearnerSettings,
    RemoteSettings,
    TrainingDeviceSettings,
    TransportSettings,
)
from seedbed.config.settings import RunConfig
from seedbed.learning.loop import LearnerLoop
from seedbed.types import Agent, EnvSpec

FETCH_FRAMES = 400
"""Environment frames between two fetches of the weights (Horgan et al. 2018, appendix C)."""


@dataclass(frozen=True)
class ApexSettings(
    HostSettings, FetchSettings, LearnerSettings, TrainingDeviceSettings, RemoteSettings, TransportSettings
):
    """Placement of Ape-X's parts."""


def build(setup: Setup) -> LearnerLoop:
    """Builds the head: IMPALA's parts, with the agent's replay as their memory."""
    return learning_from_actors(setup, fetch_steps=fetch_steps(setup.config, setup.spec))


def fetch_steps(config: RunConfig, spec: EnvSpec) -> int:
    """Returns the number of steps of an environment between two fetches of the weights."""
    given: int | None = config.placement.fetch_steps
    return -(-FETCH_FRAMES // spec.frames_per_step) if given is None else given


def program(config: RunConfig, agent: Agent, spec: EnvSpec) -> Program:
    """Returns the roles of a run, which are IMPALA's."""
    return program_with(config, agent, spec, fetch_steps(config, spec))


APEX = Architecture(
    "apex", ApexSettings, build, program, refuses=acts_and_samples, check=check, policy="actor"
)
