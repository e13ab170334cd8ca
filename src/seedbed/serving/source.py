"""The source of unrolls whose actors join over a transport."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from seedbed.acting.meters import Meters
from seedbed.serving.actor_registry import ActorRegistry
from seedbed.serving.service import Service
from seedbed.transport.connect import listen
from seedbed.transport.interface import Server
from seedbed.types import Tree


class ServedActors:
    """A :class:`~seedbed.learning.source.Source`: a registry, its services, and the servers where actors join.

    Args:
      registry: lets actors in.
      services: serve them, one for each device that acts.
      meters: of the services.
      warm_up: compiles what acting needs here.
      tables: the agent's states, by the name of their tree in a checkpoint; none where they are with the actors.
    """

    def __init__(
        self,
        registry: ActorRegistry,
        services: Sequence[Service[Any]],
        meters: Meters,
        *,
        warm_up: Callable[[], None] = lambda: None,
        tables: Callable[[], dict[str, Tree]] = dict,
    ) -> None:
        self.registry = registry
        self._services = services
        self._meters = meters
        self._warm_up = warm_up
        self.tables = tables
        self.lane_states = registry.lane_states
        self._servers: list[Server] = []

    def open(self, addresses: list[str]) -> list[str]:
        """Compiles, starts the services and listens; returns the addresses that actors can reach."""
        self._warm_up()
        for service in self._services:
            service.start()
        for address in addresses:
            self._servers.append(listen(address, self.registry))
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
