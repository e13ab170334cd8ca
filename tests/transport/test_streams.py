"""Clients of the gRPC carrier that break the rules, on a raw stream: a clear status, the others go on."""

from __future__ import annotations

import queue
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import grpc
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from raw_scenes import Scene
from wire import CONVERSE, Wire

from seedbed.errors import ConnectionLost, Refused
from seedbed.testing.transport import DOWN, PATIENCE, UP, FakeHandler, example, opened, received
from seedbed.transport import streams
from seedbed.transport.connect import connect
from seedbed.transport.framing import Kind, header, pack
from seedbed.transport.interface import Layout
from seedbed.transport.streams import StreamServer

ASK = pack(Kind.ASK, 0, b'{"open": true}')
STEP = pack(Kind.STEP, 0, bytes(UP.nbytes))
LIMIT = 1 << 21


class StreamScene(Scene):
    """A scene with raw streams."""

    def __init__(self, directory: Path) -> None:
        handler = FakeHandler()
        super().__init__(StreamServer(f"unix:{directory}/socket", handler, max_message_bytes=LIMIT), handler)
        self.wire = Wire(self.address)

    def status(self, messages: list[bytes], method: str = CONVERSE) -> tuple[Any, str]:
        """Sends the messages and hangs up; the stream's status and its details."""
        call = self.wire.converse(None, messages, method)
        return call.code(), call.details()

    def close(self) -> None:
        self.wire.close()
        super().close()


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StreamScene]:
    with closing(StreamScene(tmp_path_factory.mktemp("grpc"))) as scene:
        yield scene


@pytest.mark.parametrize(
    ("messages", "code", "word"),
    [
        ([b""], "INVALID_ARGUMENT", "shorter than"),
        ([b"garbage that is long enough"], "INVALID_ARGUMENT", "not a Seedbed"),
        ([ASK[:-1]], "INVALID_ARGUMENT", "header says"),
        ([header(Kind.ASK, 0, 1 << 40)], "INVALID_ARGUMENT", "at most"),
        ([pack(Kind.ASK, 0, b"{nonsense")], "INVALID_ARGUMENT", "JSON"),
        ([STEP], "INVALID_ARGUMENT", "before the conversation was opened"),
        ([ASK, STEP, STEP], "INVALID_ARGUMENT", "out of turn"),
        ([ASK, pack(Kind.STEP, 2, bytes(UP.nbytes))], "INVALID_ARGUMENT", "lane 2"),
        ([ASK, pack(Kind.STEP, 0, bytes(UP.nbytes - 1))], "INVALID_ARGUMENT", "agreed layout"),
        ([ASK, pack(Kind.STEP, 0, bytes(UP.nbytes + 1))], "INVALID_ARGUMENT", "at most"),
        ([ASK, pack(Kind.ANSWER, 0)], "INVALID_ARGUMENT", "not expected"),
        ([bytes(LIMIT + 100)], "RESOURCE_EXHAUSTED", "larger than max"),
        ([pack(Kind.ASK, 0, b'{"refuse": "wrong game"}')], "FAILED_PRECONDITION", "wrong game"),
    ],
)
def test_the_status_says_what_was_wrong(
    scene: StreamScene, messages: list[bytes], code: str, word: str
) -> None:
    given_code, details = scene.status(messages)
    assert (given_code.name, word in details) == (code, True), details
    scene.check_others()


@pytest.mark.parametrize(
    ("peer", "end"),
    [
        ("ipv4:10.0.0.5:4711", ("10.0.0.5", 4711)),
        ("ipv6:%5B::1%5D:4711", ("::1", 4711)),
        ("ipv6:%5B::ffff:10.0.0.5%5D:4711", ("10.0.0.5", 4711)),
        ("ipv6:%5Bfe80::1%25eth0%5D:4711", ("fe80::1", 4711)),
        ("unix:", None),
        ("", None),
    ],
)
def test_the_end_of_a_peer_is_its_machine_and_port(peer: str, end: tuple[str, int] | None) -> None:
    assert streams.end_of_peer(peer) == end


def test_another_method_is_not_there(scene: StreamScene) -> None:
    assert scene.status([], "/seedbed.Transport/Other")[0] is grpc.StatusCode.UNIMPLEMENTED


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(
        st.one_of(
            st.binary(max_size=40),
            st.just(ASK),
            st.just(STEP),
            st.builds(pack, st.integers(0, 9), st.integers(0, 70), st.binary(max_size=20)),
        ),
        max_size=6,
    )
)
def test_any_messages(scene: StreamScene, messages: list[bytes]) -> None:
    code, _ = scene.status(messages)
    assert code in (grpc.StatusCode.OK, grpc.StatusCode.INVALID_ARGUMENT)
    scene.check_others()


def test_who_does_not_read_can_be_sent_away(scene: StreamScene) -> None:
    """A client that left megabytes unread does not keep ``left`` from coming."""
    while not scene.handler.asked.empty():
        scene.handler.asked.get()
    while not scene.handler.departed.empty():
        scene.handler.departed.get()
    outgoing: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
    for _ in range(20):
        outgoing.put(pack(Kind.ASK, 0, b'{"x": "%s"}' % (b"y" * 1_000_000)))
    call = scene.wire.channel.stream_stream(CONVERSE)(iter(outgoing.get, None), timeout=PATIENCE)
    try:
        peer = scene.handler.asked.get(timeout=PATIENCE)
        peer.close("reads nothing")
        assert scene.handler.departed.get(timeout=PATIENCE) == (peer, "reads nothing")
    finally:
        outgoing.put(None)
        call.cancel()
    scene.check_others()


