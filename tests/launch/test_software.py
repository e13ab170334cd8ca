"""The commit and the versions that stand in a run's summary."""

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import jax
import pytest

from seedbed.launch import software


@pytest.fixture
def clone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A clone with one commit, from which this copy seems to be imported."""
    author = ("-c", "user.name=A", "-c", "user.email=a@b.c")
    (tmp_path / "code.py").write_text("1")
    for words in (("init", "-q"), ("add", "."), (*author, "commit", "-qm", "One")):
        subprocess.run(["git", *words], cwd=tmp_path, check=True)
    monkeypatch.setattr(software, "clone", lambda: tmp_path)
    software.commit.cache_clear()
    yield tmp_path
    software.commit.cache_clear()


def test_a_clone_has_its_commit_and_says_whether_files_are_changed(clone: Path) -> None:
    words = ["git", "rev-parse", "--short", "HEAD"]
    head = subprocess.run(words, cwd=clone, check=True, capture_output=True, text=True).stdout.strip()
    assert software.commit() == head
    (clone / "code.py").write_text("2")
    assert software.commit() == head, "the one that the process began with"
    software.commit.cache_clear()
    assert software.commit() == f"{head}-dirty"


@pytest.mark.parametrize("how", ["wheel", "no repository", "no git"])
def test_without_a_commit_there_is_none(how: str, clone: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if how == "wheel":
        monkeypatch.setattr(software, "clone", lambda: None)
    elif how == "no git":
        monkeypatch.setenv("PATH", "")
    else:
        monkeypatch.setenv("GIT_DIR", str(clone / "nothing"))
    assert software.commit() is None


def test_versions_are_those_of_the_imported_packages() -> None:
    found = software.versions()
    assert found["jax"] == jax.__version__ and {"python", "seedbed", "numpy"} <= found.keys()
    json.dumps(found)
