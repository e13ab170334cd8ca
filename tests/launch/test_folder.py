"""The run folder: whose it is, and what is said when it cannot be had."""

from __future__ import annotations

import dataclasses
import errno
import json
import os
import re
import shutil
import socket
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from threading import Barrier

import pytest
from harness import tiny

from seedbed.config.placement import NetworkSettings
from seedbed.config.resolve import configure, replace
from seedbed.errors import ConfigError
from seedbed.evaluation.player import Player
from seedbed.launch.folder import RunFolder
from seedbed.launch.train import resume
from seedbed.plugins import standing_above
from seedbed.testing.transport import PATIENCE, FakeHandler
from seedbed.transport.admission import Gate
from seedbed.transport.connect import connect, listen

MANY = 8


def test_many_that_begin_in_the_same_second_have_folders_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("seedbed.launch.folder.time.strftime", lambda form: "20261121-151231")
    start = Barrier(MANY)

    def begin(seed: int) -> RunFolder:
        start.wait()
        return RunFolder.create(configure("toy:catch", seed=seed))

    with ThreadPoolExecutor(MANY) as pool:
        folders = list(pool.map(begin, range(MANY)))
    assert len({folder.path for folder in folders}) == MANY
    assert {folder.path.name for folder in folders} >= {
        "toy-catch-seed-vtrace-20261121-151231",
        f"toy-catch-seed-vtrace-20261121-151231-{MANY}",
    }
    assert [folder.config().seed for folder in folders] == list(range(MANY))


def test_of_many_that_begin_in_one_folder_one_has_it(tmp_path: Path) -> None:
    start = Barrier(MANY)
    config = configure("toy:catch", run_dir=str(tmp_path / "run"))

    def begin(seed: int) -> int | str:
        start.wait()
        try:
            RunFolder.create(replace(config, seed=seed))
        except ConfigError as error:
            return str(error)
        return seed

    with ThreadPoolExecutor(MANY) as pool:
        outcomes = list(pool.map(begin, range(MANY)))
    winners = [outcome for outcome in outcomes if isinstance(outcome, int)]
    assert [RunFolder.open(tmp_path / "run").config().seed] == winners
    assert sum("already holds a run" in str(outcome) for outcome in outcomes) == MANY - 1


def test_nobody_sees_a_run_without_its_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reader, seen = RunFolder(tmp_path / "run"), []
    to_disk = os.fsync

    def look(file: int) -> None:
        seen.append(reader.record() if reader.begun else None)
        to_disk(file)

    monkeypatch.setattr(os, "fsync", look)
    RunFolder.create(configure("toy:catch", run_dir=str(reader.path)))
    assert seen[0] is None and {str(each) for each in seen[1:]} == {str(reader.record())}


def test_what_cannot_be_written_is_said_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"cannot create the run folder .*Not a directory"):
        RunFolder.create(configure("toy:catch", run_dir=str(tmp_path / "file" / "run")))
    folder = RunFolder.create(configure("toy:catch", run_dir=str(tmp_path / "run")))
    (folder.path / "lock").mkdir()  # whoever may write everywhere cannot open this either
    with pytest.raises(ConfigError, match=r"cannot write .*lock"), folder.held():
        pass

    def full(*arguments: object) -> int:
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr("seedbed.launch.folder.os.open", full)
    with pytest.raises(ConfigError, match="No space left"):
        RunFolder.create(configure("toy:catch", run_dir=str(tmp_path / "other")))
    assert not (tmp_path / "other").exists(), "a folder without a configuration is in nobody's way"


def test_a_token_can_be_pasted_and_stays(tmp_path: Path) -> None:
    folder = RunFolder.create(configure("toy:catch", run_dir=str(tmp_path / "run")))
    token = folder.token()
    assert re.fullmatch("[0-9a-f]{32}", token)
    assert RunFolder.open(tmp_path / "run").token() == token
    assert (folder.path / "token").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("name", ["a,b", os.fsdecode(b"\xff"), "x" * 100, "ü %41"])
