"""The table of agents and architectures that go together."""

from __future__ import annotations

from collections.abc import Sequence

from seedbed.architectures.compatibility import why_never
from seedbed.config.resolve import configure
from seedbed.envs.make import spec_of
from seedbed.launch.build import build_agent
from seedbed.registry import AGENTS, ARCHITECTURES

_ANY = "toy:catch"


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
    spec = spec_of(_ANY)
    agents, architectures = (*AGENTS.names, *more_agents), (*ARCHITECTURES.names, *more_architectures)
    plans = {name: build_agent(configure(_ANY, preset="none", agent=name), spec).data for name in agents}
    return {name: {arch: why_never(arch, plan) for arch in architectures} for name, plan in plans.items()}
