"""Contract suites and fakes that users run on their own environment, agent or transport."""

from __future__ import annotations

from typing import TYPE_CHECKING

from seedbed.public import lazily

if TYPE_CHECKING:
    from seedbed.testing import agents, environments, transport
    from seedbed.testing.environments import check_environment

__all__ = ["agents", "check_environment", "environments", "transport"]

__getattr__, __dir__ = lazily(
    __name__,
    {
        "agents": "seedbed.testing.agents",
        "check_environment": "seedbed.testing.environments:check_environment",
        "environments": "seedbed.testing.environments",
        "transport": "seedbed.testing.transport",
    },
)
