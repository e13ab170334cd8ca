"""The learner of architectures whose batches come from the host: compiles the update and applies it to batches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec
from numpy.typing import NDArray

from seedbed.learning.update import DEVICES, TrainState, Update, too_far
from seedbed.replay.queue import join, rows_of, select
from seedbed.types import Agent, TimeStep, Tree, Unroll


class Learner:
    """A learner that updates parameters batch by batch; see :class:`~seedbed.learning.update.Update`.

    Args:
      agent: the agent whose loss and optimizer are used.
      devices: the JAX devices that train, of all hosts, host by host; each host gives its share of every batch.
      key: random key for the initialization and for losses that draw random numbers.
      at_once: whether all updates with a batch are one program, so that nobody sees the weights between them; of agents
        with a replay or an early end of their passes each update is a program of its own all the same.

    Raises:
      ConfigError: the batch cannot be shared equally by the devices.
    """

    def __init__(self, agent: Agent, devices: Sequence[Any], key: Any, *, at_once: bool = False) -> None:
        self._plan = agent.data
        at_once = at_once and agent.data.replay is None and agent.data.most_kl is None
        self.updates_a_step = agent.data.updates_a_batch if at_once else 1
        """Updates after each of which :meth:`updates` yields."""
        self._at_once = at_once
        self._update = Update(agent, devices)
        # Compiled whole: one program instead of one for every operation of the network.
        self.state = self._replicate(jax.jit(self._update.begin)(key))
        self._priorities: Any = None
        self._share, self._share_of_devices = -1.0, None  # kept, since it is most often the same
        # Wrapped per object: programs that a decorator compiles are kept for the life of the process.
        self._step = jax.jit(self._update.step)
        self._leave_out = jax.jit(self._update.left_out)
        self._passes = jax.jit(self._update.passes)
        self._prepare = jax.jit(self._update.prepare) if agent.prepare else self._update.prepare
        self._order = jax.jit(self._update.order)
        self._join = jax.jit(partial(join, concatenate=jnp.concatenate))
        self._take = jax.jit(self._update.minibatch, out_shardings=self._update.shares)

    def _replicate(self, tree: Tree) -> Tree:
        return _put(jax.device_get(tree), self._update.whole)

    @property
    def params(self) -> Tree:
        """The newest parameters, on one of this host's devices."""
        return jax.tree.map(lambda leaf: leaf.addressable_data(0), self.state.params)

    @property
    def priorities(self) -> NDArray[np.float32]:
        """The loss's priorities ``[B / hosts]`` for this host's items of the last batch; only with a replay."""
        shards = sorted(self._priorities.addressable_shards, key=lambda shard: shard.index[0].start or 0)
        return np.concatenate([np.asarray(shard.data) for shard in shards])

    def put(self, unroll: Unroll) -> Unroll:
        """Divides this host's share of a batch, ``[T+1, B / hosts, ...]``, among its training devices."""
        shares = self._update.shares
        if jax.process_count() == 1:  # in one call: it takes half the time
            whole: Unroll = jax.device_put(unroll, shares)
            return whole
        return Unroll(
            TimeStep(*(_put(part, s) for part, s in zip(unroll.timestep, shares.timestep, strict=True))),
            *(_put(part, s) for part, s in zip(unroll[1:], shares[1:], strict=True)),
        )

    def assemble(self, unrolls: Sequence[Unroll]) -> Unroll:
        """Makes a batch ``[T+1, B, ...]`` on the training devices of unrolls that are host arrays."""
        return self.put(join(unrolls))

    def gather(self, unrolls: Sequence[Unroll]) -> Unroll:
        """Makes a batch ``[T+1, B, ...]`` whose share of this host consists of ``unrolls`` on other devices.

        Each environment's arrays move from device to device once, in order, to the device that trains on them.
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
        """Compiles all programs for batches like ``example`` (on the host); changes no state."""
        if self._at_once:
            jax.block_until_ready(self._passes(self.state, self.put(example)))
            return
        _, batch = self._prepare(self.state.params, self.put(example))
        part = next(iter(self._parts(batch)))
        jax.block_until_ready(self._step(self.state, part, self._of_devices(1.0)))

    def updates(self, batch: Unroll, carried: float = 1.0) -> Iterator[tuple[dict[str, Any], bool]]:
        """Makes all updates with one batch: ``reuse`` passes, each over all of the batch's minibatches.

        Yields ``(metrics, last)`` after each update, or once after all of them if they are one program: metrics as
        device scalars, and whether it was the last. Passes end early where the KL divergence exceeds ``most_kl``; the
        version counts the updates that are left out, as it counts skipped ones.

        Args:
          batch: the batch, on the training devices.
          carried: share of the transitions for which this host's replay gave the batch that environments carried out:
            an annealed rate counts these. Without a replay the batch says it itself.
        """
        if self._at_once:
            state, metrics = self._passes(self.state, batch)
            self.state = jax.block_until_ready(state)
            yield metrics, True
            return
        plan = self._plan
        params, batch = self._prepare(self.state.params, batch)
        # Waited for, as every update is: the state can then be saved even if a later computation fails.
        self.state = self.state._replace(params=jax.block_until_ready(params))
        for remaining in reversed(range(plan.reuse)):
            parts = self._parts(batch)
            for count, part in enumerate(parts, 1):
                metrics = self.update(part, carried)
                last = count == plan.minibatches and (not remaining or self._too_far(metrics))
                for _ in range(remaining if last else 0):
                    self.state = self._leave_out(self.state, batch)
                yield metrics, last
                if last:
                    return

    def _too_far(self, metrics: dict[str, Any]) -> bool:
        most = self._plan.most_kl
        return most is not None and bool(too_far(metrics, most))

    def _parts(self, batch: Unroll) -> Iterator[Unroll]:
        """Yields the minibatches of one pass, whose rows are shuffled anew for each pass."""
        if self._plan.minibatches == 1:
            yield batch
            return
        for rows in self._order(self.state.key, self.state.updates):
            yield self._take(batch, rows)

    def update(self, batch: Unroll, carried: float = 1.0) -> dict[str, Any]:
        """Makes one update with a prepared minibatch and waits for it; returns metrics as device scalars.

        ``carried`` as for :meth:`updates`.
        """
        # Params are not donated: acting threads may still read them.
        state, metrics, self._priorities = self._step(self.state, batch, self._of_devices(carried))
        # A failure on the device is raised here: ``self.state`` is then still the previous one, which can be saved.
        self.state = jax.block_until_ready(state)
        return metrics

    def _of_devices(self, carried: float) -> Any:
        """Returns this host's share of what was carried out for each of its devices, float32; None without a replay."""
        if self._plan.replay is None:
            return None
        if carried != self._share:
            mesh = self._update.mesh
            here = sum(device.process_index == jax.process_index() for device in mesh.devices.flat)
            each = _put(np.full(here, carried, np.float32), NamedSharding(mesh, PartitionSpec(DEVICES)))
            self._share, self._share_of_devices = carried, each
        return self._share_of_devices

    def restore(self, state: TrainState) -> None:
        """Replaces the state by one of the same structure."""
        self.state = self._replicate(state)


def _put(tree: Tree, sharding: Any) -> Tree:
    """Puts arrays on the devices of all hosts; each host passes its share, or the whole where it is replicated."""
    return tree if tree is None else jax.make_array_from_process_local_data(sharding, tree)


def _between(unrolls: Sequence[Unroll], start: int, stop: int) -> list[Unroll]:
    """Returns the environments ``start … stop-1`` of several unrolls in a row, as pieces of them."""
    pieces, begin = [], 0
    for unroll in unrolls:
        rows = rows_of(unroll)
        first, last = max(start - begin, 0), min(stop - begin, rows)
        if first < last:
            pieces.append(unroll if (first, last) == (0, rows) else select(unroll, first, last))
        begin += rows
    return pieces
