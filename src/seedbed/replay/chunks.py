"""The store of a replay's steps: every step once, though many windows show it.

A *stream* is the experience of one environment without a gap. It is kept in *chunks* of T *places*, taken in turn from
a pool of them, the oldest overwritten first. The place of step k holds the pair of a transition and the step after it::

    place k:   action, record, version of the transition k-1 -> k   |   time step k

so that the places k-W … k hold a window of W transitions, without the first pair's action. An unroll of
``overlap + T`` transitions that continues its stream adds its last T pairs: one chunk, linked to the one before. One
that begins a new segment (the first of a stream, or the next one after a gap) is laid into as many chunks as its
pairs need, aligned at the end, so that every chunk behind them is full. With T = 3 and an overlap of 1::

    [ .  0  1 ] <- [ 2  3  4 ] <- [ 5  6  7 ] <- ...
     the first unroll's 4 + 1      the last 3 of the next one

A window may reach over several chunks; it is read by following the links back. When a chunk is overwritten, its
links are cut, and windows that reached over them are gone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from seedbed.errors import ConfigError, SpecError
from seedbed.types import DataPlan, TimeStep, Tree, Unroll, leaves, map_leaves

Array = NDArray[Any]
Indices = NDArray[np.int64]
FREE, BUSY, USED = 0, 1, 2
"""A chunk's status: nothing in it, being written, readable."""
_INDEX_BYTES = 5 * 8 + 1
"""Per chunk: links to both sides, generation, stream and number of its last step, and the status."""


