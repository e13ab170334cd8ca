"""Clients of the socket carrier that break the rules, byte by byte, before and after they are let in."""

from __future__ import annotations

import itertools
import secrets
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from raw_scenes import Scene, said

from seedbed.errors import ConfigError, ConnectionLost, Refused
from seedbed.testing.transport import DOWN, PATIENCE, UP, FakeHandler
from seedbed.transport import sockets
from seedbed.transport.admission import Gate, Invitation
from seedbed.transport.connect import connect, listen
from seedbed.transport.framing import HEADER_BYTES, Inbox, Kind, header, limits_down, pack
from seedbed.transport.interface import Layout, Layouts
from seedbed.transport.sockets import SocketServer
from seedbed.transport.tls import Identity

ASK = pack(Kind.ASK, 0, b'{"open": true}')
STEP = pack(Kind.STEP, 0, bytes(UP.nbytes))
LIMIT = 1 << 21
TOKEN = secrets.token_hex(16)
DOWNWARDS = {**limits_down(LIMIT), Kind.CHALLENGE: 40, Kind.ADMITTED: 32}


def serving(address: str, gate: Gate | None = None, most: int = 100) -> Scene:
    """A scene of the socket carrier."""
    handler = FakeHandler()
    return Scene(SocketServer(address, handler, gate=gate, max_message_bytes=LIMIT, most=most), handler, gate)


def told(connection: socket.socket) -> list[tuple[Kind, bytes]]:
    """All frames until the server hangs up, also those of admission."""
    return said(connection, DOWNWARDS)


def answered(scene: Scene, data: bytes) -> list[tuple[Kind, bytes]]:
    """Sends bytes and no more; the frames that come back."""
    with scene.raw() as connection:
        connection.sendall(data)
        connection.shutdown(socket.SHUT_WR)
        return told(connection)


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    with closing(serving(f"socket:unix:{tmp_path_factory.mktemp('sockets')}/socket")) as scene:
        yield scene


@pytest.fixture(scope="module")
def guarded() -> Iterator[Scene]:
    with closing(serving("socket:127.0.0.1:0", Gate(TOKEN))) as scene, pytest.MonkeyPatch.context() as patch:
        patch.setattr(sockets, "REFUSAL_SECONDS", 0.0)
        yield scene


@pytest.mark.parametrize(
    ("data", "kind", "word"),
    [
        (b"garbage that is long enough", Kind.CLOSED, "not a Seedbed"),
        (b"Sd\x01" + bytes(13), Kind.CLOSED, "speaks protocol 1"),
        (header(Kind.ASK, 0, 1 << 40), Kind.CLOSED, "at most"),
        (header(Kind.ASK, 64, 0), Kind.CLOSED, "lane 64"),
        (pack(Kind.ASK, 0, b"{nonsense"), Kind.CLOSED, "JSON"),
        (STEP, Kind.CLOSED, "before the conversation was opened"),
        (ASK + STEP + STEP, Kind.CLOSED, "out of turn"),
        (ASK + pack(Kind.STEP, 2, bytes(UP.nbytes)), Kind.CLOSED, "lane 2"),
        (ASK + pack(Kind.STEP, 0, bytes(UP.nbytes - 1)), Kind.CLOSED, "agreed layout"),
        (ASK + pack(Kind.STEP, 0, bytes(UP.nbytes + 1)), Kind.CLOSED, "at most"),
        (ASK + pack(Kind.ANSWER, 0), Kind.CLOSED, "not expected"),
        (pack(Kind.PROOF, 0, bytes(88)), Kind.CLOSED, "not expected"),
        (pack(Kind.ASK, 0, b'{"refuse": "wrong game"}'), Kind.REFUSED, "wrong game"),
    ],
)
def test_the_last_frame_says_what_was_wrong(scene: Scene, data: bytes, kind: Kind, word: str) -> None:
    *_, (last, reason) = answered(scene, data)
    assert (last, word in reason.decode()) == (kind, True), reason
    scene.check_others()


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    st.lists(
        st.one_of(
            st.binary(max_size=40),
            st.just(ASK),
            st.just(STEP),
            st.builds(pack, st.integers(0, 11), st.integers(0, 70), st.binary(max_size=90)),
        ),
        max_size=6,
    )
)
def test_any_bytes(scene: Scene, guarded: Scene, pieces: list[bytes]) -> None:
    """Whoever is heard, and whoever is not let in, harms nobody; the latter is told a challenge and no more."""
    answered(scene, b"".join(pieces))
    scene.check_others()
    frames = answered(guarded, b"".join(pieces))
    assert frames[0][0] is Kind.CHALLENGE
    assert {kind for kind, _ in frames[1:]} <= {Kind.CLOSED, Kind.REFUSED}
    assert len(guarded.server.peers) == 1


