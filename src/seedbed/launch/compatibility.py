"""Which agent runs under which architecture, as a table."""

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
    """Returns why each agent never runs under each architecture, by their names; None where it does.

    Args:
      more_agents, more_architectures: ``module:NAME`` of those of other packages.
    """
    spec = spec_of(_ANY)
    agents, architectures = (*AGENTS.names, *more_agents), (*ARCHITECTURES.names, *more_architectures)
    plans = {name: build_agent(configure(_ANY, preset="none", agent=name), spec).data for name in agents}
    return {name: {arch: why_never(arch, plan) for arch in architectures} for name, plan in plans.items()}
