"""Where a learner's unrolls come from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from seedbed.instances import Instances
from seedbed.types import Tree


class Source(Protocol):
    """Acting, as the learner's loop sees it: it hands complete unrolls to the memory while it is open.

    Lanes are named by their order: the index of their actor, and the half.
    """

    @property
    def instances(self) -> Mapping[str, Instances]:
        """The instances of the roles that act, by the name of the role."""

    def open(self, addresses: list[str]) -> list[str]:
        """Compiles, with the weights that are published, and begins to act.

        Args:
          addresses: where actors may join; ignored where all act in this process.

        Returns:
          The addresses as actors can reach them.
        """

    def close(self) -> None:
        """Stops acting; safe to call twice."""

    def wait_blocked(self, timeout: float) -> bool:
        """Waits, under an exact lag, until acting rests for want of new weights.

        Returns False when ``timeout`` s have passed.
        """

    def lane_states(self) -> dict[tuple[int, int], dict[str, Any]]:
        """Returns the state of every lane: steps, rounds, actions, digest and shared steps; only while acting rests."""

    def tables(self) -> dict[str, Tree]:
        """Returns the agent's states, by the name of their tree in a checkpoint; only while acting rests."""

    @property
    def last_epoch(self) -> int:
        """The highest epoch of an actor so far."""

    def meters(self) -> dict[str, float]:
        """Returns metrics since the last call, by name."""
