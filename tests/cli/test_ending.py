from __future__ import annotations

from pathlib import Path

import pytest

from seedbed.cli.ending import _seedbed


def script(folder: Path) -> Path:
    folder.mkdir(parents=True)
    path = folder / "seedbed"
    path.touch(mode=0o755)
    return path


def test_the_next_command_can_be_typed_as_it_stands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    ours, another = script(tmp_path / ".venv/bin"), script(tmp_path / "elsewhere")
    monkeypatch.setattr("sys.argv", [".venv/bin/seedbed", "train"])
    monkeypatch.setenv("PATH", "")
    assert _seedbed() == ".venv/bin/seedbed", "there is none on the PATH"
    monkeypatch.setenv("PATH", str(another.parent))
    assert _seedbed() == ".venv/bin/seedbed", "the one there is another"
    monkeypatch.setenv("PATH", str(ours.parent))
    assert _seedbed() == "seedbed"
    monkeypatch.setattr("sys.argv", ["pytest"])
    assert _seedbed() == "seedbed", "it was called from Python"
