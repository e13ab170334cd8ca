"""Sinks in a thread of their own: one that hangs or fails never holds up or ends a run."""

from __future__ import annotations

import threading

import pytest
from harness import until

from seedbed.errors import RunFailed
from seedbed.metrics import aside
from seedbed.metrics.aside import Aside
from seedbed.metrics.sinks import Record, Row


class Kept:
    def __init__(self) -> None:
        self.rows: list[Row] = []
        self.closed = 0

    def write(self, row: Row) -> None:
        self.rows.append(row)

    def close(self) -> None:
        self.closed += 1


def test_rows_arrive_in_order_and_the_end_waits_for_them() -> None:
    kept = Kept()
    sink = Aside("service", lambda: kept)
    for n in range(100):
        sink.write({"updates": n})
    sink.close()
    sink.close()
    assert [row["updates"] for row in kept.rows] == list(range(100)) and kept.closed == 1
    Aside("unused", lambda: kept).close()
    assert kept.closed == 1


def test_one_that_cannot_be_made_is_noted_and_made_later() -> None:
    kept, tries, notes = Kept(), [0], []

    def make() -> Kept:
        tries[0] += 1
        if tries[0] < 3:
            raise OSError("no network")
        return kept

    sink = Aside("service", make)
    record = Record([sink], notes.append)
    for n in (1, 2):
        record.write({"updates": n})
        until(lambda n=n: tries[0] == n and sink._failure, f"failure {n}")
    record.write({"updates": 3})
    until(lambda: kept.rows, "a row")
    record.write({"updates": 4})
    record.close()
    assert [row["updates"] for row in kept.rows] == [3, 4]
    assert any("metrics: service: OSError: no network; training goes on" in note for note in notes)
    assert any("service is written again" in note for note in notes)


def test_the_last_failure_is_noted_too() -> None:
    class Broken(Kept):
        def close(self) -> None:
            raise OSError("the server has gone")

    def make() -> Kept:
        raise OSError("no network")

    for made, told in (
        (make, "no network; rows are missing"),
        (Broken, "the server has gone; rows are missing"),
    ):
        notes: list[str] = []
        record = Record([Aside("service", made)], notes.append)
        record.write({"updates": 1})
        record.close()
        assert len(notes) == 1 and told in notes[0], notes


def test_one_that_hangs_costs_rows_and_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(aside, "_MOST_WAITING", 3)
    monkeypatch.setattr(aside, "CLOSING_SECONDS", 0.01)
    inside, leave = threading.Event(), threading.Event()

    class Hangs(Kept):
        def write(self, row: Row) -> None:
            inside.set()
            leave.wait(60)
            super().write(row)

    kept = Hangs()
    sink = Aside("service", lambda: kept)
    sink.write({"updates": 0})
    assert inside.wait(60)
    for n in range(3):
        sink.write({"updates": n})
    with pytest.raises(RunFailed, match="service: 3 rows wait for it, and more are left out"):
        sink.write({"updates": 9})
    with pytest.raises(RunFailed, match=r"not done 0\.01 s after the end of the run"):
        sink.close()
    assert not kept.rows
    leave.set()
    until(lambda: len(kept.rows) == 4, "the rows that waited")
