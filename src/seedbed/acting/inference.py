"""The policy on one accelerator, with a slot for every environment that it acts for.

A slot is a row in two tables on the device: the agent's recurrent state now, and its state before the first step of
the slot's open unroll. Both stay on the device; only actions and records travel to the host.
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


class Inference:
    """The policy for batches of slots; used by one thread.

    Args:
      agent: the agent whose ``act`` is run.
      spec: spec of the environments.
      capacity: number of slots; the tables have one more row, for the padding of batches.
      sizes: batch sizes to compile for, ascending; batches are padded to the next one.
      device: the JAX device.
      key: root of all randomness of acting. Random numbers depend on the slot's number, on the epoch of the actor
        that holds the slot and on the lane's step count, never on the other slots of a batch.
      numbers: int32 ``[capacity]``, number of each slot among the slots of all hosts; None for a single host.
      exploration: exploration of each slot, ``[capacity]``; None: all explore least.
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
        # On the host, as arguments of every call: a slot may pass to another actor.
        self._numbers = np.append(numbers, np.int32(0))
        explored = exploration or Exploration(np.ones(capacity, np.float32), np.zeros(capacity, np.bool_))
        rank, evaluates = np.asarray(explored.rank, np.float32), np.asarray(explored.evaluates, np.bool_)
        self._exploration = Exploration(np.append(rank, np.float32(1.0)), np.append(evaluates, np.False_))
        self._key = jax.device_put(key, device)
        # Committed to the device, as the results of every call are: otherwise the first size compiles twice.
        initial = jax.device_put(self._initial(self._exploration), device)
        self._states = jax.tree.map(jnp.copy, initial)
        self._firsts = jax.tree.map(jnp.copy, initial)
        # Where unrolls overlap, the next one begins before the present one is cut.
        self._nexts = jax.tree.map(jnp.copy, initial) if agent.data.overlap else {}
        # Wrapped per object: programs that a decorator compiles are kept, with all tables, for the life of the process.
        self._act = jax.jit(self._act_batch, donate_argnums=(1, 2, 3))
        self._reset = jax.jit(self._reset_slots, donate_argnums=0)
        self._gather = jax.jit(_rows)
        self._turn = jax.jit(_move, donate_argnums=0)

    @property
    def largest(self) -> int:
        """Rows of the largest batch."""
        return self._sizes[-1]

    def _initial(self, exploration: Exploration) -> Tree:
        """Returns the agent's states before the first step, for environments with this exploration, ``[n]``."""
        state = self._agent.initial_state(exploration.rank.shape[0])
        if self._agent.explore is None:
            return state
        return self._agent.explore(state, Exploration(*map(jnp.asarray, exploration)))

    def _act_batch(
        self, params: Tree, states: Tree, firsts: Tree, nexts: Tree, key: Any, arrays: list[Any], columns: Any
    ) -> tuple[Any, Tree, Tree, Tree]:
        """Acts for one batch; ``columns`` int32 ``[5, B]`` are slot, epoch, step, begin (``Begins``) and number."""
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
        return jax.tree.map(lambda table, rows: table.at[slots].set(rows), states, self._initial(exploration))

    def assign(self, slots: NDArray[np.int32], numbers: Sequence[int], exploration: Exploration) -> None:
        """Assigns the slots ``[n]`` to other environments, with their numbers and exploration; see the class."""
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
        """Resets the slots ``[n]`` to the agent's initial state; to be called when a new lane takes them."""
        padded = self._padded(slots)
        self._states = self._reset(
            self._states, padded, Exploration(*(column[padded] for column in self._exploration))
        )

    def act(
        self, params: Tree, batch: Sequence[tuple[Sequence[NDArray[Any]], NDArray[np.int32]]]
    ) -> tuple[NDArray[Any], Tree]:
        """Acts for several lanes at once.

        Args:
          params: parameters, on this device.
          batch: pairs, one a lane, of its step's arrays ``[n, ...]`` and of its columns int32 ``[4, n]`` (slot, epoch,
            step, begin of an unroll).

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
        """Returns the agent's states ``[n, ...]`` before the first step of the slots' open unrolls, on the host.

        To be called once for each unroll, when it is complete: where unrolls overlap, the next one is open then.
        """
        padded = self._padded(slots)
        rows = jax.device_get(self._gather(self._firsts, padded))
        if self._agent.data.overlap:
            self._firsts = self._turn(self._firsts, self._nexts, padded)
        return jax.tree.map(lambda leaf: leaf[: len(slots)], rows)

    def tables(self) -> Tree:
        """Returns the states of all slots, for a checkpoint."""
        return jax.device_get({"states": self._states, "firsts": self._firsts, "nexts": self._nexts})

    def restore(self, tables: Tree) -> None:
        """Restores a result of :meth:`tables`."""
        tables = jax.device_put(tables, self._device)
        # Copied: the tables are donated to every call.
        self._states = jax.tree.map(jnp.copy, tables["states"])
        self._firsts = jax.tree.map(jnp.copy, tables["firsts"])
        self._nexts = jax.tree.map(jnp.copy, tables["nexts"])


def _rows(tables: Tree, slots: Any) -> Tree:
    return jax.tree.map(lambda table: table[slots], tables)


def _move(tables: Tree, others: Tree, slots: Any) -> Tree:
    return jax.tree.map(lambda table, other: table.at[slots].set(other[slots]), tables, others)


def row_keys(key: Any, slot: Any, epoch: Any, step: Any) -> Any:
    """Derives ``[B]`` random keys from int32 ``[B]`` each, in the same way under every architecture."""

    def fold(*counters: Any) -> Any:
        folded = key
        for counter in counters:
            folded = jax.random.fold_in(folded, counter)
        return folded

    return jax.vmap(fold)(slot, epoch, step)
