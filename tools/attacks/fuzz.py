"""Fuzzed messages over all carriers, with the token and without it, to a run that goes on learning."""

from __future__ import annotations

import json
import math
import random
import socket
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import psutil
from harness import Command, alive, balanced, flags, learned, sockets, summary, until
from wire import Wire

from attacks.kills import rows_are_balanced
from attacks.table import Scene, attack
from seedbed.acting.unrolls import step_fields
from seedbed.envs.make import spec_of
from seedbed.errors import TransportError
from seedbed.transport.admission import Invitation
from seedbed.transport.framing import MAGIC, Kind, header, pack
from seedbed.transport.interface import PROTOCOL, Layout
from seedbed.transport.tls import Identity

ENV = "toy:catch"
WITHIN_BYTES = 200e6
"""Growth of the learner's memory that is taken for noise of its allocator."""
A_CONVERSATION = 40
ODD_NUMBERS = (0, -1, 1, 2**31, 2**63, 2**64, -(2**70), 1e308, -1e-308, math.nan, math.inf, 0.5, True)
ODD_TEXTS = (
    "",
    "join",
    "\ud800",
    "\x00",
    "🦆" * 50,
    "a\nb\x1b[2J",
    "x" * 5000,
    "../../etc",
    "__class__",
    "seedbed: done",
)
NAMES = (
    "kind",
    "token",
    "index",
    "envs",
    "spec",
    "waits",
    "notes",
    "info",
    "served",
    "server",
    "heard",
    "protocol",
)
KINDS = ("join", "ready", "report", "server report", "fetch", "shut down", "")


def odd_json(chance: random.Random, depth: int = 3) -> Any:
    """Makes any value that JSON can hold, more often an odd one."""
    kind = chance.randrange(6 if depth else 3)
    if kind == 0:
        return chance.choice(ODD_NUMBERS)
    if kind == 1:
        return chance.choice(ODD_TEXTS)
    if kind == 2:
        return chance.choice((None, [], {}, False))
    if kind == 3:
        return [odd_json(chance, depth - 1) for _ in range(chance.randrange(5))]
    names = [chance.choice((*NAMES, *ODD_TEXTS, str(chance.random()))) for _ in range(chance.randrange(5))]
    return {name: odd_json(chance, depth - 1) for name in names}


def question(chance: random.Random) -> dict[str, Any]:
    """Makes a question whose parts are odd; one in three is a report that is nearly right."""
    asked = {"kind": chance.choice(KINDS), **{name: odd_json(chance) for name in chance.sample(NAMES[2:], 3)}}
    if chance.random() < 0.3:
        waits = {"count": 1, "sum": 0.1, "longest": 0.1}
        asked = {"kind": "report", "waits": chance.choice((waits, {}, odd_json(chance))), "notes": ["a note"]}
        asked["info"] = odd_json(chance)
    return asked


def frame(chance: random.Random, step: int) -> bytes:
    """Makes one frame: a question, a step of any bits, or bytes that were changed, cut or made up."""
    kind = chance.randrange(8)
    if kind < 3:
        made = pack(Kind.ASK, 0, json.dumps(question(chance)).encode())
    elif kind == 3:
        made = pack(
            Kind.STEP,
            chance.choice((0, 0, 1, 2, 63, 64)),
            chance.randbytes(chance.choice((step, step, 0, 7))),
        )
    elif kind == 4:
        made = header(
            chance.randrange(256), chance.choice((0, 2**32 - 1)), chance.choice((0, 1, 2**40, 2**64 - 1))
        )
    elif kind == 5:
        made = MAGIC + chance.randbytes(chance.randrange(60))
    elif kind == 6:
        made = chance.randbytes(chance.randrange(60))
    else:
        made = bytearray(pack(Kind.ASK, 0, json.dumps({"kind": "report", "waits": {}}).encode()))
        for _ in range(chance.randrange(1, 4)):
            made[chance.randrange(len(made))] = chance.randrange(256)
        made = bytes(made)
    return made


