"""Simulated actors that send the same step again and again over a real carrier; imports no JAX.

``python -m seedbed.timing.replay_steps JOB`` joins with some actors, plays until the server ends the conversations, and
prints the measurement of its end as JSON; :mod:`seedbed.timing.serving` is the other end.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import threading
import time
from typing import Any

import numpy as np

from seedbed.acting.unrolls import step_fields
from seedbed.errors import ConnectionLost
from seedbed.transport.connect import connect
from seedbed.transport.interface import PROTOCOL, Client, Layout, Layouts
from seedbed.types import EnvSpec

_START_SECONDS = 60.0
_MOST_WAITS = 100_000
"""Waits that one actor remembers, the first ones."""


def replay(job: dict[str, Any]) -> dict[str, Any]:
    """Plays some actors to the end.

    Args:
      job: ``address``, ``token``, ``spec`` and ``indices`` of the actors.

    Returns:
      ``join_seconds`` of all actors together, ``messages`` that they sent, ``processor_seconds`` while they played, and
      ``waits``, times in s from sending a step to having its actions.
    """
    spec = EnvSpec.from_json(job["spec"])
    begun = time.perf_counter()
    players = [_Player(job["address"], job["token"], spec, index) for index in job["indices"]]
    joined = time.perf_counter() - begun
    processor = time.process_time()
    threads = [threading.Thread(target=player.play) for player in players]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return {
        "join_seconds": joined,
        "messages": sum(player.messages for player in players),
        "processor_seconds": time.process_time() - processor,
        "waits": [wait for player in players for wait in player.waits],
    }


class _Player:
    """One simulated actor."""

    def __init__(self, address: str, token: str, spec: EnvSpec, index: int) -> None:
        self.messages = 0
        self.waits: list[float] = []
        self._client: Client = connect(address, timeout=_START_SECONDS)
        about = {"protocol": PROTOCOL, "token": token, "claim": "", "envs": None}
        told = self._client.ask(
            {"kind": "join", "index": index, "host": socket.gethostname(), "pid": os.getpid(), **about}
        )
        self._client.ask({"kind": "ready", "spec": spec.to_json()})
        rows, self._lanes = told["rows"], len(told["seeds"])
        up = Layout(step_fields(spec, rows))
        down = Layout((((rows, *spec.action.shape), spec.action.dtype),))
        self._client.open([Layouts(up, down)] * self._lanes)
        self._arrays = [np.zeros(shape, dtype) for shape, dtype in up.fields]

    def play(self) -> None:
        """Sends steps until the conversation ends."""
        sent = [0.0] * self._lanes
        try:
            for lane in range(self._lanes):
                sent[lane] = time.perf_counter()
                self._client.send(lane, self._arrays)
            while (reply := self._client.receive()) is not None:
                lane = reply[0]
                if len(self.waits) < _MOST_WAITS:
                    self.waits.append(time.perf_counter() - sent[lane])
                self.messages += 1
                sent[lane] = time.perf_counter()
                self._client.send(lane, self._arrays)
        except ConnectionLost:
            self._client.close()


if __name__ == "__main__":
    with os.fdopen(os.dup(1), "w") as told:
        os.dup2(2, 1)
        told.write(json.dumps(replay(json.loads(sys.argv[1]))))
