"""Choice of the JAX devices that act and train."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax

from seedbed.errors import ConfigError


def pick(role: str, indices: Sequence[int]) -> list[Any]:
    """Returns this host's devices with the given indices.

    Args:
      role: ``training`` or ``inference``, for the error message.
      indices: indices into :func:`jax.local_devices`.

    Raises:
      ConfigError: no index is given, one is given twice, or a device does not exist; the message lists the devices.
    """
    devices = jax.local_devices()
    if not indices:
        raise ConfigError(f"no {role} devices: give at least one index, for instance --{role}-devices 0")
    if len(set(indices)) != len(indices):
        raise ConfigError(f"{role} devices {' '.join(map(str, indices))}: an index is given twice")
    for index in indices:
        if not 0 <= index < len(devices):
            there = ", ".join(f"{i} ({device.device_kind})" for i, device in enumerate(devices))
            raise ConfigError(
                f"{role} device {index} does not exist: this machine has {there}; give --{role}-devices some of these"
            )
    return [devices[index] for index in indices]


def pick_everywhere(role: str, indices: Sequence[int]) -> list[Any]:
    """Returns the devices with the given indices on every host, host by host.

    Raises:
      ConfigError: the indices are wrong on this or another host, as for :func:`pick`.
    """
    mine = pick(role, indices)
    if jax.process_count() == 1:
        return mine
    found = []
    for host in range(jax.process_count()):
        devices = [device for device in jax.devices() if device.process_index == host]
        if max(indices) >= len(devices):
            raise ConfigError(
                f"{role} device {max(indices)} does not exist on host {host}: it has {len(devices)}"
            )
        found += [devices[index] for index in indices]
    return found
