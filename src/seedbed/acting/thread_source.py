"""The source of unrolls whose actors are threads of the learner's process."""

from __future__ import annotations

from typing import Any

import jax

from seedbed.acting.actor_threads import ActorThreads, LearnerGate
from seedbed.instances import Instances
from seedbed.types import Tree
from seedbed.weights.store import WeightStore


def memory_names(index: int, overlap: int) -> list[str]:
    """Returns the names of the trees in a checkpoint that hold the agent's recurrent states of a thread.

    They are the state now and, where unrolls overlap, the one before the open unroll.
    """
    return [f"memory_{index}", f"first_{index}"][: 2 if overlap else 1]


class ThreadSource:
    """A :class:`~seedbed.learning.source.Source` of actor threads.

    Args:
      threads: the actor threads.
      gate: gate at which they wait for the learner.
      store: store of the published weights.
    """

    def __init__(self, threads: ActorThreads, gate: LearnerGate, store: WeightStore) -> None:
        self.threads = threads
        self._gate = gate
        self._store = store
        self.wait_blocked = gate.wait_blocked
        self.instances = {"actor": Instances(owes=threads.owes, start=threads.start)}

    def open(self, addresses: list[str]) -> list[str]:
        """Returns no addresses, since no actor joins."""
        del addresses
        return []

    def begin(self) -> None:
        """Compiles for every device; the supervisor starts the threads."""
        self.threads.warm_up([self._store.newest(index) for index in range(len(self.threads.devices))])

    def close(self) -> None:
        """Stops the threads; safe to call twice."""
        self._gate.close()

    def lane_states(self) -> dict[tuple[int, int], dict[str, Any]]:
        """Returns the state of every thread's lane; only while all wait for weights."""
        return {(index, 0): state for index, state in self.threads.states().items()}

    def tables(self) -> dict[str, Tree]:
        """Returns the agent's recurrent states, by the name of their tree in a checkpoint."""
        return {
            name: jax.device_get(tree)
            for index, trees in self.threads.memories().items()
            for name, tree in zip(memory_names(index, self.threads.assignment.overlap), trees, strict=False)
        }

    @property
    def last_epoch(self) -> int:
        """Highest epoch of a thread so far."""
        return self.threads.last_epoch

    def meters(self) -> dict[str, float]:
        """Returns the metrics since the last call, by name."""
        return {**self.threads.meters.take(), "actors": self.threads.alive()}
