"""Simulated actors that send the same step again and again over a real carrier; imports no JAX.

``python -m seedbed.timing.replay_steps JOB`` joins with some actors, plays until the server ends the conversations, and
prints the measurement of its end as JSON; :mod:`seedbed.timing.serving` is the other end.
"""

from __future__ import annotations

import json
import os
import selectors
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
from seedbed.transport.shared_memory import PREFIX, SharedMemoryClient
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
    if job["address"].startswith(PREFIX):
        _play_in_turn(players)
    else:
        _play_in_threads(players)
    return {
        "join_seconds": joined,
        "messages": sum(player.messages for player in players),
        "processor_seconds": time.process_time() - processor,
        "waits": [wait for player in players for wait in player.waits],
    }


def _play_in_turn(players: list[_Player]) -> None:
    """Plays all actors in this thread: each has a processor for itself in a run, and must not wait for another here."""
    with selectors.DefaultSelector() as selector:
        for player in players:
            assert isinstance(player.client, SharedMemoryClient)
            number = player.client.fileno()
            if player.begin():
                selector.register(number, selectors.EVENT_READ, player)
        while selector.get_map():
            for key, _ in selector.select():
                if not key.data.go_on(wait=False):
                    selector.unregister(key.fd)


def _play_in_threads(players: list[_Player]) -> None:
    """Plays every actor in a thread of its own, where nothing tells which of them has a reply."""

    def play(player: _Player) -> None:
        alive = player.begin()
        while alive:
            alive = player.go_on(wait=True)

    threads = [threading.Thread(target=play, args=(player,)) for player in players]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


class _Player:
    """One simulated actor."""

    def __init__(self, address: str, token: str, spec: EnvSpec, index: int) -> None:
        self.messages = 0
        self.waits: list[float] = []
        self.client: Client = connect(address, timeout=_START_SECONDS)
        about = {"protocol": PROTOCOL, "token": token, "claim": "", "envs": None}
        told = self.client.ask(
            {"kind": "join", "index": index, "host": socket.gethostname(), "pid": os.getpid(), **about}
        )
        self.client.ask({"kind": "ready", "spec": spec.to_json()})
        rows, lanes = told["rows"], len(told["seeds"])
        up = Layout(step_fields(spec, rows))
        down = Layout((((rows, *spec.action.shape), spec.action.dtype),))
        self.client.open([Layouts(up, down)] * lanes)
        self._sent = [0.0] * lanes
        self._arrays = [np.zeros(shape, dtype) for shape, dtype in up.fields]

    def begin(self) -> bool:
        """Sends the first step of every lane; returns False if the conversation has ended."""
        try:
            for lane in range(len(self._sent)):
                self._send(lane)
        except ConnectionLost:
            self.client.close()
            return False
        return True

    def go_on(self, *, wait: bool) -> bool:
        """Answers replies with the next steps: the next one, or all that are here; returns False at the end."""
        try:
            while (reply := self.client.receive(wait=wait)) is not None:
                lane = reply[0]
                if len(self.waits) < _MOST_WAITS:
                    self.waits.append(time.perf_counter() - self._sent[lane])
                self.messages += 1
                self._send(lane)
                if wait:
                    break
        except ConnectionLost:
            self.client.close()
            return False
        return True

    def _send(self, lane: int) -> None:
        self._sent[lane] = time.perf_counter()
        self.client.send(lane, self._arrays)


if __name__ == "__main__":
    with os.fdopen(os.dup(1), "w") as told:
        os.dup2(2, 1)
        told.write(json.dumps(replay(json.loads(sys.argv[1]))))
