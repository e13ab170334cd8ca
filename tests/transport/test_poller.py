"""The poller: what is called, when, and since when it may have been due."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator

import pytest

from seedbed.transport.poller import READ, WRITE, Poller

PATIENCE = 20.0


@pytest.fixture
def poller() -> Iterator[Poller]:
    one = Poller()
    yield one
    one.close()


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, theirs


def test_what_is_ready_is_called_with_its_events(poller: Poller, ends: tuple[socket.socket, ...]) -> None:
    ours, theirs = ends
    heard: list[int] = []
    poller.register(ours, heard.append)
    poller.poll(0)
    assert heard == []
    theirs.send(b"x")
    poller.poll(PATIENCE)
    assert heard == [READ]
    poller.register(ours, heard.append, READ | WRITE)
    poller.poll(PATIENCE)
    assert heard == [READ, READ | WRITE]
    poller.unregister(ours)
    poller.poll(0)
    assert len(heard) == 2


def test_what_is_taken_out_meanwhile_is_not_called(poller: Poller) -> None:
    pairs = [socket.socketpair() for _ in range(2)]
    heard: list[int] = []

    def take_out(index: int) -> None:
        heard.append(index)
        poller.unregister(pairs[1 - index][0])

    for index, (ours, theirs) in enumerate(pairs):
        poller.register(ours, lambda _, index=index: take_out(index))  # type: ignore[misc]
        theirs.send(b"x")
    poller.poll(PATIENCE)
    assert len(heard) == 1
    for pair in pairs:
        for end in pair:
            end.close()


def test_another_thread_ends_the_wait(poller: Poller) -> None:
    waits = threading.Thread(target=poller.poll, args=(None,))
    waits.start()
    poller.wake()
    waits.join(PATIENCE)
    assert not waits.is_alive()
    poller.wake()  # one that comes too early is not lost
    poller.poll(PATIENCE)
    begin = time.monotonic()
    poller.poll(0.01)
    assert time.monotonic() - begin >= 0.009


def test_wakes_beyond_number_are_one(poller: Poller) -> None:
    for _ in range(100_000):
        poller.wake()
    heard: list[int] = []
    poller.tend(lambda: heard.append(1))
    poller.poll(PATIENCE)
    assert heard == [1]


def test_what_was_there_already_may_have_come_since_the_last_look(
    poller: Poller, ends: tuple[socket.socket, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, theirs = ends
    since: list[float] = []

    def hear(events: int) -> None:
        ours.recv(9)
        since.append(poller.since)

    poller.register(ours, hear)
    poller.poll(0)
    looked = poller.looked
    theirs.send(b"x")
    poller.poll(PATIENCE)
    assert since == [looked]
    # What was not there when it looked has come later.
    looked, select = poller.looked, poller._selector.select
    monkeypatch.setattr(poller._selector, "select", lambda timeout: select(timeout) if timeout else [])
    theirs.send(b"x")
    poller.poll(PATIENCE)
    assert since[1] > looked


def test_whoever_asks_is_called_again_in_time(poller: Poller) -> None:
    called: list[float] = []

    def tend() -> float | None:
        called.append(time.monotonic())
        return 0.01 if len(called) < 3 else None

    poller.tend(tend)
    poller.poll(0)
    poller.poll(None)
    poller.poll(None)
    assert len(called) == 3
    poller.forget(tend)
    poller.poll(0)
    assert len(called) == 3


def test_a_poller_that_is_closed_takes_wakes_and_does_nothing() -> None:
    one = Poller()
    one.close()
    one.wake()
    one.close()
