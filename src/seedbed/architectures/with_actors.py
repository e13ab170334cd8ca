"""What the architectures have in common whose actors join over a transport: SEED, IMPALA and Ape-X.

They differ in what stands behind the registry: something that decides for every step, or something that takes whole
unrolls in.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

from seedbed.acting.assignment import lanes_of
from seedbed.acting.lanes import Member
from seedbed.acting.meters import Meters
from seedbed.acting.pace import Lockstep, Round
from seedbed.architectures.interface import Setup
from seedbed.architectures.learner_loop import LearnerLoop
from seedbed.config.settings import RunConfig
from seedbed.learning.checkpoint import Checkpoint
from seedbed.replay.queue import join
from seedbed.serving.actor_registry import ActorRegistry
from seedbed.serving.service import Service
from seedbed.transport.connect import listen
from seedbed.transport.interface import Server
from seedbed.types import Agent, EnvSpec, Unroll


class WithActors(LearnerLoop):
    """One run: everything but the actors, which join by ``addresses``.

    Args:
      config: the run's settings.
      agent: what is computed.
      spec: of the environments.
      token: what actors must know.
      checkpoint: where to go on from; None to begin.
      first_epoch: of the first actor at each index, or a higher one if the checkpoint has come further.
      on_join, on_leave: called with actors that come and go (from other threads).
      on_note: called with a line that their environments have for people.
    """

    registry: ActorRegistry

    def __init__(
        self,
        config: RunConfig,
        agent: Agent,
        spec: EnvSpec,
        *,
        token: str,
        checkpoint: Checkpoint | None = None,
        first_epoch: int = 0,
        on_join: Callable[[Member], None] = lambda member: None,
        on_leave: Callable[[Member, str], None] = lambda member, reason: None,
        on_note: Callable[[str], None] = lambda note: None,
    ) -> None:
        place = config.placement
        lanes = place.actors * lanes_of(place.envs_per_actor)[0]
        super().__init__(config, agent, spec, lanes=lanes, checkpoint=checkpoint, first_epoch=first_epoch)
        self._servers: list[Server] = []
        self._meters = Meters()
        self._services: Sequence[Service[Any]] = self._make_services()
        self.registry = ActorRegistry(
            self._assignment(token),
            self._services,
            place.slots,
            resumable=self._resumable,
            first_epoch=self._first_epoch,
            on_join=on_join,
            on_leave=on_leave,
            on_note=on_note,
        )
        if checkpoint and self._resumable:
            self._restore_tables(checkpoint)
        for service in self._services:
            self._store.listen(service.poke)
            self._memory.listen(service.poke)

    @abstractmethod
    def _make_services(self) -> Sequence[Service[Any]]:
        """What stands behind the registry."""

    def _warm_up(self) -> None:
        """Compiles what acting needs here, once the first weights are published."""

    def _restore_tables(self, checkpoint: Checkpoint) -> None:
        """Puts back what :meth:`_tables` gave."""

    def _lockstep(self, device: int, actors: int, collect: Round) -> Lockstep:
        """The pace of the lanes of so many actors, with the run's exact lag."""
        return Lockstep(
            lag=int(self._lag),
            updates_per_round=self._per_round,
            halves=dict.fromkeys(range(lanes_of(self._config.placement.envs_per_actor)[0]), actors),
            store=self._store,
            device=device,
            collect=collect,
            base=self._base_version,
            filling=self._filling,
        )

    # Life.

    def open(self, addresses: list[str]) -> list[str]:
        """Compiles, publishes the first weights and listens; returns the addresses that actors can reach."""
        self._begin()
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
        self._end()
        self.registry.stop()

    def _on_training_devices(self, unrolls: Sequence[Unroll]) -> Unroll:
        return self.learner.put(join(unrolls))

    def _wait_blocked(self, timeout: float) -> bool:
        return all(service.wait_blocked(timeout) for service in self._services)

    # What others read.

    def meters(self) -> dict[str, float]:
        """Metrics since the last call, by name."""
        return {**super().meters(), **self._meters.take(), "actors": len(self.registry.members())}

    def _lane_states(self) -> dict[tuple[int, int], dict[str, Any]]:
        return self.registry.lane_states()

    @property
    def _last_epoch(self) -> int:
        return self.registry.last_epoch


def with_actors(kind: type[WithActors]) -> Callable[[Setup], WithActors]:
    """Returns the ``build`` of an architecture whose actors join over a transport."""

    def build(setup: Setup) -> WithActors:
        return kind(
            setup.config,
            setup.agent,
            setup.spec,
            token=setup.token,
            checkpoint=setup.checkpoint,
            first_epoch=setup.first_epoch,
            on_join=setup.on_join,
            on_leave=setup.on_leave,
            on_note=setup.on_note,
        )

    return build
