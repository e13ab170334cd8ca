"""A2C: environments in lockstep with their one learner (Mnih et al. 2016, algorithm S3; OpenAI's Baselines 2017).

::

      one process, one accelerator
    ┌────────────────────────────────────────────────────────────────┐
    │ environments ── observations ─► policy ── unrolls ─► learner   │
    │      ▲                            │ ▲                  │       │
    │      └───────── actions ──────────┘ └──── weights ─────┘       │
    └────────────────────────────────────────────────────────────────┘

All environments act, then all wait for the update. A2C consists of SEED's parts in one process: one actor in the
learner's process, whose environments each contribute one unroll to every batch, and a lag of 0.
"""

from __future__ import annotations

from dataclasses import dataclass

from seedbed.architectures.checks import acts
from seedbed.architectures.interface import Architecture
from seedbed.architectures.seed import SEED
from seedbed.config.placement import TrainingDeviceSettings
from seedbed.config.resolve import replace
from seedbed.config.settings import RunConfig


@dataclass(frozen=True)
class A2CSettings(TrainingDeviceSettings):
    """Placement of A2C's parts."""


def place(config: RunConfig) -> RunConfig:
    """Returns the settings of SEED with which its parts form A2C."""
    batch_size = config.settings.batch_size
    return replace(config, arch=SEED.name, transport="inproc", lag=0, actors=1, envs_per_actor=batch_size)


A2C = Architecture("a2c", A2CSettings, SEED.build, SEED.program, refuses=acts, place=place, policy="server")
