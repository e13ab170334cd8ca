"""What a session records of itself, on a machine that does not tell everything, and on a disk that is full."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
from harness import balanced, rows, summary, tiny

from seedbed.launch import recorder as module
from seedbed.launch import session
from seedbed.launch.folder import RunFolder
from seedbed.launch.recorder import Recorder, TrainingTime
from seedbed.launch.train import train
from seedbed.metrics.appending import AppendedFile


def recorder_of(folder: Path, note: Any = pytest.fail) -> tuple[Recorder, list[dict[str, Any]]]:
    kept: list[dict[str, Any]] = []
    sinks: Any = SimpleNamespace(write=lambda row: kept.append(dict(row)))
    more: dict[str, float] = {"actor_restarts": 0}
    made = Recorder(
        RunFolder(folder), sinks, note, TrainingTime(0.0), session=0, episodes=False, more=lambda: more
    )
    return made, kept


def run_of(**more: Any) -> Any:
    meters = {"agent_steps": 10.0, "env_frames": 10.0, "episodes": 0.0}
    run = {"meters": lambda: dict(meters), "skipped": 0, "version": 1, "frames_per_step": 1, "variants": list}
    return SimpleNamespace(**{**run, **more})


@pytest.mark.parametrize("failure", [OSError(errno.EMFILE, "Too many open files"), psutil.AccessDenied()])
def test_what_the_system_does_not_tell_is_missing(
    failure: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder, kept = recorder_of(tmp_path)
    recorder.write(run_of(), {})

    def fail(*_: Any, **__: Any) -> Any:
        raise failure

    with monkeypatch.context() as patch:
        patch.setattr(psutil.Process, "memory_info", fail)
        patch.setattr(psutil.Process, "children", fail)
        recorder.write(run_of(), {})
    recorder.write(run_of(), {})
    told = [row.keys() & {"memory_bytes", "actors_memory_bytes", "cpu_seconds"} for row in kept]
    assert [len(names) for names in told] == [3, 0, 3]


def test_the_curves_of_variants_have_gaps_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    notes: list[str] = []
    recorder, kept = recorder_of(tmp_path, notes.append)
    run = run_of(variants=lambda: [{"episodes": 1.0}, {"episodes": 2.0}])
    (tmp_path / "variants").write_text("in the way")
    recorder.write(run, {})
    recorder.write(run, {})
    (tmp_path / "variants").unlink()
    recorder.write(run, {})
    recorder.close()
    assert len(kept) == 3
    assert [len(rows(tmp_path / "variants" / str(index))) for index in (0, 1)] == [1, 1]
    assert len(notes) == 4 and sum("2 rows are missing in it" in note for note in notes) == 2


@pytest.mark.slow
def test_a_run_outlives_a_full_disk_and_a_curve_that_cannot_be_drawn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    append, attempts = AppendedFile.append, [0]

    def full_for_a_while(self: AppendedFile, data: bytes) -> None:
        attempts[0] += 1
        if 3 <= attempts[0] <= 6:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.path))
        append(self, data)

    def fail(*_: Any, **__: Any) -> None:
        raise ValueError("no font")

    monkeypatch.setattr(AppendedFile, "append", full_for_a_while)
    monkeypatch.setattr(session, "draw_curve", fail)
    monkeypatch.setattr(module, "_ROW_SECONDS", 0.0)
    train(tiny("toy:catch", tmp_path / "run", transport="inproc", frames=2000))
    said = capsys.readouterr().out
    assert said.count("No space left on device; training goes on") == 2
    assert said.count("is written again; 2 rows are missing in it") == 2
    assert said.count("no curve: ValueError: no font") == 1
    left = summary(tmp_path / "run")
    assert left["stopped_because"] == "2000 frames spent"
    assert balanced(left) and len(rows(tmp_path / "run")) >= 2
