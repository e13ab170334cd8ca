"""Fuzzed messages over all carriers, with the token and without it, to a run that goes on learning.

A conversation is over at the first frame that breaks a rule, and nothing behind it is read. So it has many frames that
are odd but right, and one at its end that is wrong; and what is counted are the frames that are read.
"""

from __future__ import annotations

import json
import math
import os
import random
import socket
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from harness import Command, alive, balanced, flags, learned, sockets, summary, until
from wire import Wire

from attacks.kills import rows_are_balanced
from attacks.table import Scene, attack
from seedbed.acting.unrolls import step_fields
from seedbed.envs.make import spec_of
from seedbed.transport.admission import CHALLENGE_BYTES, PROOF_BYTES, Invitation
from seedbed.transport.framing import HEADER_BYTES, MAGIC, Kind, header, pack
from seedbed.transport.interface import PROTOCOL, Layout
from seedbed.transport.tls import Identity, secured

ENV = "toy:catch"
WITHIN_BYTES = 200e6
"""Growth of the learner's memory that is taken for noise of its allocator."""
A_CONVERSATION = 100
"""Frames of one conversation of a client that is let in, at most, before the one that ends it."""
A_ROUND = 15
"""Conversations by each carrier between two looks at the count."""
LIARS = 5
"""Conversations by each carrier, at the end, that show numbers which break a rule; their machine is refused then."""
ODD_REALS = (0.0, -0.0, 1.0, -1e12, 1e12, 1e-45, -1e-38, 0.1)
ODD_FLAGS = (0, 1, 0, 1, 2, 255)
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


@dataclass(frozen=True)
class Talk:
    """One conversation.

    Attributes:
      frames: its frames.
      read: number of them that the server reads: up to the first one that ends it, and that one.
      steps: bodies of its steps by lane, for the carrier that has them in memory; the frames have none then.
    """

    frames: list[bytes]
    read: int
    steps: dict[int, bytes] = field(default_factory=dict)


@dataclass(frozen=True)
class Way:
    """A way to the run.

    Attributes:
      name: name for people.
      send: function that sends conversations, one after another.
      token: token that is said in the first frame, empty where it is proved before; None for a stranger.
      reads: whether the server reads a frame of those that it has not let in.
    """

    name: str
    send: Callable[[list[Talk]], None]
    token: str | None
    reads: bool = True


def _ask(question: dict[str, Any]) -> bytes:
    return pack(Kind.ASK, 0, json.dumps(question).encode())


def _right_report(chance: random.Random, token: str) -> bytes:
    """Makes a report that is taken, however odd it is."""
    waits = {str(chance.randrange(400)): chance.choice((0, 1, 2**40 - 1)) for _ in range(chance.randrange(3))}
    info = {chance.choice(("a", "_", "ä.-", "x" * 64)): [chance.choice((0, -1e100, 1e-308, 5)), 2**40 - 1]}
    told = {name: odd_json(chance) for name in chance.sample((*NAMES[7:], "", "x" * 900, "\x00"), 2)}
    told |= {"kind": "report", "waits": waits, "info": chance.choice((info, {}))}
    told.pop("served", None)
    if chance.random() < 0.1:
        told["notes"] = chance.choice((odd_json(chance), [chance.choice(ODD_TEXTS)] * 9))
    if chance.random() < 0.1:
        heard = [odd_json(chance) for _ in range(chance.randrange(4))]
        told |= {"kind": "server report", "protocol": PROTOCOL, "token": token, "heard": heard}
        told |= {"server": chance.randrange(1024), "served": {"rows": 2**40 - 1, "seconds": 1e-308}}
    return _ask(told)


def _right_step(chance: random.Random, layout: Layout) -> bytes:
    """Makes a step whose numbers are odd and break no rule, with flags of any bits."""
    arrays: list[Any] = []
    for shape, dtype in layout.fields:
        if dtype == "bool":
            arrays.append(np.full(shape, chance.choice(ODD_FLAGS), np.uint8).view(bool))
        else:
            size = math.prod(shape)
            arrays.append(np.array(chance.choices(ODD_REALS, k=size), dtype).reshape(shape))
    return bytes(layout.join(arrays))


def _wrong_question(chance: random.Random, joined: bool) -> bytes:
    """Makes a question that is refused; one in three is a report that is nearly right."""
    asked = {"kind": chance.choice(KINDS), **{name: odd_json(chance) for name in chance.sample(NAMES[2:], 3)}}
    asked["token"] = chance.choice(ODD_TEXTS)
    if joined and chance.random() < 0.4:
        asked = {"kind": "report", "waits": {}, "info": {}}
        wrong: tuple[Any, ...] = ([], 1, "", {"-1": 1}, {"1": -1}, {"1": 2**40}, {"x\n": [1, 2]}, {"": True})
        asked[chance.choice(("waits", "info"))] = chance.choice(wrong)
    return _ask(asked)


