"""What an actor reports of itself. It imports no JAX."""

from __future__ import annotations

import time

from seedbed.acting.meters import Latencies
from seedbed.acting.notes import Notes
from seedbed.transport.interface import Client

REPORT_SECONDS = 1.0


class Reporter:
    """Tells the learner every second while the actor acts.

    Args:
      client: the connection.
      notes: of the actor's environments.

    Attributes:
      waits: how long its environments waited for actions.
    """

    def __init__(self, client: Client, notes: Notes) -> None:
        self.waits = Latencies()
        self._notes = notes
        self._client = client
        self._due = time.monotonic() + REPORT_SECONDS

    def report_if_due(self) -> None:
        """Sends the report once a second, and notes at once."""
        now = time.monotonic()
        if now < self._due and not self._notes.waiting:
            return
        self._due = now + REPORT_SECONDS
        self._client.ask({"kind": "report", "waits": self.waits.take(), "notes": self._notes.take()})