@dataclass(frozen=True)
class Geometry:
    """The numbering of transitions, items and chunks.

    An *item* is a window that can be sampled; it ends at a certain place of a chunk. A chunk has ``items`` of them, at
    its last places; item ``i`` of chunk ``c`` is number ``c * items + i``.

    Attributes:
      chunks: chunks in the pool.
      length: T, places in a chunk.
      overlap: transitions of an unroll that were the end of the one before.
      window: W, transitions of an item.
      items: items of a chunk: 1 (sequences), or T (transitions).
    """

    chunks: int
    length: int
    overlap: int
    window: int
    items: int

    @staticmethod
    def of(plan: DataPlan) -> Geometry:
        """Returns the geometry of a plan with a replay; raises :class:`ConfigError` where it makes no sense."""
        replay, length, overlap = plan.replay, plan.unroll_length, plan.overlap
        if replay is None:
            raise ConfigError("this agent's data plan has no replay: there is nothing to keep")
        if length < 1 or not 0 <= overlap <= length:
            raise ConfigError(
                f"an overlap of {overlap} with unrolls of {length} new transitions: the overlap has to be from 0 "
                "to as many, and there has to be 1 transition at least"
            )
        items = overlap + length - replay.window + 1
        if items not in {1, length}:
            raise ConfigError(
                f"a window of {replay.window} transitions does not fit unrolls of {overlap} + {length}: it has to "
                f"be {overlap + length} (sequences) or {overlap + 1} (transitions)"
            )
        if not 0 <= replay.start < replay.window:
            raise ConfigError(
                f"an item of {replay.window} transitions has none with the number {replay.start}: "
                f"start has to be from 0 to {replay.window - 1}"
            )
        return Geometry(-(-replay.capacity // length), length, overlap, replay.window, items)

    @property
    def unroll(self) -> int:
        """Transitions of an unroll."""
        return self.overlap + self.length

    @property
    def own(self) -> int:
        """Transitions that each item stands for, and no other."""
        return self.length // self.items

    @cached_property
    def ends(self) -> Indices:
        """``[items]``: the place of its chunk at which each item ends."""
        return np.arange(self.length - self.items, self.length)

    @cached_property
    def hops(self) -> Indices:
        """``[items]``: how many chunks back the window of each item reaches."""
        return -((self.ends - self.window) // self.length)

    @cached_property
    def most_hops(self) -> int:
        """The most of them. A new segment has one chunk more than this: then its items are whole, all of them."""
        return int(self.hops.max())


class Lay(NamedTuple):
    """The layout of an unroll's rows in chunks.

    Attributes:
      rows: int64 ``[R]``, environments of the unroll.
      before: int64 ``[R]``, the chunk that each continues; -1 where it begins a segment.
      chunks: int64 ``[R, K]``, the chunks of each, in the order of time.
      pairs: number of an unroll's last pairs that are stored: T, or all ``overlap + T + 1`` of them.
    """

    rows: Indices
    before: Indices
    chunks: Indices
    pairs: int

    @property
    def last(self) -> Indices:
        """``[R]``: the last chunk of each, which has its items."""
        return self.chunks[:, -1]


def _paired(unroll: Unroll) -> tuple[dict[str, Tree], dict[str, Tree]]:
    """Returns the trees of an unroll with an entry a step, and the ones with an entry a transition."""
    decided = {"action": unroll.action, "record": unroll.record, "version": unroll.version}
    return dict(unroll.timestep._asdict()), decided


def _both(mine: Tree, given: Tree) -> list[tuple[Array, Array]]:
    """The leaves of two trees of one structure, side by side."""
    return [(x, y) for (_, x), (_, y) in zip(leaves(mine), leaves(given), strict=True)]


def _taken(tree: Tree, index: Indices) -> Tree:
    """A copy of the entries ``index`` of every array."""
    return map_leaves(lambda x: np.take(x, index, axis=0), tree)


def _empty(tree: Tree, count: int, axis: int) -> Tree:
    """Makes arrays ``[count, ...]`` with the axes of ``tree``'s arrays that follow ``axis``."""
    # Memory that was never written is not taken: the pages come as the chunks fill.
    return map_leaves(lambda x: np.empty((count, *x.shape[axis + 1 :]), x.dtype), tree)


def _bytes(tree: Tree, axis: int) -> int:
    """Returns the bytes of one entry: the axes that follow ``axis``."""
    sizes = (np.dtype(x.dtype).itemsize * np.prod(x.shape[axis + 1 :], dtype=int) for _, x in leaves(tree))
    return int(sum(sizes))


class Chunks:
    """The pool of chunks. Its index is touched by one thread at a time; arrays are read and written by many.

    Args:
      geometry: the sizes.
      example: an unroll ``[L+1, 1, ...]`` of the dtypes and shapes to come.
    """

    def __init__(self, geometry: Geometry, example: Unroll) -> None:
        self.geometry = geometry
        count, places = geometry.chunks, geometry.chunks * geometry.length
        steps, decided = _paired(example)
        self._steps = _empty(steps, places, 1)
        self._decided = _empty(decided, places, 1)
        self._states = _empty(example.state, count, 0) if self.keeps_state(geometry) else None
        self._no_state = example.state
        # The last entry of the links belongs to the chunk -1, which is none: none is before it, and what is said to be
        # behind it nobody reads.
        self.previous = np.full(count + 1, -1, np.int64)
        self.next = np.full(count + 1, -1, np.int64)
        self.generation = np.zeros(count, np.int64)
        self.status = np.full(count, FREE, np.int8)
        self.stream = np.zeros(count, np.int64)
        self.end = np.zeros(count, np.int64)
        self.cursor = 0
        # Which chunks are still to be copied for a checkpoint; one that has to be taken now waits for that.
        self.held = np.zeros(count, bool)
        self._tails: dict[int, int] = {}

    @staticmethod
    def keeps_state(geometry: Geometry) -> bool:
        """Returns whether the agent's state is stored: where an item is a whole unroll, which begins with it."""
        return geometry.items == 1

    @staticmethod
    def bytes_of(geometry: Geometry, example: Unroll) -> int:
        """Returns the bytes of a full pool."""
        steps, decided = _paired(example)
        state = _bytes(example.state, 0) if Chunks.keeps_state(geometry) else 0
        a_place = _bytes(steps, 1) + _bytes(decided, 1)
        return geometry.chunks * (geometry.length * a_place + state + _INDEX_BYTES)

    # -- chains ---------------------------------------------------------------------------------------------

    def back(self, chunks: Indices, hops: int) -> Indices:
        """Returns the chunks ``[...]`` and their predecessors as ``[hops + 1, ...]``; -1 where a chain ends."""
        found = [chunks]
        for _ in range(hops):
            found.append(self.previous[found[-1]])
        return np.stack(found)

    def reached(self, chunks: Indices) -> Indices:
        """The items whose windows show something of these chunks, each once."""
        behind, found = chunks, []
        for hop in range(self.geometry.most_hops + 1):
            numbers = np.flatnonzero(self.geometry.hops >= hop)
            found.append((behind[:, None] * self.geometry.items + numbers).ravel())
            behind = self.next[behind]
            behind = behind[behind >= 0]
        return np.unique(np.concatenate(found))

    def whole(self, chunks: Indices) -> NDArray[np.bool_]:
        """``[items, R]``: which items of chunks ``[R]`` have their whole window."""
        reach = (self.back(chunks, self.geometry.most_hops) >= 0).sum(axis=0) - 1
        whole: NDArray[np.bool_] = reach >= self.geometry.hops[:, None]
        return whole

    def lay_out(self, streams: Indices, end: int) -> tuple[Lay, Lay]:
        """Lays out an unroll's rows: first the rows that continue their streams, then the ones that begin segments.

        Args:
          streams: int64 ``[B]``, streams of the rows; no two the same.
          end: number of the last step, in the stream of each.
        """
        hops, length = self.geometry.most_hops, self.geometry.length
        tails = np.array([self._tails.get(stream, -1) for stream in streams.tolist()], np.int64)
        chains = self.back(tails, hops - 1)
        continues = (chains >= 0).all(axis=0) & (self.end[tails] == end - length)
        while True:
            old, new = np.flatnonzero(continues), np.flatnonzero(~continues)
            count = old.size + new.size * (hops + 1)
            # What would be overwritten right now cannot be continued, and a new segment takes more chunks.
            lost = ((chains[:, old] - self.cursor) % self.geometry.chunks < count).any(axis=0)
            if not lost.any():
                break
            continues[old[lost]] = False
        ahead = (self.cursor + np.arange(count)) % self.geometry.chunks
        return (
            Lay(old, tails[old], ahead[: old.size, None], length),
            Lay(
                new, np.full(new.size, -1), ahead[old.size :].reshape(-1, hops + 1), self.geometry.unroll + 1
            ),
        )

    def busy(self, lay: Lay) -> bool:
        """Returns whether a chunk that a lay overwrites or continues is being written, or has to be copied first."""
        touched = (lay.chunks, self.back(lay.before, self.geometry.most_hops - 1))
        written = (bool((self.status[chunks[chunks >= 0]] == BUSY).any()) for chunks in touched)
        return bool(self.held[lay.chunks].any()) or any(written)

    def free(self, chunks: Indices) -> None:
        """Empties chunks and cuts their links; items of their old generation are dead.

        A link that leads here from before may stay: until the chunk is taken again it leads to dead items only, and by
        then the chunk before has been freed, whose turn comes first.
        """
        for chunk, stream in zip(chunks.tolist(), self.stream[chunks].tolist(), strict=True):
            if self._tails.get(stream) == chunk:
                del self._tails[stream]
        self.previous[self.next[chunks]] = -1
        self.next[chunks] = self.previous[chunks] = -1
        self.status[chunks] = FREE
        self.generation[chunks] += 1

    def claim(self, lay: Lay, streams: Indices, end: int) -> None:
        """Takes free chunks as laid out, links them and ends their streams with them; now they are to be written."""
        chain = np.concatenate([lay.before[:, None], lay.chunks], axis=1)
        self.previous[lay.chunks] = chain[:, :-1]
        self.next[chain[:, :-1]] = chain[:, 1:]
        self.status[lay.chunks] = BUSY
        self.stream[lay.chunks] = streams[lay.rows, None]
        self.end[lay.chunks] = end + self.geometry.length * np.arange(1 - lay.chunks.shape[1], 1)
        self._tails.update(zip(streams[lay.rows].tolist(), lay.last.tolist(), strict=True))
        self.cursor = (self.cursor + lay.chunks.size) % self.geometry.chunks

    # -- arrays ---------------------------------------------------------------------------------------------

    def places(self, items: Indices) -> Indices:
        """``[W+1, B]``: the places of the windows of items ``[B]``, in the order of time."""
        geometry = self.geometry
        chunk, number = np.divmod(items, geometry.items)
        chain = self.back(chunk, geometry.most_hops)[::-1]
        last = geometry.most_hops * geometry.length + geometry.ends[number]
        return self._flat(chain, last + np.arange(-geometry.window, 1)[:, None])

    def _flat(self, chain: Indices, steps: Indices) -> Indices:
        """The places ``[P, B]`` that are ``steps`` ``[P, B]`` behind the beginning of chains ``[K, B]``."""
        hop, place = np.divmod(steps, self.geometry.length)
        return np.take_along_axis(chain, hop, axis=0) * self.geometry.length + place

    def write(self, lay: Lay, unroll: Unroll) -> None:
        """Copies rows of an unroll ``[L+1, B, ...]`` to where they belong."""
        length = self.geometry.length
        steps = np.arange(lay.chunks.shape[1] * length)[-lay.pairs :, None]
        places = self._flat(lay.chunks.T, np.broadcast_to(steps, (lay.pairs, lay.rows.size)))
        everybody = lay.rows.size == unroll.version.shape[1]
        rows: Any = slice(None) if everybody else lay.rows

        observed, decided = _paired(unroll)
        for mine, given in (*_both(self._steps, observed), *_both(self._decided, decided)):
            # The first pair of a new segment has no action: there is one step more than transitions.
            last = min(lay.pairs, len(given))
            mine[places[-last:]] = given[-last:, rows]
        if self._states is not None:
            for mine, given in _both(self._states, unroll.state):
                mine[lay.last] = given[rows]

    def read(self, items: Indices, places: Indices) -> Unroll:
        """The windows ``[W+1, B, ...]`` of items ``[B]`` at their :meth:`places` ``[W+1, B]``."""
        steps, decided = _taken(self._steps, places), _taken(self._decided, places[1:])
        return Unroll(TimeStep(**steps), **decided, state=self._read_states(items))

    def _read_states(self, items: Indices) -> Tree:
        if self._states is not None:
            return _taken(self._states, items)
        return map_leaves(lambda x: np.zeros((items.size, *x.shape[1:]), x.dtype), self._no_state)

    # -- checkpoints ----------------------------------------------------------------------------------------

    def index(self) -> dict[str, Array]:
        """Returns a copy of the index of the chunks in use, each ``[used]``, in the order of overwriting."""
        used = np.flatnonzero(self.status == USED)
        used = np.roll(used, -int(np.searchsorted(used, self.cursor)))
        tails = np.zeros(self.status.size, bool)
        tails[list(self._tails.values())] = True
        return {
            "chunk": used,
            "previous": self.previous[used],
            "generation": self.generation[used],
            "stream": self.stream[used],
            "end": self.end[used],
            "tail": tails[used],
        }

    def restore_index(self, index: Mapping[str, Array], cursor: int) -> None:
        """Takes over a result of :meth:`index`; everything else is forgotten."""
        used, previous = index["chunk"], index["previous"]
        self.previous[:] = self.next[:] = -1
        self.previous[used] = previous
        # A chunk that was being written follows nothing: links forward are made of those that lead back.
        self.next[previous] = used
        self.status[:] = FREE
        self.status[used] = USED
        self.generation[:] = 0
        self.generation[used] = index["generation"]
        self.stream[used], self.end[used] = index["stream"], index["end"]
        tails = index["tail"]
        self._tails = dict(zip(index["stream"][tails].tolist(), used[tails].tolist(), strict=True))
        self.cursor = cursor
        self.held = np.zeros_like(self.held)

    def stored(self) -> dict[str, Array]:
        """Every array by its name, as views ``[chunks, T, ...]`` (states ``[chunks, ...]``)."""
        length = self.geometry.length
        tree = {"steps": self._steps, "decided": self._decided}
        named = {path: x.reshape(-1, length, *x.shape[1:]) for path, x in leaves(tree)}
        return named | (dict(leaves(self._states, "state")) if self._states is not None else {})


def check_like(example: Unroll, unroll: Unroll) -> None:
    """Raises :class:`SpecError` unless an unroll has the example's dtypes and shapes, but for the rows."""
    rows = unroll.version.shape[1]
    for axis, wanted, given in (
        *((1, *pair) for pair in zip(_paired(example), _paired(unroll), strict=True)),
        (0, {"state": example.state}, {"state": unroll.state}),
    ):
        expected = {
            path: (*x.shape[:axis], rows, *x.shape[axis + 1 :], x.dtype.name) for path, x in leaves(wanted)
        }
        found = {path: (*x.shape, x.dtype.name) for path, x in leaves(given)}
        if expected != found:
            wrong = sorted(p for p in expected.keys() | found.keys() if expected.get(p) != found.get(p))[0]
            raise SpecError(
                f"an unroll's {wrong} is {found.get(wrong, 'missing')}, and this replay keeps "
                f"{expected.get(wrong, 'none')}: it was made for another agent or environment"
            )
