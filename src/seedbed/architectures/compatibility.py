"""Compatibility of agents and settings with architectures, with a reason for each refusal."""

from __future__ import annotations

from typing import Any, cast

from seedbed.architectures.checks import guests_elsewhere, meaningless, uneven_parts
from seedbed.architectures.interface import Architecture
from seedbed.architectures.shares import uneven_shares
from seedbed.config.settings import RunConfig
from seedbed.errors import ConfigError, listed
from seedbed.registry import ARCHITECTURES
from seedbed.types import Agent, DataPlan


def load_architecture(name: str) -> Architecture:
    """Returns the architecture with this name, or ``module:NAME``; raises :class:`ConfigError` if there is none."""
    return cast(Architecture, ARCHITECTURES.load(name))


def why_never(arch: str, plan: DataPlan) -> str | None:
    """Returns the reason why an architecture runs agents with this data plan under no settings; None if it does."""
    return load_architecture(arch).refuses(plan)


def runs_under(plan: DataPlan) -> list[str]:
    """Returns the names of the architectures that run agents with this data plan."""
    return [arch for arch in ARCHITECTURES.names if why_never(arch, plan) is None]


def with_settings(*groups: type[Any]) -> list[str]:
    """Returns the names of the architectures whose settings have all of some groups.

    Args:
      *groups: groups of :mod:`seedbed.config.placement`.
    """
    settings = {arch: load_architecture(arch).Settings for arch in ARCHITECTURES.names}
    return [arch for arch, given in settings.items() if all(issubclass(given, group) for group in groups)]


def why_not(config: RunConfig, agent: Agent) -> str | None:
    """Returns the reason why the configuration's architecture cannot run ``agent`` with these settings, or None."""
    if (reason := why_never(config.arch, agent.data)) is not None:
        there = listed(runs_under(agent.data), "or")
        return f"{agent.name} does not run under {config.arch}: {reason}; use --arch {there}"
    return (
        meaningless(config)
        or guests_elsewhere(config)
        or uneven_parts(config, agent)
        or load_architecture(config.arch).check(config, agent)
        or uneven_shares(config)
    )


def require_fit(config: RunConfig, agent: Agent) -> None:
    """Raises :class:`ConfigError` with the reason if the configuration's architecture cannot run ``agent``."""
    if (reason := why_not(config, agent)) is not None:
        raise ConfigError(reason)
