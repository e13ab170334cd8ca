"""Learning from a replay on the devices that train, as functions that a program with acting in it can contain.

Every device has the ring of its share of the environments, and samples its share of each batch from it; importance
weights are relative to the greatest of the whole batch (:class:`~seedbed.learning.update.Update`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.multihost_utils import process_allgather
from jax.sharding import PartitionSpec

from seedbed.learning.memory import part_key
from seedbed.learning.update import DEVICES, TrainState, Update
from seedbed.replay.ring import Drawn, Held, Ring
from seedbed.types import Tree, Unroll

ENVS = PartitionSpec(None, DEVICES)
"""How devices share what a ring holds: every array has the environments as its second axis."""


class Trained(NamedTuple):
    """The counts of some updates.

    Attributes:
      updates: int32, number of updates.
      fresh: uint32, transitions in them that were trained on for the first time.
      lag: float32, mean over the updates of the updates between the weights that acted and those that were trained.
      most_lag: int32, the most of these.
    """

    updates: Any
    fresh: Any
    lag: Any
    most_lag: Any


@dataclass(frozen=True)
class Sampling:
    """The functions; all can be traced.

    Attributes:
      update: updates of the agent, over the devices that share rings and batches.
      ring: ring of the environments.
      batches: batches that are sampled after each round of unrolls.
      filling: rounds that only fill the ring.
      batch_size: items in a batch, over all devices.
    """

    update: Update
    ring: Ring
    batches: int
    filling: int
    batch_size: int

    def insert(self, held: Held, unroll: Unroll) -> Held:
        """Inserts a round of unrolls ``[L+1, E, ...]``, one of each environment."""

        def one(held: Held, unroll: Unroll) -> Held:
            columns = jnp.arange(held.chunks.shape[1], dtype=jnp.int32)
            return self.ring.insert(held, unroll, columns, held.chunks[0, 0] == 0)

        specs = self.update.specs._replace(weight=None)
        return self._on_each(one, (ENVS, specs), ENVS)(held, unroll)

    def learn(
        self, key: Any, train: TrainState, held: Held, carried: Any
    ) -> tuple[TrainState, Held, Tree, Trained]:
        """Makes the updates that one round has earned: none while it only fills the ring.

        Args:
          key: key for samples, from which the one of each batch is folded by the number of updates before it.
          train: state of learning.
          held: contents of the ring, after the round was inserted.
          carried: float32, share of the round's transitions that environments carried out.

        Returns:
          The state and the contents after the updates; the metrics of the last one, and the counts of all; zeros where
          there was none.
        """

        def one(
            now: tuple[TrainState, Held], _: None
        ) -> tuple[tuple[TrainState, Held], tuple[Tree, Trained]]:
            train, held, metrics, trained = self._one(key, *now, carried)
            return (train, held), (metrics, trained)

        def all_of_them() -> tuple[TrainState, Held, Tree, Trained]:
            (after, ring), (metrics, each) = jax.lax.scan(one, (train, held), None, self.batches)
            trained = Trained(
                jnp.sum(each.updates),
                jnp.sum(each.fresh, dtype=jnp.uint32),
                jnp.mean(each.lag),
                jnp.max(each.most_lag),
            )
            return after, ring, jax.tree.map(lambda leaf: leaf[-1], metrics), trained

        shapes = jax.eval_shape(all_of_them)[2:]
        nothing = jax.tree.map(jnp.zeros_like, shapes)
        # Its first insert takes more than one chunk.
        rounds = held.chunks[0, 0] - self.ring.geometry.most_hops
        return jax.lax.cond(rounds > self.filling, all_of_them, lambda: (train, held, *nothing))

    def _one(
        self, key: Any, train: TrainState, held: Held, carried: Any
    ) -> tuple[TrainState, Held, Tree, Trained]:
        """Makes one update."""
        held, drawn = self._draw(held, jax.random.fold_in(key, train.updates))
        params, batch = self.update.prepare(train.params, drawn.unroll)
        after, metrics, priorities = self.update.step(train._replace(params=params), batch, carried)
        if self.ring.priorities is not None:
            held = self._renew(held, drawn, priorities)
        lag = train.updates - drawn.unroll.version[self.ring.start :]
        trained = Trained(jnp.int32(1), drawn.fresh, jnp.mean(lag.astype(jnp.float32)), jnp.max(lag))
        return after, held, metrics, trained

    def _draw(self, held: Held, key: Any) -> tuple[Held, Drawn]:
        share = self.batch_size // self.update.mesh.size

        def one(held: Held, key: Any) -> tuple[Held, Drawn]:
            held, drawn = self.ring.draw(held, part_key(key, jax.lax.axis_index(DEVICES)), share)
            return held, drawn._replace(fresh=jax.lax.psum(drawn.fresh, DEVICES))

        rows, whole = PartitionSpec(DEVICES), PartitionSpec()
        out = (ENVS, Drawn(self.update.specs, rows, rows, whole))
        drawn: tuple[Held, Drawn] = self._on_each(one, (ENVS, whole), out)(held, key)
        return drawn

    def _renew(self, held: Held, drawn: Drawn, priorities: Any) -> Held:
        def one(held: Held, items: Any, numbers: Any, priorities: Any) -> Held:
            return self.ring.renew(held, items, numbers, priorities)[0]

        rows = PartitionSpec(DEVICES)
        return self._on_each(one, (ENVS, rows, rows, rows), ENVS)(
            held, drawn.items, drawn.numbers, priorities
        )

    def _on_each(self, function: Any, given: Any, out: Any) -> Any:
        return jax.shard_map(function, mesh=self.update.mesh, in_specs=given, out_specs=out, check_vma=False)


def transitions_dropped(held: Held) -> int:
    """Returns the transitions so far that were overwritten unsampled, or could never be sampled, on all hosts."""
    dropped = held.dropped
    if not getattr(dropped, "is_fully_addressable", True):  # each host has those of its environments
        dropped = process_allgather(dropped, tiled=True)
    return int(np.asarray(dropped).sum(dtype=np.int64))