def conversation(chance: random.Random, token: str | None, step: int) -> list[bytes]:
    """Makes the frames of one conversation; with the token it begins as an actor's."""
    frames = []
    if token is not None and chance.random() < 0.9:
        joined = {"kind": "join", "protocol": PROTOCOL, "token": token, "index": None, "envs": 2}
        frames.append(pack(Kind.ASK, 0, json.dumps(joined).encode()))
        if chance.random() < 0.9:
            ready = {"kind": "ready", "spec": spec_of(ENV).to_json()}
            frames.append(pack(Kind.ASK, 0, json.dumps(ready).encode()))
    if chance.random() < 0.5:  # what breaks no rule of framing goes on for longer
        frames += [
            pack(Kind.ASK, 0, json.dumps(_report(chance)).encode()) for _ in range(A_CONVERSATION // 2)
        ]
    return frames + [frame(chance, step) for _ in range(A_CONVERSATION)]


def _report(chance: random.Random) -> dict[str, Any]:
    told = {"kind": "report", "waits": {}, "info": {}, "notes": []}
    told[chance.choice(("waits", "info", "notes"))] = odd_json(chance)
    return told


def _by_shared_memory(path: str, frames: list[bytes]) -> None:
    with closing(socket.socket(socket.AF_UNIX)) as raw:
        raw.settimeout(10.0)
        with suppress(BrokenPipeError, ConnectionResetError):
            raw.connect(path)
            raw.sendall(b"".join(frames))
            raw.shutdown(socket.SHUT_WR)
            while raw.recv(1 << 16):
                pass


def _by_raw_tcp(address: str, frames: list[bytes]) -> None:
    host, port = address.rsplit(":", 1)
    with closing(socket.create_connection((host, int(port)), 10.0)) as raw, suppress(OSError):
        raw.sendall(b"".join(frames))


@attack(
    "fuzz",
    "messages that are made up, cut or changed, over shared memory, gRPC on a Unix socket, TLS and bare TCP, with and "
    "without the token",
    "the run goes on, its own actor is never restarted, no traceback, no memory, books balance",
)
def fuzz(scene: Scene) -> None:
    """Two runs: one by shared memory, one by gRPC; both listen by TLS too."""
    carriers = ("shm",) if scene.scale.briefly else ("shm", "grpc")
    for carrier in carriers:
        place = scene.folder / carrier
        place.mkdir()
        words = flags(
            ENV, "run", actors=1, listen=("0.0.0.0:0",), transport=carrier, max_envs=64, frames=10**9
        )
        with Command(*words, cwd=place) as learner:
            line = learner.says("seedbed actor").split("more actors: seedbed ")[1].splitlines()[0].split()
            learned(place / "run")
            own = learner.actors()
            before = psutil.Process(learner.process.pid).memory_info().rss
            _send(scene, carrier, place / "run", line, scene.scale.messages // len(carriers))
            assert alive(learner.process), learner.output
            count = learned(place / "run")
            until(lambda count=count, place=place: learned(place / "run") > count, "training to go on")
            grown = psutil.Process(learner.process.pid).memory_info().rss - before
            assert grown < WITHIN_BYTES, f"{grown / 1e6:.0f} MB more"
            assert all(map(alive, own)), "its own actor ended"
            assert "Traceback" not in learner.output, learner.output
            learner.interrupt()
            assert learner.wait() == 0, learner.output
        log = (place / "run/logs/learner.log").read_text()
        assert "Traceback" not in log, log[log.index("Traceback") :][:3000]
        left = summary(place / "run")
        assert left["actor_restarts"] == 0 and balanced(left), left
        rows_are_balanced(place / "run")
        scene.notes.append(f"{carrier}: {grown / 1e6:+.0f} MB")


def _send(scene: Scene, carrier: str, folder: Path, line: list[str], messages: int) -> None:
    """Sends so many messages to a run: half of them by its own socket, half by the network."""
    token = (folder / "token").read_text().strip()
    certificate = (folder / "certificate.pem").read_bytes()
    address = f"127.0.0.1:{line[1].rpartition(':')[2]}"
    (own,) = sockets(folder)
    step = Layout(step_fields(spec_of(ENV), 1)).nbytes
    binding = bytes.fromhex(Identity(certificate, b"").fingerprint)
    over = scene.times + messages
    while scene.times < over:
        for known in (token, None):
            for frames in _some(scene, known, step):
                if carrier == "shm":
                    _by_shared_memory(str(own), frames)
                else:
                    with closing(Wire(f"unix:{own}")) as wire:
                        wire.converse(None, frames)
        with closing(Wire(address, certificate)) as wire:
            for frames in _some(scene, token, step):
                with suppress(TransportError, ValueError):
                    wire.converse(Invitation(token).prove(wire.challenge(), binding), frames)
            for frames in list(_some(scene, None, step))[:1]:
                wire.converse(scene.chance.choice((None, scene.chance.randbytes(88))), frames)
        for frames in list(_some(scene, None, step))[:2]:
            _by_raw_tcp(address, frames)


def _some(scene: Scene, token: str | None, step: int) -> Iterator[list[bytes]]:
    for _ in range(10):
        frames = conversation(scene.chance, token, step)
        scene.times += len(frames)
        yield frames
