import errno
import json
import math
import os
import shutil
import signal
import subprocess
import sys
from io import FileIO
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from harness import PLACED, at_once, placed
from tensorboard.backend.event_processing import event_accumulator
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.hparams import metadata as hparams

from seedbed.errors import ConfigError
from seedbed.metrics import appending, registry
from seedbed.metrics.appending import AppendedFile
from seedbed.metrics.sinks import JsonLines, Record, Row, TensorBoard, read_rows


class Memory:
    """A sink that keeps rows, and may fail to take them or to close."""

    def __init__(self, failure: Exception | None = None) -> None:
        self.rows: list[Row] = []
        self.closed = False
        self.failure = failure

    def __str__(self) -> str:
        return "memory"

    def write(self, row: Row) -> None:
        if self.failure:
            raise self.failure
        self.rows.append(row)

    def close(self) -> None:
        self.closed = True
        if self.failure:
            raise self.failure


def test_record_fans_out_and_refuses_unknown_names() -> None:
    sinks, notes = [Memory(), Memory()], list[str]()
    record = Record(sinks, notes.append)
    record.write({"agent_steps": 1, "loss/kl": 0.5})
    with pytest.raises(ConfigError, match="did you mean agent_steps"):
        record.write({"agent_step": 2})
    assert [sink.rows for sink in sinks] == [[{"agent_steps": 1, "loss/kl": 0.5}]] * 2
    assert notes == []


def test_record_closes_all_sinks_even_if_one_fails() -> None:
    sinks, notes = [Memory(OSError("first")), Memory(ValueError("second")), Memory()], list[str]()
    Record(sinks, notes.append).close()
    assert all(sink.closed for sink in sinks)
    assert notes == ["metrics: OSError: first", "metrics: ValueError: second"]


@pytest.mark.parametrize(
    ("failure", "reason"),
    [
        (OSError(errno.ENOSPC, "No space left on device", "f"), "cannot write f: No space left on device"),
        (OSError(errno.EDQUOT, "Disk quota exceeded", "f"), "cannot write f: Disk quota exceeded"),
        (OSError(errno.EIO, "Input/output error", "f"), "cannot write f: Input/output error"),
        (ValueError("no number"), "ValueError: no number"),
    ],
)
def test_what_a_sink_cannot_take_is_a_gap_that_is_told_at_both_its_ends(
    failure: Exception, reason: str
) -> None:
    bad, good, notes = Memory(), Memory(), list[str]()
    record = Record([bad, good], notes.append)
    for number in range(9):
        bad.failure = failure if 2 <= number < 5 or number == 7 else None
        record.write({"updates": number})
    assert [row["updates"] for row in good.rows] == [*range(9)]
    assert [row["updates"] for row in bad.rows] == [0, 1, 5, 6, 8]
    begins = f"metrics: {reason}; training goes on, and rows are missing until they can be written again"
    assert notes == [
        begins,
        "metrics: memory is written again; 3 rows are missing in it",
        begins,
        "metrics: memory is written again; one row is missing in it",
    ]


class Disk(FileIO):
    """A file on a disk with so many bytes left, of all files; None: any number."""

    room: ClassVar[int | None] = None

    def write(self, data: Any, /) -> int:
        if Disk.room is None:
            return super().write(data)
        if Disk.room == 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        written, Disk.room = super().write(data[: Disk.room]), 0
        return written


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> type[Disk]:
    monkeypatch.setattr(appending.regular_files, "open_to_append", lambda path: Disk(path, "ab"))
    monkeypatch.setattr(Disk, "room", None)
    return Disk


