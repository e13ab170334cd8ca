import json
from pathlib import Path

import pytest
from harness import at_once, placed

from seedbed.watching.rows import GrowingRows, faults


def test_rows_are_read_as_they_grow(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    rows = GrowingRows(path)
    assert rows.new() == []
    path.write_text('{"updates": 1}\n{"updates": 2, "mean_return": null}\n{"upd')
    first = rows.new()
    assert [row["updates"] for row in first] == [1, 2]
    assert first[1]["mean_return"] != first[1]["mean_return"]
    with path.open("a") as file:
        file.write('ates": 3}\nno row\n[1]\n{"updates": "x"}\n{"updates": 4}\n')
    assert [row["updates"] for row in rows.new()] == [3, 4]
    assert rows.new() == []


def test_a_file_that_was_replaced_or_cut_is_read_anew(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"updates": 1}\n{"updates": 2}\n')
    rows = GrowingRows(path)
    rows.new()
    path.write_text('{"updates": 7}\n')
    assert [row["updates"] for row in rows.new()] == [7]
    (tmp_path / "other").write_text('{"updates": 8}\n{"updates": 9}\n')
    (tmp_path / "other").rename(path)
    assert [row["updates"] for row in rows.new()] == [8, 9]


def test_only_the_end_of_a_long_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text("".join(f"{json.dumps({'updates': n})}\n" for n in range(1000)))
    found = GrowingRows(path, last=100).new()
    assert 3 <= len(found) <= 7 and found[-1]["updates"] == 999


@pytest.mark.parametrize("kind", ["pipe", "link", "folder"])
def test_what_is_no_file_has_no_rows(kind: str, tmp_path: Path) -> None:
    placed(kind, tmp_path / "metrics.jsonl")
    assert at_once(lambda: GrowingRows(tmp_path / "metrics.jsonl").new()) == []
    assert at_once(lambda: faults(tmp_path / "metrics.jsonl")) == []


LOG = """\
2026-11-25 10:00:00,001 INFO MainThread seedbed.launch.session: actor 0 joined
2026-11-25 10:00:01,002 WARNING supervisor seedbed.launch.supervisor: actor 1: killed; restart 1 of 3
2026-11-25 10:00:02,003 INFO MainThread seedbed.launch.session: actor 1 starts again
  of no error
2026-11-25 10:00:03,004 ERROR MainThread seedbed.launch.session: the run failed
Traceback (most recent call last):
ValueError: no
"""


def test_faults_are_the_warnings_and_errors_of_a_log(tmp_path: Path) -> None:
    path = tmp_path / "learner.log"
    assert faults(path) == []
    path.write_text(LOG)
    first, second = faults(path)
    assert (first.time, first.level) == ("2026-11-25 10:00:01", "WARNING")
    assert first.text == "actor 1: killed; restart 1 of 3"
    assert second.text == "the run failed\nTraceback (most recent call last):\nValueError: no"
    assert faults(path, most=1) == [second]
