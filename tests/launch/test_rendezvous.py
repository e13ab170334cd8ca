"""The hosts of a run meet: they exchange, and each notices in words that another is gone."""

from __future__ import annotations

import contextlib
import json
import math
import queue
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, closing
from typing import Any

import grpc
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from seedbed import __version__
from seedbed.errors import ConfigError, ConnectionLost, Refused, RunFailed
from seedbed.launch.rendezvous import (
    EXCHANGE,
    LANES,
    Rendezvous,
    free_port,
    go_to,
    only_here,
    piece_of,
    read,
    receive_hosts,
    split,
)
from seedbed.transport.admission import Gate, Invitation
from seedbed.transport.connect import connect, listen
from seedbed.transport.framing import Kind, header, pack
from seedbed.transport.interface import Client, Peer
from seedbed.transport.tls import Identity

PATIENCE = 60.0
TOKEN = "5ecret5ecret5ecret"
JOIN = Invitation(TOKEN)
NETWORK_NAME = "0.0.0.0"  # which leads here, and is no name of loopback's
Meet = Callable[..., list[Rendezvous]]


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(8) as pool:
        yield pool


@pytest.fixture
def address() -> str:
    return f"127.0.0.1:{free_port('127.0.0.1')}"


def come(address: str, index: int, **told: Any) -> tuple[Rendezvous, dict[str, Any]]:
    return go_to(address, index, **{"invitation": lambda: JOIN, "patience": PATIENCE, "hello": {}, **told})


def host_zero(
    threads: ThreadPoolExecutor, address: str, count: int, timeout: float = PATIENCE, **told: Any
) -> Future[Rendezvous]:
    told = {"gate": Gate(TOKEN), "judge": lambda hello: None, "welcome": dict, "patience": PATIENCE, **told}
    return threads.submit(receive_hosts, address, count, timeout=timeout, **told)


@pytest.fixture
def meet(threads: ThreadPoolExecutor, address: str) -> Iterator[Meet]:
    with ExitStack() as stack:

        def together(count: int, timeout: float = PATIENCE) -> list[Rendezvous]:
            first = host_zero(threads, address, count, timeout)
            others = [threads.submit(come, address, index) for index in range(1, count)]
            several = [first.result(PATIENCE), *(other.result(PATIENCE)[0] for other in others)]
            for rendezvous in several:
                stack.enter_context(closing(rendezvous))
            return several

        yield together


def exchanged(
    threads: ThreadPoolExecutor, several: list[Rendezvous], say: Callable[[int], bytes]
) -> list[Any]:
    asked = [threads.submit(rendezvous.exchange, say(rendezvous.index)) for rendezvous in several]
    return [one.result(PATIENCE) for one in asked]


