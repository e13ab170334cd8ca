"""The policy for one batch of host environments, on one accelerator, on which its unrolls are built and stay.

Observations go to the accelerator, actions come back. (Central inference, :mod:`seedbed.acting.inference`, serves lanes
of many actors together and cuts unrolls on the host.)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from seedbed.acting.example import example_unroll
from seedbed.acting.inference import row_keys
from seedbed.acting.unrolls import step_arrays, step_fields, timestep_of
from seedbed.types import Agent, EnvSpec, TimeStep, Tree, Unroll, Weights


class Growing(NamedTuple):
    """The open unroll on the device, time-major; steps that were not written yet hold meaningless values.

    Attributes:
      timestep: time steps ``[T+1, B, ...]``.
      action: actions ``[T, B, ...]``.
      record: tree of recorded outputs of the policy, ``[T, B, ...]``.
    """

    timestep: TimeStep
    action: Any
    record: Tree


class CompiledPolicy:
    """The programs that rollouts run on their accelerators, compiled once for all of one size; used by many threads.

    Args:
      agent: the agent whose ``act`` is run.
      spec: spec of the environments.
      rows: B, number of environments of each rollout.
      key: root of all randomness of acting, as for :class:`~seedbed.acting.inference.Inference`: random numbers depend
        on an environment's slot, its actor's epoch and the step.
    """

    def __init__(self, agent: Agent, spec: EnvSpec, rows: int, key: Any) -> None:
        self.spec = spec
        self.rows = rows
        self.length = agent.data.unroll_length
        self._agent = agent
        example = example_unroll(agent, spec, self.length, rows)
        self._example = Growing(example.timestep, example.action, example.record)
        self.key = key
        """The random key; an argument of :attr:`act`, so that runs with other seeds are the same program."""
        self.act: Any = jax.jit(self._act, donate_argnums=2)
        self.finish: Any = jax.jit(self._finish, donate_argnums=0)

    def initial_state(self, device: Any) -> Tree:
        """Makes the agent's recurrent state before the first step, on ``device``."""
        # A copy: arrays of an agent's initial state may be shared.
        return jax.tree.map(jnp.copy, jax.device_put(self._agent.initial_state(self.rows), device))

    def empty(self, device: Any) -> Growing:
        """Makes an unroll of zeros, on ``device``."""
        with jax.default_device(device):
            zeros: Growing = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), self._example)
        return zeros

    def _act(
        self,
        params: Tree,
        state: Tree,
        growing: Growing,
        key: Any,
        slots: Any,
        arrays: list[Any],
        counters: Any,
    ) -> tuple[Any, Tree, Growing]:
        """Decides for one step, at index ``t`` of the unroll; ``counters`` int32 ``[3]``: epoch, step, t."""
        epoch, step, at = counters
        timestep = timestep_of(self.spec, arrays)
        keys = row_keys(key, slots, jnp.full_like(slots, epoch), jnp.full_like(slots, step))
        output, state = self._agent.act(params, keys, timestep, state)
        now = Growing(timestep, output.action, output.record)
        return output.action, state, jax.tree.map(lambda whole, row: whole.at[at].set(row), growing, now)

    def _finish(self, growing: Growing, arrays: list[Any]) -> Growing:
        last = timestep_of(self.spec, arrays)
        timestep = jax.tree.map(lambda whole, row: whole.at[-1].set(row), growing.timestep, last)
        return growing._replace(timestep=timestep)


class Rollout:
    """The actions for one batch of environments, and its open unroll; used by one thread.

    Args:
      program: compiled policy that it runs.
      device: the JAX device on which it runs.
      slots: int32 ``[B]``, numbers of its environments.
      epoch: number of rollouts that had these slots before.
    """

    def __init__(self, program: CompiledPolicy, device: Any, slots: NDArray[np.int32], epoch: int) -> None:
        self._program = program
        self._device = device
        self._key = jax.device_put(program.key, device)
        self._slots = slots
        self._epoch = epoch
        self.state = program.initial_state(device)
        self._begin()

    def _begin(self) -> None:
        self._first = self.state
        self._growing = self._program.empty(self._device)
        self.decided = 0

    @property
    def full(self) -> bool:
        """True once T steps are decided, so that the next step completes the unroll."""
        return self.decided == self._program.length

    def act(self, params: Tree, timestep: TimeStep, step: int) -> NDArray[Any]:
        """Decides for the environments' newest step, their ``step``-th; returns actions ``[B, ...]`` on the host."""
        counters = np.array([self._epoch, step, self.decided], np.int32)
        action, self.state, self._growing = self._program.act(
            params, self.state, self._growing, self._key, self._slots, step_arrays(timestep), counters
        )
        # Waited for: environments may overwrite their observations once they are stepped.
        decided = np.asarray(jax.device_get(action), self._program.spec.action.dtype)
        self.decided += 1
        return decided

    def cut(self, timestep: TimeStep, version: int) -> Unroll:
        """Returns the complete unroll, whose last step is ``timestep``; begins the next one with that step.

        All of it is on the device, except for the versions of the weights.
        """
        done = jax.block_until_ready(self._program.finish(self._growing, step_arrays(timestep)))
        versions = np.full((self._program.length, self._program.rows), version, np.int32)
        unroll = Unroll(done.timestep, done.action, done.record, self._first, versions)
        self._begin()
        return unroll

    def restore(self, state: Tree) -> None:
        """Restores the agent's recurrent :attr:`state`, at the beginning of an unroll."""
        self.state = jax.tree.map(jnp.copy, jax.device_put(state, self._device))
        self._begin()


def warm_up(program: CompiledPolicy, device: Any, weights: Weights) -> None:
    """Compiles all programs for ``device``, so that no environment waits for it."""
    rollout = Rollout(program, device, np.zeros(program.rows, np.int32), 0)
    timestep = _zeros(program)
    rollout.act(weights.params, timestep, 0)
    rollout.cut(timestep, weights.version)


def _zeros(program: CompiledPolicy) -> TimeStep:
    fields: Sequence[tuple[tuple[int, ...], str]] = step_fields(program.spec, program.rows)
    return timestep_of(program.spec, [np.zeros(shape, dtype) for shape, dtype in fields])
