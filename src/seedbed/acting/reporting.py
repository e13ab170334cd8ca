"""The reports of an actor to its learner. Imports no JAX."""

from __future__ import annotations

import time
from collections.abc import Sequence

from seedbed.acting.meters import Latencies
from seedbed.acting.notes import Notes
from seedbed.envs.interface import Environment
from seedbed.envs.make import told_by
from seedbed.metrics.final_info import FinalInfo
from seedbed.transport.interface import Client

REPORT_SECONDS = 1.0


class Reporter:
    """A sender of an actor's metrics and notes, once a second.

    Args:
      client: connection to the learner.
      notes: warnings of the actor's environments.
      environments: environments of the actor, one batch for each lane.

    Attributes:
      waits: times that its environments waited for actions.
    """

    def __init__(self, client: Client, notes: Notes, environments: Sequence[Environment]) -> None:
        self.waits = Latencies()
        self._notes = notes
        self._environments = environments
        self._info = FinalInfo()
        self._client = client
        self._due = time.monotonic() + REPORT_SECONDS

    def report_if_due(self) -> None:
        """Sends a report if the last one is a second old, or if there are notes."""
        now = time.monotonic()
        if now < self._due and not self._notes.waiting:
            return
        self._due = now + REPORT_SECONDS
        for environment in self._environments:
            self._info.merge(told_by(environment))
        self._client.ask(
            {
                "kind": "report",
                "waits": self.waits.take(),
                "notes": self._notes.take(),
                "info": self._info.take(),
            }
        )
