"""Files that flags name: whatever is there instead, and however it is called, the command ends with one line."""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path

import pytest
from harness import at_once, placed

from seedbed.cli.main import main

KINDS = ("pipe", "device", "folder", "missing")
TOKEN = "0123456789abcdef"
FLAGS: dict[str, tuple[list[str], str]] = {
    "join": (["actor", "127.0.0.1:1", "--join", "@FILE"], "cannot read"),
    "tls-ca": (["actor", "127.0.0.1:1", "--join", TOKEN, "--tls-ca", "FILE"], "holds no certificates"),
    "results": (["bench", "toy:catch", "--results", "FILE"], "cannot write the results to"),
    "picture": (
        ["bench", "toy:catch", "--results", "rows", "--compare", "seed", "--picture", "FILE"],
        "cannot draw",
    ),
    "csv": (["crossplay", "nothing", "--csv", "FILE"], "cannot write"),
    "run": (["eval", "FILE"], "is not a run folder"),
    "run-dir": (["train", "toy:catch", "--run-dir", "FILE"], "cannot create the run folder"),
    "dataset": (
        [
            "train",
            "toy:catch",
            "--arch",
            "distbelief",
            "--agent",
            "bc",
            "--dataset",
            "FILE",
            "--run-dir",
            "run",
        ],
        "is not a data set",
    ),
    "certificate": (
        ["train", "toy:catch", "--listen", "0.0.0.0:0", "--tls-cert", "FILE", "FILE", "--run-dir", "run"],
        "are no certificate with its key",
    ),
}
MADE = {
    ("results", "missing"),
    ("csv", "missing"),
    ("picture", "missing"),
    ("run-dir", "missing"),
    ("run-dir", "folder"),
}
"""What is written there, and may be."""


@pytest.mark.parametrize(
    "name", ["file", os.fsdecode(b"f\xffle"), "a\nfile"], ids=["plain", "bytes", "lines"]
)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("flag", FLAGS)
def test_a_flag_that_names_no_file_is_one_line_at_once(
    flag: str,
    kind: str,
    name: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    if (flag, kind) in MADE:
        return
    if flag in ("dataset", "certificate") and name != "file" and kind != "pipe":
        return  # these take seconds each
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(signal, "signal", lambda *_: None)  # only the main thread may
    if kind != "missing":
        placed(kind, tmp_path / name)
    words, says = FLAGS[flag]
    with pytest.raises(SystemExit) as stop:
        at_once(lambda: main([word.replace("FILE", name) for word in words]), patience=120)
    error = capfd.readouterr().err
    assert stop.value.code == 2
    assert "seedbed: " in error and says in error and "Traceback" not in error
    shutil.rmtree(tmp_path / "run", ignore_errors=True)
    assert sorted(path.name for path in tmp_path.iterdir()) in ([name], [], sorted([name, "rows"]), ["rows"])
