"""Traffic between the roles of a program, in bytes, computed from the layouts of its messages."""

from __future__ import annotations

import math
from typing import Any

import jax
import numpy as np

from seedbed.acting.codec import VERSION, UnrollCodec, WeightsCodec
from seedbed.acting.unrolls import step_fields
from seedbed.architectures.program import Traffic
from seedbed.seeding import key
from seedbed.transport.interface import Layout
from seedbed.types import Agent, EnvSpec


def steps(spec: EnvSpec) -> tuple[Traffic, ...]:
    """Returns the traffic of actors under central inference: observations and actions at every step."""
    action = Layout(((spec.action.shape, spec.action.dtype),))
    return (
        Traffic("observation, reward, three flags", "up", Layout(step_fields(spec, 1)).payload, "step"),
        Traffic("action", "down", action.payload, "step"),
    )


def unrolls(agent: Agent, spec: EnvSpec, rows: int, *, players: bool = False) -> tuple[Traffic, ...]:
    """Returns the traffic of actors that run the policy themselves.

    Args:
      agent: the agent.
      spec: spec of the environments.
      rows: number of environments in a lane.
      players: whether the versions that play come along (self-play).
    """
    what = "unroll, first priorities" if agent.priorities else "unroll"
    return (
        Traffic(what, "up", UnrollCodec(agent, spec, 1, players=players).layout.payload, "unroll"),
        Traffic("version of the next weights", "down", VERSION.payload / rows, "unroll"),
    )


def snapshots(agent: Agent, every: int = 1, *, opponents: int = 0) -> Traffic:
    """Returns the traffic of weights that are fetched at most once in ``every`` updates.

    In self-play, of ``opponents`` versions at most, the table of the pool comes along.
    """
    return Traffic("weights", "down", WeightsCodec(agent, opponents).layout.payload / max(every, 1), "update")


def gradients(agent: Agent, *, n_push: int = 1, n_fetch: int = 1) -> tuple[Traffic, ...]:
    """Returns the traffic of a worker: one push per ``n_push`` gradients, one fetch of parameters per ``n_fetch``."""
    nbytes = bytes_of(jax.eval_shape(agent.init, key(0, "example")))
    return (
        Traffic("gradient", "up", nbytes / n_push, "gradient"),
        Traffic("parameters", "down", nbytes / n_fetch, "gradient"),
    )


def bytes_of(tree: Any) -> int:
    """Returns the bytes of all leaves of a tree of arrays, or of shapes and dtypes."""
    return sum(math.prod(leaf.shape) * np.dtype(leaf.dtype).itemsize for leaf in jax.tree.leaves(tree))
