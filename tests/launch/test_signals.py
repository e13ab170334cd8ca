"""Signals that end a run, in this process."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import os
import signal
import threading
import time
from collections.abc import Iterator, Sequence

import pytest

from seedbed.launch import signals
from seedbed.launch.signals import Counted, Interruption, Terminated, ending_as_by_ctrl_c, heeding_signals

HUP, INT, TERM = signal.SIGHUP, signal.SIGINT, signal.SIGTERM


@pytest.fixture(autouse=True)
def as_on_a_terminal() -> Iterator[None]:
    before = {number: signal.signal(number, signal.SIG_DFL) for number in (HUP, INT, TERM)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def come(*numbers: int) -> None:
    for number in numbers:
        os.kill(os.getpid(), number)


@pytest.mark.parametrize(
    ("numbers", "count"),
    [
        ((INT,), 1),
        ((INT, INT), 2),
        ((HUP,), 0),
        ((HUP, TERM, HUP), 1),
        ((HUP, INT, HUP, TERM), 2),
        ((signal.SIGWINCH, INT), 1),
    ],
)
def test_a_closed_terminal_does_not_count(numbers: Sequence[int], count: int) -> None:
    seconds = itertools.count()
    counted = Counted(clock=lambda: float(next(seconds)))
    for number in numbers:
        counted.add(number)
    assert counted.signals == count


def test_a_signal_that_is_sent_again_at_once_counts_once() -> None:
    came = [(1.0, TERM), (1.2, TERM), (1.3, INT), (1.6, TERM), (2.3, TERM), (2.7, TERM), (2.9, TERM)]
    times = iter([seconds for seconds, _ in came])
    counted = Counted(clock=lambda: next(times))
    heard = [counted.add(number) for _, number in came]
    assert heard == [1, 1, 2, 3, 4, 4, 5]


@pytest.mark.parametrize("number", [TERM, INT])
def test_what_a_group_and_its_command_are_sent_hurries_nobody(
    number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(signals, "_ONE_SECONDS", 60.0)
    interrupted = Interruption()
    with heeding_signals(interrupted):
        come(number, number)
        assert interrupted.is_set()
        with pytest.raises(KeyboardInterrupt):
            come(*{INT, TERM} - {number})


def compiling(rounds: int) -> float:
    """Keeps this thread out of Python; returns for how many seconds."""
    begun = time.monotonic()
    hashlib.pbkdf2_hmac("sha256", b"", b"", rounds)
    return time.monotonic() - begun


def test_signals_count_when_they_come_and_not_when_they_are_handled(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second of two that were sent together is handled late by a main thread that compiles."""
    now, counted = [0.0], threading.Semaphore(0)

    class Watched(Counted):
        def __init__(self) -> None:
            super().__init__(clock=lambda: now[0])

        def add(self, number: int) -> int:
            count = super().add(number)
            if number == TERM:
                counted.release()
            return count

    monkeypatch.setattr(signals, "Counted", Watched)
    rounds = int(100_000 * 1.0 / compiling(100_000))  # about a second
    interrupted, compiles = Interruption(), threading.Event()

    def send() -> None:
        compiles.wait()
        come(TERM)
        for _ in range(2):
            counted.acquire(timeout=30)
        now[0] = 10.0

    with heeding_signals(interrupted):
        come(TERM)
        thread = threading.Thread(target=send)
        thread.start()
        compiles.set()
        compiling(rounds)
        thread.join()
        assert interrupted.by == "SIGTERM"
        with pytest.raises(KeyboardInterrupt):
            come(TERM)


def test_a_closed_terminal_beside_sigterm_hurries_nobody_in_whichever_order_they_are_heard() -> None:
    interrupted = Interruption()
    with heeding_signals(interrupted):
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {HUP, TERM})
        come(TERM, HUP)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        assert interrupted.by in ("SIGHUP", "SIGTERM")
        with pytest.raises(KeyboardInterrupt):
            come(INT)


@pytest.mark.parametrize("numbers", [(HUP, HUP, HUP), (TERM, HUP), (HUP, TERM)])
def test_a_run_whose_terminal_is_closed_is_interrupted_and_not_hurried(numbers: Sequence[int]) -> None:
    interrupted = Interruption()
    with heeding_signals(interrupted):
        come(*numbers)
        assert interrupted.by == signal.Signals(numbers[0]).name
        with pytest.raises(KeyboardInterrupt):
            come(INT, TERM)


def test_under_nohup_a_closed_terminal_is_not_heard() -> None:
    signal.signal(HUP, signal.SIG_IGN)
    interrupted = Interruption()
    with heeding_signals(interrupted):
        come(HUP)
        assert not interrupted.is_set()
    with ending_as_by_ctrl_c():
        come(HUP)
    assert signal.getsignal(HUP) is signal.SIG_IGN


@pytest.mark.parametrize(
    ("number", "raised"), [(HUP, Terminated), (TERM, Terminated), (INT, KeyboardInterrupt)]
)
def test_other_work_ends_by_an_exception_and_cleans_up_undisturbed(
    number: int, raised: type[BaseException]
) -> None:
    cleaned = False
    with pytest.raises(KeyboardInterrupt) as found, ending_as_by_ctrl_c():
        try:
            come(number)
        finally:
            come(HUP, HUP)
            cleaned = True
    assert cleaned and found.type is raised


@pytest.mark.parametrize(
    ("number", "raised"), [(signal.SIGTERM, Terminated), (signal.SIGINT, KeyboardInterrupt)]
)
def test_an_error_that_a_library_makes_of_a_signal_is_the_signal(
    number: signal.Signals, raised: type[KeyboardInterrupt]
) -> None:
    with pytest.raises(raised) as caught, ending_as_by_ctrl_c():
        try:
            signal.raise_signal(number)
        except KeyboardInterrupt:
            raise AssertionError("while it traced") from None
    assert type(caught.value) is raised
    with pytest.raises(AssertionError, match="no signal"), ending_as_by_ctrl_c():
        raise AssertionError("no signal")


def test_a_signal_that_a_library_swallows_ends_the_block() -> None:
    with pytest.raises(Terminated), ending_as_by_ctrl_c():
        with contextlib.suppress(KeyboardInterrupt):
            signal.raise_signal(signal.SIGTERM)
        done = True
    assert done