@pytest.mark.parametrize(
    ("address", "found", "unreachable"),
    [
        ("myhost:7100", "127.0.1.1", True),
        ("myhost:7100", "10.0.0.1", False),
        ("localhost:7100", "127.0.0.1", False),
        ("127.0.0.1:7100", "127.0.0.1", False),
        ("10.0.0.1:7100", "10.0.0.1", False),
    ],
)
def test_a_name_that_others_cannot_find_is_noticed(
    address: str, found: str, unreachable: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(socket, "gethostbyname", lambda host: found)
    assert bool(only_here(address)) == unreachable


@pytest.mark.parametrize("count", [2, 3, 4])
def test_everybody_hears_everybody_in_the_order_of_the_hosts(
    meet: Meet, threads: ThreadPoolExecutor, count: int
) -> None:
    several = meet(count)
    for number in range(20):
        say = lambda index, number=number: b"" if index == 1 else b"%d of %d" % (number, index)  # noqa: E731
        heard = exchanged(threads, several, say)
        assert heard == [[say(index) for index in range(count)]] * count


def test_large_messages_arrive_whole(meet: Meet, threads: ThreadPoolExecutor) -> None:
    big = bytes(range(256)) * (1 << 16)
    assert exchanged(threads, meet(2), lambda index: big[index:]) == [[big, big[1:]]] * 2


def test_the_loss_of_a_host_is_told_to_all_others(meet: Meet, threads: ThreadPoolExecutor) -> None:
    several = meet(3)
    told: dict[int, Future[str]] = {0: Future(), 2: Future()}
    for index, future in told.items():
        several[index].watch(future.set_result)
    waiting = [threads.submit(several[index].exchange, b"") for index in told]
    several[1]._closed.set()
    several[1]._client._channel.close()  # type: ignore[attr-defined]  # as the system does when a process is killed
    for future in told.values():
        assert future.result(PATIENCE) == "host 1 is gone: the connection was closed"
    for one in waiting:
        with pytest.raises(RunFailed, match="host 1 is gone"):
            one.result(PATIENCE)
    for index in told:
        with pytest.raises(RunFailed, match="host 1 is gone"):
            several[index].exchange(b"")


def test_whoever_watches_late_is_told_at_once(meet: Meet) -> None:
    several = meet(2)
    several[1].close("no disk")
    assert several[0].wait_for_loss(PATIENCE) == "host 1 failed: no disk"
    told: Future[str] = Future()
    several[0].watch(told.set_result)
    assert told.result(PATIENCE) == "host 1 failed: no disk"


def test_a_host_that_fails_says_why(meet: Meet) -> None:
    several = meet(3)
    several[0].close("the disk is full")
    for rendezvous in several[1:]:
        assert rendezvous.wait_for_loss(PATIENCE) == "host 0 failed: the disk is full"


def test_hosts_that_have_finished_are_not_missed(meet: Meet) -> None:
    several = meet(2)
    lost: list[str] = []
    several[0].watch(lost.append)
    several[1].close()
    with pytest.raises(RunFailed, match="host 1 ended before host 0 did"):
        several[0].exchange(b"")
    assert several[0].lost is None
    assert not lost


def introduced(address: str, index: int, **told: Any) -> Client:
    """A host that has come, and does nothing more by itself."""
    hello = {"version": __version__, "host": index, **told}
    client = connect(address, timeout=PATIENCE, invitation=JOIN)
    client.ask(hello)
    client.open(LANES)
    return client


def test_silence_is_a_loss(threads: ThreadPoolExecutor, address: str) -> None:
    first = host_zero(threads, address, 2, timeout=0.5)
    with closing(introduced(address, 1)) as mute:
        mute.send(EXCHANGE, piece_of(b""))
        with closing(first.result(PATIENCE)) as rendezvous:
            assert rendezvous.wait_for_loss(PATIENCE) == "host 1 is gone: no sign of life for 0.5 s"


class Mute:
    """A host 0 that welcomes one, and is silent from then on."""

    def answer(self, peer: Peer, message: dict[str, Any]) -> dict[str, Any]:
        peer.open(LANES)
        return {}

    def deliver(self, peer: Peer, lane: int, arrays: list[Any]) -> None:
        welcome = json.dumps({"timeout": 0.5}).encode()
        if lane == EXCHANGE:
            peer.reply(lane, piece_of(len(welcome).to_bytes(8, "big") + welcome))

    def left(self, peer: Peer, reason: str) -> None:
        pass


def test_the_silence_of_host_zero_is_a_loss(address: str) -> None:
    with closing(listen(address, Mute(), gate=Gate(TOKEN))), closing(come(address, 1)[0]) as rendezvous:
        assert rendezvous.wait_for_loss(PATIENCE / 2) == "host 0 is gone: no sign of life for 0.5 s"


class Slow(Mute):
    """A host 0 that waits for other hosts, and vanishes meanwhile."""

    def deliver(self, peer: Peer, lane: int, arrays: list[Any]) -> None:
        pass


def test_the_silence_of_host_zero_is_a_loss_before_all_are_there_too(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("seedbed.launch.rendezvous._GATHERING_SECONDS", 0.5)
    silent = "host 0 is gone: no sign of life for 0.5 s"
    with closing(listen(address, Slow(), gate=Gate(TOKEN))), pytest.raises(RunFailed, match=silent):
        come(address, 1)


def test_a_host_that_grows_silent_before_all_are_there_gives_its_place(
    threads: ThreadPoolExecutor, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("seedbed.launch.rendezvous._GATHERING_SECONDS", 2.0)
    first = host_zero(threads, address, 3)
    with closing(introduced(address, 1)) as mute:
        with pytest.raises(ConnectionLost, match="host 1 is gone: no sign of life for 2 s"):
            mute.receive(idle=True)
        others = [threads.submit(come, address, index) for index in (1, 2)]
        came = [other.result(PATIENCE)[0] for other in others]
        with closing(came[0]), closing(came[1]), closing(first.result(PATIENCE)) as rendezvous:
            assert rendezvous.lost is None


def test_a_shorter_time_than_that_of_the_gathering_loses_nobody(
    meet: Meet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both ends beat by the new time at once, and not only after the pause of the old one, which is 5 s here."""
    monkeypatch.setattr("seedbed.launch.rendezvous._GATHERING_SECONDS", 25.0)
    several = meet(2, timeout=3.0)
    assert [rendezvous.wait_for_loss(6.0 - 5.5 * rendezvous.index) for rendezvous in several] == [None, None]


def test_strangers_that_stay_and_say_nothing_keep_no_host_waiting(
    threads: ThreadPoolExecutor, address: str
) -> None:
    """One after the other they would take longer than this test waits."""
    first = host_zero(threads, address, 2)
    with ExitStack() as stack:
        for _ in range(10):
            stack.enter_context(closing(dialled(address)))
        second = threads.submit(come, address, 1)
        with closing(second.result(PATIENCE)[0]), closing(first.result(PATIENCE)) as rendezvous:
            assert rendezvous.lost is None


def test_hosts_that_are_busy_are_not_missed(meet: Meet, threads: ThreadPoolExecutor) -> None:
    several = meet(2, timeout=3.0)
    assert several[0].wait_for_loss(4.0) is None
    assert exchanged(threads, several, lambda index: b"%d" % index) == [[b"0", b"1"]] * 2


@pytest.mark.parametrize("noise", [b"GET / HTTP/1.1\r\n\r\n", b"\0" * 9, b"\1", b"[" * 100_000])
def test_strangers_disturb_nobody(noise: bytes, threads: ThreadPoolExecutor, address: str) -> None:
    first = host_zero(threads, address, 2)
    # It may be shown the door before it has finished.
    with closing(dialled(address)) as stranger, contextlib.suppress(OSError):
        stranger.sendall(noise)
        stranger.shutdown(socket.SHUT_WR)
        while stranger.recv(1 << 12):
            pass
    second = threads.submit(come, address, 1)
    with closing(second.result(PATIENCE)[0]), closing(first.result(PATIENCE)) as rendezvous:
        assert rendezvous.lost is None


def dialled(address: str) -> socket.socket:
    over = threading.Event()
    while True:
        try:
            return socket.create_connection(split(address), timeout=PATIENCE)
        except OSError:
            over.wait(0.01)


HELLO = {"version": __version__, "host": 1}


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"host": "1"}, "not what a host says"),
        ({"settings": []}, "not what a host says"),
    ],
)
def test_what_is_no_host_is_turned_away(
    change: dict[str, Any], says: str, threads: ThreadPoolExecutor, address: str
) -> None:
    first = host_zero(threads, address, 2)
    with pytest.raises(ConfigError, match=says):
        come(address, 1, hello=change)
    with closing(come(address, 1)[0]), closing(first.result(PATIENCE)) as rendezvous:
        assert rendezvous.lost is None


def test_a_host_without_the_token_is_refused_and_takes_no_place(
    threads: ThreadPoolExecutor, address: str
) -> None:
    first = host_zero(threads, address, 2)
    with pytest.raises(ConfigError, match="wrong token"):
        come(address, 1, invitation=lambda: Invitation("other" * 5))
    client = connect(address, timeout=PATIENCE)
    with closing(client), pytest.raises(Refused, match="wrong token: none was given"):
        client.ask(HELLO)
    with closing(come(address, 1)[0]) as second, closing(first.result(PATIENCE)):
        assert second.lost is None


@pytest.mark.parametrize(
    ("fingerprint", "says"),
    [("", None), ("ours", None), ("0" * 64, "another run listens there, or somebody in between")],
)
def test_hosts_meet_by_tls(
    fingerprint: str, says: str | None, threads: ThreadPoolExecutor, address: str
) -> None:
    identity = Identity.make()
    port = address.rpartition(":")[2]
    first = host_zero(threads, f"0.0.0.0:{port}", 2, gate=Gate(TOKEN, identity))
    # By its name the machine is on the network, also to itself.
    invitation = Invitation(TOKEN, identity.fingerprint if fingerprint == "ours" else fingerprint)
    reached = address if fingerprint else f"{NETWORK_NAME}:{port}"
    if says is not None:
        with pytest.raises(ConfigError, match=says):
            come(reached, 1, invitation=lambda: invitation)
        invitation = Invitation(TOKEN, identity.fingerprint)
    second, _ = come(reached, 1, invitation=lambda: invitation)
    with closing(second), closing(first.result(PATIENCE)) as rendezvous:
        assert exchanged(threads, [rendezvous, second], lambda index: b"%d" % index) == [[b"0", b"1"]] * 2


MESSAGES = st.one_of(
    st.binary(max_size=40),
    st.builds(pack, st.integers(0, 9), st.integers(0, 3), st.binary(max_size=20)),
    st.just(pack(Kind.ASK, 0, json.dumps(HELLO).encode())),
    st.just(pack(Kind.ASK, 0, json.dumps({**HELLO, "host": 3}).encode())),
    st.just(pack(Kind.STEP, 1)),
    st.builds(
        lambda head: header(Kind.STEP, 0, LANES[0].up.nbytes) + head.ljust(LANES[0].up.nbytes, b"\xff"),
        st.binary(max_size=140),
    ),
)


@pytest.fixture(scope="module")
def waiting() -> Iterator[tuple[str, list[bool]]]:
    """A host 0 that waits for hosts, and a way to end that."""
    over: list[bool] = []

    def look() -> None:
        if over:
            raise RunFailed("over")

    address = f"127.0.0.1:{free_port('127.0.0.1')}"
    with ThreadPoolExecutor(1) as threads:
        ended = host_zero(threads, address, 3, look=look, patience=math.inf)  # as long as the tests take
        introduced(address, 2).close()  # it is there
        yield address, over
        over.append(True)
        with pytest.raises(RunFailed, match="over"):
            ended.result(PATIENCE)


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.lists(MESSAGES, max_size=6))
def test_any_messages_before_all_are_there(waiting: tuple[str, list[bool]], messages: list[bytes]) -> None:
    address, _ = waiting
    with grpc.insecure_channel(address, [("grpc.use_local_subchannel_pool", 1)]) as channel:
        (challenge,) = channel.stream_stream("/seedbed.Transport/Challenge")(iter(()), timeout=PATIENCE)
        call = channel.stream_stream("/seedbed.Transport/Converse")(
            iter(messages), metadata=(("seedbed-proof-bin", JOIN.prove(challenge, b"")),), timeout=PATIENCE
        )
        with contextlib.suppress(grpc.RpcError):
            list(call)
        assert call.code().name in ("OK", "INVALID_ARGUMENT", "FAILED_PRECONDITION")
    # Host 0 goes on: another may come, and leave again.
    introduced(address, 2).close()


def test_a_host_that_ends_a_message_too_late_is_sent_away(
    threads: ThreadPoolExecutor, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("seedbed.launch.rendezvous._MOST_BYTES", 100_000)
    first = host_zero(threads, address, 2)
    endless = piece_of(bytes(1 << 16))
    with closing(introduced(address, 1)) as greedy, pytest.raises(ConnectionLost, match="more than 100000"):
        while True:
            greedy.send(EXCHANGE, endless)
            greedy.receive()
    with closing(first.result(PATIENCE)) as rendezvous:
        assert rendezvous.wait_for_loss(PATIENCE) == "host 1 is gone: the connection was closed"


@pytest.mark.parametrize("size", [0, 1, 32_767, 32_768, 32_769, 100_000])
def test_pieces_make_a_message(size: int) -> None:
    message, whole, left = bytes(range(256)) * 400, b"", 1
    while left:
        piece, left = read(piece_of(message[:size], len(whole)))
        whole += piece
        assert left == size - len(whole)
    assert whole == message[:size]


@pytest.mark.parametrize(
    ("hello", "says"),
    [
        ({"hosts": 3}, "it was told of 3 hosts, host 0 of 2"),
        ({"host": 2}, "there are 2 hosts, 0 to 1"),
        ({"host": 0}, "there are 2 hosts, 0 to 1"),
        ({"version": "0.0.9"}, f"it has version 0.0.9 of Seedbed, host 0 has {__version__}"),
        ({"settings": {"other": 1}}, "other settings"),
    ],
)
def test_a_host_that_does_not_fit_is_turned_away_with_the_reason(
    hello: dict[str, Any], says: str, threads: ThreadPoolExecutor, address: str
) -> None:
    def judge(hello: Mapping[str, Any]) -> str | None:
        return "other settings" if hello.get("settings") else None

    first = host_zero(threads, address, 2, judge=judge, welcome=lambda: {"told": 7})
    with pytest.raises(ConfigError, match=says):
        come(address, 1, hello=hello)
    rendezvous, told = come(address, 1, hello={"hosts": 2})
    assert told["told"] == 7
    with closing(rendezvous), closing(first.result(PATIENCE)):
        pass


def test_two_hosts_with_one_index(threads: ThreadPoolExecutor, address: str) -> None:
    first = host_zero(threads, address, 3)
    second = threads.submit(come, address, 1)
    twin = threads.submit(come, address, 1)
    third: Future[Any] = Future()
    for done in (second, twin):
        done.add_done_callback(lambda one: third.done() or third.set_result(one))
    with pytest.raises(ConfigError, match="another has come with that index"):
        third.result(PATIENCE).result()
    last = threads.submit(come, address, 2)
    with closing(first.result(PATIENCE)), closing(last.result(PATIENCE)[0]):
        (came,) = (one.result()[0] for one in (second, twin) if one.exception(PATIENCE) is None)
        came.close()


def test_a_host_that_went_away_may_come_back_before_all_are_there(
    threads: ThreadPoolExecutor, address: str
) -> None:
    came: queue.SimpleQueue[int] = queue.SimpleQueue()
    first = host_zero(threads, address, 3, judge=lambda hello: came.put(hello["host"]))
    with closing(introduced(address, 1)):
        assert came.get(timeout=PATIENCE) == 1
    others = []
    for index in (2, 1):  # when the second is there, two have come and one of them has gone
        others.append(threads.submit(come, address, index))
        assert came.get(timeout=PATIENCE) == index
    with closing(first.result(PATIENCE)) as rendezvous:
        for other in others:
            with closing(other.result(PATIENCE)[0]):
                pass
        assert rendezvous.lost is None


def test_a_host_that_goes_away_once_all_are_there_is_lost(threads: ThreadPoolExecutor, address: str) -> None:
    gone = threading.Event()
    first = host_zero(threads, address, 2, patience=5.0, look=lambda: bool(gone.wait(PATIENCE)))
    introduced(address, 1).close()
    gone.set()  # host 0 looks only now
    with closing(first.result(PATIENCE)) as rendezvous:
        assert rendezvous.wait_for_loss(PATIENCE) == "host 1 is gone: the connection was closed"


def test_hosts_that_do_not_come_are_named(address: str, threads: ThreadPoolExecutor) -> None:
    second = threads.submit(come, address, 2)
    with pytest.raises(RunFailed, match="host 1, 3 did not come to "):
        receive_hosts(
            address,
            4,
            gate=Gate(TOKEN),
            timeout=PATIENCE,
            patience=1.5,
            judge=lambda hello: None,
            welcome=dict,
        )
    with pytest.raises(ConfigError, match="not all hosts came"):
        second.result(PATIENCE)


def test_a_host_zero_that_is_not_there(address: str) -> None:
    with pytest.raises(RunFailed, match=f"host 0 is not at {address}"):
        come(address, 1, patience=0.3)


def test_an_address_that_is_taken(address: str) -> None:
    with socket.create_server(split(address)), pytest.raises(ConfigError, match="host 0 cannot listen at"):
        receive_hosts(
            address, 2, gate=Gate(TOKEN), timeout=1.0, patience=1.0, judge=lambda hello: None, welcome=dict
        )


def test_an_address_may_become_this_machines_where_engines_name_it(
    address: str, threads: ThreadPoolExecutor
) -> None:
    taken = socket.create_server(split(address))
    looks: list[None] = []

    def look() -> None:
        looks.append(None)
        if len(looks) == 2:
            taken.close()

    second = threads.submit(come, address, 1)
    center = receive_hosts(
        address,
        2,
        gate=Gate(TOKEN),
        timeout=PATIENCE,
        patience=PATIENCE,
        judge=lambda hello: None,
        welcome=dict,
        look=look,
        renamed=PATIENCE,
    )
    assert len(looks) >= 2
    other, _ = second.result(PATIENCE)
    for end in (other, center):
        end.close()


@pytest.mark.parametrize("wrong", ["nowhere", ":70", "host:", "host:0", "host:99999", "host:x"])
def test_an_address_that_is_none(wrong: str) -> None:
    with pytest.raises(ConfigError, match="write HOST:PORT"):
        split(wrong)


def test_an_address_with_colons() -> None:
    assert split("[::1]:7000") == ("::1", 7000)