def test_what_the_server_does_not_take_is_refused_at_the_handshake(tmp_path: Path) -> None:
    big = Layout((((LIMIT + 1,), "uint8"),))
    handler = FakeHandler(up=big)
    server = StreamServer(f"unix:{tmp_path}/socket", handler, max_message_bytes=LIMIT)
    client = connect(server.address, timeout=PATIENCE)
    try:
        with pytest.raises(Refused, match="fewer environments"):
            client.ask({"open": True})
    finally:
        client.close()
        server.close()


def test_another_grpc_server_is_recognised(tmp_path: Path) -> None:
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(1) as pool:
        stranger = grpc.server(pool)
        stranger.add_insecure_port(f"unix:{tmp_path}/socket")
        stranger.start()
        client = connect(f"unix:{tmp_path}/socket", timeout=PATIENCE)
        try:
            with pytest.raises(ConnectionLost, match="no Seedbed server"):
                client.ask({})
        finally:
            client.close()
            stranger.stop(None).wait(PATIENCE)


class Proxy:
    """Stands between a client and a server as a network does: it can fall silent without closing anything."""

    def __init__(self, address: str) -> None:
        host, port = address.rsplit(":", 1)
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listening.getsockname()[1]}"
        self._there = (host, int(port))
        self._silent = threading.Event()
        self._carried = threading.Event()
        self._ends: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def _accept(self) -> None:
        here, _ = self._listening.accept()
        there = socket.create_connection(self._there)
        self._ends = [here, there]
        for one, other in ((here, there), (there, here)):
            self._threads.append(threading.Thread(target=self._carry, args=(one, other)))
            self._threads[-1].start()

    def _carry(self, one: socket.socket, other: socket.socket) -> None:
        with suppress(OSError):
            while data := one.recv(1 << 16):
                self._carried.set()
                if not self._silent.is_set():
                    other.sendall(data)

    def wait_until_quiet(self) -> None:
        """Until everything that was said is answered: nothing passes for a while."""
        while self._carried.wait(0.2):
            self._carried.clear()

    def fall_silent(self) -> None:
        self._silent.set()

    def close(self) -> None:
        for end in (self._listening, *self._ends):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()
        for thread in self._threads:
            thread.join(PATIENCE)


@pytest.mark.parametrize("quiet", [False, True])
def test_a_machine_that_vanishes_is_missed_by_both_sides(
    quiet: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No connection is closed, there is only silence: pings that are under way or that ask for life stay unanswered."""
    monkeypatch.setattr(streams, "KEEPALIVE_SECONDS", 1)
    handler = FakeHandler()
    server = StreamServer("127.0.0.1:0", handler)
    relay = Proxy(server.address)
    client = opened(connect(relay.address, timeout=PATIENCE), handler)
    try:
        client.send(0, example(UP, 0))
        peer, lane, _ = handler.delivered.get(timeout=PATIENCE)
        peer.reply(lane, example(DOWN, 0))
        assert received(client)[0] == 0
        client.send(0, example(UP, 1))
        handler.delivered.get(timeout=PATIENCE)
        if quiet:
            relay.wait_until_quiet()
        relay.fall_silent()
        fell_silent = time.monotonic()
        with pytest.raises(ConnectionLost):
            client.receive()
        assert handler.departed.get(timeout=PATIENCE)[0] is peer
        assert time.monotonic() - fell_silent < PATIENCE
    finally:
        relay.close()
        client.close()
        server.close()


STOPPED = """
import sys
from seedbed.testing.transport import DOWN, FakeHandler, example
from seedbed.transport.streams import StreamServer

class Answering(FakeHandler):
    def deliver(self, peer, lane, arrays):
        peer.reply(lane, example(DOWN, 7))

servers = [StreamServer(address, Answering()) for address in sys.argv[1:]]
print(*(server.address for server in servers), flush=True)
sys.stdin.read()
"""


def test_a_server_of_this_machine_may_be_stopped_for_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-Z: the one by the network is missed by then, and has to dial again."""
    monkeypatch.setattr(streams, "KEEPALIVE_SECONDS", 1)
    words = [sys.executable, "-c", STOPPED, f"unix:{tmp_path}/socket", "127.0.0.1:0"]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        try:
            own, network = (connect(each, timeout=PATIENCE) for each in server.stdout.readline().split())
            with closing(own), closing(network):
                for client in (own, network):
                    opened(client, FakeHandler()).send(0, example(UP, 0))
                    assert received(client)[0] == 0
                server.send_signal(signal.SIGSTOP)
                own.send(0, example(UP, 1))
                with pytest.raises(ConnectionLost, match="ping"):
                    network.receive(idle=True)
                server.send_signal(signal.SIGCONT)
                assert received(own)[0] == 0
        finally:
            server.kill()


def test_no_thread_is_left_behind(tmp_path: Path) -> None:
    before = set(threading.enumerate())
    server = StreamServer(f"unix:{tmp_path}/socket", FakeHandler())
    client = connect(server.address, timeout=PATIENCE)
    client.ask({})
    client.close()
    server.close()
    ours = [t for t in set(threading.enumerate()) - before if t.name.startswith(("grpc:", "replies"))]
    assert ours == []