def test_a_socket_can_be_dialled_whatever_the_folder_is_called(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = RunFolder(tmp_path / name)
    folder.path.mkdir()
    for here in (tmp_path, folder.path):
        monkeypatch.chdir(here)
        for carrier in ("unix", "shm"):
            with (
                closing(listen(f"{carrier}:{folder.socket()}", FakeHandler())) as server,
                closing(connect(server.address, timeout=PATIENCE)) as client,
            ):
                assert client.ask({"x": 1})


def test_a_session_knows_that_another_one_has_begun(tmp_path: Path) -> None:
    first = RunFolder.create(configure("toy:catch", run_dir=str(tmp_path / "run")))
    assert first.session(resumed=False) == 0
    assert first.overtaken() is None, "before it has begun"
    first.keep_session(0)
    assert first.overtaken() is None
    later = RunFolder.open(tmp_path / "run")
    assert later.session(resumed=True) == 1
    later.keep_session(1)
    assert later.overtaken() is None
    assert re.search(r"another session .* \(number 1\): this one, number 0, ends", first.overtaken() or "")
    # Two that have counted in the same moment: the later one has the run.
    twin = RunFolder.open(tmp_path / "run")
    twin.keep_session(1)
    assert later.overtaken() and twin.overtaken() is None
    (tmp_path / "run" / "session").unlink()
    assert twin.overtaken() is None, "nobody has begun where nothing can be read"


def test_a_file_system_without_locks_is_said_and_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = RunFolder.create(configure("toy:catch", run_dir=str(tmp_path / "run")))

    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr("seedbed.regular_files.fcntl.flock", refuse)
    with folder.held():
        pass
    assert "has no locks (No locks available)" in capsys.readouterr().out


def test_sockets_stand_where_only_this_user_may_enter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    short, folder = Path(tempfile.mkdtemp(dir="/tmp", prefix="rt-")), RunFolder(tmp_path / "run")
    monkeypatch.setattr(tempfile, "tempdir", str(short))
    try:
        monkeypatch.setenv("XDG_RUNTIME_DIR", str(short / "gone"))
        own = short / f"seedbed-{os.getuid()}"
        assert Path(folder.socket()).parent == own, "without a folder that is made for sockets"
        assert own.stat().st_mode & 0o777 == 0o700
        monkeypatch.setenv("XDG_RUNTIME_DIR", str(short))
        assert Path(folder.socket()).parent == short / "seedbed"
        (short / "seedbed").chmod(0o750)
        assert Path(folder.socket()).parent == own, "others may enter the one before"
        own.rmdir()
        own.symlink_to(short)
        monkeypatch.setattr("seedbed.launch.runtime_folder._places", lambda: [own, short / "seedbed"])
        with pytest.raises(ConfigError, match=r"not a folder of this user.*others may enter it: chmod 700"):
            folder.socket()
    finally:
        shutil.rmtree(short)


def test_a_record_that_was_written_by_hand_is_checked(tmp_path: Path) -> None:
    folder = RunFolder.create(configure("toy:catch", run_dir=str(tmp_path / "run")))
    file = folder.path / "config.json"
    file.write_text("{")
    with pytest.raises(ConfigError, match=r"config\.json is damaged"):
        folder.config()
    file.write_text(json.dumps({"frmes": 3}))
    with pytest.raises(ConfigError, match="did you mean frames"):
        folder.config()


def test_a_rotated_token_is_another_one(tmp_path: Path) -> None:
    folder = RunFolder.create(configure("toy:catch", preset="none", run_dir=str(tmp_path / "run")))
    before = folder.token()
    folder.rotate_token()
    assert folder.token() != before
    with folder.held(), pytest.raises(ConfigError, match="another process trains"):
        folder.rotate_token()


@pytest.mark.parametrize("content", ["", " \n", "short", "\xff" * 20])
def test_a_token_file_that_keeps_nobody_out_is_fatal(content: str, tmp_path: Path) -> None:
    folder = RunFolder.create(configure("toy:catch", preset="none", run_dir=str(tmp_path / "run")))
    (tmp_path / "run/token").write_bytes(content.encode("latin-1"))
    for read in (folder.token, lambda: folder.invitation(insecure=False)):
        with pytest.raises(ConfigError, match="token"):
            read()


def test_a_certificate_is_made_once_where_the_network_hears(tmp_path: Path) -> None:
    config = configure("toy:catch", preset="none", run_dir=str(tmp_path / "run"))
    folder = RunFolder.create(config)
    place = config.placement
    assert isinstance(place, NetworkSettings)
    assert folder.gate(place, ["127.0.0.1:1"]).invitation("127.0.0.1:1").fingerprint == ""
    assert not (tmp_path / "run/key.pem").exists()
    first = folder.gate(place, ["127.0.0.1:1", "0.0.0.0:1"]).invitation("0.0.0.0:1")
    assert (tmp_path / "run/key.pem").stat().st_mode & 0o777 == 0o600
    again = RunFolder.open(tmp_path / "run").gate(place, ["0.0.0.0:1"]).invitation("0.0.0.0:1")
    assert str(again) == str(first)
    assert re.fullmatch("--join [0-9a-f]{64}.[0-9a-f]{32}", first.flags)
    open_to_all = folder.gate(dataclasses.replace(place, insecure=True), ["0.0.0.0:1"]).invitation(
        "0.0.0.0:1"
    )
    assert re.fullmatch("--join [0-9a-f]{32} --insecure", open_to_all.flags)
    own = (str(tmp_path / "run/certificate.pem"), str(tmp_path / "run/key.pem"))
    assert str(
        folder.gate(dataclasses.replace(place, tls_cert=own), ["0.0.0.0:1"]).invitation("0.0.0.0:1")
    ) == str(first)


def test_a_run_of_a_module_that_stands_above_it_says_where_to_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project, other = tmp_path / "project", tmp_path / "other"
    project.mkdir()
    other.mkdir()
    (project / "no_world_of_mine.py").write_text("raise SystemExit('never run')\n")
    monkeypatch.chdir(project)
    settings = {"preset": "none", "network": "mlp", "run_dir": "runs/a"}
    RunFolder.create(configure("no_world_of_mine:make", **settings))
    again = RunFolder.open("runs/a")
    again.require_modules()
    monkeypatch.chdir(other)
    elsewhere = RunFolder(project / "runs" / "a")
    with pytest.raises(ConfigError, match=re.escape(f"cd {project}), and name the run runs/a")):
        elsewhere.require_modules()
    for verb in (Player, resume):  # evaluations, videos and data sets are a player's
        with pytest.raises(ConfigError, match=re.escape(f"cd {project})")):
            verb(str(elsewhere.path))
    assert elsewhere.config().env == "no_world_of_mine:make", "what imports nothing goes on"
    assert standing_above("dm_env:no_world_of_mine:make", elsewhere.path) == project
    assert standing_above("os:path", elsewhere.path) is None
    # A folder of that name is no module, and what cannot be found at all is named when it is imported.
    (project / "no_world_of_mine.py").rename(project / "gone.py")
    (project / "no_world_of_mine").mkdir()
    elsewhere.require_modules()


def test_a_run_of_an_agent_that_stands_above_it_says_where_to_go_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project, other = tmp_path / "project", tmp_path / "other"
    project.mkdir()
    other.mkdir()
    monkeypatch.chdir(other)
    monkeypatch.setattr("sys.path", [*sys.path])
    folder = RunFolder.create(configure("toy:catch", run_dir=str(project / "run")))
    record = {**folder.record(), "agent": "no_agent_of_mine:AGENT"}
    (project / "run/config.json").write_text(json.dumps(record))
    (project / "no_agent_of_mine.py").write_text("")
    with pytest.raises(ConfigError, match=re.escape(f"cd {project}), and name the run run")):
        folder.config(trust=None)
    (project / "no_agent_of_mine.py").rename(project / "gone.py")
    with pytest.raises(ConfigError, match="module 'no_agent_of_mine' cannot be imported"):
        folder.config(trust=None)


@pytest.mark.parametrize("inside", ["config.json", "checkpoints", "logs/learner.log", "checkpoints/7/none"])
def test_a_path_in_a_run_folder_names_the_run(tmp_path: Path, inside: str) -> None:
    run = RunFolder.create(configure("toy:catch", run_dir=str(tmp_path / "run"))).path
    with pytest.raises(ConfigError, match="and lies in one: give ") as error:
        RunFolder.open(run / inside)
    advised = str(error.value).partition("give ")[2]
    assert RunFolder.open(advised).path == run


def test_a_path_below_another_programs_settings_names_no_run(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"editor": "ed"}')
    with pytest.raises(ConfigError, match="is not a run folder") as error:
        RunFolder.open(tmp_path / "runs" / "typo")
    assert "lies in one" not in str(error.value)


def test_a_port_that_is_taken_now_is_chosen_anew_unless_it_was_asked_for(tmp_path: Path) -> None:
    folder = RunFolder.create(tiny("toy:catch", tmp_path / "run"))
    gate = Gate("0123456789abcdef")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        for asked, anew in (
            ("127.0.0.1:0", True),
            ("socket:127.0.0.1:0", True),
            (f"127.0.0.1:{port}", False),
        ):
            listening = asked.rpartition(":")[0] + f":{port}"
            folder.keep_addresses([asked], [listening], gate)
            assert folder.addresses([asked]) == [asked if anew else listening]
    assert folder.addresses([asked]) == [listening]
    folder.keep_addresses(["127.0.0.1:0"], [f"127.0.0.1:{port}"], gate)
    assert folder.addresses(["127.0.0.1:0"]) == [f"127.0.0.1:{port}"], "it is free again"


def test_a_run_that_could_not_start_leaves_the_files_of_others(tmp_path: Path) -> None:
    for name in ("key.pem", "token", "notes"):
        (tmp_path / name).write_text("mine")
    folder = RunFolder.create(tiny("toy:catch", tmp_path))
    assert (tmp_path / "config.json").exists()
    folder.discard()
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == dict.fromkeys(
        ("key.pem", "token", "notes"), "mine"
    )
