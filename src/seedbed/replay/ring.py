"""A replay on an accelerator: a ring of chunks for each environment, and pure functions that can be compiled anywhere.

Every environment has a column of as many chunks of T places as all others, overwritten in turn. Places hold the same
as in :mod:`seedbed.replay.chunks`, and items are numbered chunk by chunk, environment by environment. Unrolls that
continue their streams are written over the chunk that is due, together with their overlap, which is there already.

Priorities are leaves ``[chunks, E, items]``. A draw is a point on the line on which they lie one after the other: sums
of blocks of leaves tell its block, and sums within the block tell its leaf. So a sample costs one pass over the leaves
and a row of them for each item, without a tree and its many small steps.

:class:`~seedbed.replay.replay.Replay` does the same on the host, and tests compare the two. Alternatives weighed: a sum
tree on the device (log N dependent steps for each change), and one cumulative sum over all leaves (less exact in
float32, and no faster).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from seedbed.errors import ConfigError
from seedbed.replay.chunks import Geometry
from seedbed.types import DataPlan, TimeStep, Tree, Unroll

_LEAST, _MOST = 1e-12, 1e30
"""Bounds of a live item's leaf, as on the host."""
_MOST_ITEMS = 2**22
"""Most items: uniform numbers in float32, which choose among them, are multiples of 2**-23."""


class Held(NamedTuple):
    """The contents of a ring of R chunks of T places for E environments.

    Attributes:
      steps: time steps ``[R * T, E, ...]``.
      decided: dict of ``action``, ``record`` and ``version`` of the transition to each step, ``[R * T, E, ...]``.
      states: agent's state ``[R, E, ...]`` before the item of each chunk; an empty dict where items are transitions.
      leaf: float32 ``[R, E, items]``, priority of each item to the plan's power; 0: it cannot be sampled.
      seen: bool ``[R, E, items]``, whether it was sampled.
      number: int32 ``[R, E]``, number of the chunk among all of its environment, from 0 on; -1: there is none.
      chunks: int32 ``[1, E]``, number of chunks so far.
      dropped: int32 ``[1, E]``, transitions so far that were overwritten unsampled or could never be sampled.
    """

    steps: TimeStep
    decided: dict[str, Tree]
    states: Tree
    leaf: Any
    seen: Any
    number: Any
    chunks: Any
    dropped: Any


class Drawn(NamedTuple):
    """A batch.

    Attributes:
      unroll: ``[W+1, B, ...]``, with importance weights up to a factor that all rings of one size have in common.
      items: int32 ``[B]``, numbers of the items.
      numbers: int32 ``[B]``, :attr:`Held.number` of the chunks that they end in.
      fresh: int32, transitions in it that were in no sample before.
    """

    unroll: Unroll
    items: Any
    numbers: Any
    fresh: Any


