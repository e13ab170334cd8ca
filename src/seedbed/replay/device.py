"""A replay on an accelerator behind the interface of the host's: steps stay there, and a sample is one program.

The host has the flow control (:class:`~seedbed.replay.limiter.RateLimiter`) and the stream of each environment;
everything else is in the arrays of a :class:`~seedbed.replay.ring.Ring`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import jax
import numpy as np
from numpy.typing import ArrayLike, NDArray

from seedbed.errors import CheckpointError, ConfigError
from seedbed.replay.flow import Flow
from seedbed.replay.limiter import RateLimiter
from seedbed.replay.replay import SLOT, Sample
from seedbed.replay.ring import Held, Ring
from seedbed.types import Unroll

Array = NDArray[Any]
Indices = NDArray[np.int64]


class DevicePieces:
    """The contents of a replay at one moment, copied to the host."""

    def __init__(self, arrays: list[Array]) -> None:
        self._arrays = arrays

    def __iter__(self) -> Iterator[dict[str, Array]]:
        """Gives the one piece that there is: each array by its number."""
        yield {f"{index:03d}": array for index, array in enumerate(self._arrays)}

    def close(self) -> None:
        """Frees the copies."""
        self._arrays = []


class DeviceReplay(Flow):
    """A :class:`~seedbed.replay.replay.Replay` whose steps are on an accelerator; safe to use from any thread.

    Args:
      ring: functions of its contents.
      envs: number of environments; the slot of a stream is the number of its column.
      device: the JAX device.
      limiter: flow control of acting and learning.
      batch_size: items in each sample.
      key: key for samples, from which the one of each batch is folded by the number of batches before it.
      by_places: see :class:`~seedbed.replay.replay.Replay`.
    """

    own_priorities = True
    """True if it computes the first priorities of items itself."""

    def __init__(
        self,
        ring: Ring,
        envs: int,
        device: Any,
        limiter: RateLimiter,
        *,
        batch_size: int,
        key: Callable[[Any], Any],
        by_places: bool,
    ) -> None:
        super().__init__(limiter)
        self._ring, self._device = ring, device
        self._batch_size, self._by_places = batch_size, by_places
        with jax.default_device(device):
            self._held: Held = jax.device_put(jax.jit(ring.empty, static_argnums=0)(envs), device)
        self._insert = jax.jit(ring.insert, donate_argnums=0)
        self._draw = jax.jit(lambda held, count: ring.draw(held, key(count), batch_size), donate_argnums=0)
        self._renew = jax.jit(ring.renew, donate_argnums=0)
        self._tails: dict[int, tuple[int, int]] = {}
        self._drawn = self._told = 0
        self.late = 0
        self.ignored = 0

    def __len__(self) -> int:
        """Transitions that can be sampled."""
        with self._changed:
            return int(np.count_nonzero(np.asarray(self._held.leaf))) * self._ring.geometry.own

    @property
    def unsampled(self) -> int:
        """Transitions of them that never were."""
        with self._changed:
            leaf, seen = jax.device_get((self._held.leaf, self._held.seen))
        return int(np.sum((leaf > 0) & ~seen)) * self._ring.geometry.own

    @property
    def fill(self) -> float:
        """Share of the memory in use, from 0 to 1."""
        with self._changed:
            return float(np.mean(np.asarray(self._held.number) >= 0))

    def take_dropped(self) -> int:
        """Transitions that were overwritten unsampled, or could never be sampled, since this was last asked."""
        with self._changed:
            dropped = int(np.asarray(self._held.dropped).sum(dtype=np.int64))
            news, self._told = dropped - self._told, dropped
        return news

    def may_sample(self) -> bool:
        """Returns whether a batch could be sampled now."""
        with self._changed:
            return bool(self._tails) and self._limiter.may_sample()

    def has_room(self, rows: int) -> bool:
        """Returns whether an unroll of so many environments would be taken now."""
        with self._changed:
            return not self._tails or self._limiter.may_insert(rows * self._ring.geometry.items)

    def offer(
        self, unroll: Unroll, streams: Indices, end: int, priorities: ArrayLike | None = None
    ) -> int | None:
        """Takes an unroll unless acting is too far ahead; see :meth:`seedbed.replay.replay.Replay.offer`.

        ``unroll`` may be on any device; all its rows have begun their streams together. ``priorities`` is not used.
        """
        del priorities
        geometry = self._ring.geometry
        slots = streams & SLOT
        earned = float(slots.size * geometry.items)
        if not self._by_places:
            lead = self._ring.start + 1 if geometry.own == 1 else geometry.overlap + 1
            first = np.asarray(unroll.timestep.first[lead : lead + geometry.length])
            earned = float(np.sum(~first)) / geometry.own
        moved = jax.device_put(unroll, self._device)
        with self._changed:
            if self._closed or (self._tails and not self._limiter.may_insert(slots.size * geometry.items)):
                return None
            before = [self._tails.get(slot) for slot in slots.tolist()]
            begins = before != [(stream, end - geometry.length) for stream in streams.tolist()]
            self._held = self._insert(self._held, moved, slots.astype(np.int32), np.bool_(begins))
            self._tails.update(
                (slot, (stream, end)) for slot, stream in zip(slots.tolist(), streams.tolist(), strict=True)
            )
            self._limiter.insert(earned)
            self._changed.notify_all()
        return int(slots.size) * (geometry.unroll if begins else geometry.length)

    def take(self, timeout: float | None = None) -> Sample | None:
        """Takes a batch, which stays on the device; see :meth:`seedbed.replay.replay.Replay.take`."""
        with self._changed:
            ready = self._changed.wait_for(
                lambda: self._closed or (bool(self._tails) and self._limiter.may_sample()), timeout
            )
            if self._closed or not ready:
                return None
            self._limiter.sample()
            self._held, drawn = self._draw(self._held, np.int32(self._drawn))
            self._drawn += 1
        self._tell_of_room()
        return Sample(drawn.unroll, drawn.items, drawn.numbers, int(drawn.fresh), 1.0)

    def update(self, items: Any, generations: Any, priorities: ArrayLike) -> None:
        """Gives sampled items their new priorities; see :meth:`seedbed.replay.replay.Replay.update`."""
        given = np.asarray(priorities, np.float32)
        with self._changed:
            self._held, late, ignored = self._renew(self._held, items, generations, given)
        self.late += int(late)
        self.ignored += int(ignored)

    def snapshot(self) -> tuple[DevicePieces, dict[str, Any]]:
        """Returns everything that the next samples depend on: a copy of all arrays, and plain JSON values."""
        with self._changed:
            arrays = [np.asarray(leaf) for leaf in jax.device_get(jax.tree.leaves(self._held))]
            meta = {
                "limiter": self._limiter.state(),
                "drawn": self._drawn,
                "told": self._told,
                "tails": [[slot, *tail] for slot, tail in self._tails.items()],
                "late": self.late,
                "ignored": self.ignored,
            }
        return DevicePieces(arrays), meta

    def restore(self, pieces: Iterable[Mapping[str, Array]], meta: Mapping[str, Any]) -> None:
        """Takes over a result of :meth:`snapshot`, while no other thread uses the replay.

        Raises:
          CheckpointError: it is one of another plan, agent or environment, or of a replay on the host.
        """
        piece = next(iter(pieces))
        kept = [piece[name] for name in sorted(piece)]
        mine, structure = jax.tree.flatten(self._held)
        forms = [[(leaf.shape, leaf.dtype.name) for leaf in each] for each in (mine, kept)]
        if "drawn" not in meta or forms[0] != forms[1]:
            raise CheckpointError(
                "the replay in the checkpoint is another one: give the settings that it was written with (the sizes, "
                "the number of environments, and --replay-on), or begin with an empty replay"
            )
        self._held = jax.device_put(jax.tree.unflatten(structure, kept), self._device)
        self._limiter.restore(meta["limiter"])
        self._drawn, self._told = int(meta["drawn"]), int(meta["told"])
        self._tails = {slot: (stream, end) for slot, stream, end in meta["tails"]}
        self.late, self.ignored = int(meta["late"]), int(meta["ignored"])


def require_room_on(device: Any, ring: Ring, envs: int) -> None:
    """Raises :class:`ConfigError` if a ring does not fit into the memory of a device that tells how much it has."""
    stats = device.memory_stats() or {}
    limit, needed = stats.get("bytes_limit"), ring.bytes(envs)
    if limit is not None and needed > limit - stats.get("bytes_in_use", 0):
        raise ConfigError(
            f"a replay of {needed / 2**30:.1f} GiB does not fit into the {limit / 2**30:.1f} GiB of {device}: give a "
            "smaller --replay-size, or leave --replay-on device out"
        )
