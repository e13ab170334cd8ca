"""The log of a run."""

from __future__ import annotations

import io
import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest
from harness import PLACED, at_once, placed

from seedbed import regular_files
from seedbed.acting.notes import Notes, notes_of
from seedbed.cli import logs
from seedbed.errors import ConfigError
from seedbed.launch import logs as module
from seedbed.launch.logs import logging_to, shortened, showing_notes


def test_what_the_package_logs_is_in_the_file(tmp_path: Path) -> None:
    with logging_to(tmp_path / "log"):
        logging.getLogger("seedbed.somewhere").info("it began")
    logging.getLogger("seedbed.somewhere").info("it is over")
    assert (tmp_path / "log").read_text().endswith("seedbed.somewhere: it began\n")


def test_a_full_disk_is_not_heard_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(regular_files, "open_to_append", lambda _: io.FileIO("/dev/full", "wb"))
    with logging_to(tmp_path / "log"):
        logging.getLogger("seedbed.somewhere").info("a line that finds no room")


def lines(first: int, last: int) -> bytes:
    return b"".join(b"line %07d\n" % number for number in range(first, last))


def test_a_log_keeps_its_first_and_its_last_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_BYTES", 4000)
    monkeypatch.setattr(module, "_KEPT", 1000)
    log = tmp_path / "log"
    assert shortened(log) is None, "there is none yet"
    with log.open("ab", buffering=0) as writer:
        for turn in range(1, 30):
            writer.write(lines(100 * turn - 100, 100 * turn))
            grown = log.stat().st_size
            assert (shortened(log) is None) == (grown <= 4000)
            assert log.stat().st_size <= min(grown, 4000)
        written = log.read_bytes()
    first, _, last = written.partition(b"[")
    said, _, last = last.partition(b"]\n")
    assert first == lines(0, 76), "whole lines"
    assert last == lines(2900 - last.count(b"\n"), 2900) and last.count(b"\n") >= 76
    assert said.endswith(b"bytes are left out here, since the log had become too long")


def test_the_packages_own_log_is_kept_within_bounds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_BYTES", 40_000)
    monkeypatch.setattr(module, "_KEPT", 10_000)
    with logging_to(tmp_path / "log"):
        for number in range(3000):
            logging.getLogger("seedbed.somewhere").info("%d: an actor came and went", number)
            assert number % 100 or (tmp_path / "log").stat().st_size < 60_000
    text = (tmp_path / "log").read_text()
    assert ": 0: an actor" in text and ": 2999: an actor" in text and "are left out here" in text


PRINTS = """
import sys
from seedbed.launch.logs import forgive
forgive()
for _ in range(10_000):
    print("a line that finds no room")
    print("nor does this", file=sys.stderr)
sys.stdout.flush()
open(sys.argv[1], "w").write("done")
"""


def test_an_instance_may_print_on_a_full_disk(tmp_path: Path) -> None:
    with Path("/dev/full").open("wb") as full:
        command = [sys.executable, "-c", PRINTS, str(tmp_path / "done")]
        assert subprocess.run(command, stdout=full, stderr=full, check=False).returncode == 0
    assert (tmp_path / "done").read_text() == "done"


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


def test_words_of_a_peer_are_not_obeyed_by_a_terminal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    (run / "logs").mkdir(parents=True)
    (run / "config.json").write_text("{}")
    with logging_to(run / "logs" / "learner.log"):
        logging.getLogger("seedbed.x").warning("host %s", "\x1b]0;mine\x07")
    assert (run / "logs" / "learner.log").read_text().endswith("host \\x1b]0;mine\\x07\n")
    (run / "logs" / "actor-0.log").write_text("\x1b[31mred\n")
    for terminal, shown in ((True, "\\x1b[31mred\n"), (False, "\x1b[31mred\n")):
        monkeypatch.setattr(sys.stdout, "isatty", lambda terminal=terminal: terminal, raising=False)
        assert logs.run([str(run), "actor-0"]) == 0
        assert capsys.readouterr().out == shown


def test_a_log_that_is_not_there_is_told_whatever_the_run_names(tmp_path: Path) -> None:
    run = tmp_path / "run"
    (run / "logs").mkdir(parents=True)
    (run / "config.json").write_text('{"env": "a_module_that_is_not_here:make"}')
    with pytest.raises(ConfigError, match=r"there is no log .*nosuch\.log"):
        logs.run([str(run), "nosuch"])


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