def _wrong_frame(chance: random.Random, step: int, joined: bool) -> bytes:
    """Makes a frame that ends a conversation: a wrong question or step, or bytes changed, cut or made up."""
    kind = chance.randrange(8)
    if kind < 3:
        return _wrong_question(chance, joined)
    if kind == 3:
        lane, length = chance.choice(
            ((0, 7), (1, step + 1), (2, step), (63, step), (64, step), (2**32 - 1, 0))
        )
        return pack(Kind.STEP, lane, chance.randbytes(length))
    if kind == 4:
        length = chance.choice((0, 1, 2**40, 2**64 - 1))
        return header(chance.choice((0, *range(2, 5), *range(6, 256))), chance.choice((0, 2**32 - 1)), length)
    if kind == 5:
        return MAGIC + chance.randbytes(chance.randrange(60))
    if kind == 6:
        return chance.randbytes(chance.randrange(1, 60))
    made = bytearray(_ask({"kind": "report", "waits": {}}))
    for _ in range(chance.randrange(1, 4)):
        made[chance.randrange(len(made))] = chance.randrange(256)
    return bytes(made)


def conversation(chance: random.Random, way: Way, layout: Layout, *, lies: bool = False) -> Talk:
    """Makes one conversation.

    Args:
      chance: source of what is left to chance.
      way: the way that it goes.
      layout: layout of a step.
      lies: whether it ends with a step of any bits.
    """
    if way.token is None:
        frames = [_wrong_frame(chance, layout.nbytes, False) for _ in range(chance.choice((1, 1, 2)))]
        return Talk(frames, int(way.reads))
    join = _ask({"kind": "join", "protocol": PROTOCOL, "token": way.token, "index": None, "envs": 2})
    ready = _ask({"kind": "ready", "spec": spec_of(ENV).to_json()})
    begun = [join, ready][: 2 if lies else chance.choice((0, 1, *[2] * 18))]
    frames, steps = [], {}
    if len(begun) == 2:
        frames = [_right_report(chance, way.token) for _ in range(chance.randrange(A_CONVERSATION))]
        steps = {lane: _right_step(chance, layout) for lane in range(0 if lies else chance.randrange(3))}
    if lies:
        steps[chance.randrange(2)] = chance.randbytes(layout.nbytes)
    in_memory = way.name == "shared memory"
    for lane, body in steps.items():
        frames.insert(chance.randrange(len(frames) + 1), pack(Kind.STEP, lane, b"" if in_memory else body))
    ending = [] if lies else [_wrong_frame(chance, layout.nbytes, len(begun) == 2)]
    frames = [*begun, *frames, *ending]
    return Talk(frames, len(frames), steps if in_memory else {})


def _say(raw: socket.socket, frames: list[bytes]) -> None:
    """Sends frames and no more, and reads to the end what comes back."""
    raw.sendall(b"".join(frames))
    raw.shutdown(socket.SHUT_WR)
    while raw.recv(1 << 16):
        pass


def _at_file(path: str) -> socket.socket:
    raw = socket.socket(socket.AF_UNIX)
    raw.settimeout(10.0)
    raw.connect(path)
    return raw


def _by_shared_memory(path: str, talks: list[Talk]) -> None:
    for talk in talks:
        with closing(_at_file(path)) as raw, suppress(BrokenPipeError, ConnectionResetError):
            raw.sendall(b"".join(talk.frames[:2]))
            if talk.steps:
                _fill(raw, talk.steps)
            _say(raw, talk.frames[2:])


def _fill(raw: socket.socket, steps: dict[int, bytes]) -> None:
    """Receives the memory of a conversation and writes its steps there."""
    data, handles = b"-", []
    while data and not handles:
        data, handles, _, _ = socket.recv_fds(raw, 1 << 16, 1)
    for handle in handles:
        for lane, body in steps.items():
            os.pwrite(handle, body, lane * len(body))
        os.close(handle)


def _by_socket_file(path: str, talks: list[Talk]) -> None:
    for talk in talks:
        with closing(_at_file(path)) as raw, suppress(BrokenPipeError, ConnectionResetError):
            _say(raw, talk.frames)


_CHALLENGE_BYTES = HEADER_BYTES + CHALLENGE_BYTES


@dataclass(frozen=True)
class _Network:
    """An address of the run on the network.

    Attributes:
      port: its port, on this machine.
      certificate: the run's certificate, as PEM; None in plain text.
      token: the run's token; None for a stranger.
      chance: source of what strangers say as a proof.
    """

    port: int
    certificate: bytes | None
    token: str | None
    chance: random.Random

    def proof(self, challenge: Callable[[], bytes]) -> bytes | None:
        """Returns a right proof, or what a stranger says in its place."""
        if self.token is None:
            return self.chance.choice((None, self.chance.randbytes(PROOF_BYTES)))
        binding = bytes.fromhex(Identity(self.certificate, b"").fingerprint) if self.certificate else b""
        return Invitation(self.token).prove(challenge(), binding)

    def by_grpc(self, talks: list[Talk]) -> None:
        """Sends conversations by gRPC."""
        with closing(Wire(f"127.0.0.1:{self.port}", self.certificate)) as wire:
            for talk in talks:
                wire.converse(self.proof(wire.challenge), talk.frames)

    def by_socket(self, talks: list[Talk]) -> None:
        """Sends conversations by frames on a socket."""
        for talk in talks:
            with suppress(BrokenPipeError, ConnectionResetError), closing(self._dialled()) as raw:
                if self.certificate is not None:
                    raw = secured(raw, "127.0.0.1", "")  # noqa: PLW2901 (it owns the other one's file)
                with closing(raw):
                    proof = self.proof(lambda raw=raw: raw.recv(_CHALLENGE_BYTES)[HEADER_BYTES:])
                    proved = [] if proof is None else [pack(Kind.PROOF, 0, proof)]
                    _say(raw, [*proved, *talk.frames])

    def by_bare_tcp(self, talks: list[Talk]) -> None:
        """Sends frames to a server that expects something else."""
        for talk in talks:
            with closing(self._dialled()) as raw, suppress(OSError):
                raw.sendall(b"".join(talk.frames))

    def _dialled(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), 10.0)


