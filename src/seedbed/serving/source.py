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
from seedbed.transport.interface import MAX_PEERS, Server
from seedbed.transport.poller import Poller
from seedbed.types import Tree

FORWARD_SERVER = "forward-pass server"
"""Name of the role of the servers that run the policy between actors and learner."""
_LATE_SECONDS = 5 * REPORT_SECONDS
"""Silence of a server after which overdue steps of its actors may be its fault."""


class ServedActors:
    """A :class:`~seedbed.learning.source.Source`: a registry, its services, and the servers where actors join.

    Args:
      registry: registry that admits the actors.
      services: services of the actors, one for each device that acts.
      meters: meters of the services.
      patience: time in s that an actor from elsewhere may owe a step before it is dismissed.
      servers: number of forward-pass servers between the actors and this process; actors are divided among them by
        index.
      gate: admission of actors from elsewhere; None where none may join.
      most: actors at once.
      warm_up: function that compiles the programs for acting in this process.
      tables: function that returns the agent's recurrent states, by the name of their tree in a checkpoint; empty where
        actors hold them.
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
        most: int = MAX_PEERS,
        warm_up: Callable[[], None] = lambda: None,
        tables: Callable[[], dict[str, Tree]] = dict,
    ) -> None:
        self.registry = registry
        self._services = services
        self._meters = meters
        self._patience = patience
        self._gate = gate
        self._most = most
        self._servers_between = servers
        self._warm_up = warm_up
        self.tables = tables
        self.lane_states = registry.lane_states
        self._servers: list[Server] = []
        self._poller: Poller | None = None

    @property
    def instances(self) -> Mapping[str, Instances]:
        """Instances of the actors, and of the forward-pass servers if there are any, by the name of the role."""
        registry = self.registry
        actors = {
            "actor": Instances(
                owes=self._owed_by_actors, elsewhere=registry.elsewhere, say_over=registry.say_over
            )
        }
        if not self._servers_between:
            return actors
        return {FORWARD_SERVER: Instances(owes=self.registry.servers_heard), **actors}

    def _owed_by_actors(self) -> dict[int, float | None]:
        """Returns the time since which each of the run's own actors owes a step; dismisses late ones from elsewhere.

        An actor whose forward-pass server gives no sign of life cannot go on, and owes nothing.
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
        """Listens, and returns the addresses as actors can reach them; their messages wait for :meth:`begin`."""
        # Of several services none can hear the others' actors: it may be busy when their messages come.
        if len(self._services) == 1 and self._services[0].hears and self._poller is None:
            self._poller = Poller()
            self._services[0].thread.wait_at(self._poller)
        for service in self._services:
            service.thread.start()
        for address in addresses:
            self._servers.append(
                listen(address, self.registry, gate=self._gate, poller=self._poller, most=self._most)
            )
        return [server.address for server in self._servers]

    def begin(self) -> None:
        """Compiles, and serves the actors from then on."""
        self._warm_up()
        for service in self._services:
            service.thread.begin()

    def close(self) -> None:
        """Stops the servers and the services; safe to call twice."""
        for server in self._servers:
            server.close()
        self.registry.stop()
        if self._poller is not None:
            self._poller.close()

    def wait_blocked(self, timeout: float) -> bool:
        """Waits until the lanes of all services wait for new weights; returns False when ``timeout`` s have passed."""
        return all(service.wait_blocked(timeout) for service in self._services)

    @property
    def last_epoch(self) -> int:
        """Highest epoch of an actor so far."""
        return self.registry.last_epoch

    def meters(self) -> dict[str, float]:
        """Returns the metrics since the last call, by name."""
        return {**self._meters.take(), "actors": len(self.registry.members())}