def test_a_file_on_a_full_disk_goes_on_whole_once_there_is_room(disk: type[Disk], tmp_path: Path) -> None:
    file = AppendedFile(tmp_path / "a" / "file", begins=b"<")
    for data, room, taken in (
        (b"", 0, False),
        (b"one", 2, False),  # "<o" fits
        (b"two", None, True),
        (b"three", 3, False),
        (b"four", 0, False),
        (b"five", None, True),
    ):
        disk.room = room
        if taken:
            file.append(data)
        else:
            with pytest.raises(OSError, match="No space left on device") as full:
                file.append(data)
            assert full.value.filename == str(file.path)
    file.close()
    assert file.path.read_bytes() == b"<twofive"


def test_a_file_that_was_removed_is_begun_anew_with_its_folder(tmp_path: Path) -> None:
    file = AppendedFile(tmp_path / "run" / "file", begins=b"<")
    file.append(b"one")
    shutil.rmtree(tmp_path / "run")
    file.append(b"two")
    file.append(b"three")
    assert file.path.read_bytes() == b"<twothree"
    # Another one by that name, after an attempt that failed, is continued and not cut.
    file.path.unlink()
    file.path.write_bytes(b"a longer one than before")
    file.append(b"four")
    file.close()
    assert file.path.read_bytes() == b"a longer one than beforefour"


def test_a_folder_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "run").write_bytes(b"")
    file = AppendedFile(tmp_path / "run" / "file")
    with pytest.raises(OSError, match="exists") as found:
        file.append(b"one")
    assert found.value.filename == str(file.path)
    (tmp_path / "run").unlink()
    file.append(b"two")
    file.close()
    assert file.path.read_bytes() == b"two"


def test_rows_and_events_can_be_read_on_both_sides_of_a_full_disk(disk: type[Disk], tmp_path: Path) -> None:
    notes: list[str] = []
    record = Record([JsonLines(tmp_path / "metrics.jsonl"), TensorBoard(tmp_path / "events")], notes.append)
    for number in range(12):
        disk.room = {4: 5, 5: 0, 6: 7}.get(number)
        record.write({"agent_steps": 10 * number, "updates": number})
    record.close()
    kept = [row["updates"] for row in read_rows(tmp_path / "metrics.jsonl")]
    assert kept == [0, 1, 2, 3, 7, 8, 9, 10, 11]
    reader = EventAccumulator(str(tmp_path / "events"), size_guidance={"scalars": 0})
    reader.Reload()
    assert [event.value for event in reader.Scalars("progress/updates")] == kept
    assert len(notes) == 4 and sum("3 rows are missing" in note for note in notes) == 2


def test_lines_come_back(tmp_path: Path) -> None:
    path = tmp_path / "run" / "metrics.jsonl"
    sink = JsonLines(path)
    sink.write({"agent_steps": 10**15, "mean_return": np.float32(0.5), "policy_lag_max": math.inf})  # type: ignore[dict-item]
    assert path.read_bytes().endswith(b"\n")  # on disk before close
    sink.close()
    sink.close()
    (row,) = read_rows(path)
    assert row["agent_steps"] == 10**15
    assert row["mean_return"] == 0.5
    assert math.isnan(row["policy_lag_max"])
    assert json.loads(path.read_text())["policy_lag_max"] is None


def test_a_torn_last_line_is_left_out_and_cut_off_when_continued(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b'{"updates": 1}\n{"updates": 2}\n{"upd')
    assert read_rows(path) == [{"updates": 1}, {"updates": 2}]
    sink = JsonLines(path)
    sink.write({"updates": 3})
    sink.close()
    assert [row["updates"] for row in read_rows(path)] == [1, 2, 3]


@pytest.mark.parametrize("line", [b"{nonsense}", b"[1]", b"\xff\xfe"])
def test_damage_elsewhere_is_an_error_that_names_the_line(tmp_path: Path, line: bytes) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b'{"updates": 1}\n' + line + b'\n{"updates": 2}\n')
    with pytest.raises(ConfigError, match="line 2"):
        read_rows(path)


def test_a_missing_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot read metrics"):
        read_rows(tmp_path / "nothing.jsonl")


