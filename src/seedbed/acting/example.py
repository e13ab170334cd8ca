"""Unrolls of zeros, for which a learner is compiled before the first real one comes."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from seedbed.acting.unrolls import step_fields, timestep_of
from seedbed.seeding import key
from seedbed.types import Agent, EnvSpec, Unroll


def example_unroll(agent: Agent, spec: EnvSpec, length: int, rows: int) -> Unroll:
    """Makes an unroll of ``length`` transitions of ``rows`` environments, with the shapes and dtypes of real ones.

    It has weights where the agent's batches come from a replay.
    """
    timestep = timestep_of(
        spec, [np.zeros((length + 1, *shape), dtype) for shape, dtype in step_fields(spec, rows)]
    )
    params = jax.eval_shape(agent.init, key(0, "example"))
    keys = jax.random.split(key(0, "example"), rows)
    state = jax.eval_shape(lambda: agent.initial_state(rows))
    first = jax.tree.map(lambda array: array[0], timestep)
    output, _ = jax.eval_shape(agent.act, params, keys, first, state)

    def zeros(shaped: Any, *leading: int) -> np.ndarray[Any, Any]:
        return np.zeros((*leading, *shaped.shape), shaped.dtype)

    return Unroll(
        timestep,
        zeros(output.action, length),
        jax.tree.map(lambda array: zeros(array, length), output.record),
        jax.tree.map(zeros, state),
        np.zeros((length, rows), np.int32),
        np.ones(rows, np.float32) if agent.data.replay else None,
    )
