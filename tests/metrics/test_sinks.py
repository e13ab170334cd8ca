import json
import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from harness import PLACED, at_once, placed
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from seedbed.errors import ConfigError, RunFailed
from seedbed.metrics.sinks import JsonLines, Record, Row, TensorBoard, read_rows


class Memory:
    """A sink that keeps rows, and may fail to close."""

    def __init__(self, failure: Exception | None = None) -> None:
        self.rows: list[Row] = []
        self.closed = False
        self._failure = failure

    def write(self, row: Row) -> None:
        self.rows.append(row)

    def close(self) -> None:
        self.closed = True
        if self._failure:
            raise self._failure


def test_record_fans_out_and_refuses_unknown_names() -> None:
    sinks = [Memory(), Memory()]
    record = Record(sinks)
    record.write({"agent_steps": 1, "loss/kl": 0.5})
    with pytest.raises(ConfigError, match="did you mean agent_steps"):
        record.write({"agent_step": 2})
    assert [sink.rows for sink in sinks] == [[{"agent_steps": 1, "loss/kl": 0.5}]] * 2


def test_record_closes_all_sinks_even_if_one_fails() -> None:
    sinks = [Memory(OSError("first")), Memory(OSError("second")), Memory()]
    with pytest.raises(OSError, match="first"):
        Record(sinks).close()
    assert all(sink.closed for sink in sinks)


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


def test_a_full_disk_is_told_in_one_line(tmp_path: Path) -> None:
    sink = JsonLines(tmp_path / "metrics.jsonl")
    sink._file.close()
    sink._file = Path("/dev/full").open("wb", buffering=0)  # noqa: SIM115
    with pytest.raises(RunFailed, match=r"^metrics: cannot write .*No space left on device; free .*$"):
        sink.write({"updates": 1})
    sink.close()


def test_tensorboard_gets_every_number_at_its_step(tmp_path: Path) -> None:
    sink = TensorBoard(tmp_path)
    start = time.time()
    sink.write({"agent_steps": 3, "mean_return": 1.5, "loss/kl": 0.25})
    sink.close()
    sink.close()
    (file,) = tmp_path.glob("events.out.tfevents.*")
    data = file.read_bytes()
    assert b"mean_return" in data
    assert b"loss/kl" in data
    assert file.stat().st_mtime >= start - 2


def test_tensorboards_own_reader_shows_one_curve_of_a_run_that_was_resumed(tmp_path: Path) -> None:
    sessions = [(10, 20, 30, 40), (20, 20, 25, 35), (25, 50)]
    for number, steps in enumerate(sessions):
        sink = TensorBoard(tmp_path, resumed=number > 0)
        for step in steps:
            sink.write({"agent_steps": step, "updates": 100 * number + step})
        # Not closed, as after a kill.
    reader = EventAccumulator(str(tmp_path), size_guidance={"scalars": 0})
    reader.Reload()
    points = [(event.step, event.value) for event in reader.Scalars("updates")]
    assert points == [(10, 10.0), (20, 120.0), (25, 225.0), (50, 250.0)]
