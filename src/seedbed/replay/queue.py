"""A bounded first-in first-out queue of unrolls, for on-policy and nearly on-policy agents.

Acting never blocks on it: an unroll that finds no room is kept by its lane, which is not served until there
is room. That is the back-pressure, and it stops only the lanes that are ahead.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from seedbed.errors import ConfigError
from seedbed.types import TimeStep, Tree, Unroll, map_leaves


def rows_of(unroll: Unroll) -> int:
    """B, the environments in an unroll."""
    return int(unroll.version.shape[1])


def per_part(function: Callable[..., Any], unrolls: Sequence[Unroll]) -> Unroll:
    """Applies ``function(arrays, axis)`` to each array of the unrolls, where ``axis`` is its batch axis."""

    def apply(axis: int, trees: Sequence[Tree]) -> Tree:
        return map_leaves(lambda *arrays: function(arrays, axis), trees[0], *trees[1:])

    steps = [unroll.timestep for unroll in unrolls]
    return Unroll(
        timestep=TimeStep(*(apply(1, parts) for parts in zip(*steps, strict=True))),
        action=apply(1, [unroll.action for unroll in unrolls]),
        record=apply(1, [unroll.record for unroll in unrolls]),
        state=apply(0, [unroll.state for unroll in unrolls]),
        version=apply(1, [unroll.version for unroll in unrolls]),
        weight=None if unrolls[0].weight is None else apply(0, [unroll.weight for unroll in unrolls]),
    )


def join(unrolls: Sequence[Unroll], concatenate: Callable[..., Any] = np.concatenate) -> Unroll:
    """Joins several unrolls ``[T+1, B, ...]`` to one ``[T+1, sum of B, ...]``, in order.

    Args:
      unrolls: one or more.
      concatenate: function of arrays along an axis; NumPy's, or the one of the arrays' library.
    """
    if len(unrolls) == 1:
        return unrolls[0]
    return per_part(concatenate, unrolls)


def select(unroll: Unroll, start: int, stop: int) -> Unroll:
    """The environments ``start … stop-1`` of an unroll, as views."""
    index = slice(start, stop)
    return per_part(lambda arrays, axis: arrays[0][index] if axis == 0 else arrays[0][:, index], [unroll])


class UnrollQueue:
    """The queue; safe to use from any thread.

    Args:
      capacity: environments' unrolls that it holds; up to one lane more where batches are no multiple of lanes.
      batch_size: unrolls in a batch. A capacity below it could never fill one, and is refused.
    """

    def __init__(self, capacity: int, batch_size: int) -> None:
        if capacity < batch_size:
            raise ConfigError(
                f"a queue of {capacity} unrolls can never fill a batch of {batch_size}: "
                f"use --queue-size {batch_size} or more"
            )
        self.capacity = capacity
        self._batch_size = batch_size
        self._items: deque[Unroll] = deque()
        self._rows = 0
        self._changed = threading.Condition()
        self._closed = False
        self._listeners: list[Callable[[], None]] = []

    def listen(self, wake: Callable[[], None]) -> None:
        """Calls ``wake`` whenever room was made, from the taker's thread."""
        self._listeners.append(wake)

    def __len__(self) -> int:
        with self._changed:
            return self._rows

    def offer(self, unroll: Unroll) -> bool:
        """Takes the unroll if there is room, or if without it no batch can be filled. Never blocks."""
        rows = rows_of(unroll)
        with self._changed:
            if self._rows >= self._batch_size and self._rows + rows > self.capacity:
                return False
            self._items.append(unroll)
            self._rows += rows
            self._changed.notify_all()
            return True

    def take(self, timeout: float | None = None) -> list[Unroll] | None:
        """The oldest unrolls, ``batch_size`` environments of them, in order; :func:`join` makes one of them.

        None when ``timeout`` s have passed or the queue is closed.
        """
        with self._changed:
            ready = self._changed.wait_for(lambda: self._closed or self._rows >= self._batch_size, timeout)
            if self._closed or not ready:
                return None
            parts = self._pop(self._batch_size)
        for wake in self._listeners:
            wake()
        return parts

    def _pop(self, rows: int) -> list[Unroll]:
        parts: list[Unroll] = []
        self._rows -= rows
        while rows:
            unroll = self._items.popleft()
            size = rows_of(unroll)
            if size > rows:
                self._items.appendleft(select(unroll, rows, size))
                unroll, size = select(unroll, 0, rows), rows
            parts.append(unroll)
            rows -= size
        return parts

    def contents(self) -> list[Unroll]:
        """Returns its contents, oldest first; the queue keeps them."""
        with self._changed:
            return list(self._items)

    def close(self) -> None:
        """Wakes waiting threads; nothing can be taken afterwards."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
