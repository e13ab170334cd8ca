"""A2C: environments in lockstep with their one learner (Mnih et al. 2016, algorithm S3; OpenAI's Baselines 2017).

::

      one process, one accelerator
    ┌────────────────────────────────────────────────────────────────┐
    │ environments ── observations ─► policy ── unrolls ─► learner   │
    │      ▲                            │ ▲                  │       │
    │      └───────── actions ──────────┘ └──── weights ─────┘       │
    └────────────────────────────────────────────────────────────────┘

All environments act, then all wait for the update. That is SEED's parts on one spot: one actor in the learner's
process, whose environments each give an unroll to every batch, and a lag of 0.
"""

from __future__ import annotations

from seedbed.config.resolve import replace
from seedbed.config.settings import RunConfig


def place(config: RunConfig) -> RunConfig:
    """Where SEED's parts stand to make an A2C of it."""
    return replace(config, transport="inproc", lag=0, actors=1, envs_per_actor=config.settings.batch_size)
