"""The source of unrolls whose actors join over a transport."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from seedbed.acting.meters import Meters
from seedbed.acting.reporting import REPORT_SECONDS
from seedbed.instances import Instances
from seedbed.serving.actor_registry import ActorRegistry
from seedbed.serving.service import Service
from seedbed.transport.admission import Gate
from seedbed.transport.connect import listen
from seedbed.transport.interface import Server
from seedbed.types import Tree

FORWARD_SERVER = "forward-pass server"
"""The role of the servers that decide between the actors and the learner."""
_LATE_SECONDS = 5 * REPORT_SECONDS
"""Silence of a server after which what its actors owe may be its doing."""


class ServedActors:
    """A :class:`~seedbed.learning.source.Source`: a registry, its services, and the servers where actors join.

    Args:
      registry: lets actors in.
      services: serve them, one for each device that acts.
      meters: of the services.
      patience: seconds that an actor from elsewhere may owe a step before it is sent away.
      servers: number of forward-pass servers between the actors and this process, which the actors share in turn.
      gate: lets actors from elsewhere in; None where none may come.
      warm_up: compiles what acting needs here.
      tables: the agent's states, by the name of their tree in a checkpoint; none where they are with the actors.
    """

    def __init__(
        self,
        registry: ActorRegistry,
        services: Sequence[Service[Any]],
        meters: Meters,
        *,
        patience: float,
        servers: int = 0,
        gate: Gate | None = None,
        warm_up: Callable[[], None] = lambda: None,
        tables: Callable[[], dict[str, Tree]] = dict,
    ) -> None:
        self.registry = registry
        self._services = services
        self._meters = meters
        self._patience = patience
        self._gate = gate
        self._servers_between = servers
        self._warm_up = warm_up
        self.tables = tables
        self.lane_states = registry.lane_states
        self._servers: list[Server] = []

    @property
    def instances(self) -> Mapping[str, Instances]:
        """The actors, and the servers between."""
        actors = {"actor": Instances(owes=self._owed_by_actors)}
        if not self._servers_between:
            return actors
        return {FORWARD_SERVER: Instances(owes=self.registry.servers_heard), **actors}

    def _owed_by_actors(self) -> dict[int, float | None]:
        """Returns what the run's own actors owe, and sends others away that owe it for too long.

        An actor whose server gives no sign of life cannot go on, and owes nothing.
        """
        self.registry.dismiss_stalled(self._patience)
        now, heard, owed = time.monotonic(), self.registry.servers_heard(), self.registry.owes()
        for index in owed:
            if self._servers_between:
                server = heard.get(index % self._servers_between)
                if server is None or now - server > _LATE_SECONDS:
                    owed[index] = None
        return owed

    def open(self, addresses: list[str]) -> list[str]:
        """Compiles, starts the services and listens; returns the addresses that actors can reach."""
        self._warm_up()
        for service in self._services:
            service.start()
        for address in addresses:
            self._servers.append(listen(address, self.registry, gate=self._gate))
        return [server.address for server in self._servers]

    def close(self) -> None:
        """Stops everything; safe to call twice."""
        for server in self._servers:
            server.close()
        self.registry.stop()

    def wait_blocked(self, timeout: float) -> bool:
        """Waits until all services' lanes wait for new weights; False when ``timeout`` s have passed."""
        return all(service.wait_blocked(timeout) for service in self._services)

    @property
    def last_epoch(self) -> int:
        """The highest epoch of an actor so far."""
        return self.registry.last_epoch

    def meters(self) -> dict[str, float]:
        """Returns metrics since the last call, by name."""
        return {**self._meters.take(), "actors": len(self.registry.members())}
