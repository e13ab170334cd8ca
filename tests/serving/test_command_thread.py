"""The thread that runs commands, where it waits for them alone and where it waits for messages, too."""

from __future__ import annotations

import queue
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from seedbed.serving.command_thread import CommandThread
from seedbed.transport.poller import Poller

PATIENCE = 20.0


class Scribe:
    """Notes what it is told to, and how often work was due."""

    def __init__(self) -> None:
        self.failures: queue.SimpleQueue[BaseException] = queue.SimpleQueue()
        self.thread = CommandThread("scribe", self._turn, self.failures.put)
        self.noted: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.turned: queue.SimpleQueue[float] = queue.SimpleQueue()
        self.waits: list[float] = []

    def note(self, what: Any) -> None:
        self.thread.submit(self._note, what)

    def run(self, function: Any) -> None:
        self.thread.submit(function)

    def _note(self, what: Any) -> None:
        self.noted.put((what, threading.get_ident() == self.thread._thread.ident))

    def _turn(self) -> float | None:
        self.turned.put(self.thread.clock())
        return self.waits.pop() if self.waits else None


@pytest.fixture(params=["alone", "at a poller"])
def scribe(request: pytest.FixtureRequest) -> Iterator[Scribe]:
    one, poller = Scribe(), None
    if request.param != "alone":
        poller = Poller()
        one.thread.wait_at(poller)
    one.thread.start()
    one.thread.begin()
    yield one
    one.thread.stop()
    assert not one.thread._thread.is_alive()
    if poller is not None:
        poller.close()


def test_commands_of_any_thread_run_in_order_in_its_own(scribe: Scribe) -> None:
    for number in range(1000):
        scribe.note(number)
    assert [scribe.noted.get(timeout=PATIENCE) for _ in range(1000)] == [(n, True) for n in range(1000)]


@pytest.mark.parametrize("hears", [False, True])
def test_commands_wait_until_it_begins_and_messages_are_heard(hears: bool) -> None:
    scribe, poller = Scribe(), Poller()
    ours, theirs = socket.socketpair()
    heard = threading.Event()

    def hear(events: int) -> None:
        ours.recv(9)
        scribe.note("a message")
        heard.set()

    with ours, theirs:
        poller.register(ours, hear)
        if hears:
            scribe.thread.wait_at(poller)
        scribe.thread.start()
        scribe.note("a command")
        if hears:
            theirs.send(b"x")
            assert heard.wait(PATIENCE)
        assert scribe.noted.empty() and scribe.turned.empty()
        assert scribe.thread.unheard() > 0, "nobody owes anything meanwhile"
        scribe.thread.begin()
        assert scribe.noted.get(timeout=PATIENCE) == ("a command", True)
        if hears:
            assert scribe.noted.get(timeout=PATIENCE) == ("a message", True)
        scribe.thread.stop()
    poller.close()


@pytest.mark.parametrize("hears", [False, True])
def test_one_that_never_begins_can_be_stopped(hears: bool) -> None:
    scribe, poller = Scribe(), Poller()
    if hears:
        scribe.thread.wait_at(poller)
    scribe.thread.start()
    scribe.thread.stop()
    assert not scribe.thread._thread.is_alive() and scribe.turned.empty()
    poller.close()


def test_a_command_of_its_own_is_run_without_another_one(scribe: Scribe) -> None:
    scribe.run(lambda: scribe.note("its own"))
    assert scribe.noted.get(timeout=PATIENCE) == ("its own", True)


def test_a_poke_and_a_wait_that_is_over_have_work_done(scribe: Scribe) -> None:
    scribe.waits = [0.001, 0.001]
    scribe.thread.poke()
    for _ in range(3):
        scribe.turned.get(timeout=PATIENCE)


def test_a_failure_ends_it_and_is_told(scribe: Scribe) -> None:
    def fail() -> None:
        raise ValueError("no more ink")

    scribe.run(fail)
    assert str(scribe.failures.get(timeout=PATIENCE)) == "no more ink"


def test_it_hears_messages_itself_and_knows_since_when_they_may_be_there() -> None:
    scribe, poller = Scribe(), Poller()
    ours, theirs = socket.socketpair()
    entered, leave = threading.Event(), threading.Event()

    def hear(events: int) -> None:
        ours.recv(9)
        scribe.note(scribe.thread.clock())

    def dwell() -> None:
        entered.set()
        leave.wait(PATIENCE)

    with ours, theirs:
        poller.register(ours, hear)
        scribe.thread.wait_at(poller)
        scribe.thread.start()
        scribe.thread.begin()
        scribe.run(dwell)
        assert entered.wait(PATIENCE)
        looked = poller.looked
        theirs.send(b"x")  # while it is busy
        assert scribe.thread.unheard() > 0
        assert scribe.thread.clock() > looked  # to others the time is now
        leave.set()
        assert scribe.noted.get(timeout=PATIENCE) == (looked, True)
        while scribe.thread.unheard():  # until it waits again
            pass
        scribe.thread.stop()
    poller.close()


def test_one_that_only_runs_commands_misses_no_messages() -> None:
    scribe = Scribe()
    assert scribe.thread.unheard() == 0
