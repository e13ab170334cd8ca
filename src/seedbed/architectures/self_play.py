"""Self-play, as a part of architectures in which the policy runs centrally: the pool of a run, and its conditions."""

from __future__ import annotations

from typing import Any

import jax

from seedbed.acting.opponents import SIDES, Pool, PoolSettings
from seedbed.architectures.parts import Parts
from seedbed.config.settings import RunConfig
from seedbed.errors import ConfigError


def pool_settings(config: RunConfig) -> PoolSettings | None:
    """Returns the settings of a run's pool; None without self-play."""
    place = config.placement
    if not getattr(place, "opponents", 0):
        return None
    return PoolSettings(
        place.opponents, place.opponents_every, place.opponents_share, place.opponents_by, config.seed
    )


def pool_of(parts: Parts, device: Any) -> Pool | None:
    """Returns the pool of frozen versions, as a checkpoint has it; None without self-play.

    Args:
      parts: parts of the run.
      device: the JAX device for the versions of a checkpoint.

    Raises:
      ConfigError: the environments are no games of two.
    """
    setup = parts.setup
    settings, spec, checkpoint = pool_settings(setup.config), setup.spec, setup.checkpoint
    if settings is None:
        return None
    if spec.rows != SIDES:
        raise ConfigError(
            f"opponents is {settings.size}, and {spec.id} has {spec.rows} agents in an environment: self-play is for "
            "games of two, such as pettingzoo:module:factory of two agents"
        )
    pool = Pool(settings)
    if checkpoint is not None and (kept := checkpoint.meta.get("beside")):
        like = parts.learner.params
        pool.restore(kept, lambda name: jax.device_put(checkpoint.tree(name, like), device), setup.on_note)
    return pool


def too_late_for_games(config: RunConfig) -> str | None:
    """Returns the reason why games under this lag count too late for the pool; None if they do not."""
    if pool_settings(config) is not None and config.lag.exact and config.lag.setting != 0:
        return f"lag is {config.lag.setting}, and opponents need 0 or free, so that games are over when they count"
    return None
