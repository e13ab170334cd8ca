"""The record that an agent is: its settings, and the function that makes it for an environment."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from seedbed.types import Agent


@dataclass(frozen=True)
class AgentDefinition:
    """An agent before there is an environment: one file each, one row in :mod:`seedbed.registry`.

    Attributes:
      name: value of ``--agent``.
      Settings: frozen dataclass of the agent's settings, derived from
        :class:`~seedbed.agents.actor_critic.PolicySettings` or
        :class:`~seedbed.agents.replay_based.ReplaySettings`.
      make: ``(settings, spec, network, *, total_updates) -> Agent``, of a :class:`~seedbed.nets.network.Network`;
        raises :class:`~seedbed.errors.ConfigError` for settings that do not go together, or that do not fit the
        environment.
    """

    name: str
    Settings: type[Any]
    make: Callable[..., Agent]