def test_a_stranger_proves_once_and_is_read_no_further(guarded: Scene) -> None:
    right = Invitation(TOKEN)
    with guarded.raw() as one, guarded.raw() as other:
        challenges = [
            one.recv(HEADER_BYTES + 40)[HEADER_BYTES:],
            other.recv(HEADER_BYTES + 40)[HEADER_BYTES:],
        ]
        assert challenges[0] != challenges[1]
        # A wrong proof, with a right one and a question behind it.
        wrong = Invitation("x" * 16).prove(challenges[0], b"")
        one.sendall(pack(Kind.PROOF, 0, wrong) + pack(Kind.PROOF, 0, right.prove(challenges[0], b"")) + ASK)
        ((kind, reason),) = told(one)
        assert (kind, b"wrong token" in reason) == (Kind.REFUSED, True)
        # A right one serves once, wherever it is said.
        proof = right.prove(challenges[1], b"")
        other.sendall(pack(Kind.PROOF, 0, proof) + ASK)
        inbox, kinds = Inbox(DOWNWARDS), []
        while Kind.ANSWER not in kinds:
            kinds += [frame.kind for frame in inbox.feed(other.recv(1 << 16))]
        assert kinds == [Kind.ADMITTED, Kind.OPENED, Kind.ANSWER]
        again = answered(guarded, pack(Kind.PROOF, 0, proof))
        assert again[-1][0] is Kind.REFUSED and b"answered" in again[-1][1]
    guarded.check_others()


def test_what_is_too_long_for_a_stranger_is_not_waited_for(guarded: Scene) -> None:
    frames = answered(guarded, header(Kind.PROOF, 0, 89) + bytes(89))
    assert [kind for kind, _ in frames] == [Kind.CHALLENGE, Kind.CLOSED]