def test_a_kill_loses_at_most_the_last_line(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    program = (
        "import sys, itertools, pathlib\n"
        "from seedbed.metrics.sinks import JsonLines\n"
        "sink = JsonLines(pathlib.Path(sys.argv[1]))\n"
        "for n in itertools.count():\n"
        "    sink.write({'updates': n})\n"
        "    print(n, flush=True)\n"
    )
    child = subprocess.Popen([sys.executable, "-c", program, str(path)], stdout=subprocess.PIPE)
    assert child.stdout
    for _ in range(50):
        last = child.stdout.readline()
    os.kill(child.pid, signal.SIGKILL)
    child.wait()
    child.stdout.close()
    rows = [row["updates"] for row in read_rows(path)]
    assert rows == list(range(len(rows)))
    assert len(rows) > int(last)


@pytest.mark.parametrize("kind", PLACED)
def test_what_is_no_file_is_refused_at_once(kind: str, tmp_path: Path) -> None:
    placed(kind, tmp_path / "metrics.jsonl")
    for touch in (JsonLines, read_rows):
        with pytest.raises(ConfigError, match=rf"metrics\.jsonl: ({PLACED[kind]})"):
            at_once(lambda: touch(tmp_path / "metrics.jsonl"))  # noqa: B023
    assert kind != "link" or (tmp_path / "aim").read_text() == "mine"


def test_tensorboards_own_reader_shows_groups_sentences_and_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = TensorBoard(
        tmp_path, settings={"lr": 0.5, "json": True, "hidden": (64, 64), "frames": None, "file": "a\udcff"}
    )
    for step in (3, 6):
        sink.write({"agent_steps": step, "mean_return": 1.5 * step, "loss/kl": 0.25})
    sink.close()
    sink.close()
    warned: list[str] = []
    monkeypatch.setattr(event_accumulator.logger, "warning", warned.append)
    reader = EventAccumulator(str(tmp_path), size_guidance={"scalars": 0})
    reader.Reload()
    assert not warned
    assert reader.Tags()["scalars"] == ["agent/mean_return", "loss/kl"]
    assert [(e.step, e.value) for e in reader.Scalars("agent/mean_return")] == [(3, 4.5), (6, 9.0)]
    shown = reader.SummaryMetadata("agent/mean_return")
    assert shown.summary_description == registry.find("mean_return").sentence
    begun, ended = (
        parse(reader.SummaryMetadata(tag).plugin_data.content)
        for parse, tag in (
            (hparams.parse_session_start_info_plugin_data, hparams.SESSION_START_INFO_TAG),
            (hparams.parse_session_end_info_plugin_data, hparams.SESSION_END_INFO_TAG),
        )
    )
    given = {
        name: value.number_value or value.bool_value or value.string_value
        for name, value in begun.hparams.items()
    }
    assert given == {"lr": 0.5, "json": True, "hidden": "(64, 64)", "file": "a\\udcff"}
    assert ended.end_time_secs == 0 and ended.status
    compared = hparams.parse_experiment_plugin_data(
        reader.SummaryMetadata(hparams.EXPERIMENT_TAG).plugin_data.content
    )
    assert [metric.name.tag for metric in compared.metric_infos] == ["agent/mean_return"]


def test_tensorboards_own_reader_shows_one_curve_of_a_run_that_was_resumed(tmp_path: Path) -> None:
    sessions = [(10, 20, 30, 40), (20, 20, 25, 35), (25, 50)]
    for number, steps in enumerate(sessions):
        sink = TensorBoard(tmp_path, resumed=number > 0)
        for step in steps:
            sink.write({"agent_steps": step, "updates": 100 * number + step})
        # Not closed, as after a kill.
    reader = EventAccumulator(str(tmp_path), size_guidance={"scalars": 0})
    reader.Reload()
    points = [(event.step, event.value) for event in reader.Scalars("progress/updates")]
    assert points == [(10, 10.0), (20, 120.0), (25, 225.0), (50, 250.0)]
