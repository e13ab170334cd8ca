"""A soak: a run for minutes or hours, with actors that come and go all the time."""

from __future__ import annotations

import threading
import time
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from harness import Command, alive, balanced, flags, learned, sockets, summary, until

from attacks.kills import rows_are_balanced
from attacks.table import Scene, attack
from seedbed.acting.actor import act
from seedbed.errors import TransportError
from seedbed.transport.admission import Invitation
from seedbed.transport.connect import connect

WARM_SHARE = 0.4
"""Share of the soak after which memory is compared: caches and arenas are filled by then."""
GROWTH_SHARE, GROWTH_BYTES = 0.02, 8e6
"""Growth over the rest that is taken for noise: a share of the memory, and bytes."""


@attack(
    "soak",
    "actors join by TLS and by the run's own socket, play, and leave, are cut off, or are killed, all the time",
    "no memory more, no file, no thread, nothing in /dev/shm; books balance",
)
def soak(scene: Scene) -> None:
    """Three actors in threads come and go several times a second, and one process is killed now and then."""
    shared = set(Path("/dev/shm").iterdir())
    words = flags("toy:catch", "run", actors=1, listen=("0.0.0.0:0",), max_envs=64, frames=10**9)
    with Command(*words, "--actor-restarts", "100000", cwd=scene.folder) as learner:
        line = learner.pasted()
        learned(scene.folder / "run")
        network = f"127.0.0.1:{line[1].rpartition(':')[2]}"
        (own,) = sockets(scene.folder / "run")
        invitations = [(network, Invitation.parse(line[-1])), (f"shm:{own}", Invitation.parse(line[-1]))]
        over = threading.Event()
        threads = [
            threading.Thread(target=_come_and_go, args=(scene, over, *invitations[at % 2])) for at in range(3)
        ]
        for thread in threads:
            thread.start()
        try:
            seen = _watch(scene, learner)
        finally:
            over.set()
            for thread in threads:
                thread.join()
        process = psutil.Process(learner.process.pid)
        # What was cut off is closed by and by.
        until(lambda: process.num_fds() <= seen[0]["files"] + 4, "all files to be closed", 60)
        until(lambda: process.num_threads() <= seen[0]["threads"] + 4, "all threads to end", 60)
        learner.interrupt()
        assert learner.wait() == 0, learner.output
        assert "Traceback" not in learner.output, learner.output
        family = learner.family()
        until(lambda: not any(map(alive, family)), "everything to end", 30)
    _require_flat(scene, seen)
    rows_are_balanced(scene.folder / "run")
    assert balanced(summary(scene.folder / "run"))
    ours = set(Path("/dev/shm").iterdir()) - shared
    until(lambda: not any(path.exists() for path in ours), f"{ours} in /dev/shm to be given back", 60)


def _come_and_go(scene: Scene, over: threading.Event, address: str, invitation: Invitation) -> None:
    """Acts for moments; the conversation is closed under it, politely or not."""
    while not over.is_set():
        with suppress(TransportError):
            client = connect(address, timeout=20.0, invitation=invitation)
            timer = threading.Timer(scene.chance.uniform(0.05, 1.0), client.close)
            timer.start()
            with closing(client):
                act(client, token=invitation.said_at(address), make_agent=lambda policy, spec: None, envs=2)  # type: ignore[arg-type,return-value]
            timer.cancel()
        scene.times += 1


def _watch(scene: Scene, learner: Command) -> list[dict[str, Any]]:
    """Looks at the learner until the soak is over; kills its own actor now and then."""
    process = psutil.Process(learner.process.pid)
    seconds = 60 * scene.scale.soak_minutes
    begin = time.monotonic()
    seen, kill_at = [], seconds / 4
    while (now := time.monotonic() - begin) < seconds:
        assert alive(learner.process), learner.output
        seen.append(
            {
                "at": now,
                "bytes": process.memory_info().rss,
                "files": process.num_fds(),
                "threads": process.num_threads(),
            }
        )
        if now > kill_at:
            kill_at += max(30.0, seconds / 20)
            for own in learner.actors():
                own.kill()
                scene.times += 1
        time.sleep(min(2.0, seconds / 100))
    return seen


def _require_flat(scene: Scene, seen: list[dict[str, Any]]) -> None:
    rest = [each for each in seen if each["at"] > WARM_SHARE * 60 * scene.scale.soak_minutes]
    at, size = (np.array([each[name] for each in rest], float) for name in ("at", "bytes"))
    slope = float(np.polyfit(at, size, 1)[0])
    growth = slope * (at[-1] - at[0])
    allowed = max(GROWTH_BYTES, GROWTH_SHARE * float(np.median(size)))
    scene.notes.append(
        f"{scene.scale.soak_minutes:g} minutes, {np.median(size) / 1e6:.0f} MB, {growth / 1e6:+.1f} MB over the last "
        f"{100 * (1 - WARM_SHARE):.0f}%"
    )
    assert growth < allowed, f"{growth / 1e6:.1f} MB more in {at[-1] - at[0]:.0f} s"
