"""Clients of the shared-memory carrier that break the rules, on its raw socket; and that nothing leaks."""

from __future__ import annotations

import gc
import os
import selectors
import socket
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from raw_scenes import Scene, said

from seedbed.errors import ConnectionLost, SpecError
from seedbed.testing.transport import PATIENCE, FakeHandler, opened
from seedbed.transport import shared_memory
from seedbed.transport.connect import connect, listen
from seedbed.transport.framing import Inbox, Kind, decode_reason, header, limits_down, pack
from seedbed.transport.interface import Layout, Terms
from seedbed.transport.shared_memory import SharedMemoryServer

ASK = pack(Kind.ASK, 0, b'{"open": true}')
STEP = pack(Kind.STEP, 0)


def serving(directory: Path) -> Scene:
    """A scene of the shared-memory carrier."""
    handler = FakeHandler()
    return Scene(listen(f"shm:{directory}/socket", handler), handler)


def reason(raw: socket.socket) -> str:
    """The last reason that the server gives until it hangs up; empty for none."""
    frames = said(raw, limits_down(reply=0))
    return next((decode_reason(body) for kind, body in reversed(frames) if kind == Kind.CLOSED), "")


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    with closing(serving(tmp_path)) as scene:
        yield scene


@pytest.mark.parametrize(
    ("data", "word"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", "not a Seedbed"),
        (header(Kind.ASK, 0, 1 << 40), "at most"),
        (pack(Kind.ASK, 0, b"{nonsense"), "JSON"),
        (pack(Kind.ASK, 0, b"[1]"), "JSON object"),
        (STEP, "before the conversation was opened"),
        (ASK + pack(Kind.STEP, 7), "lane 7"),
        (ASK + STEP + STEP, "out of turn"),
        (ASK + pack(Kind.STEP, 0, b"x"), "at most 0"),
        (ASK + pack(Kind.REPLY, 0), "not expected"),
        (ASK + b"\0" * 16, "not a Seedbed"),
    ],
)
def test_who_breaks_the_rules_is_told_and_alone(scene: Scene, data: bytes, word: str) -> None:
    with scene.raw() as raw:
        raw.sendall(data)
        assert word in reason(raw)
    scene.check_others()


def test_what_looks_like_a_step_inside_of_a_question_is_none() -> None:
    class Server:
        def attend(self, conversation: object) -> None:
            pass

    ours, theirs = socket.socketpair()
    with ours, theirs:
        conversation = shared_memory._Conversation(ours, 1, FakeHandler(), Server())  # type: ignore[arg-type]
        for part in (header(Kind.ASK, 0, len(STEP)), STEP):
            theirs.sendall(part)
            conversation.on_event(selectors.EVENT_READ)
        (frame,) = Inbox(limits_down(reply=0)).feed(theirs.recv(1 << 16))
    assert frame.kind == Kind.CLOSED
    assert "no JSON" in decode_reason(frame.body)


def test_silence_in_mid_frame_costs_nobody(scene: Scene) -> None:
    with scene.raw() as half, scene.raw() as nothing:
        half.sendall(ASK[:20])
        scene.check_others()
        half.sendall(ASK[20:])
        assert half.recv(4)
        assert nothing.fileno() >= 0


def test_who_does_not_read_is_sent_away(scene: Scene) -> None:
    question = pack(Kind.ASK, 0, b'{"x": "%s"}' % (b"y" * 1_000_000))
    with scene.raw() as raw, pytest.raises((BrokenPipeError, ConnectionResetError)):
        for _ in range(50):
            raw.sendall(question)
    scene.check_others()
    assert "unread" in scene.handler.departed.get(timeout=PATIENCE)[1]


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(
        st.one_of(
            st.binary(max_size=40),
            st.just(ASK),
            st.builds(pack, st.integers(0, 9), st.integers(0, 70), st.binary(max_size=20)),
            st.builds(header, st.integers(0, 9), st.integers(0, 70), st.integers(0, 1 << 40)),
        ),
        max_size=6,
    )
)
def test_any_bytes(scene: Scene, pieces: list[bytes]) -> None:
    with scene.raw() as raw:
        try:
            for piece in pieces:
                raw.sendall(piece)
            raw.shutdown(socket.SHUT_WR)
        except OSError:
            pass  # the server has hung up
        reason(raw)
    scene.check_others()


def test_the_memory_cannot_be_shrunk(scene: Scene) -> None:
    with scene.raw() as raw:
        raw.sendall(ASK)
        _, handles, _, _ = socket.recv_fds(raw, 1 << 16, 4)
        (handle,) = handles
        with pytest.raises(PermissionError):
            os.ftruncate(handle, 0)
        os.close(handle)


def test_without_anonymous_memory_a_file_serves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "memfd_create", raising=False)
    with closing(serving(tmp_path)) as scene:
        scene.check_others()


def test_memory_that_is_not_there_is_a_refusal(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_space(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(shared_memory, "_reserve", no_space)
    with pytest.raises(SpecError, match="No space left"):
        shared_memory._make_memory(100)
    monkeypatch.undo()
    scene.check_others()


def test_a_client_that_is_closed_as_it_opens_is_closed_and_not_at_odds_with_the_server(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = connect(scene.address, timeout=PATIENCE)
    furnish = client._furnish  # type: ignore[attr-defined]

    def closed_before(terms: Terms) -> None:
        client.close()
        furnish(terms)

    monkeypatch.setattr(client, "_furnish", closed_before)
    with pytest.raises(ConnectionLost, match="this side closed the conversation"):
        opened(client, scene.handler)
    scene.check_others()


class _OutOfHandles:
    """A listener that cannot accept, once."""

    def __init__(self, listener: socket.socket) -> None:
        self._listener = listener
        self.failures = 1
        self.fileno, self.close = listener.fileno, listener.close

    def accept(self) -> Any:
        if self.failures:
            self.failures -= 1
            raise OSError(24, "Too many open files")
        return self._listener.accept()


def test_a_server_out_of_handles_recovers(tmp_path: Path) -> None:
    server = SharedMemoryServer(f"{tmp_path}/socket", FakeHandler())
    server._listener = listener = _OutOfHandles(server._listener)  # type: ignore[assignment]
    client = connect(server.address, timeout=PATIENCE)
    try:
        assert client.ask({"x": 1}) == {"x": 1}
        assert listener.failures == 0
    finally:
        client.close()
        server.close()


def _handles() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def _mappings() -> int:
    return Path("/proc/self/maps").read_text().count("memfd:seedbed")


def test_nothing_is_left_behind(tmp_path: Path) -> None:
    layout = Layout((((1000,), "float32"),))
    gc.collect()
    handles, mappings = _handles(), _mappings()
    for _ in range(3):
        handler = FakeHandler(layout, layout)
        server = listen(f"shm:{tmp_path}/socket", handler)
        client = opened(connect(server.address, timeout=PATIENCE), handler)
        client.send(0, [np.ones(1000, np.float32)])
        _, _, held = handler.delivered.get(timeout=PATIENCE)
        client.close()
        server.close()
        assert held[0].sum() == 1000  # held arrays keep the memory
        del held, client, server, handler
    gc.collect()
    assert (_handles(), _mappings()) == (handles, mappings)
