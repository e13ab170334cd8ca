"""Agents and architectures by name: one row each. Other packages' are named ``module:name``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from importlib import import_module
from typing import Any, Protocol

from seedbed.errors import ConfigError, unknown_name
from seedbed.plugins import load_object


class Definition(Protocol):
    """The common part of an agent's and an architecture's definition."""

    @property
    def name(self) -> str:
        """The name for people."""

    @property
    def Settings(self) -> type[Any]:  # noqa: N802
        """A frozen dataclass; every field has a default, its name is the flag and its docstring the help text."""


class Registry:
    """Definitions of one kind, by name.

    Args:
      kind: ``"agent"`` or ``"architecture"``, for errors.
      flag: the flag that takes a name.
      rows: ``module:name`` of each definition.
    """

    def __init__(self, kind: str, flag: str, rows: Mapping[str, str]) -> None:
        self.kind = kind
        self.flag = flag
        self._rows = dict(rows)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the rows, in their order."""
        return tuple(self._rows)

    @property
    def default(self) -> str:
        """The name of the first row."""
        return self.names[0]

    def load(self, name: str) -> Definition:
        """Returns the definition with this name, or the object ``module:name`` of any importable package.

        Raises:
          ConfigError: there is no such name, the module cannot be imported, or the object is no definition.
        """
        if name in self._rows:
            module, _, attribute = self._rows[name].partition(":")
            found: Definition = getattr(import_module(module), attribute)
            return found
        if ":" not in name:
            known = unknown_name(self.kind, name, self._rows)
            raise ConfigError(f"{known} (one of your own is {self.flag} module:name)")
        return self._required(name, load_object(name))

    def _required(self, name: str, found: Any) -> Definition:
        settings = getattr(found, "Settings", None)
        if not (isinstance(settings, type) and is_dataclass(settings)):
            raise ConfigError(
                f"{name} is a {type(found).__name__}, and has to be an {self.kind}'s definition, with a name and with "
                f"Settings that are a dataclass: see seedbed.{self.kind}s"
            )
        try:
            settings()
        except TypeError as error:
            raise ConfigError(f"{name}: every field of its Settings needs a default: {error}") from error
        definition: Definition = found
        return definition

    def owners(self, setting: str) -> list[str]:
        """Returns the names of the rows that have a setting of this name."""
        return [
            name
            for name in self._rows
            if setting in {field.name for field in fields(self.load(name).Settings)}
        ]


AGENTS = Registry(
    "agent",
    "--agent",
    {
        "vtrace": "seedbed.agents.vtrace:VTRACE",
        "ppo": "seedbed.agents.ppo:PPO",
        "a2c": "seedbed.agents.a2c:A2C",
        "dqn": "seedbed.agents.dqn:DQN",
        "pqn": "seedbed.agents.pqn:PQN",
        "r2d2": "seedbed.agents.r2d2:R2D2",
        "sac": "seedbed.agents.sac:SAC",
        "muzero": "seedbed.agents.muzero:MUZERO",
        "bc": "seedbed.agents.bc:BC",
    },
)
ARCHITECTURES = Registry(
    "architecture",
    "--arch",
    {
        "seed": "seedbed.architectures.seed:SEED",
        "impala": "seedbed.architectures.impala:IMPALA",
        "apex": "seedbed.architectures.apex:APEX",
        "rapid": "seedbed.architectures.rapid:RAPID",
        "distbelief": "seedbed.architectures.distbelief:DISTBELIEF",
        "gorila": "seedbed.architectures.gorila:GORILA",
        "a3c": "seedbed.architectures.a3c:A3C",
        "a2c": "seedbed.architectures.a2c:A2C",
        "sebulba": "seedbed.architectures.sebulba:SEBULBA",
        "anakin": "seedbed.architectures.anakin:ANAKIN",
    },
)
