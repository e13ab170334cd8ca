"""Equal shares of a batch: for training devices, hosts, parts of a replay, minibatches, and rounds of an exact lag.

The settings alone decide, so that a run is refused before anything is started, with flags that pass every one of these
conditions.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Iterator
from typing import Any

from seedbed.agents.minibatches import MinibatchSettings
from seedbed.config.placement import EnvironmentSettings
from seedbed.config.settings import RunConfig
from seedbed.errors import ConfigError
from seedbed.ops.optimizers import OptimizerSettings


def require_equal_shares(config: RunConfig) -> None:
    """Raises :class:`ConfigError`, with flags that mend it, for a batch that :func:`uneven_shares` refuses."""
    if (reason := uneven_shares(config)) is not None:
        raise ConfigError(reason)


def uneven_shares(config: RunConfig) -> str | None:
    """Refuses a batch that cannot be shared equally, or that rounds of acting do not divide evenly into."""
    if (reason := _unevenness(config, config.settings)) is None:
        return None
    return f"{reason}: use {fitting_batch(config) or 'another number of --actors or --envs-per-actor'}"


def fitting_batch(config: RunConfig, least: int = 1) -> str | None:
    """Returns flags of a batch of ``least`` unrolls or more that is shared equally; None if there is none.

    Under an exact lag that is the largest one, a whole round if possible, and else the next larger one than given; the
    same number of minibatches comes before fewer.
    """
    settings, parts = config.settings, _parts(config.settings)
    sizes = [size for size in _sizes(config) if size >= least]
    for size in sizes:
        if _fits(config, batch_size=size):
            return f"--batch-size {size}"
    for size in sizes:
        for fewer in range(parts, 0, -1) if isinstance(settings, MinibatchSettings) else ():
            if _fits(config, batch_size=size, minibatches=fewer):
                return f"--batch-size {size} --minibatches {fewer}"
    return None


def _sizes(config: RunConfig) -> Iterable[int]:
    """Yields sizes of batches that may fit, the ones to be preferred first."""
    given, acting, hosts = config.settings.batch_size, _acting_in_rounds(config), config.cluster.hosts
    if acting is not None:
        return (hosts * share for share in range(acting, 0, -1) if acting % share == 0)
    unit = math.lcm(_devices(config), _replay_parts(config))
    first = -(-given // unit) * unit
    return range(first, 2 * first + unit + 1, unit)


def _fits(config: RunConfig, **changes: int) -> bool:
    try:
        return _unevenness(config, dataclasses.replace(config.settings, **changes)) is None
    except ConfigError:
        return False


def _unevenness(config: RunConfig, settings: Any) -> str | None:
    """Returns the first share that is uneven, of a batch of ``settings``; None if all are equal."""
    return next(_all_unevenness(config, settings), None)


def _all_unevenness(config: RunConfig, settings: Any) -> Iterator[str]:
    batch, parts, hosts, devices = (
        settings.batch_size,
        _parts(settings),
        config.cluster.hosts,
        _devices(config),
    )
    rows = batch
    if isinstance(settings, MinibatchSettings) and not config.net.lstm and parts > 1:
        rows, _ = settings.minibatch_rows
    if rows % parts:
        yield f"a batch of {batch} unrolls cannot be cut into {parts} equal minibatches"
    elif batch % devices or rows // parts % devices:
        minibatches = f" in {parts} minibatches" if parts > 1 else ""
        of_hosts = f" ({devices // hosts} on each of {hosts} hosts)" if hosts > 1 else ""
        sharing = f"{devices} training devices{of_hosts}"
        yield f"a batch of {batch} unrolls{minibatches} cannot be shared equally by {sharing}"
    if batch % (pieces := _replay_parts(config)):
        yield f"batch_size is {batch}, and {pieces} parts of the replay cannot share it equally"
    acting = _acting_in_rounds(config)
    if acting is not None and acting % max(batch // hosts, 1):
        share = (
            f"each host's share of the batch, {batch // hosts}" if hosts > 1 else f"the batch size {batch}"
        )
        yield f"with an exact lag, the {acting} environments must be a multiple of {share}"


def _acting_in_rounds(config: RunConfig) -> int | None:
    """Returns the environments of a host whose unrolls make up rounds of whole batches; None where there are none."""
    place = config.placement
    if not isinstance(place, EnvironmentSettings) or not config.lag.exact:
        return None
    queued = getattr(config.settings, "memory", None) == "queue"
    return place.planned - place.eval_envs or None if queued else None


def _devices(config: RunConfig) -> int:
    """Number of devices that share a batch; one on each host where the architecture does not choose them."""
    return config.cluster.hosts * len(getattr(config.placement, "training_devices", (0,)))


def _replay_parts(config: RunConfig) -> int:
    """Number of parts of the replay, which share a batch; 1 without a replay."""
    if getattr(config.settings, "memory", None) != "replay":
        return 1
    return getattr(config.settings, "replay_parts", None) or config.cluster.hosts


def _parts(settings: OptimizerSettings) -> int:
    """Number of minibatches of a batch."""
    return settings.parts if isinstance(settings, MinibatchSettings) else 1
