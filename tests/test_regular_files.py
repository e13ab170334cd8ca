"""Regular files: whatever else is in a file's place is refused at once, and nothing is written through a link."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from harness import PLACED, at_once, placed

from seedbed import regular_files

OPENINGS: dict[str, Callable[[Path], Any]] = {
    "require": regular_files.require,
    "room": regular_files.require_room,
    "read": regular_files.read,
    "object": regular_files.read_object,
    "append": lambda path: regular_files.open_to_append(path).close(),
    "empty": lambda path: regular_files.open_to_append(path, empty=True).close(),
    "change": lambda path: regular_files.open_to_change(path).close(),
}


@pytest.mark.parametrize("opening", OPENINGS)
@pytest.mark.parametrize("kind", PLACED)
def test_what_is_no_file_is_refused_at_once(kind: str, opening: str, tmp_path: Path) -> None:
    placed(kind, tmp_path / "file")
    with pytest.raises(OSError, match=PLACED[kind]):
        at_once(lambda: OPENINGS[opening](tmp_path / "file"))
    assert not (tmp_path / "aim").exists() or (tmp_path / "aim").read_text() == "mine"


@pytest.mark.parametrize("opening", [name for name in OPENINGS if name != "object"])
def test_a_file_that_the_user_names_may_be_behind_a_link(opening: str, tmp_path: Path) -> None:
    (tmp_path / "aim").write_text("mine")
    (tmp_path / "file").symlink_to("aim")
    with pytest.raises(OSError, match="link"):
        OPENINGS[opening](tmp_path / "file")
    assert regular_files.read(tmp_path / "file", links=True) == b"mine"
    with regular_files.open_to_append(tmp_path / "file", links=True) as file:
        file.write(b", too")
    assert (tmp_path / "aim").read_text() == "mine, too"


def test_a_link_that_leads_nowhere_or_to_a_pipe_is_refused_also_where_links_are_taken(tmp_path: Path) -> None:
    (tmp_path / "nowhere").symlink_to("none")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "file").symlink_to("pipe")
    for name, says in (("nowhere", "No such file"), ("file", "it is a pipe")):
        for opening in (regular_files.read, regular_files.open_to_append):
            with pytest.raises(OSError, match=says):
                at_once(lambda: opening(tmp_path / name, links=True))  # noqa: B023
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize("kind", ["pipe", "device", "link"])
def test_what_comes_into_its_place_after_the_look_is_refused_too(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    look, path = regular_files.require, tmp_path / "file"

    def too_early(*arguments: Any, **options: Any) -> Any:
        found = look(*arguments, **options)
        placed(kind, path)
        return found

    monkeypatch.setattr(regular_files, "require", too_early)
    for opening in (regular_files.open_to_read, regular_files.open_to_append):
        path.unlink(missing_ok=True)
        path.write_text("mine")
        with pytest.raises(OSError, match=r"has to be a file|Too many levels|No such device or address"):
            at_once(lambda: opening(path))  # noqa: B023


@pytest.mark.parametrize("name", ["a\0b", "a\ud800b"])
def test_a_name_that_no_file_can_have_is_an_error_of_the_system(name: str, tmp_path: Path) -> None:
    for opening in (regular_files.read, regular_files.open_to_append):
        with pytest.raises(OSError, match="no file can have this name"):
            opening(tmp_path / name)


def test_a_file_that_is_longer_than_it_may_be_is_not_read_to_its_end(tmp_path: Path) -> None:
    with (tmp_path / "file").open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(OSError, match="it has more than 67,108,864 bytes"):
        at_once(lambda: regular_files.read(tmp_path / "file"))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[]", "no JSON object"),
        ("{", "Expecting"),
        ('{"a": ' + "[" * 100_000, "nested too deeply|Expecting"),
        ('{"files": {"a": 1, "a": 2}}', "'a' is there twice"),
        (b"\xff\xfe\xff", "codec"),
    ],
)
def test_an_object_is_one_and_says_nothing_twice(text: str | bytes, says: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(ValueError, match=says):
        regular_files.read_object(tmp_path / "file")


@pytest.mark.parametrize("place", ["file", "file~"])
def test_what_is_written_whole_replaces_a_link_and_leaves_its_aim(place: str, tmp_path: Path) -> None:
    (tmp_path / "aim").write_text("mine")
    (tmp_path / place).symlink_to("aim")
    regular_files.write_whole(tmp_path / "file", "new", 0o600)
    assert (tmp_path / "aim").read_text() == "mine"
    assert (tmp_path / "file").read_text() == "new" and not (tmp_path / "file").is_symlink()
    assert (tmp_path / "file").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("links", [True, False])
def test_what_is_written_new_is_whole_and_replaces_nothing(
    links: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object) -> None:
        raise PermissionError

    if not links:
        monkeypatch.setattr(os, "link", refused)
    path = tmp_path / "file"
    regular_files.write_new(path, "first", 0o600)
    with pytest.raises(FileExistsError):
        regular_files.write_new(path, "second")
    assert path.read_text() == "first" and path.stat().st_mode & 0o777 == 0o600
    path.unlink()
    path.symlink_to("aim")
    with pytest.raises(FileExistsError):
        regular_files.write_new(path, "third")
    assert [each.name for each in tmp_path.iterdir()] == ["file"]  # neither a draft nor the aim


def test_removing_a_link_leaves_its_aim(tmp_path: Path) -> None:
    (tmp_path / "aim").mkdir()
    (tmp_path / "aim/file").touch()
    (tmp_path / "link").symlink_to("aim")
    for name in ("link", "none"):
        regular_files.remove(tmp_path / name)
    assert [path.name for path in tmp_path.rglob("*")] == ["aim", "file"]
    regular_files.remove(tmp_path / "aim")
    assert not list(tmp_path.iterdir())


def test_a_socket_can_be_in_its_place_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("file")
        with pytest.raises(OSError, match="it is a socket"):
            regular_files.read("file")


def test_at_once_sees_what_waits() -> None:
    with pytest.raises(AssertionError, match="waits"):
        at_once(threading.Event().wait, patience=0.05)
