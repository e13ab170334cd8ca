"""Which agent runs under which architecture, and why the others do not."""

from __future__ import annotations

from seedbed.agents.registry import AGENTS
from seedbed.architectures.fits import ARCHITECTURES, why_never
from seedbed.config.resolve import configure
from seedbed.envs.make import spec_of
from seedbed.launch.build import build_agent

_ANY = "toy:catch"


def pairings() -> dict[str, dict[str, str | None]]:
    """By agent and architecture, why the one never runs under the other; None where it does."""
    spec = spec_of(_ANY)
    plans = {name: build_agent(configure(_ANY, preset="none", agent=name), spec).data for name in AGENTS}
    return {name: {arch: why_never(arch, plan) for arch in ARCHITECTURES} for name, plan in plans.items()}
