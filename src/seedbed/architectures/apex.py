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

It is IMPALA's diagram with a replay in the place of the queue. Actors explore each by its own share of random actions,
compute the first priorities of what they send from what they recorded when they acted, and fetch the newest weights
every so many steps. R2D2's actors send sequences in the same way (Kapturowski et al. 2019, section 2.3).
"""

from __future__ import annotations

from dataclasses import dataclass

from seedbed.architectures.checks import acts_and_samples
from seedbed.architectures.impala import check, learning_from_actors
from seedbed.architectures.interface import Architecture, Setup
from seedbed.config.placement import (
    FetchSettings,
    LearnerSettings,
    RemoteSettings,
    TrainingDeviceSettings,
    TransportSettings,
)
from seedbed.learning.loop import LearnerLoop

FETCH_FRAMES = 400
"""Environment frames between two fetches of the weights (Horgan et al. 2018, appendix C)."""


@dataclass(frozen=True)
class ApexSettings(FetchSettings, LearnerSettings, TrainingDeviceSettings, RemoteSettings, TransportSettings):
    """Placement of Ape-X's parts."""


def build(setup: Setup) -> LearnerLoop:
    """Puts together everything but the actors: IMPALA's parts, and the agent's replay is their memory."""
    given = setup.config.placement.fetch_steps
    steps = -(-FETCH_FRAMES // setup.spec.frames_per_step) if given is None else given
    return learning_from_actors(setup, fetch_steps=steps)


APEX = Architecture("apex", ApexSettings, build, refuses=acts_and_samples, check=check, policy="actor")