@dataclass(frozen=True)
class Ring:
    """The functions of a ring; all but :meth:`of` can be traced.

    Attributes:
      geometry: numbering of transitions, items and chunks; its chunks are those of one environment.
      start: index of an item's first transition that is trained on.
      priority_exponent, importance_exponent: see :class:`~seedbed.types.ReplayPlan`.
      example: an unroll ``[L+1, 1, ...]``, for shapes and dtypes.
      priorities: priorities of an unroll's items, see :class:`~seedbed.types.Agent`; None: all alike.
    """

    geometry: Geometry
    start: int
    priority_exponent: float
    importance_exponent: float
    example: Unroll
    priorities: Callable[[Unroll], Any] | None = None

    @staticmethod
    def of(
        plan: DataPlan, example: Unroll, envs: int, priorities: Callable[[Unroll], Any] | None = None
    ) -> Ring:
        """Returns the ring of a plan, whose capacity ``envs`` environments share.

        Raises:
          ConfigError: it is too small for the plan's smallest size, or has more items than can be told apart.
        """
        whole, replay = Geometry.of(plan), plan.replay
        assert replay is not None
        chunks = max(1, replay.capacity // (envs * whole.length))
        geometry = Geometry(chunks, whole.length, whole.overlap, whole.window, whole.items)
        # What a new segment begins with is in items of later chunks only.
        least = max(1, -(-replay.min_size // (envs * whole.length))) + geometry.most_hops
        if chunks < least:
            raise ConfigError(
                f"a replay of {replay.capacity} transitions is too small: {envs} environments have {chunks} unrolls of "
                f"{whole.length} transitions each, and need {least}: use --replay-size "
                f"{least * envs * whole.length} or more"
            )
        if (items := chunks * envs * whole.items) > _MOST_ITEMS:
            raise ConfigError(
                f"a replay on a device has {_MOST_ITEMS:,} items at most, among which random numbers of 23 bits can "
                f"choose, and one of {replay.capacity:,} transitions has {items:,}: use --replay-size "
                f"{_MOST_ITEMS // whole.items * whole.length} or less, or keep it on the host (--replay-on "
                "host, where there is this setting)"
            )
        return Ring(
            geometry, replay.start, replay.priority_exponent, replay.importance_exponent, example, priorities
        )

    def empty(self, envs: int) -> Held:
        """Makes an empty ring."""
        geometry, example = self.geometry, self.example
        places = geometry.chunks * geometry.length
        chunks, items = (geometry.chunks, envs), (geometry.chunks, envs, geometry.items)

        def zeros(tree: Tree, leading: int, axis: int) -> Tree:
            return jax.tree.map(lambda x: jnp.zeros((leading, envs, *x.shape[axis + 1 :]), x.dtype), tree)

        return Held(
            steps=zeros(example.timestep, places, 1),
            decided=zeros(_decided(example), places, 1),
            states=zeros(example.state, geometry.chunks, 0) if geometry.items == 1 else {},
            leaf=jnp.zeros(items, jnp.float32),
            seen=jnp.zeros(items, bool),
            number=jnp.full(chunks, -1, jnp.int32),
            chunks=jnp.zeros((1, envs), jnp.int32),
            dropped=jnp.zeros((1, envs), jnp.int32),
        )

    def bytes(self, envs: int) -> int:
        """Returns the bytes of a ring."""
        held = jax.eval_shape(lambda: self.empty(envs))
        return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(held))

    # Inserts.

    def insert(self, held: Held, unroll: Unroll, columns: Any, begins: Any) -> Held:
        """Inserts an unroll.

        Args:
          held: the contents.
          unroll: ``[L+1, n, ...]``.
          columns: int32 ``[n]``, environments that its rows are of.
          begins: bool, whether it begins their streams anew: the unroll before is not the one that was inserted last.
        """
        geometry = self.geometry
        advance = jnp.where(begins, geometry.most_hops + 1, 1)
        before = held.chunks[0, columns]
        last = before + advance - 1
        held = self._overwrite(held, columns, before, advance)
        places = (last * geometry.length + geometry.length - 1)[None] + np.arange(-geometry.unroll, 1)[
            :, None
        ]
        places %= geometry.chunks * geometry.length

        def write(mine: Any, given: Any, at: Any) -> Any:
            return mine.at[at, columns[None]].set(given.astype(mine.dtype))

        slot = last % geometry.chunks
        raw = jnp.ones((geometry.items, len(columns))) if self.priorities is None else self.priorities(unroll)
        leaf, bad = self._leaf_of(raw.T)
        leaf = jnp.where(bad, 1.0, leaf)
        if geometry.own == 1:
            lead = self.start + 1
            leaf = jnp.where(unroll.timestep.first[lead : lead + geometry.items].T, 0.0, leaf)
        else:  # of an agent that was absent all the time
            leaf = jnp.where(unroll.timestep.first[-geometry.length :].all(axis=0)[:, None], 0.0, leaf)
        never = geometry.own * jnp.sum(leaf == 0, axis=1, dtype=jnp.int32)
        states = held.states
        if geometry.items == 1:
            states = jax.tree.map(lambda mine, given: mine.at[slot, columns].set(given), states, unroll.state)
        return held._replace(
            steps=jax.tree.map(lambda mine, given: write(mine, given, places), held.steps, unroll.timestep),
            decided=jax.tree.map(
                lambda mine, given: write(mine, given, places[1:]), held.decided, _decided(unroll)
            ),
            states=states,
            leaf=held.leaf.at[slot, columns].set(leaf),
            seen=held.seen.at[slot, columns].set(False),
            chunks=held.chunks.at[0, columns].set(last + 1),
            dropped=held.dropped.at[0, columns].add(never + jnp.where(begins, geometry.overlap, 0)),
        )

    def _overwrite(self, held: Held, columns: Any, before: Any, advance: Any) -> Held:
        """Empties ``advance`` chunks of each column, and all items whose windows show something of them."""
        geometry = self.geometry
        leaf, number, dropped = held.leaf, held.number, held.dropped
        for one in range(geometry.most_hops + 1):
            taken = (one < advance)[None]
            slot = (before + one) % geometry.chunks
            for hop in range(geometry.most_hops + 1):
                behind = (slot + hop) % geometry.chunks
                # The chunk that was written so many after the one that is overwritten now, if it is there.
                same = number[behind, columns] == number[slot, columns] + hop
                reached = (taken & same)[:, None] & (geometry.hops >= hop)[None]
                old = leaf[behind, columns]
                lost = reached & (old > 0) & ~held.seen[behind, columns]
                dropped = dropped.at[0, columns].add(geometry.own * jnp.sum(lost, axis=1, dtype=jnp.int32))
                leaf = leaf.at[behind, columns].set(jnp.where(reached, 0.0, old))
            number = number.at[slot, columns].set(jnp.where(taken, before + one, number[slot, columns]))
        return held._replace(leaf=leaf, number=number, dropped=dropped)

    def _leaf_of(self, priorities: Any) -> tuple[Any, Any]:
        """Returns the leaves of raw priorities, and which of them are no numbers of 0 or more."""
        bad = ~(jnp.isfinite(priorities) & (priorities >= 0))
        leaf = jnp.where(bad, 1.0, priorities) ** self.priority_exponent
        return jnp.clip(leaf, _LEAST, _MOST), bad

    # Samples.

    def draw(self, held: Held, key: Any, count: int) -> tuple[Held, Drawn]:
        """Draws items independently of each other, in proportion to their priorities; there has to be one."""
        return self.take(held, jax.random.uniform(key, (count,)))

    def take(self, held: Held, points: Any) -> tuple[Held, Drawn]:
        """Takes the items at ``points`` ``[B]``, each a share of the whole line, in ``[0, 1)``."""
        geometry = self.geometry
        flat = held.leaf.reshape(-1)
        items, total = find(flat, points)
        chunk, number = items // geometry.items, items % geometry.items
        slot, column = chunk // held.leaf.shape[1], chunk % held.leaf.shape[1]
        last = slot * geometry.length + jnp.asarray(geometry.ends)[number]
        places = (last + np.arange(-geometry.window, 1)[:, None]) % (geometry.chunks * geometry.length)

        def read(tree: Tree, at: Any) -> Tree:
            return jax.tree.map(lambda array: array[at, column[None]], tree)

        if geometry.items == 1:
            state = jax.tree.map(lambda array: array[slot, column], held.states)
        else:
            state = jax.tree.map(
                lambda x: jnp.zeros((len(points), *x.shape[1:]), x.dtype), self.example.state
            )
        density = flat[items] * (flat.size / total)
        weight = jnp.minimum(density**-self.importance_exponent, _MOST)
        seen = held.seen.reshape(-1)
        fresh = jnp.sum(_lasts(items) & ~seen[items], dtype=jnp.int32) * geometry.own
        unroll = Unroll(
            read(held.steps, places),
            **read(held.decided, places[1:]),
            state=state,
            weight=weight.astype(jnp.float32),
        )
        held = held._replace(seen=seen.at[items].set(True).reshape(held.seen.shape))
        return held, Drawn(unroll, items, held.number[slot, column], fresh)

    def renew(self, held: Held, items: Any, numbers: Any, priorities: Any) -> tuple[Held, Any, Any]:
        """Gives sampled items their new priorities; of an item that comes twice, the last.

        Args:
          held: the contents.
          items, numbers: see :class:`Drawn`.
          priorities: float32 ``[B]``.

        Returns:
          The contents; and int32, how many priorities changed nothing because their items were overwritten, and because
          they were no numbers of 0 or more.
        """
        flat, chunk = held.leaf.reshape(-1), items // self.geometry.items
        alive = (held.number.reshape(-1)[chunk] == numbers) & (flat[items] > 0)
        leaf, bad = self._leaf_of(priorities)
        kept = alive & ~bad
        kept &= _lasts(jnp.where(kept, items, flat.size + jnp.arange(len(items))))
        flat = flat.at[jnp.where(kept, items, flat.size)].set(leaf, mode="drop")
        return (
            held._replace(leaf=flat.reshape(held.leaf.shape)),
            jnp.sum(~alive, dtype=jnp.int32),
            jnp.sum(bad, dtype=jnp.int32),
        )


def find(leaves: Any, points: Any) -> tuple[Any, Any]:
    """Returns the leaf at each point of the line on which leaves lie one after the other, and the length of the line.

    A leaf of 0 is never found, however sums round.

    Args:
      leaves: float32 ``[N]`` of 0 or more, one of them above 0.
      points: float32 ``[B]``, in ``[0, 1)``: shares of the line.
    """
    size = max(1, math.isqrt(leaves.size))
    blocks = -(-leaves.size // size)
    table = jnp.pad(leaves, (0, blocks * size - leaves.size)).reshape(blocks, size)
    sums = jnp.sum(table, axis=1)
    ends = jnp.cumsum(sums)
    distance = points * ends[-1]
    block = _first(ends[None] > distance[:, None], jnp.broadcast_to(sums > 0, (len(points), blocks)))
    rest = distance - (ends[block] - sums[block])
    row = table[block]
    within = _first(jnp.cumsum(row, axis=1) > rest[:, None], row > 0)
    return block * size + within, ends[-1]


def _first(passed: Any, there: Any) -> Any:
    """Returns the first index ``[B]`` of rows ``[B, n]`` that is passed and there; the last one there if none is."""
    found = passed & there
    last = there.shape[1] - 1 - jnp.argmax(there[:, ::-1], axis=1)
    return jnp.where(found.any(axis=1), jnp.argmax(found, axis=1), last)


def _lasts(items: Any) -> Any:
    """Flags ``[B]`` of the entries that are equal to none behind them."""
    equal = items[:, None] == items[None]
    return ~jnp.any(jnp.triu(equal, 1), axis=1)


def _decided(unroll: Unroll) -> dict[str, Tree]:
    return {"action": unroll.action, "record": unroll.record, "version": unroll.version}
