"""Equal shares of a batch for the training devices of all hosts, looked at before anything is started."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

from seedbed.agents.minibatches import MinibatchSettings
from seedbed.config.settings import RunConfig
from seedbed.errors import ConfigError
from seedbed.ops.optimizers import OptimizerSettings


def require_equal_shares(config: RunConfig) -> None:
    """Raises :class:`ConfigError`, with flags that mend it, if the devices cannot share batches and minibatches."""
    hosts, each = config.cluster.hosts, _devices_of_a_host(config)
    if hosts * each < 2 or _are_equal(config, config.settings):
        return
    of_hosts = f" ({each} on each of {hosts} hosts)" if hosts > 1 else ""
    batch, parts = config.settings.batch_size, _parts(config.settings)
    minibatches = f" in {parts} minibatches" if parts > 1 else ""
    raise ConfigError(
        f"a batch of {batch} unrolls{minibatches} cannot be shared equally by {hosts * each} training devices"
        f"{of_hosts}: use {next(_remedies(config))}"
    )


def _remedies(config: RunConfig) -> Iterator[str]:
    """Yields flags with which the shares are equal: a larger batch, then one with fewer minibatches too."""
    settings, devices = config.settings, config.cluster.hosts * _devices_of_a_host(config)
    sizes = range(settings.batch_size, 2 * settings.batch_size + devices + 1)
    for size in sizes:
        if _would_be_equal(config, batch_size=size):
            yield f"--batch-size {size}"
    for size in sizes:
        for parts in range(_parts(settings), 0, -1):
            if _would_be_equal(config, batch_size=size, minibatches=parts):
                yield f"--batch-size {size} --minibatches {parts}"


def _would_be_equal(config: RunConfig, **changes: int) -> bool:
    try:
        return _are_equal(config, dataclasses.replace(config.settings, **changes))
    except ConfigError:
        return False


def _are_equal(config: RunConfig, settings: Any) -> bool:
    devices, parts = config.cluster.hosts * _devices_of_a_host(config), _parts(settings)
    rows = settings.batch_size
    if isinstance(settings, MinibatchSettings) and not config.net.lstm and parts > 1:
        rows, _ = settings.minibatch_rows
    return settings.batch_size % devices == 0 and rows % parts == 0 and rows // parts % devices == 0


def _devices_of_a_host(config: RunConfig) -> int:
    """Number of devices of one host that share a batch; 1 where the architecture does not choose them."""
    return len(getattr(config.placement, "training_devices", (0,)))


def _parts(settings: OptimizerSettings) -> int:
    """Number of minibatches of a batch."""
    return settings.parts if isinstance(settings, MinibatchSettings) else 1
