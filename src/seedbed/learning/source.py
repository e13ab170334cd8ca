"""The source of a learner's unrolls."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from seedbed.instances import Instances
from seedbed.types import Tree


class Source(Protocol):
    """The interface of acting to the learner's loop: complete unrolls are handed to the memory while it is open.

    Lanes are identified by their order: the pair of their actor's index and the half.
    """

    @property
    def instances(self) -> Mapping[str, Instances]:
        """Instances of the roles that act, by the name of the role."""

    def open(self, addresses: list[str]) -> list[str]:
        """Admits actors from other processes, which make their environments meanwhile; nobody acts yet.

        Args:
          addresses: addresses to listen on for actors; ignored where all actors are threads of this process.

        Returns:
          The addresses as actors can reach them.
        """

    def begin(self) -> None:
        """Compiles the policy with the published weights, and starts acting."""

    def close(self) -> None:
        """Stops acting; safe to call twice."""

    def wait_blocked(self, timeout: float) -> bool:
        """Waits, under an exact lag, until every lane is blocked on weights that are not published yet.

        Returns False when ``timeout`` s have passed.
        """

    def lane_states(self) -> dict[tuple[int, int], dict[str, Any]]:
        """Returns the state of each lane (steps, rounds, actions, digest, shared steps), by its order.

        Only while acting rests.
        """

    def tables(self) -> dict[str, Tree]:
        """Returns the agent's recurrent states, by the name of their tree in a checkpoint; only while acting rests."""

    @property
    def last_epoch(self) -> int:
        """Highest epoch of an actor so far."""

    def meters(self) -> dict[str, float]:
        """Returns the metrics since the last call, by name."""
