"""The learner of the architectures whose batches come from the host: it compiles the update and goes over batches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from seedbed.learning.update import TrainState, Update
from seedbed.replay.queue import join, rows_of, select
from seedbed.types import Agent, TimeStep, Tree, Unroll


class Learner:
    """Updates parameters with batches that come one by one; see :class:`~seedbed.learning.update.Update`.

    Args:
      agent: loss and optimizer.
      devices: the JAX devices that train, of all hosts, host by host; each host gives its share of every batch.
      key: for initialization and for losses that draw.

    Raises:
      ConfigError: the batch cannot be shared equally by the devices.
    """

    def __init__(self, agent: Agent, devices: Sequence[Any], key: Any) -> None:
        self._plan = agent.data
        self._update = Update(agent, devices)
        # Compiled whole: one program instead of one for every operation of the network.
        self.state = self._replicate(jax.jit(self._update.begin)(key))
        self._priorities: Any = None
        # Of this object's own: what a decorator compiles is kept as long as the process lives.
        self._step = jax.jit(self._update.step)
        self._prepare = jax.jit(self._update.prepare) if agent.prepare else self._update.prepare
        self._order = jax.jit(self._update.order)
        self._join = jax.jit(partial(join, concatenate=jnp.concatenate))
        self._take = jax.jit(self._update.minibatch, out_shardings=self._update.shares)

    def _replicate(self, tree: Tree) -> Tree:
        return _put(jax.device_get(tree), self._update.whole)

    @property
    def params(self) -> Tree:
        """The newest parameters, as they lie on one of this host's devices."""
        return jax.tree.map(lambda leaf: leaf.addressable_data(0), self.state.params)

    @property
    def priorities(self) -> NDArray[np.float32]:
        """What the loss gave the items ``[B / hosts]`` of this host's share of the last batch; only with a replay."""
        shards = sorted(self._priorities.addressable_shards, key=lambda shard: shard.index[0].start or 0)
        return np.concatenate([np.asarray(shard.data) for shard in shards])

    def put(self, unroll: Unroll) -> Unroll:
        """Moves this host's share of a batch, ``[T+1, B / hosts, ...]``, to its training devices, each its part."""
        shares = self._update.shares
        if jax.process_count() == 1:  # in one call: it takes half the time
            whole: Unroll = jax.device_put(unroll, shares)
            return whole
        return Unroll(
            TimeStep(*(_put(part, s) for part, s in zip(unroll.timestep, shares.timestep, strict=True))),
            *(_put(part, s) for part, s in zip(unroll[1:], shares[1:], strict=True)),
        )

    def gather(self, unrolls: Sequence[Unroll]) -> Unroll:
        """One batch ``[T+1, B, ...]``, with this host's unrolls, which lie on other devices, as its share of it.

        They go from device to device, in order, and only to the one that needs them.
        """
        devices = self._update.mesh.devices.flat
        share = self._plan.batch_size // len(devices)
        parts = []
        for index, device in enumerate(d for d in devices if d.process_index == jax.process_index()):
            pieces = _between(unrolls, index * share, (index + 1) * share)
            moved = [jax.device_put(piece, device) for piece in pieces]
            parts.append(moved[0] if len(moved) == 1 else self._join(moved))

        def whole(sharding: Any, axis: int, trees: Sequence[Tree]) -> Tree:
            def one(*shards: Any) -> Any:
                shape = list(shards[0].shape)
                shape[axis] = self._plan.batch_size
                return jax.make_array_from_single_device_arrays(tuple(shape), sharding, list(shards))

            return jax.tree.map(one, *trees)

        time_major, rows = self._update.shares.version, self._update.shares.state
        return Unroll(
            whole(time_major, 1, [part.timestep for part in parts]),
            whole(time_major, 1, [part.action for part in parts]),
            whole(time_major, 1, [part.record for part in parts]),
            whole(rows, 0, [part.state for part in parts]),
            whole(time_major, 1, [part.version for part in parts]),
        )

    def warm_up(self, example: Unroll) -> None:
        """Compiles everything for batches like ``example`` (on the host); changes nothing."""
        _, batch = self._prepare(self.state.params, self.put(example))
        part = next(iter(self._parts(batch)))
        jax.block_until_ready(self._step(self.state, part))

    def updates(self, batch: Unroll) -> Iterator[tuple[dict[str, Any], bool]]:
        """All updates with one batch: as many passes as the agent wants, each over all of its minibatches.

        Yields ``(metrics, last)`` after each: metrics as device scalars, and whether it was the last. The version also
        counts the updates that an early end left out, as it counts those that were skipped.
        """
        plan = self._plan
        params, batch = self._prepare(self.state.params, batch)
        # Waited for, as every update is: what the state holds can be saved whatever fails later.
        self.state = self.state._replace(params=jax.block_until_ready(params))
        for remaining in reversed(range(plan.reuse)):
            parts = self._parts(batch)
            for count, part in enumerate(parts, 1):
                metrics = self.update(part)
                last = count == plan.minibatches and (not remaining or self._too_far(metrics))
                if last and remaining:
                    left_out = remaining * plan.minibatches
                    self.state = self.state._replace(updates=self.state.updates + left_out)
                yield metrics, last
                if last:
                    return

    def _too_far(self, metrics: dict[str, Any]) -> bool:
        most = self._plan.most_kl
        return most is not None and float(metrics["loss/kl"]) > most

    def _parts(self, batch: Unroll) -> Iterator[Unroll]:
        """The minibatches of one pass, their rows in an order of their own."""
        if self._plan.minibatches == 1:
            yield batch
            return
        for rows in self._order(self.state.key, self.state.updates):
            yield self._take(batch, rows)

    def update(self, batch: Unroll) -> dict[str, Any]:
        """One update with a prepared minibatch, waited for; returns metrics as device scalars."""
        # Params are not donated: whoever acts may still read them.
        state, metrics, self._priorities = self._step(self.state, batch)
        # What fails on the device fails here: then the state is the one from before, which can be saved.
        self.state = jax.block_until_ready(state)
        return metrics

    def restore(self, state: TrainState) -> None:
        """Takes over a state with the structure of ``self.state``."""
        self.state = self._replicate(state)


def _put(tree: Tree, sharding: Any) -> Tree:
    """Arrays of which every host has its share, or the whole where all have the same, on the devices of all hosts."""
    return tree if tree is None else jax.make_array_from_process_local_data(sharding, tree)


def _between(unrolls: Sequence[Unroll], start: int, stop: int) -> list[Unroll]:
    """The environments ``start … stop-1`` of several unrolls in a row, in pieces."""
    pieces, begin = [], 0
    for unroll in unrolls:
        rows = rows_of(unroll)
        first, last = max(start - begin, 0), min(stop - begin, rows)
        if first < last:
            pieces.append(unroll if (first, last) == (0, rows) else select(unroll, first, last))
        begin += rows
    return pieces
