"""The log of a run."""

from __future__ import annotations

import io
import logging
import os
from pathlib import Path

import pytest
from harness import PLACED, at_once, placed

from seedbed import regular_files
from seedbed.acting.notes import Notes, notes_of
from seedbed.errors import ConfigError
from seedbed.launch.logs import logging_to, showing_notes


def test_what_the_package_logs_is_in_the_file(tmp_path: Path) -> None:
    with logging_to(tmp_path / "log"):
        logging.getLogger("seedbed.somewhere").info("it began")
    logging.getLogger("seedbed.somewhere").info("it is over")
    assert (tmp_path / "log").read_text().endswith("seedbed.somewhere: it began\n")


def test_a_full_disk_is_not_heard_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(regular_files, "open_to_append", lambda _: io.FileIO("/dev/full", "wb"))
    with logging_to(tmp_path / "log"):
        logging.getLogger("seedbed.somewhere").info("a line that finds no room")


@pytest.mark.parametrize("kind", PLACED)
def test_what_is_no_file_is_refused_at_once(kind: str, tmp_path: Path) -> None:
    placed(kind, tmp_path / "log")

    def log() -> None:
        with logging_to(tmp_path / "log"):
            logging.getLogger("seedbed.somewhere").info("it began")

    with pytest.raises(ConfigError, match=f"cannot write .*log: ({PLACED[kind]})"):
        at_once(log)
    assert kind != "link" or (tmp_path / "aim").read_text() == "mine"


def test_names_of_odd_files_can_be_logged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # What pytest captures for its reports goes to another process, by a way that such names cannot go.
    monkeypatch.setattr(logging.getLogger("seedbed"), "propagate", False)
    with logging_to(tmp_path / "log"):
        logging.getLogger("seedbed.somewhere").info("cannot write %s", Path(os.fsdecode(b"/tmp/\xff")))
    assert (tmp_path / "log").read_text().endswith(r"cannot write /tmp/\udcff" + "\n")


def test_warnings_of_environments_are_shown_once_each_wherever_they_come_from():
    shown: list[str] = []
    environments = logging.getLogger("seedbed.envs.make")
    with showing_notes(shown.append) as notes:
        environments.warning("w: observation %s is not finite: %s is shown", "a", "nan")
        environments.warning("w: observation a is not finite: inf is shown")
        notes.hear("w: observation a is not finite: nan is shown")
        notes.hear("w: observation b shows numbers like 1700000000")
        notes.hear("w: observation b shows numbers like 1700000020")
        environments.info("nothing for people")
        for number in range(20):
            notes.hear(f"w: observation {number} is not finite")
    environments.warning("w: observation c is not finite: it is over")
    assert shown[:2] == [
        "w: observation a is not finite: nan is shown",
        "w: observation b shows numbers like 1700000000",
    ]
    assert len(shown) == 8


def test_an_actor_keeps_what_its_environments_warn_of_until_it_reports():
    notes = Notes()
    try:
        logging.getLogger("seedbed.envs.make").warning("w: observation %s", "a")
        logging.getLogger("seedbed.acting").warning("something else")
        assert notes.take() == ["w: observation a"]
        assert notes.take() == []
    finally:
        notes.close()
    logging.getLogger("seedbed.envs.make").warning("w: it is over")
    assert notes.take() == []


@pytest.mark.parametrize(
    ("message", "found"),
    [
        ({}, []),
        ({"notes": "x"}, []),
        ({"notes": ["a", 5, "b"]}, ["a", "b"]),
        ({"notes": ["a"] * 99}, ["a"] * 8),
    ],
)
def test_what_an_actor_reports_is_bounded(message: dict[str, object], found: list[str]) -> None:
    assert notes_of(message) == found
    assert len(notes_of({"notes": ["x" * 10**6]})[0]) == 2000
