"""The entry of a host that host 0 has started, on its own machine or on another one of a cluster."""

from __future__ import annotations

from seedbed.architectures.program import Context
from seedbed.launch.hosts import HOST_0
from seedbed.launch.surroundings import held
from seedbed.launch.train import take_part


@held()
def run(context: Context) -> None:
    """Runs a host until the run ends; it trusts host 0, whose process it is."""
    task = context.task
    take_part(context.address_of(HOST_0), task.index, invitation=context.invitation, trust=None)
