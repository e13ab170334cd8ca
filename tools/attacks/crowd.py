"""A crowd: very many actors of one learner, half of which are killed at once."""

from __future__ import annotations

import os
import secrets
import signal
import threading
import time
from pathlib import Path
from typing import Any

import psutil
from harness import until

from attacks.table import Scene, attack
from seedbed.config.resolve import configure
from seedbed.launch.build import build_spec
from seedbed.metrics.ledger import Ledger
from seedbed.timing.children import children
from seedbed.timing.serving import ADDRESSES, NoPolicy, serving

PROCESSES = 4
JOIN_SECONDS = 300.0


def held() -> tuple[int, int]:
    """Open files and threads of this process."""
    return psutil.Process().num_fds(), threading.active_count()


@attack(
    "crowd",
    "very many actors join by shared memory and by gRPC, act, and half of them are killed at once; the others leave",
    "the others go on meanwhile; afterwards no place is taken, no file and no thread is left, and the books balance",
)
def crowd(scene: Scene) -> None:
    """The actors are processes of many; registry, service and servers are those of a run."""
    for transport in ADDRESSES:
        come_and_go(scene.folder / f"{transport}-few", transport, 2 * PROCESSES)
        begin = held()  # with what a carrier makes once
        seconds = come_and_go(scene.folder / transport, transport, scene.scale.crowd)
        until(lambda begin=begin: held() <= begin, f"files and threads to be {begin} again", 30)
        scene.notes.append(f"{transport}: joined in {seconds:.0f} s")
        scene.times += scene.scale.crowd


def come_and_go(folder: Path, transport: str, number: int) -> float:
    """Has actors come, act and go, half of them by SIGKILL; returns the time in s until all had joined."""
    settings = {"agent": "vtrace", "arch": "seed", "actors": number, "envs_per_actor": 2}
    config = configure("toy:catch", preset="none", transport=transport, **settings)
    spec: Any = build_spec(config)
    policy = NoPolicy(config.placement.full_batch(0), (spec.action.shape, spec.action.dtype))
    token, ledger = secrets.token_hex(16), Ledger()
    folder.mkdir()
    with serving(config, spec, policy, token, ledger) as server, children() as started:
        (address,) = server.open([ADDRESSES[transport].format(folder=folder)])
        server.begin()
        job = {"address": address, "token": token, "spec": spec.to_json()}
        indices = [list(range(first, number, PROCESSES)) for first in range(PROCESSES)]
        begin = time.monotonic()
        parts = [
            started.start(
                "seedbed.timing.replay_steps",
                {**job, "indices": each},
                env={**os.environ, "JAX_PLATFORMS": "cpu"},
            )
            for each in indices
        ]
        until(lambda: len(server.registry.members()) == number, "all to join", JOIN_SECONDS)
        seconds = time.monotonic() - begin
        acted(policy, number)
        for part in parts[: PROCESSES // 2]:
            part.send_signal(signal.SIGKILL)
        left = sum(map(len, indices[PROCESSES // 2 :]))
        until(lambda: len(server.registry.members()) == left, "the killed to be missed", 60)
        acted(policy, left)
        for member in server.registry.members():
            server.registry.dismiss(member, "that is enough")
        for part in parts:
            part.communicate(timeout=60)
        (service,) = server.registry.services
        until(lambda: not (server.registry.members() or service.lanes), "all to have left", 60)
        counts = ledger.counts()
        assert counts["open"] == 0, counts
        assert counts["received"] == counts["dropped"] + counts["queued"] + counts["trained"], counts
    return seconds


def acted(policy: NoPolicy, actors: int) -> None:
    """Waits until every actor can have acted twice since now."""
    before = policy.messages
    until(lambda: policy.messages - before > 4 * actors, "the actors to act")
