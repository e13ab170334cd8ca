"""The table of agents and architectures that go together."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

from seedbed.architectures.compatibility import why_never
from seedbed.config.resolve import configure
from seedbed.envs.make import spec_of
from seedbed.errors import ConfigError
from seedbed.launch.build import build_agent
from seedbed.registry import AGENTS, ARCHITECTURES
from seedbed.types import ArraySpec, DataPlan

_ANY = "toy:catch"
_REALS = ArraySpec((1,), "float32", low=(-1.0,), high=(1.0,))


def table_of_pairs(
    more_agents: Sequence[str] = (), more_architectures: Sequence[str] = ()
) -> dict[str, dict[str, str | None]]:
    """Returns the reason why each agent never runs under each architecture; None where it does.

    Args:
      more_agents: agents of other packages, as ``module:NAME``.
      more_architectures: architectures of other packages, as ``module:NAME``.

    Returns:
      The reasons, by the name of the agent, then by the name of the architecture.
    """
    agents, architectures = (*AGENTS.names, *more_agents), (*ARCHITECTURES.names, *more_architectures)
    plans = {name: _plan_of(name) for name in agents}
    return {name: {arch: why_never(arch, plan) for arch in architectures} for name, plan in plans.items()}


def _plan_of(agent: str) -> DataPlan:
    """The data that an agent wants, in an environment whose actions it takes."""
    config, spec = configure(_ANY, preset="none", agent=agent), spec_of(_ANY)
    with suppress(ConfigError):
        return build_agent(config, replace(spec, action=_REALS)).data
    return build_agent(config, spec).data
