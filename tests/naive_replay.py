"""A replay that is slow and simple: it keeps a copy of every item's window. What the real one is compared with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from streams import column, window_of

from seedbed.types import DataPlan, Unroll


@dataclass
class Item:
    """A copy of everything, and which chunks it was made of, counted from the beginning of time."""

    window: dict[str, NDArray[Any]]
    state: NDArray[Any]
    serials: list[int]
    leaf: float
    seen: bool = False


class NaiveReplay:
    """The oracle. Chunks are counted on and on here: the one of number k lives until ``count`` others came after it."""

    def __init__(self, plan: DataPlan) -> None:
        assert plan.replay is not None
        self.replay = plan.replay
        self.length, self.overlap = plan.unroll_length, plan.overlap
        self.count = -(-self.replay.capacity // self.length)
        self.per_chunk = self.overlap + self.length - self.replay.window + 1
        self.own = self.length // self.per_chunk
        self.segment = -(-(self.overlap + self.length + 1) // self.length)
        self.taken = 0
        self.streams: dict[int, tuple[int, list[int]]] = {}
        self.items: dict[int, Item] = {}
        self.offered = self.fresh = self.dropped = self.inserted = 0
        self.earned = 0.0  # items, without transitions that only reset

    def offer(self, unroll: Unroll, streams: list[int], end: int, priorities: NDArray[Any]) -> int:
        going_on = {s for s in streams if self.continues(s, end)}
        while True:
            taken = sum(1 if s in going_on else self.segment for s in streams)
            oldest = self.taken + taken - self.count
            safe = {s for s in going_on if min(self.streams[s][1][-(self.segment - 1) :]) >= oldest}
            if safe == going_on:
                break
            going_on = safe
        before, self.inserted = self.offered, self.inserted + len(streams) * self.per_chunk
        for row in sorted(range(len(streams)), key=lambda row: streams[row] not in going_on):
            self._insert(unroll, row, streams[row], end, priorities[:, row], streams[row] in going_on)
        for number in [n for n, item in self.items.items() if min(item.serials) < self.taken - self.count]:
            self.dropped += 0 if self.items.pop(number).seen else self.own
        self.offered = before + sum(self.length + (0 if s in going_on else self.overlap) for s in streams)
        return self.offered - before

    def continues(self, stream: int, end: int) -> bool:
        ended, chain = self.streams.get(stream, (None, []))
        needed = chain[-(self.segment - 1) :]
        whole = len(needed) == self.segment - 1 and min(needed) >= self.taken - self.count
        return ended == end - self.length and whole

    def _insert(
        self, unroll: Unroll, row: int, stream: int, end: int, raw: NDArray[Any], going_on: bool
    ) -> None:
        new = 1 if going_on else self.segment
        serials = list(range(self.taken, self.taken + new))
        self.taken += new
        chain = (self.streams[stream][1] if going_on else []) + serials
        self.streams[stream] = (end, chain)
        self.dropped += 0 if going_on else self.overlap
        if self.own > 1:
            self.earned += float(np.mean(~unroll.timestep.first[-self.length :, row]))
        for number in range(self.per_chunk):
            last = self.overlap + self.length - self.per_chunk + 1 + number
            window = window_of(unroll, row, last, self.replay.window)
            # How many chunks does a window touch whose last step is this one of the last chunk?
            inside = self.length - self.per_chunk + number + 1
            touched = 1 + max(0, -(-(self.replay.window + 1 - inside) // self.length))
            own = (
                window["first"][self.replay.start + 1 :] if self.own == 1 else window["first"][-self.length :]
            )
            dead = own[0] if self.own == 1 else own.all()
            leaf = min(max(float(raw[number]) ** self.replay.priority_exponent, 1e-12), 1e30)
            name = (chain[-1] % self.count) * self.per_chunk + number
            self._forget(name)
            if dead:
                self.dropped += self.own
            else:
                self.earned += self.own == 1
                state = column(unroll, row)["h"] if self.per_chunk == 1 else np.zeros(4, np.float32)
                self.items[name] = Item(window, state.copy(), chain[-touched:], leaf)

    def _forget(self, name: int) -> None:
        old = self.items.pop(name, None)
        if old is not None and not old.seen:
            self.dropped += self.own

    def see(self, names: list[int]) -> int:
        unseen = {name for name in names if not self.items[name].seen}
        for name in unseen:
            self.items[name].seen = True
        self.fresh += len(unseen) * self.own
        return len(unseen) * self.own

    @property
    def unseen(self) -> int:
        return sum(self.own for item in self.items.values() if not item.seen)

    def leaves(self) -> NDArray[np.float64]:
        found = np.zeros(self.count * self.per_chunk)
        for name, item in self.items.items():
            found[name] = item.leaf
        return found