def _by_unix_grpc(path: str, talks: list[Talk]) -> None:
    with closing(Wire(f"unix:{path}")) as wire:
        for talk in talks:
            wire.converse(None, talk.frames)


LISTENS = ("0.0.0.0:0", "127.0.0.1:0", "socket:0.0.0.0:0", "socket:127.0.0.1:0")
"""Addresses on the network: gRPC by TLS and in plain text, frames on a socket by TLS and in plain text."""


def ways(chance: random.Random, carrier: str, folder: Path, ports: list[int], file: Path) -> list[Way]:
    """Returns all ways to a run: by its own socket, a socket file and the network, with the token and without it."""
    token = (folder / "token").read_text().strip()
    certificate = (folder / "certificate.pem").read_bytes()
    own = next(path for path in sockets(folder) if path != file)
    found = []
    for known in (token, None):
        by_own = _by_shared_memory if carrier == "shm" else _by_unix_grpc
        name = "shared memory" if carrier == "shm" else "gRPC at a file"
        found.append(Way(name, lambda talks, by_own=by_own: by_own(str(own), talks), known))
        found.append(Way("socket file", lambda talks: _by_socket_file(str(file), talks), known))
        said = None if known is None else ""
        shown = (certificate, None, certificate, None)
        at = [_Network(port, seen, known, chance) for port, seen in zip(ports, shown, strict=True)]
        for name, network in (("gRPC by TLS", at[0]), ("gRPC by TCP", at[1])):
            found.append(Way(name, network.by_grpc, said, reads=False))
        for name, network in (("socket by TLS", at[2]), ("socket by TCP", at[3])):
            found.append(Way(name, network.by_socket, said))
    found.append(Way("bare TCP", _Network(ports[0], None, None, chance).by_bare_tcp, None, reads=False))
    return found


@attack(
    "fuzz",
    "messages that are made up, cut or changed, over shared memory, gRPC and frames on a socket, each at a file, by "
    "TLS and by TCP, and bare TCP, with and without the token",
    "the run goes on, its own actor is never restarted, no traceback, no memory, books balance",
)
def fuzz(scene: Scene) -> None:
    """Two runs, one by shared memory and one by gRPC; both listen at all other addresses, too."""
    carriers = ("shm",) if scene.scale.briefly else ("shm", "grpc")
    for carrier in carriers:
        place = scene.folder / carrier
        place.mkdir()
        listen = (*LISTENS, f"socket:unix:{place}/frames")
        words = flags(ENV, "run", actors=1, listen=listen, transport=carrier, max_envs=64, frames=10**9)
        with Command(*words, cwd=place) as learner:
            learned(place / "run")
            lines = learner.output.split("more actors: seedbed actor ")[1:]
            ports = [int(line.split()[0].rpartition(":")[2]) for line in lines[: len(LISTENS)]]
            own = learner.actors()
            before = psutil.Process(learner.process.pid).memory_info().rss
            found = ways(scene.chance, carrier, place / "run", ports, place / "frames")
            sent = _send(scene, found, scene.scale.messages // len(carriers))
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
        scene.notes.append(f"{carrier}: {sent}, {grown / 1e6:+.0f} MB")


def _send(scene: Scene, found: list[Way], messages: int) -> str:
    """Sends conversations by all ways at once, until so many of their messages are read; returns a note of them."""
    layout = Layout(step_fields(spec_of(ENV), 1))
    before, sent, begin = scene.times, 0, time.monotonic()

    def all_at_once(count: int, *, lies: bool = False) -> int:
        talks = [
            [
                conversation(scene.chance, way, layout, lies=lies)
                for _ in range(1 if way.token is None else count)
            ]
            for way in found
        ]
        list(pool.map(lambda way, each: way.send(each), found, talks))
        scene.times += sum(talk.read for each in talks for talk in each)
        return sum(len(talk.frames) for each in talks for talk in each)

    with ThreadPoolExecutor(len(found)) as pool:
        while scene.times < before + messages:
            sent += all_at_once(A_ROUND)
        sent += all_at_once(LIARS, lies=True)
    seconds, read = time.monotonic() - begin, scene.times - before
    return f"{sent:,} messages handed to carriers, {read:,} of them read, {read / seconds:,.0f}/s"
