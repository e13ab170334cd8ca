"""The replay: a bounded memory of transitions from which batches are sampled, with or without priorities.

It stands where :class:`~seedbed.replay.queue.UnrollQueue` stands, behind the same interface: acting offers unrolls and
is refused while it is too far ahead, learning takes batches and waits while it is. The
:class:`~seedbed.replay.limiter.RateLimiter` decides which one is ahead.

One lock guards decisions (on chunks, items, priorities); arrays are copied outside it, so that inserts go on while a
batch is gathered. A chunk's *generation* tells whether it is still the same: items that were overwritten while they
were gathered are drawn again, and a priority that comes too late changes nothing.

Books are kept in transitions. Each item stands for some of its own (all T of an unroll, or one), and

    offered = fresh + dropped + live items that were never sampled

holds at any moment, where ``fresh`` counts first samples and ``dropped`` items that never were and never will be
sampled.

Alternatives weighed: a copy of the whole window for each item (up to W times the memory), a copy of each unroll (the
overlap twice), and a lock held while arrays are copied (acting would wait for each batch).
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict
from typing import Any, NamedTuple

import numpy as np
import psutil
from numpy.typing import ArrayLike, NDArray

from seedbed.errors import CheckpointError, ConfigError, SpecError
from seedbed.replay.chunks import USED, Chunks, Geometry, Lay, check_like
from seedbed.replay.flow import Flow
from seedbed.replay.limiter import RateLimiter
from seedbed.replay.queue import per_part, rows_of
from seedbed.replay.sum_tree import SumTree
from seedbed.seeding import generator
from seedbed.types import DataPlan, ReplayPlan, Unroll

Array = NDArray[Any]
Indices = NDArray[np.int64]
_LEAST, _MOST = 1e-12, 1e30
"""Bounds of a live item's leaf: one of 0 would be dead, and sums have to stay finite."""
_COPYING = 1.0
"""Seconds after which an offer looks again whether another one has finished copying; it is told when it has."""
SLOT = 0xFFFFFFFF
"""Bits of a stream's number that hold the slot of its environment."""
PIECE_BYTES = 32 << 20
"""Bytes that a checkpoint copies at once, about; at least a chunk."""
_BESIDE = 1 << 30
"""Bytes that a replay leaves to the rest of the run: batches, networks, pieces of a checkpoint."""


class Sample(NamedTuple):
    """A batch.

    Attributes:
      unroll: :class:`Unroll` of ``[W+1, B, ...]``, its ``weight`` float32 ``[B]`` filled. Where items are single
        transitions no state is stored, and its state is zeros.
      items: int64 ``[B]``, numbers of the items, for :meth:`Replay.update`.
      generations: int64 ``[B]``, generations of the chunks they ended in when they were sampled.
      fresh: transitions in it that were in no sample before.
      greatest: importance weight that is 1 in the unroll, which all others are divided by; with it, batches of several
        replays with the same number of places can be compared.
    """

    unroll: Unroll
    items: Indices
    generations: Indices
    fresh: int
    greatest: float


class _Draw(NamedTuple):
    """A draw: items ``[B]``, generations ``[B]``, places ``[W+1, B]``, and the probability ``[B]`` times all places."""

    items: Indices
    generations: Indices
    places: Indices
    density: NDArray[np.float64]


