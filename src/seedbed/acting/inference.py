"""The policy on one accelerator, with a slot for every environment it acts for.

A slot is a row in two tables on the device: the agent's state now, and its state before the first step of the
slot's open unroll. Both stay on the device; what travels to the host are actions and records.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from seedbed.acting.batcher import bucket_for
from seedbed.acting.unrolls import Begins, step_fields, timestep_of
from seedbed.types import Agent, EnvSpec, Exploration, Tree


def initial_state(agent: Agent, exploration: Exploration) -> Tree:
    """The agent's state ``[n, ...]`` before the first step, for environments ``[n]`` that explore so."""
    state = agent.initial_state(exploration.rank.shape[0])
    if agent.explore is None:
        return state
    return agent.explore(state, Exploration(*map(jnp.asarray, exploration)))


def explores_least(rows: int) -> Exploration:
    """The exploration of environments ``[rows]`` of which nothing is known."""
    return Exploration(np.ones(rows, np.float32), np.zeros(rows, np.bool_))


class Inference:
    """Acts for batches of slots; used by one thread.

    Args:
      agent: whose ``act`` is run.
      spec: of the environments.
      capacity: slots; one more row serves as a bin for the padding of batches.
      sizes: the batch sizes to compile for, ascending; batches are padded to the next one.
      device: the JAX device.
      key: the root of all randomness of acting. What is drawn depends on the slot, on the epoch of the actor
        that holds it and on the lane's step count, never on what is batched together.
      numbers: int32 ``[capacity]``, each slot's number among those of all hosts; None if there is one host.
      exploration: of each slot, ``[capacity]``; None: all explore least.
    """

    def __init__(
        self,
        agent: Agent,
        spec: EnvSpec,
        capacity: int,
        sizes: Sequence[int],
        device: Any,
        key: Any,
        numbers: NDArray[np.int32] | None = None,
        exploration: Exploration | None = None,
    ) -> None:
        self._agent = agent
        self._spec = spec
        self._capacity = capacity
        self._sizes = tuple(sizes)
        self._device = device
        numbers = np.arange(capacity, dtype=np.int32) if numbers is None else numbers
        # On the host, as what every program is given: a slot may pass to somebody else.
        self._numbers = np.append(numbers, np.int32(0))
        explored = exploration or explores_least(capacity)
        rank, evaluates = np.asarray(explored.rank, np.float32), np.asarray(explored.evaluates, np.bool_)
        self._exploration = Exploration(np.append(rank, np.float32(1.0)), np.append(evaluates, np.False_))
        self._key = jax.device_put(key, device)
        # Committed to the device, as what every call gives back is: otherwise the first size compiles twice.
        initial = jax.device_put(initial_state(agent, self._exploration), device)
        self._states = jax.tree.map(jnp.copy, initial)
        self._firsts = jax.tree.map(jnp.copy, initial)
        # Where unrolls overlap, the next one begins before the present one is cut.
        self._nexts = jax.tree.map(jnp.copy, initial) if agent.data.overlap else {}
        # Of this object's own: what a decorator compiles is kept, with all tables, as long as the process lives.
        self._act = jax.jit(self._act_batch, donate_argnums=(1, 2, 3))
        self._reset = jax.jit(self._reset_slots, donate_argnums=0)
        self._gather = jax.jit(_rows)
        self._turn = jax.jit(_move, donate_argnums=0)

    @property
    def largest(self) -> int:
        """Rows of the largest batch."""
        return self._sizes[-1]

    def _act_batch(
        self, params: Tree, states: Tree, firsts: Tree, nexts: Tree, key: Any, arrays: list[Any], columns: Any
    ) -> tuple[Any, Tree, Tree, Tree]:
        """One batch. ``columns`` int32 ``[5, B]``: slot, epoch, step, whether an unroll begins (``Begins``), number."""
        slot, epoch, step, begins, number = columns
        state = _rows(states, slot)

        def keep(table: Any, rows: Any, which: Begins) -> Any:
            return table.at[jnp.where(begins == which, slot, self._capacity)].set(rows)

        firsts = jax.tree.map(lambda table, rows: keep(table, rows, Begins.THIS), firsts, state)
        if self._agent.data.overlap:
            nexts = jax.tree.map(lambda table, rows: keep(table, rows, Begins.NEXT), nexts, state)
        output, state = self._agent.act(
            params,
            row_keys(key, number, epoch, step),
            timestep_of(self._spec, arrays),
            state,
        )
        states = jax.tree.map(lambda table, rows: table.at[slot].set(rows), states, state)
        return output, states, firsts, nexts

    def _reset_slots(self, states: Tree, slots: Any, exploration: Exploration) -> Tree:
        initial = initial_state(self._agent, exploration)
        return jax.tree.map(lambda table, rows: table.at[slots].set(rows), states, initial)

    def assign(self, slots: NDArray[np.int32], numbers: Sequence[int], exploration: Exploration) -> None:
        """Gives the slots other environments from now on; see the class."""
        self._numbers[slots] = numbers
        self._exploration.rank[slots], self._exploration.evaluates[slots] = exploration

    def warm_up(self, params: Tree) -> None:
        """Compiles for every batch size, so that nothing is compiled while actors wait."""
        for size in self._sizes:
            arrays = [np.zeros(shape, dtype) for shape, dtype in step_fields(self._spec, size)]
            self._run(params, arrays, self._padding(size))
            nobody = np.full(size, self._capacity, np.int32)
            self.reset(nobody)
            self.first_states(nobody)

    def reset(self, slots: NDArray[np.int32]) -> None:
        """Gives the slots the agent's initial state; call it when a new lane takes them."""
        padded = self._padded(slots)
        self._states = self._reset(
            self._states, padded, Exploration(*(column[padded] for column in self._exploration))
        )

    def act(
        self, params: Tree, batch: Sequence[tuple[Sequence[NDArray[Any]], NDArray[np.int32]]]
    ) -> tuple[NDArray[Any], Tree]:
        """Acts for several lanes at once.

        Args:
          params: on this device.
          batch: for each lane its step's arrays ``[n, ...]`` and its columns int32 ``[4, n]`` (slot, epoch,
            step, begins an unroll).

        Returns:
          Actions ``[sum of n, ...]`` and the record, as NumPy arrays on the host.
        """
        rows = sum(columns.shape[1] for _, columns in batch)
        size = bucket_for(rows, self._sizes)
        padding = size - rows
        columns = np.concatenate([c for _, c in batch] + [self._padding(padding)], axis=1)
        arrays = [
            np.concatenate([*parts, np.zeros((padding, *parts[0].shape[1:]), parts[0].dtype)])
            if padding or len(parts) > 1
            else parts[0]
            for parts in zip(*(a for a, _ in batch), strict=True)
        ]
        output = self._run(params, arrays, columns)
        action, record = jax.device_get((output.action, output.record))
        return action[:rows], jax.tree.map(lambda x: x[:rows], record)

    def _padding(self, rows: int) -> NDArray[np.int32]:
        columns = np.zeros((4, rows), np.int32)
        columns[0] = self._capacity
        return columns

    def _padded(self, slots: NDArray[np.int32]) -> NDArray[np.int32]:
        padded = np.full(bucket_for(len(slots), self._sizes), self._capacity, np.int32)
        padded[: len(slots)] = slots
        return padded

    def _run(self, params: Tree, arrays: list[NDArray[Any]], columns: NDArray[Any]) -> Any:
        columns = np.concatenate([columns, self._numbers[columns[:1]]])
        output, self._states, self._firsts, self._nexts = self._act(
            params, self._states, self._firsts, self._nexts, self._key, arrays, columns
        )
        return output

    def first_states(self, slots: NDArray[np.int32]) -> Tree:
        """The agent's states ``[n, ...]`` before the first step of the slots' open unrolls, on the host.

        To be called once for each unroll, when it is complete: where unrolls overlap, the next one is open then.
        """
        padded = self._padded(slots)
        rows = jax.device_get(self._gather(self._firsts, padded))
        if self._agent.data.overlap:
            self._firsts = self._turn(self._firsts, self._nexts, padded)
        return jax.tree.map(lambda leaf: leaf[: len(slots)], rows)

    def tables(self) -> Tree:
        """All slots' states, for a checkpoint."""
        return jax.device_get({"states": self._states, "firsts": self._firsts, "nexts": self._nexts})

    def restore(self, tables: Tree) -> None:
        """Puts back what :meth:`tables` gave."""
        tables = jax.device_put(tables, self._device)
        # A copy of our own: the tables are donated to every call.
        self._states = jax.tree.map(jnp.copy, tables["states"])
        self._firsts = jax.tree.map(jnp.copy, tables["firsts"])
        self._nexts = jax.tree.map(jnp.copy, tables["nexts"])


def _rows(tables: Tree, slots: Any) -> Tree:
    return jax.tree.map(lambda table: table[slots], tables)


def _move(tables: Tree, others: Tree, slots: Any) -> Tree:
    return jax.tree.map(lambda table, other: table.at[slots].set(other[slots]), tables, others)


def row_keys(key: Any, slot: Any, epoch: Any, step: Any) -> Any:
    """One key a row, of int32 ``[B]`` each: what every architecture acts with, so that all draw the same."""

    def fold(*counters: Any) -> Any:
        folded = key
        for counter in counters:
            folded = jax.random.fold_in(folded, counter)
        return folded

    return jax.vmap(fold)(slot, epoch, step)
