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
from seedbed.acting.inference import explores_least, initial_state, row_keys
from seedbed.acting.unrolls import step_arrays, step_fields, timestep_of
from seedbed.types import Agent, EnvSpec, Exploration, TimeStep, Tree, Unroll, Weights, leaves, rebuild


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
        self.overlap = agent.data.overlap
        self.length = agent.data.overlap + agent.data.unroll_length
        self._agent = agent
        example = example_unroll(agent, spec, self.length, rows)
        self._example = Growing(example.timestep, example.action, example.record)
        self.key = key
        """The random key; an argument of :attr:`act`, so that runs with other seeds are the same program."""
        self.act: Any = jax.jit(self._act, donate_argnums=2)
        self.finish: Any = jax.jit(self._finish, donate_argnums=0)
        self.continued: Any = jax.jit(self._continued)
        # One program: an operation for each array takes a busy interpreter a twentieth of its time.
        self._zeros: Any = jax.jit(
            lambda: jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), self._example)
        )

    def initial_state(self, device: Any, exploration: Exploration) -> Tree:
        """Makes the agent's recurrent state before the first step, on ``device``.

        Args:
          device: the JAX device.
          exploration: exploration of each environment, ``[B]``.
        """
        # A copy: arrays of an agent's initial state may be shared.
        return jax.tree.map(jnp.copy, jax.device_put(initial_state(self._agent, exploration), device))

    def empty(self, device: Any) -> Growing:
        """Makes an unroll of zeros, on ``device``."""
        with jax.default_device(device):
            zeros: Growing = self._zeros()
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

    def _continued(self, growing: Growing, done: Growing) -> Growing:
        """Begins the unroll ``growing`` with the overlap of the one that is ``done``."""
        first, last = self.length - self.overlap, self.length
        return jax.tree.map(lambda new, old: new.at[: self.overlap].set(old[first:last]), growing, done)


class Rollout:
    """The actions for one batch of environments, and its open unroll; used by one thread.

    Args:
      program: compiled policy that it runs.
      device: the JAX device on which it runs.
      slots: int32 ``[B]``, numbers of its environments.
      epoch: number of rollouts that had these slots before.
      exploration: exploration of each environment, ``[B]``; None: all explore least.
    """

    def __init__(
        self,
        program: CompiledPolicy,
        device: Any,
        slots: NDArray[np.int32],
        epoch: int,
        exploration: Exploration | None = None,
    ) -> None:
        self._program = program
        self._device = device
        self._key = jax.device_put(program.key, device)
        self._slots = slots
        self._epoch = epoch
        self.state = program.initial_state(device, exploration or explores_least(program.rows))
        self._begin()

    def _begin(self) -> None:
        """Begins an unroll that shares nothing with one before it."""
        self._first = self._next = self.state
        self._growing = self._program.empty(self._device)
        self._versions = np.zeros((self._program.length, self._program.rows), np.int32)
        self._decided = self._shared = 0

    @property
    def full(self) -> bool:
        """True once all steps but the last are decided, so that the next step completes the unroll."""
        return self._decided == self._program.length

    @property
    def transitions(self) -> int:
        """Number of decisions in the open unroll, over all rows, that were in no unroll before."""
        return (self._decided - self._shared) * self._program.rows

    def act(self, params: Tree, timestep: TimeStep, step: int) -> NDArray[Any]:
        """Decides for the environments' newest step, their ``step``-th; returns actions ``[B, ...]`` on the host."""
        if self._decided == self._program.length - self._program.overlap:
            self._next = self.state
        counters = np.array([self._epoch, step, self._decided], np.int32)
        action, self.state, self._growing = self._program.act(
            params, self.state, self._growing, self._key, self._slots, step_arrays(timestep), counters
        )
        # Waited for: environments may overwrite their observations once they are stepped.
        decided = np.asarray(jax.device_get(action), self._program.spec.action.dtype)
        self._decided += 1
        return decided

    def cut(self, timestep: TimeStep, version: int) -> Unroll:
        """Returns the complete unroll, whose last step is ``timestep``; begins the next one with that step.

        ``version`` is that of the weights that decided in it. All of it is on the device, except for the versions.
        """
        done = jax.block_until_ready(self._program.finish(self._growing, step_arrays(timestep)))
        self._versions[self._shared :] = version
        unroll = Unroll(done.timestep, done.action, done.record, self._first, self._versions)
        first, overlap = self._next, self._program.overlap
        self._begin()
        if overlap:
            self._first = first
            self._growing = self._program.continued(self._growing, done)
            self._versions[:overlap] = unroll.version[-overlap:]
            self._decided = self._shared = overlap
        return unroll

    # At the beginning of an unroll, for a checkpoint.

    @property
    def first(self) -> Tree:
        """The agent's recurrent state before the first step of the open unroll."""
        return self._first

    def shared(self) -> list[NDArray[Any]]:
        """Returns the part of the open unroll that the one before has too: steps, actions, versions and record."""
        if not self._shared:
            return []
        steps, action, record = jax.device_get(self._growing)
        arrays = [*step_arrays(steps), action, self._versions, *(leaf for _, leaf in leaves(record))]
        return [array[: self._shared].copy() for array in arrays]

    def restore(self, state: Tree, first: Tree, shared: Sequence[NDArray[Any]]) -> None:
        """Restores :attr:`state`, :attr:`first` and a result of :meth:`shared`."""
        self.state, kept = (
            jax.tree.map(jnp.copy, jax.device_put(tree, self._device)) for tree in (state, first)
        )
        self._begin()
        if not shared:
            return
        self._first, self._decided = kept, len(shared[0])
        self._shared = self._decided
        count = len(step_fields(self._program.spec, self._program.rows))
        action, versions, *record = shared[count:]
        self._versions[: self._shared] = versions
        before = Growing(
            timestep_of(self._program.spec, shared[:count]), action, rebuild(self._growing.record, record)
        )
        self._growing = jax.tree.map(
            lambda new, old: new.at[: self._shared].set(old),
            self._growing,
            jax.device_put(before, self._device),
        )


def warm_up(program: CompiledPolicy, device: Any, weights: Weights) -> None:
    """Compiles all programs for ``device``, so that no environment waits for it."""
    rollout = Rollout(program, device, np.zeros(program.rows, np.int32), 0)
    timestep = _zeros(program)
    rollout.act(weights.params, timestep, 0)
    rollout.cut(timestep, weights.version)


def _zeros(program: CompiledPolicy) -> TimeStep:
    fields: Sequence[tuple[tuple[int, ...], str]] = step_fields(program.spec, program.rows)
    return timestep_of(program.spec, [np.zeros(shape, dtype) for shape, dtype in fields])