class ReplayPieces:
    """The contents of a replay at one moment, to be read once, while acting and learning go on.

    First come the arrays of its index (chunks in use, links, priorities), then the arrays of its chunks, in the
    order of the index, about :data:`PIECE_BYTES` at a time. A chunk is not overwritten before it was copied: an offer
    that comes to it waits. Chunks that are overwritten next are copied first, so that this is rare.

    Made by :meth:`Replay.snapshot`. A later snapshot takes the place of an earlier one.
    """

    def __init__(self, chunks: Chunks, index: dict[str, Array], changed: threading.Condition) -> None:
        self._chunks = chunks
        self._index = index
        self._changed = changed
        self._held = chunks.held = np.zeros(chunks.geometry.chunks, bool)
        self._held[index["chunk"]] = True

    def __iter__(self) -> Iterator[dict[str, Array]]:
        """Gives the pieces, each an array by name.

        Raises:
          CheckpointError: it was closed, read before, or another snapshot was taken.
        """
        stored = self._chunks.stored()
        used = self._index["chunk"]
        count = max(1, PIECE_BYTES // sum(array[0].nbytes for array in stored.values()))
        piece = self._index
        for start in range(0, used.size, count):
            part = used[start : start + count]
            # One piece ahead of who reads: an offer waits for a copy then, and not for a disk.
            ahead = {name: array[part] for name, array in stored.items()}
            self._let_go(part)
            yield piece
            piece = ahead
        yield piece

    def _let_go(self, chunks: Indices) -> None:
        with self._changed:
            if self._chunks.held is not self._held or not self._held[chunks].all():
                raise CheckpointError(
                    "this snapshot of the replay was given up, and what it held may be overwritten: take another one"
                )
            self._held[chunks] = False
            self._changed.notify_all()

    def close(self) -> None:
        """Says that nothing more will be read: no offer waits for it any more. Safe to call twice."""
        with self._changed:
            self._held[:] = False
            self._changed.notify_all()


def replay_bytes(plan: DataPlan, example: Unroll) -> int:
    """Bytes that a replay takes when it is full; ``example`` is an unroll ``[L+1, 1, ...]``."""
    geometry = Geometry.of(plan)
    items = geometry.chunks * geometry.items
    return Chunks.bytes_of(geometry, example) + SumTree.bytes_of(items) + items


def bytes_per_step(plan: DataPlan, example: Unroll) -> float:
    """The same for each transition of its capacity."""
    geometry = Geometry.of(plan)
    return replay_bytes(plan, example) / (geometry.chunks * geometry.length)


class Replay(Flow):
    """The table; safe to use from any thread.

    Args:
      plan: the agent's plan; it needs a replay.
      example: an unroll ``[L+1, 1, ...]`` of NumPy arrays, for shapes and dtypes.
      batch_size: items in each sample.
      largest_insert: the most new transitions that one offer brings: its rows times T.
      seed: seed of the run, from which all draws follow.
      tolerance: tolerance of the :class:`RateLimiter`, in items.
      base: items before the first sample, instead of the plan's.
      by_places: whether every item that is inserted earns samples, not only steps that environments carried out; with
        an exact lag rounds are of so many batches, with any number of resets in them.
      memory_limit: bytes it may take; None: the machine's free memory, but for 1 GiB that the rest of a run needs.

    Raises:
      ConfigError: it would not fit into memory, is too small to work, or could stall.
    """

    own_priorities = False
    """True if it computes the first priorities of items itself."""

    def __init__(
        self,
        plan: DataPlan,
        example: Unroll,
        *,
        batch_size: int,
        largest_insert: int,
        seed: int,
        tolerance: float | None = None,
        base: int | None = None,
        by_places: bool = False,
        memory_limit: int | None = None,
    ) -> None:
        geometry = Geometry.of(plan)
        assert plan.replay is not None, "Geometry.of has seen to it"
        self._plan: ReplayPlan = plan.replay
        self._geometry = geometry
        self._batch_size = batch_size
        self._by_places = by_places
        self._most_rows = -(-largest_insert // geometry.length)
        self._example = example
        _require_room(plan.replay, geometry, batch_size, self._most_rows)
        self.bytes_needed = replay_bytes(plan, example)
        _require_memory(self.bytes_needed, plan.replay.capacity, memory_limit)
        super().__init__(
            RateLimiter(
                plan.replay.ratio,
                -(-plan.replay.min_size // geometry.own) if base is None else base,
                batch_size,
                self._most_rows * geometry.items,
                tolerance,
            )
        )
        self._chunks = Chunks(geometry, example)
        self._tree = SumTree(geometry.chunks * geometry.items)
        self._seen = np.zeros(geometry.chunks * geometry.items, bool)
        self._random = generator(seed, "replay")
        self._live = 0
        self._pending = 0
        self._dropped = 0
        self.ignored = 0
        """Priorities that were no numbers, infinite or negative, and changed nothing."""
        self.late = 0
        """Priorities of items that had been overwritten, and changed nothing."""

    # -- what an operator sees ------------------------------------------------------------------------------

    @property
    def capacity(self) -> int:
        """Transitions for which it has places: the plan's, rounded up to whole unrolls."""
        return self._geometry.chunks * self._geometry.length

    def __len__(self) -> int:
        """Transitions that can be sampled."""
        return self._live * self._geometry.own

    @property
    def unsampled(self) -> int:
        """Transitions of them that never were."""
        with self._changed:
            return self._geometry.own * int(
                np.sum((self._tree.leaves > 0) & ~self._seen[: len(self._tree.leaves)])
            )

    @property
    def fill(self) -> float:
        """Share of the memory in use, from 0 to 1."""
        return float(np.mean(self._chunks.status == USED))

    @property
    def credit(self) -> float:
        """Items that may be sampled for the inserted ones, see :class:`RateLimiter`."""
        return self._limiter.credit

    def __repr__(self) -> str:
        window = f"{self._geometry.window} transitions" if self._geometry.window > 1 else "1 transition"
        return (
            f"Replay({len(self):,} of {self.capacity:,} transitions in windows of {window}, {self.fill:.0%} of "
            f"{self.bytes_needed / 2**30:.3g} GiB, {self._limiter.inserts:,.0f} items inserted, "
            f"{self._limiter.samples:,.0f} sampled, credit {self.credit:,.0f})"
        )

    def take_dropped(self) -> int:
        """Transitions that were overwritten unsampled, or could never be sampled, since this was last asked."""
        with self._changed:
            dropped, self._dropped = self._dropped, 0
            return dropped

    # -- inserts --------------------------------------------------------------------------------------------

    def may_sample(self) -> bool:
        """Returns whether a batch could be sampled now."""
        with self._changed:
            return self._may_sample()

    def has_room(self, rows: int) -> bool:
        """Returns whether an unroll of so many environments would be taken now."""
        with self._changed:
            return not self._live or self._limiter.may_insert(rows * self._geometry.items, self._pending)

    def offer(
        self, unroll: Unroll, streams: Indices, end: int, priorities: ArrayLike | None = None
    ) -> int | None:
        """Takes an unroll unless acting is too far ahead; waits for nothing but another offer's copying.

        Args:
          unroll: ``[L+1, B, ...]``, NumPy arrays; copied.
          streams: int64 ``[B]``, streams of the rows; no two the same. A row continues its stream if the one before
            ended T steps earlier and is still there, and begins a new segment otherwise.
          end: the number of the last step, in all streams.
          priorities: ``[items, B]``, first priorities; the plan's exponent is applied here. None: 1.

        Returns:
          The transitions that are new by it: T for each row that continues, ``overlap + T`` for each that begins a
          segment. None if it was refused; then nothing has changed, and listeners are told when to come again.

        Raises:
          SpecError: the unroll does not look like the example, or has more rows than were announced.
        """
        self._check(unroll, streams)
        rows = rows_of(unroll)
        leaves, bad = self._leaves_of(
            np.ones((self._geometry.items, rows)) if priorities is None else priorities
        )
        leaves[bad] = 1.0
        first = self._first_of(unroll)
        # A transition into a new episode is none. A sequence has others, unless its agent was absent all the time.
        if self._geometry.own == 1:
            leaves[first] = 0.0
        else:
            leaves[:, first.all(axis=0)] = 0.0
        earned = self._earned(first)
        with self._changed:
            lays = self._claim(streams, end)
        if lays is None:
            return None
        try:
            for lay in lays:
                if lay.rows.size:
                    self._chunks.write(lay, unroll)
        except BaseException:
            self._abandon(lays)
            raise
        with self._changed:
            self.ignored += int(bad.sum())
            for lay in lays:
                self._commit(lay, leaves[:, lay.rows], float(earned[lay.rows].sum()))
            self._changed.notify_all()
        continuing, beginning = (lay.rows.size for lay in lays)
        return continuing * self._geometry.length + beginning * self._geometry.unroll

    def _first_of(self, unroll: Unroll) -> NDArray[np.bool_]:
        """Flags ``[T, B]`` of the transitions that items have of their own, of an unroll: whether they only reset."""
        if self._geometry.own > 1:
            return np.asarray(unroll.timestep.first[-self._geometry.length :])
        lead = self._plan.start + 1
        return np.asarray(unroll.timestep.first[lead : lead + self._geometry.items])

    def _earned(self, first: NDArray[np.bool_]) -> NDArray[np.float64]:
        """Returns the items ``[B]`` by which the limiter counts rows: steps that only reset earn no sample."""
        rows = first.shape[1]
        if self._by_places:
            return np.full(rows, float(self._geometry.items))
        earned: NDArray[np.float64] = np.sum(~first, axis=0) / self._geometry.own
        return earned

    def _check(self, unroll: Unroll, streams: Indices) -> None:
        rows = rows_of(unroll)
        check_like(self._example, unroll)
        if not 1 <= rows <= self._most_rows:
            raise SpecError(
                f"an unroll of {rows} environments: this replay was made for 1 to {self._most_rows} of them "
                f"(a largest insert of {self._most_rows * self._geometry.length} transitions)"
            )
        if np.unique(streams).shape != (rows,):
            raise SpecError(
                f"{rows} environments need as many different streams, not {np.asarray(streams).tolist()}"
            )

    def _claim(self, streams: Indices, end: int) -> tuple[Lay, Lay] | None:
        """Makes room; None if the limiter forbids it."""
        items = streams.size * self._geometry.items
        while True:
            # Where nothing can be sampled, only an insert can help.
            if self._live and not self._limiter.may_insert(items, self._pending):
                return None
            lays = self._chunks.lay_out(streams, end)
            if not any(map(self._chunks.busy, lays)):
                break
            self._changed.wait(_COPYING)
            if self._closed:
                return None
        for lay in lays:
            self._kill(lay.chunks.ravel())
        for lay in lays:
            self._chunks.claim(lay, streams, end)
        self._pending += items
        return lays

    def _kill(self, chunks: Indices) -> None:
        """Empties chunks; no item lives on whose window shows something of them."""
        items = self._chunks.reached(chunks)
        items = items[self._tree.get(items) > 0]
        self._tree.set(items, 0.0)
        self._live -= items.size
        self._dropped += self._geometry.own * int(np.sum(~self._seen[items]))
        self._chunks.free(chunks)

    def _commit(self, lay: Lay, leaves: NDArray[np.float64], earned: float) -> None:
        """Lets copied rows be sampled from now on, but for windows of which a part is gone meanwhile."""
        # An item that is dead from the beginning will never be sampled.
        leaves = np.where(self._chunks.whole(lay.last), leaves, 0.0)
        items = lay.last * self._geometry.items + np.arange(self._geometry.items)[:, None]
        self._tree.set(items, leaves)
        self._seen[items] = False
        self._chunks.status[lay.chunks] = USED
        live = int(np.sum(leaves > 0))
        self._live += live
        self._dropped += self._geometry.own * (items.size - live)
        if lay.pairs > self._geometry.length:
            self._dropped += self._geometry.overlap * lay.rows.size
        self._pending -= items.size
        self._limiter.insert(earned)

    def _abandon(self, lays: tuple[Lay, Lay]) -> None:
        with self._changed:
            for lay in lays:
                self._pending -= lay.rows.size * self._geometry.items
                self._kill(lay.chunks.ravel())
            self._changed.notify_all()

    # -- samples --------------------------------------------------------------------------------------------

    def take(self, timeout: float | None = None) -> Sample | None:
        """Takes a batch: items drawn independently of each other, in proportion to their priorities.

        Its arrays are new each time: a device may go on using those of the batch before.

        Args:
          timeout: seconds to wait for one, at most; None: until the replay is closed.

        Returns:
          None when the time has passed or the replay is closed, or if all it held was overwritten right now.
        """
        with self._changed:
            ready = self._changed.wait_for(lambda: self._closed or self._may_sample(), timeout)
            if self._closed or not ready:
                return None
            self._limiter.sample()
            drawn = self._draw(self._batch_size)
        sample = self._gather(drawn)
        self._tell_of_room()
        return sample

    def _may_sample(self) -> bool:
        return self._live > 0 and self._limiter.may_sample()

    def _draw(self, count: int) -> _Draw:
        total = self._tree.total
        items = self._tree.find(self._random.random(count) * total)
        return _Draw(
            items,
            self._chunks.generation[items // self._geometry.items],
            self._chunks.places(items),
            self._tree.capacity * (self._tree.get(items) / total),
        )

    def _gather(self, drawn: _Draw) -> Sample | None:
        unroll = self._chunks.read(drawn.items, drawn.places)
        while True:
            with self._changed:
                torn = np.flatnonzero(~self._alive(drawn.items, drawn.generations))
                if not torn.size:
                    fresh = self._see(drawn.items)
                    break
                if not self._live:
                    self._limiter.give_back()
                    return None
                again = self._draw(torn.size)
            for mine, new in zip(drawn, again, strict=True):
                mine[..., torn] = new
            _replace(unroll, torn, self._chunks.read(again.items, again.places))
        weight = drawn.density**-self._plan.importance_exponent
        greatest = float(weight.max())
        unroll = unroll._replace(weight=(weight / greatest).astype(np.float32))
        return Sample(unroll, drawn.items, drawn.generations, fresh, greatest)

    def _alive(self, items: Indices, generations: Indices) -> NDArray[np.bool_]:
        """Returns whether items are alive. An item dies with any chunk of its window, before it is overwritten."""
        same = self._chunks.generation[items // self._geometry.items] == generations
        alive: NDArray[np.bool_] = same & (self._tree.get(items) > 0)
        return alive

    def _see(self, items: Indices) -> int:
        """Transitions that were never sampled before now."""
        once = np.unique(items)
        fresh = int(np.sum(~self._seen[once]))
        self._seen[once] = True
        return fresh * self._geometry.own

    # -- priorities -----------------------------------------------------------------------------------------

    def update(self, items: Indices, generations: Indices, priorities: ArrayLike) -> None:
        """Gives sampled items their new priorities; items that were overwritten since do not change.

        Args:
          items, generations: int64 ``[B]``, arrays of the :class:`Sample`. Where an item comes twice, the last stays.
          priorities: ``[B]``, numbers of 0 or more; the plan's exponent is applied here. Others are ignored and counted
            in :attr:`ignored`; late ones, in :attr:`late`.
        """
        leaves, bad = self._leaves_of(priorities)
        with self._changed:
            self.ignored += int(bad.sum())
            alive = self._alive(items, generations)
            self.late += int(np.sum(~alive))
            kept = np.flatnonzero(alive & ~bad)
            self._tree.set(items[kept], leaves[kept])

    def _leaves_of(self, priorities: ArrayLike) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
        """The leaves for raw priorities, and which of them are no such numbers."""
        given = np.asarray(priorities, np.float64)
        bad = ~(np.isfinite(given) & (given >= 0))
        with np.errstate(over="ignore"):
            leaves = np.where(bad, 1.0, given) ** self._plan.priority_exponent
        return np.clip(leaves, _LEAST, _MOST), bad

    # -- checkpoints ----------------------------------------------------------------------------------------

    def snapshot(self) -> tuple[ReplayPieces, dict[str, Any]]:
        """Returns everything that the next samples depend on, as it is now: arrays, and plain JSON values.

        It has all finished inserts, but not the ones under way. Arrays are copied when they are read, while acting
        and learning go on.
        """
        with self._changed:
            index = self._chunks.index()
            items = self._items_of(index["chunk"])
            index |= {"leaf": self._tree.get(items), "seen": self._seen[items]}
            meta = {
                **self._form(),
                "cursor": self._chunks.cursor,
                "limiter": self._limiter.state(),
                "random": self._random.bit_generator.state,
                "dropped": self._dropped,
                "ignored": self.ignored,
                "late": self.late,
            }
            return ReplayPieces(self._chunks, index, self._changed), meta

    def restore(self, pieces: Iterable[Mapping[str, Array]], meta: Mapping[str, Any]) -> None:
        """Takes over a result of :meth:`snapshot`, instead of its contents; while no other thread uses the replay.

        Raises:
          CheckpointError: it is one of another plan, agent or environment.
        """
        self._require_same_form(meta)
        pieces = iter(pieces)
        index = next(pieces)
        used = index["chunk"]
        self._restore_arrays(used, pieces)
        with self._changed:
            self._chunks.restore_index(index, int(meta["cursor"]))
            items = self._items_of(used)
            leaves = np.zeros(self._tree.capacity)
            leaves[items] = index["leaf"]
            self._tree.rebuild(leaves)
            self._seen[:] = False
            self._seen[items] = index["seen"]
            self._live, self._pending = int(np.count_nonzero(leaves)), 0
            self._limiter.restore(meta["limiter"])
            self._random.bit_generator.state = meta["random"]
            self._dropped = int(meta["dropped"])
            self.ignored, self.late = int(meta["ignored"]), int(meta["late"])
            self._changed.notify_all()

    def _restore_arrays(self, used: Indices, pieces: Iterable[Mapping[str, Array]]) -> None:
        """Fills the chunks ``used``, in this order."""
        stored = self._chunks.stored()
        for piece in pieces:
            _require_like(stored, piece)
            part, used = np.split(used, [len(next(iter(piece.values())))])
            for name, mine in stored.items():
                mine[part] = piece[name]

    def _items_of(self, chunks: Indices) -> Indices:
        """``[chunks, items]``."""
        numbers: Indices = chunks[:, None] * self._geometry.items + np.arange(self._geometry.items)
        return numbers

    def _form(self) -> dict[str, Any]:
        """Returns the properties that a restored snapshot must share."""
        return {"geometry": asdict(self._geometry), "start": self._plan.start}

    def _require_same_form(self, meta: Mapping[str, Any]) -> None:
        kept = {name: meta.get(name) for name in self._form()}
        if kept != self._form():
            raise CheckpointError(
                f"the replay in the checkpoint is one of {kept}, and this run has {self._form()}: give the settings "
                "that it was written with, or begin with an empty replay"
            )


def _require_like(stored: Mapping[str, Array], arrays: Mapping[str, Array]) -> None:
    """Raises :class:`CheckpointError` unless arrays have the dtypes, and but for the first axis the shapes, needed."""
    for name, mine in stored.items():
        given = arrays.get(name)
        if given is None or (given.shape[1:], given.dtype) != (mine.shape[1:], mine.dtype):
            found = "missing" if given is None else f"{given.dtype} {given.shape[1:]}"
            raise CheckpointError(
                f"the replay's {name} in the checkpoint is {found}, and this run needs {mine.dtype} "
                f"{mine.shape[1:]}: it was written for another agent or environment"
            )


def _replace(unroll: Unroll, rows: Indices, other: Unroll) -> None:
    """Writes all rows of one batch over some of another."""

    def put(arrays: list[Array], axis: int) -> Array:
        mine, given = arrays
        mine[(slice(None),) * axis + (rows,)] = given
        return mine

    per_part(put, [unroll, other])


def _require_room(plan: ReplayPlan, geometry: Geometry, batch_size: int, most_rows: int) -> None:
    """Requires room for ``min_size``, and beside that for a batch and the largest insert, if it begins segments."""
    insert = most_rows * (geometry.most_hops + 1) * geometry.length
    needed = plan.min_size + max(batch_size * geometry.own, insert)
    if geometry.chunks * geometry.length < needed:
        raise ConfigError(
            f"a replay of {plan.capacity} transitions is too small: {plan.min_size} are inserted before the first "
            f"batch, a batch stands for {batch_size * geometry.own}, and one insert takes up to {insert}: "
            f"use --replay-size {needed} or more"
        )


def _require_memory(needed: int, capacity: int, limit: int | None) -> None:
    available = max(psutil.virtual_memory().available - _BESIDE, 0) if limit is None else limit
    if needed > available:
        raise ConfigError(
            f"a replay of {capacity} transitions needs {needed} bytes ({needed / 2**30:.1f} GiB) of memory, and "
            f"{available} ({available / 2**30:.1f} GiB) are available beside {_BESIDE >> 30} GiB for all else: "
            f"use --replay-size {int(capacity * available / needed)} or less"
        )
