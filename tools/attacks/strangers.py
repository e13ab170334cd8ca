"""Strangers: connections without the token, wrong tokens, and token holders who lie."""

from __future__ import annotations

import socket
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
from harness import SEEDBED, Command, alive, flags, learned, until

from attacks.table import Scene, attack
from seedbed.acting.unrolls import step_arrays, step_fields
from seedbed.envs.make import make, spec_of
from seedbed.errors import ConnectionLost, Refused
from seedbed.transport.admission import REFUSAL_SECONDS, Invitation
from seedbed.transport.connect import connect
from seedbed.transport.interface import PROTOCOL, Layout, Layouts

ENV = "toy:catch"
NEWCOMER_SECONDS = 60.0
"""The most that a newcomer, a process of its own on a busy machine, may take to join."""

THREADS = 16
"""Threads that try on wrong tokens."""


@contextmanager
def listening(scene: Scene, *limits: str) -> Iterator[tuple[Command, list[str], str, Path]]:
    """A run that listens by TLS; gives it, the words of an actor, the address here, and the folder."""
    words = flags(ENV, "run", actors=1, listen=("0.0.0.0:0",), max_envs=64, frames=10**9)
    command = ["sh", "-c", " && ".join([*limits, 'exec "$@"']), "sh", SEEDBED]
    with Command(*words, cwd=scene.folder, command=command) as learner:
        line = learner.pasted()
        address = f"127.0.0.1:{line[1].rpartition(':')[2]}"
        learned(scene.folder / "run")
        yield learner, ["actor", address, *line[2:]], address, scene.folder / "run"
        assert alive(learner.process), learner.output
        count = learned(scene.folder / "run")
        until(lambda: learned(scene.folder / "run") > count, "training to go on")
        learner.interrupt()
        assert learner.wait() == 0, learner.output
        assert "Traceback" not in learner.output, learner.output


@attack(
    "strangers hold connections",
    "connections from another address, none of which says anything, are opened as fast as they are closed, under "
    "ulimit -n 256",
    "an actor with the token joins meanwhile, whoever is in stays in, the run goes on",
)
def hold_everything(scene: Scene) -> None:
    """The newcomer is a process of its own."""
    with listening(scene, "ulimit -n 256") as (learner, actor, address, _):
        host, port = address.rsplit(":", 1)
        over, opened = threading.Event(), Counter[str]()

        def hold() -> None:
            held: list[socket.socket] = []
            while not over.is_set():
                with suppress(OSError):
                    held.append(
                        socket.create_connection((host, int(port)), 1.0, source_address=("127.0.0.2", 0))
                    )
                    held[-1].setblocking(False)
                    opened["connections"] += 1
                for one in held[:-400]:
                    one.close()
                del held[:-400]
                if opened["connections"] > scene.scale.strangers:
                    time.sleep(0.005)
            for one in held:
                one.close()

        thread = threading.Thread(target=hold)
        thread.start()
        try:
            until(lambda: opened["connections"] > 300, "all connections to be taken")
            begin = time.monotonic()
            with Command(*actor, cwd=scene.folder) as newcomer:
                until(
                    lambda: "joined from elsewhere" in learner.output,
                    "the newcomer to join",
                    NEWCOMER_SECONDS,
                )
                scene.notes.append(f"joined after {time.monotonic() - begin:.1f} s")
                newcomer.interrupt()
                newcomer.wait()
        finally:
            over.set()
            thread.join()
        scene.times += opened["connections"]


@attack(
    "liar",
    "an actor with the token sends NaN again and again, and joins anew each time",
    "sent away each time; after the third time refused for 10, 20, … s, in one line each; the run goes on",
)
def liar(scene: Scene) -> None:
    """Its address is what counts."""
    with listening(scene) as (learner, actor, address, _):
        invitation = Invitation.parse(actor[-1])
        told: Counter[str] = Counter()
        for _ in range(12):
            told[_lie(address, invitation)] += 1
            scene.times += 1
        assert told["sent away"] == 4, told
        assert told["refused"] == 8, told
        assert learner.output.count("are refused for 10 s") == 1, learner.output


def _lie(address: str, invitation: Invitation) -> str:
    spec = spec_of(ENV)
    layouts = [Layouts(Layout(step_fields(spec, 1)), Layout((((1,), spec.action.dtype),)))]
    with closing(connect(address, timeout=20.0, invitation=invitation)) as client:
        try:
            told = client.ask({"kind": "join", "protocol": PROTOCOL, "index": None, "envs": 1})
        except ConnectionLost as error:
            assert "none is let in for" in (error.said or ""), error
            return "refused"
        client.ask({"kind": "ready", "spec": spec.to_json()})
        client.open(layouts)
        world = make(ENV, 1)
        arrays: Any = step_arrays(world.reset(told["seeds"][0]))
        client.send(0, arrays)
        client.receive()
        arrays[-4] = np.full(1, np.nan, np.float32)  # the reward
        client.send(0, arrays)
        try:
            client.receive()
        except ConnectionLost as error:
            assert "not finite" in (error.said or ""), error
            return "sent away"
    raise AssertionError("a reward that is not finite was taken")


@attack(
    "wrong tokens",
    f"wrong proofs, as fast as they are refused, from {THREADS} threads",
    "none is let in; each thread is refused once a second at most; one line a second",
)
def wrong_tokens(scene: Scene) -> None:
    """Each thread waits for its refusal, so that their number tells whether they were slowed."""
    with listening(scene) as (learner, actor, address, folder):
        fingerprint = actor[-1].partition(".")[0]
        invitation = Invitation("wrong" * 4, fingerprint)
        over = time.monotonic() + (5 if scene.scale.briefly else 20)
        refused: Counter[str] = Counter()

        def try_on() -> None:
            while time.monotonic() < over:
                try:
                    with closing(connect(address, timeout=20.0, invitation=invitation)):
                        refused["let in"] += 1
                except Refused:
                    refused["refused"] += 1
                except ConnectionLost:
                    refused["lost"] += 1

        begin = time.monotonic()
        threads = [threading.Thread(target=try_on) for _ in range(THREADS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        seconds = time.monotonic() - begin
        scene.times += sum(refused.values())
        assert not refused["let in"], refused
        most = THREADS * (seconds / REFUSAL_SECONDS + 2)
        assert 0 < refused["refused"] <= most, f"{refused} in {seconds:.0f} s"
        lines = (folder / "logs/learner.log").read_text().count("turned away without the token")
        assert 1 <= lines <= seconds + 2, f"{lines} lines in {seconds:.0f} s"
        assert "joined from elsewhere" not in learner.output
        scene.notes.append(f"{refused['refused']} refused in {seconds:.0f} s")
