"""Strangers who hold connections: which are shut, and that newcomers and whoever is in are never meant."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from itertools import count

import grpc
import psutil
import pytest
from harness import until
from hypothesis import given
from hypothesis import strategies as st

from seedbed.errors import Refused
from seedbed.testing.transport import PATIENCE, FakeHandler
from seedbed.transport import sockets, streams
from seedbed.transport.admission import REFUSAL_SECONDS, Gate, Invitation
from seedbed.transport.connect import connect, listen
from seedbed.transport.strangers import End, Strangers, end_of, surplus
from seedbed.transport.tls import Identity


def ends(text: str) -> dict[End, float]:
    """One connection a letter, which is its machine; seen in this order."""
    return {End(host, 1000 + at): float(at) for at, host in enumerate(text)}


@pytest.mark.parametrize(
    ("there", "most", "shut"),
    [
        ("", 0, ""),
        ("aab", 3, ""),
        ("aab", 2, "0"),  # the oldest one of the machine with the most
        ("baa", 2, "1"),
        ("baaa", 1, "1 2 0"),  # one of each is left: the older one goes
        ("abcabc", 4, "0 1"),
        ("aaaaab", 2, "0 1 2 3"),
    ],
)
def test_which_are_too_many(there: str, most: int, shut: str) -> None:
    assert [end.port - 1000 for end in surplus(ends(there), most)] == [int(at) for at in shut.split()]


@given(st.text("abcd", max_size=12), st.integers(0, 12))
def test_a_machine_with_few_is_never_meant_before_one_with_more(there: str, most: int) -> None:
    all_of = ends(there)
    shut = surplus(all_of, most)
    assert len(shut) == len(set(shut)) == max(0, len(all_of) - most)
    left = Counter(end.host for end in all_of if end not in shut)
    for end in shut:
        assert left[end.host] >= max(left.values(), default=0) - 1
        newer = [one for one in all_of if one.host == end.host and all_of[one] < all_of[end]]
        assert set(newer) <= set(shut), "older ones go first"


@pytest.mark.parametrize(
    ("host", "one"),
    [("10.0.0.5", "10.0.0.5"), ("::ffff:10.0.0.5", "10.0.0.5"), ("fe80::1%eth0", "fe80::1"), ("::1", "::1")],
)
def test_an_address_has_one_form(host: str, one: str) -> None:
    assert end_of(host, 7) == (one, 7)


def test_only_connections_of_the_port_are_seen_and_whoever_is_admitted_stays() -> None:
    with ExitStack() as stack:

        def pair(server: socket.socket) -> tuple[End, socket.socket]:
            client = stack.enter_context(socket.create_connection(server.getsockname(), PATIENCE))
            accepted = stack.enter_context(server.accept()[0])
            accepted.setblocking(False)
            return End(*client.getsockname()), accepted

        here, other = (stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(2))
        strangers = Strangers(here.getsockname()[1], 2)
        pair(other)
        mine = []
        for now in range(4):
            mine.append(pair(here))
            shut = strangers.shut_surplus({mine[0][0]}, float(now))
            # The first one is admitted; the oldest of the three others is too much.
            assert shut == ([mine[1][0]] if now == 3 else [])
        for at, (_, accepted) in enumerate(mine):
            if at == 1:
                assert accepted.recv(1) == b""
            else:
                with pytest.raises(BlockingIOError):
                    accepted.recv(1)
        mine[1][1].close()
        assert strangers.shut_surplus(set(), 4.0) == [mine[2][0]], "whoever has left is a new stranger"


def test_one_that_nobody_lets_in_is_shut_after_a_minute_whatever_it_sends() -> None:
    with ExitStack() as stack:
        server = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        ends = []
        for _ in range(2):
            client = stack.enter_context(socket.create_connection(server.getsockname(), PATIENCE))
            stack.enter_context(server.accept()[0])
            ends.append(End(*client.getsockname()))
        strangers = Strangers(server.getsockname()[1], 10)
        admitted = {ends[0]}
        assert strangers.shut_surplus(admitted, 0.0) == strangers.shut_surplus(admitted, 60.0) == []
        assert strangers.shut_surplus(admitted, 60.5) == [ends[1]]


@contextmanager
def holding_all_connections(address: str) -> Iterator[Iterator[int]]:
    """A stranger of another machine (127.0.0.2) that opens some hundred connections a second, and keeps them all."""
    host, port = address.rsplit(":", 1)
    over, opened = threading.Event(), count()

    def closed(one: socket.socket) -> bool:
        with suppress(BlockingIOError, ConnectionError):
            return one.recv(1 << 12) == b""
        return False

    def hold() -> None:
        held: list[socket.socket] = []
        try:
            # At a rate that leaves the interpreter to the server, which is in this process too.
            while not over.wait(0.005):
                with suppress(OSError):
                    one = socket.create_connection((host, int(port)), 1.0, source_address=("127.0.0.2", 0))
                    one.setblocking(False)
                    held.append(one)
                    next(opened)
                for one in filter(closed, list(held)):
                    one.close()
                    held.remove(one)
        finally:
            for one in held:
                one.close()

    thread = threading.Thread(target=hold)
    thread.start()
    try:
        yield opened
    finally:
        over.set()
        thread.join(PATIENCE)


@pytest.mark.parametrize("carrier", ["", "socket:"])
def test_a_stranger_that_holds_all_connections_keeps_no_newcomer_out(
    carrier: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (streams, sockets):
        monkeypatch.setattr(module, "most_connections", lambda most: 12)
        monkeypatch.setattr(module, "STRANGER_SECONDS", 30 * PATIENCE)
    gate = Gate("0123456789abcdef", Identity.make())
    with closing(listen(f"{carrier}0.0.0.0:0", FakeHandler(), gate=gate)) as server, ExitStack() as stack:
        address = server.address.replace("0.0.0.0", "127.0.0.1")
        invitation = gate.invitation(server.address)
        first = stack.enter_context(closing(connect(address, timeout=PATIENCE, invitation=invitation)))
        with holding_all_connections(address.removeprefix(carrier)) as opened:
            until(lambda: next(opened) > 60, "all connections to be taken")
            for _ in range(3):
                come = connect(address, timeout=PATIENCE, invitation=invitation)
                assert stack.enter_context(closing(come)).ask({"x": 1})["x"] == 1
            assert first.ask({"x": 2})["x"] == 2


@pytest.mark.parametrize("address", ["127.0.0.1:0", "socket:127.0.0.1:0"])
def test_a_wrong_token_is_answered_slowly(address: str) -> None:
    with closing(listen(address, FakeHandler(), gate=Gate("x" * 16))) as server:
        begin = time.monotonic()
        with pytest.raises(Refused, match="wrong token"):
            connect(server.address, timeout=PATIENCE, invitation=Invitation("y" * 16))
        assert time.monotonic() - begin > 0.9 * REFUSAL_SECONDS > 0.5


SERVER = """
import sys
from seedbed.testing.transport import FakeHandler
from seedbed.transport.admission import Gate
from seedbed.transport.connect import listen
server = listen("127.0.0.1:0", FakeHandler(), gate=Gate("x" * 16))
print(server.address, flush=True)
sys.stdin.read()
server.close()
"""
METHODS = ("Converse", "Challenge")
ITS_OWN = (("grpc.use_local_subchannel_pool", 1), ("grpc.max_send_message_length", -1))


@pytest.fixture
def apart() -> Iterator[tuple[str, psutil.Process]]:
    """A server in a process of its own: its address, and its process."""
    command = [sys.executable, "-c", SERVER]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdin is not None
        yield process.stdout.readline().strip(), psutil.Process(process.pid)
        process.stdin.close()
        assert process.wait(PATIENCE) == 0


async def _call(channel: grpc.aio.Channel, method: str, message: bytes = b"") -> grpc.StatusCode:
    """Calls without a proof, and never says that it has said all."""
    call = channel.stream_stream(f"/seedbed.Transport/{method}")()
    with suppress(grpc.aio.AioRpcError, TimeoutError):
        if message:
            await asyncio.wait_for(call.write(message), 3.0)
    call.cancel()
    return await call.code()


def test_large_messages_of_strangers_are_not_kept(apart: tuple[str, psutil.Process]) -> None:
    """Ten of 200 MB."""
    address, process = apart
    before = process.memory_info().rss

    async def send() -> int:
        most, message = 0, bytes(200_000_000)
        channels = [grpc.aio.insecure_channel(address, ITS_OWN) for _ in range(5)]
        calls = [asyncio.ensure_future(_call(c, method, message)) for c in channels for method in METHODS]
        while not all(call.done() for call in calls):
            await asyncio.sleep(0.02)
            most = max(most, process.memory_info().rss)
        for channel in channels:
            await channel.close()
        return most

    assert asyncio.run(send()) - before < 50e6


def test_a_thousand_streams_of_strangers_keep_nobody_out(apart: tuple[str, psutil.Process]) -> None:
    address, _ = apart

    async def hold() -> None:
        channels = [grpc.aio.insecure_channel(address, ITS_OWN) for _ in range(70)]
        calls = [
            channel.stream_stream(f"/seedbed.Transport/{METHODS[at % 2]}")()
            for channel in channels
            for at in range(16)
        ]
        for _ in range(3):  # meanwhile
            with closing(
                await asyncio.to_thread(connect, address, timeout=PATIENCE, invitation=Invitation("x" * 16))
            ) as honest:
                assert await asyncio.to_thread(honest.ask, {"x": 1}) == {"x": 1}
        for call in calls:
            call.cancel()
        for channel in channels:
            await channel.close()

    asyncio.run(hold())
