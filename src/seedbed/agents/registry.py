"""Agents by name, as in ``--agent``. The names are known without importing JAX."""

from __future__ import annotations

import importlib
from typing import Protocol, cast

from seedbed.errors import ConfigError, unknown_name
from seedbed.types import Agent, EnvSpec


class AgentModule(Protocol):
    """What the module of an agent offers."""

    Settings: type
    """A frozen dataclass: what the user can set; every field has a default."""

    def make_agent(
        self,
        settings: object,
        env_spec: EnvSpec,
        *,
        network: str = "auto",
        hidden: tuple[int, ...] = (),
        lstm: int = ...,
        compute_dtype: str = "float32",
        observations: str = "auto",
        total_updates: int | None = None,
    ) -> Agent:
        """The agent for one environment."""


AGENTS: dict[str, str] = {
    "vtrace": "seedbed.agents.vtrace",
    "ppo": "seedbed.agents.ppo",
    "a2c": "seedbed.agents.a2c",
    "dqn": "seedbed.agents.dqn",
    "r2d2": "seedbed.agents.r2d2",
    "bc": "seedbed.agents.bc",
}
"""Name of an agent -> the module that holds it; a new agent is one row."""


def load_agent(name: str) -> AgentModule:
    """Imports the module of agent ``name``; raises :class:`ConfigError` if there is none."""
    if name not in AGENTS:
        raise ConfigError(unknown_name("agent", name, AGENTS))
    return cast(AgentModule, importlib.import_module(AGENTS[name]))
