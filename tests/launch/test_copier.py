"""The thread that copies to a store: what a run waits for, what it is told, and what is left out."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from faulty_stores import Faulty, checkpoint, copied, never_trained, steps_in
from harness import until

from seedbed.launch import copier as module
from seedbed.launch.copier import Copier
from seedbed.launch.folder import RunFolder
from seedbed.launch.saver import Saver
from seedbed.launch.store import Store
from seedbed.learning.checkpoint import Contents

PATIENCE = 30.0


@pytest.fixture(autouse=True)
def _mended() -> Iterator[None]:
    Faulty.reset()
    yield
    Faulty.reset()


class Gate:
    """A fault that holds the store from the first file of a checkpoint on, until it is opened."""

    def __init__(self) -> None:
        self.held, self.open = threading.Event(), threading.Event()

    def __call__(self, what: str, path: str) -> None:
        if what == "write" and "/checkpoints/" in path:
            self.held.set()
            assert self.open.wait(PATIENCE)


class Outage:
    """A fault of all that is written, until it is over."""

    def __init__(self) -> None:
        self.over = threading.Event()
        self.tried = threading.Semaphore(0)

    def __call__(self, what: str, path: str) -> None:
        self.tried.release()
        if not self.over.is_set():
            raise ConnectionError("no network")


class SetLater(threading.Event):
    """An event that is set once it was looked at."""

    def is_set(self) -> bool:
        before = super().is_set()
        self.set()
        return before


def begun(tmp_path: Path, notes: list[str], **given: Any) -> tuple[RunFolder, Store, Copier]:
    folder = never_trained(tmp_path / "run")
    store = copied(folder, "faulty://b")
    copier = Copier(folder, store, step=None, keep=9, note=notes.append, **{"retry": (0.01, 0.02), **given})
    return folder, store, copier


def finished(copier: Copier, seconds: float = PATIENCE) -> str | None:
    return copier.finish(seconds, threading.Event(), seconds)


def test_a_slow_store_holds_nobody_up_and_gets_the_newest_checkpoint(tmp_path: Path) -> None:
    notes: list[str] = []
    folder, store, copier = begun(tmp_path, notes)
    gate = Gate()
    Faulty.fault = staticmethod(gate)
    saver = Saver(
        folder.checkpoints, keep=1, beside=False, saved_version=-1, note=notes.append, saved=copier.offer,
        spared=copier.spared,
    )  # fmt: skip
    copier.begin()
    saver.begin(1, lambda: Contents({}, {}))
    assert gate.held.wait(PATIENCE)
    for version in (2, 3, 4):
        saver.begin(version, lambda: Contents({}, {}))  # returns, though the store stands still
    assert copier.spared() == {1, 4}
    assert sorted(int(path.name) for path in folder.checkpoints.iterdir()) == [1, 3, 4], "1 is not cut off"
    gate.open.set()
    assert finished(copier) is None
    assert steps_in(store)[0] == 4 and set(steps_in(store)) <= {4, 1, None}
    assert notes == ["store faulty://b is slower than checkpoints come: 2 checkpoints were left out"]
    copier.close()


def test_an_outage_is_told_at_both_its_ends_and_tried_again(tmp_path: Path) -> None:
    notes: list[str] = []
    folder, store, copier = begun(tmp_path, notes)
    outage = Outage()
    Faulty.fault = staticmethod(outage)
    copier.begin()
    for step in (1, 2):
        checkpoint(folder, step)
        copier.offer(step)
    for _ in range(20):
        assert outage.tried.acquire(timeout=PATIENCE)
    outage.over.set()
    until(lambda: steps_in(store)[:1] == [2], "the newest checkpoint, which nobody offers again")
    until(lambda: len(notes) == 2, "the end of the outage")
    assert (
        "no network); training goes on, and the newest checkpoint is copied as soon as it can be" in notes[0]
    )
    assert notes[1].startswith("store faulty://b is written again")
    copier.close()


def test_troubles_that_come_again_and_again_are_told_now_and_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    notes: list[str] = []
    _, _, copier = begun(tmp_path, notes)
    now = 1000.0
    monkeypatch.setattr(module.time, "monotonic", lambda: now)
    for _ in range(3):
        copier._failed(ConnectionError("no network"))
        copier._copied(1)
    assert len(notes) == 2, "one outage, with its end"
    now += module._SAY_SECONDS
    copier._failed(ConnectionError("no network"))
    assert len(notes) == 3


def test_the_end_of_a_run_waits_for_its_last_copy_within_bounds(tmp_path: Path) -> None:
    folder, store, copier = begun(tmp_path, [])
    copier.begin()
    checkpoint(folder, 3)
    copier.offer(3)
    folder.summary.write_text("{}")
    assert finished(copier) is None
    newest = next(store.copies())
    assert newest.checkpoint == 3 and "summary.json" in newest.files  # type: ignore[union-attr]
    copier.close()
    assert not copier._thread.is_alive()


def test_a_store_that_hangs_at_the_end_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_CLOSING_SECONDS", 0.01)
    folder, _, copier = begun(tmp_path, notes := [])
    gate = Gate()
    Faulty.fault = staticmethod(gate)
    copier.begin()
    checkpoint(folder, 3)
    copier.offer(3)
    assert gate.held.wait(PATIENCE)
    assert finished(copier, 0.05) == "not done within 0.05 s"
    copier.close()
    gate.open.set()
    copier._thread.join(PATIENCE)
    assert not copier._thread.is_alive() and notes == []


def test_an_interruption_is_heard_while_the_last_copy_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_HEED_SECONDS", 0.01)
    folder, store, copier = begun(tmp_path, notes := [])
    gate, interrupted = Gate(), SetLater()
    Faulty.fault = staticmethod(gate)
    checkpoint(folder, 3)
    copier.offer(3)
    assert copier.finish(PATIENCE, interrupted, 0.05) == "not done within 0.05 s"
    assert notes == ["interrupted: the last copy has 0 s left; Ctrl-C again quits at once"]
    assert copier.finish(PATIENCE, interrupted, 0.05) == "not done within 0.05 s", "before it is asked, too"
    gate.open.set()
    assert copier.finish(PATIENCE, interrupted, PATIENCE) is None and steps_in(store)[0] == 3
    copier.close()


def test_a_store_that_fails_at_the_end_says_why(tmp_path: Path) -> None:
    folder, _, copier = begun(tmp_path, [])
    Faulty.fault = staticmethod(Outage())
    checkpoint(folder, 3)
    copier.offer(3)
    assert "no network" in str(finished(copier, 0.2))
    copier.close()


def test_in_an_outage_the_end_of_a_run_tries_again_sooner(tmp_path: Path) -> None:
    folder, store, copier = begun(tmp_path, [], retry=(0.01, 10 * PATIENCE))
    attempts = iter(range(10**6))

    def away(what: str, path: str) -> None:
        if not copier._hurrying or next(attempts) < 20:
            raise ConnectionError("no network")

    Faulty.fault = staticmethod(away)
    copier.begin()
    checkpoint(folder, 3)
    copier.offer(3)
    until(lambda: copier._failure, "a failure")
    assert finished(copier) is None and steps_in(store)[0] == 3
    copier.close()


def test_another_session_ends_this_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_LOOK_SECONDS", 0.01)
    folder, store, copier = begun(tmp_path, notes := [])
    copier.begin()
    until(lambda: steps_in(store), "the first copy")
    assert folder.overtaken() is None
    store.bucket.write("sessions/000007/claim", b"")
    said = until(folder.overtaken, "the look at the store")
    assert said.startswith(
        "another session of this run has begun in store faulty://b (number 7): this one, number 0"
    )
    assert finished(copier) == said and notes == []
    copier._thread.join(PATIENCE)
    assert not copier._thread.is_alive()


def test_a_run_that_goes_on_keeps_its_checkpoint_until_the_next_one(tmp_path: Path) -> None:
    folder, store, _ = begun(tmp_path, [])
    checkpoint(folder, 5)
    copier = Copier(folder, store, step=5, keep=9, note=print)
    assert finished(copier) is None and steps_in(store) == [5]
    copier.close()
