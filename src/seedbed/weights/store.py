"""Versioned, immutable snapshots of the parameters, and waiting for a version.

JAX arrays never change once made, so a snapshot is a reference: publishing costs nothing where acting and
learning share a device, and one copy a device where they do not.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

from seedbed.types import Tree, Weights


class WeightStore:
    """The newest snapshots, on every device that acts.

    Args:
      devices: the JAX devices that read; each snapshot is put on each of them.
      keep: number of newest versions that stay readable by :meth:`exactly`.
    """

    def __init__(self, devices: list[Any], *, keep: int) -> None:
        self._devices = devices
        self._keep = keep
        self._lock = threading.Lock()
        self._snapshots: OrderedDict[int, list[Weights]] = OrderedDict()
        self._listeners: list[Callable[[], None]] = []

    def listen(self, wake: Callable[[], None]) -> None:
        """Calls ``wake`` after every publication, from the publisher's thread."""
        self._listeners.append(wake)

    def publish(self, params: Tree, version: int) -> None:
        """Makes ``params`` the newest snapshot."""
        import jax

        copies = [Weights(jax.device_put(params, device), version) for device in self._devices]
        with self._lock:
            self._snapshots[version] = copies
            while len(self._snapshots) > self._keep:
                self._snapshots.popitem(last=False)
        for wake in self._listeners:
            wake()

    @property
    def versions(self) -> list[int]:
        """Returns the versions held, in the order in which they were published."""
        with self._lock:
            return list(self._snapshots)

    def newest(self, device: int = 0) -> Weights:
        """The newest snapshot on the ``device``-th reading device."""
        with self._lock:
            return next(reversed(self._snapshots.values()))[device]

    def exactly(self, version: int, device: int = 0) -> Weights | None:
        """The snapshot of that version, or None if it is not published yet."""
        with self._lock:
            copies = self._snapshots.get(version)
            return copies[device] if copies else None
