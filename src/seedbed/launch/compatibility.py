"""Which agent runs under which architecture, as a table."""

from __future__ import annotations

from seedbed.architectures.compatibility import why_never
from seedbed.config.resolve import configure
from seedbed.envs.make import spec_of
from seedbed.launch.build import build_agent
from seedbed.registry import AGENTS, ARCHITECTURES

_ANY = "toy:catch"


def table_of_pairs() -> dict[str, dict[str, str | None]]:
    """By agent and architecture, why the one never runs under the other; None where it does."""
    spec = spec_of(_ANY)
    plans = {
        name: build_agent(configure(_ANY, preset="none", agent=name), spec).data for name in AGENTS.names
    }
    return {
        name: {arch: why_never(arch, plan) for arch in ARCHITECTURES.names} for name, plan in plans.items()
    }