@pytest.mark.parametrize("encrypted", [False, True])
def test_strangers_go_after_a_while_and_have_no_place(
    encrypted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also those that never finish their handshake; whoever is in goes on."""
    monkeypatch.setattr(sockets, "STRANGER_SECONDS", 0.5)
    address = "socket:0.0.0.0:0" if encrypted else "socket:127.0.0.1:0"
    with closing(serving(address, Gate(TOKEN, Identity.make() if encrypted else None), most=1)) as scene:
        with scene.raw() as silent:
            kinds = [] if encrypted else [Kind.CHALLENGE]
            assert [kind for kind, _ in told(silent)] == kinds
        scene.check_others()


def test_no_more_connections_than_files_allow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sockets, "most_connections", lambda most: 4)
    with closing(serving("socket:127.0.0.1:0", Gate(TOKEN))) as scene:  # with one client, who is let in
        with scene.raw() as one, scene.raw() as two:
            for each in (one, two):
                assert each.recv(1, socket.MSG_PEEK)
            with scene.raw() as third:
                assert third.recv(1), "strangers may hold half of the connections"
                assert [kind for kind, _ in told(one)] == [Kind.CHALLENGE], "and the oldest goes"
            scene.check_others()
        with ExitStack() as stack:
            for _ in range(3):
                come = connect(
                    scene.address, timeout=PATIENCE, invitation=Gate(TOKEN).invitation(scene.address)
                )
                stack.enter_context(closing(come)).ask({"x": 1})
            with scene.raw() as fifth:
                assert told(fifth) == [], "all are held by clients who are let in"
            scene.check_others()


def test_a_certificate_that_is_another_one_is_refused_and_nothing_older_than_tls_1_3_spoken() -> None:
    gate = Gate(TOKEN, Identity.make())
    with closing(serving("socket:0.0.0.0:0", gate)) as scene:
        other = Invitation(TOKEN, Identity.make().fingerprint)
        with pytest.raises(Refused, match="another run listens there"):
            connect(scene.address, timeout=PATIENCE, invitation=other)
        with pytest.raises(Refused, match="wrong token"):
            connect(
                scene.address,
                timeout=PATIENCE,
                invitation=Invitation("y" * 16, gate.invitation(scene.server.address).fingerprint),
            )
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        context.maximum_version = ssl.TLSVersion.TLSv1_2
        with scene.raw() as old, pytest.raises(ssl.SSLError):
            context.wrap_socket(old)
        scene.check_others()


def test_a_proof_for_one_certificate_is_worth_nothing_behind_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Somebody in between who shows a certificate of its own, and passes all on, is found out by the server."""
    monkeypatch.setattr(sockets, "REFUSAL_SECONDS", 0.0)
    outside = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    outside.check_hostname, outside.verify_mode = False, ssl.CERT_NONE
    mine = Identity.make()
    context = mine.context()
    with (
        closing(serving("socket:0.0.0.0:0", Gate(TOKEN, Identity.make()))) as scene,
        socket.create_server(("127.0.0.1", 0)) as listening,
    ):

        def pass_on() -> None:
            here, _ = listening.accept()
            with (
                context.wrap_socket(here, server_side=True) as client,
                outside.wrap_socket(scene.raw()) as server,
            ):
                client.sendall(server.recv(1 << 10))  # the challenge
                server.sendall(client.recv(1 << 10))  # the proof
                client.sendall(server.recv(1 << 10))  # what the server says to it

        between = threading.Thread(target=pass_on)
        between.start()
        with pytest.raises(Refused, match="wrong token"):
            connect(
                f"socket:127.0.0.1:{listening.getsockname()[1]}",
                timeout=PATIENCE,
                invitation=Invitation(TOKEN, mine.fingerprint),
            )
        between.join(PATIENCE)


def test_an_invitation_that_nobody_asks_for_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sockets, "CHALLENGE_SECONDS", 0.3)
    server = listen("socket:127.0.0.1:0", FakeHandler())
    try:
        with pytest.raises(Refused, match="leave --join out"):
            connect(server.address, timeout=PATIENCE, invitation=Invitation(TOKEN))
    finally:
        server.close()
    with pytest.raises(ConfigError, match="nothing keeps strangers"):
        listen("socket:0.0.0.0:0", FakeHandler())


def test_without_an_invitation_it_is_said_that_one_is_needed(guarded: Scene) -> None:
    client = connect(guarded.address, timeout=PATIENCE)
    with pytest.raises(Refused, match="none was given"):
        client.ask({})
    client.close()


def test_who_reads_nothing_is_sent_away(scene: Scene) -> None:
    with scene.raw() as greedy:
        greedy.settimeout(PATIENCE)
        long = pack(Kind.ASK, 0, b'{"x": "%s"}' % (b"y" * 1_000_000))
        with pytest.raises((ConnectionResetError, BrokenPipeError)):
            for _ in itertools.repeat(None, 100_000):
                greedy.sendall(long)
    scene.check_others()


def test_what_the_server_does_not_take_is_refused_at_the_handshake(tmp_path: Path) -> None:
    big = Layout((((LIMIT + 1,), "uint8"),))
    handler = FakeHandler(more=[Layouts(big, DOWN)])
    server = SocketServer(f"socket:unix:{tmp_path}/socket", handler, max_message_bytes=LIMIT)
    client = connect(server.address, timeout=PATIENCE)
    try:
        with pytest.raises(Refused, match="fewer environments"):
            client.ask({"open": True})
    finally:
        client.close()
        server.close()


def test_no_thread_and_no_file_is_left_behind(tmp_path: Path) -> None:
    before = set(threading.enumerate())
    server = SocketServer(f"socket:unix:{tmp_path}/socket", FakeHandler())
    client = connect(server.address, timeout=PATIENCE)
    client.ask({})
    client.close()
    with pytest.raises(ConnectionLost):
        client.ask({})
    server.close()
    assert not [thread for thread in set(threading.enumerate()) - before if thread.name == server.address]
    assert not list(tmp_path.iterdir())
