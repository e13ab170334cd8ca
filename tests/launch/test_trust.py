"""Run folders: nothing that a stranger's names is imported, and one's own runs are known again."""

from __future__ import annotations

import json
import os
import shutil
import stat
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from threading import Barrier
from typing import Any

import pytest
from harness import PLACED, at_once, placed

from seedbed import plugins
from seedbed.cli.ending import _consent
from seedbed.cli.main import main
from seedbed.config.resolve import configure, replace, to_json
from seedbed.errors import CheckpointError, ConfigError
from seedbed.evaluation.player import Player
from seedbed.evaluation.policy import load
from seedbed.launch import hosts, signature
from seedbed.launch import train as training
from seedbed.launch.folder import RunFolder
from seedbed.launch.train import resume, take_part
from seedbed.learning.checkpoint import Contents, save

MINE = "flax.linen:Dense"
VERBS = (["eval"], ["record"], ["resume"], ["collect", "--frames", "9"], ["export"])
MANY = 8


def strangers(folder: Path, **record: Any) -> Path:
    """A run folder that somebody else has made."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(record))
    return folder


def own(folder: Path, **settings: Any) -> RunFolder:
    """A run folder that this user has made."""
    settings = {"env": "mine:World", "preset": "none", "network": MINE, **settings}
    return RunFolder.create(configure(**settings, run_dir=str(folder)))


@pytest.fixture
def never(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Nothing may be imported by name."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(plugins, "import_module", lambda name: pytest.fail(f"{name} was imported"))


# -- a stranger's folder --------------------------------------------------------------------------------


@pytest.mark.parametrize("verb", VERBS, ids=lambda verb: verb[0])
def test_no_command_runs_what_a_strangers_folder_names(
    verb: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    strangers(tmp_path / "run", env="subprocess:getoutput", env_options=["cmd=touch ran"])
    with pytest.raises(SystemExit) as stop:
        main([verb[0], "run", *verb[1:]])
    assert stop.value.code == 2
    assert capfd.readouterr().err.endswith("add --trust subprocess:getoutput\n")
    with pytest.raises(SystemExit):
        main([verb[0], "run", *verb[1:], "--trust", "subprocess:run", "os:system"])
    assert "add --trust subprocess:getoutput" in capfd.readouterr().err
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    ("record", "names"),
    [
        ({"env": "evil:World"}, "evil:World"),
        ({"env": "evil:World-v0"}, "evil:World-v0"),
        ({"env": "dm_env:evil:load"}, "dm_env:evil:load"),
        ({"env": "pettingzoo:evil:load"}, "pettingzoo:evil:load"),
        ({"env": "toys:catch"}, "toys:catch"),
        ({"arch": "evil:ARCHITECTURE"}, "evil:ARCHITECTURE"),
        ({"agent": "evil:AGENT"}, "evil:AGENT"),
        ({"network": "evil:Torso"}, "evil:Torso"),
        ({"env": "CartPole-v1", "agent": "a:b", "network": "c:d"}, "a:b c:d"),
        ({"env": "GymV21Environment-v0", "env_options": ["env_id=evil:World-v0"]}, "evil:World-v0"),
        ({"env": "GymV21Environment-v0", "env_options": ['make_kwargs:={"x": ["evil:y"]}']}, "evil:y"),
        ({"env": "highway-v0", "env_options": ['config:={"vehicles": "os.system"}']}, "os.system"),
        ({"env": "highway-v0", "env_options": ['config:=["os\\u002esystem", NaN]']}, "os.system"),
        ({"agent": "a:b", "its_own": {"entry": ["c.d:e"]}}, "a:b c.d:e"),
        ({"log": ["wandb", "evil:Sink"]}, "evil:Sink"),
        ({"log": "evil:Sink"}, "evil:Sink"),
    ],
)
@pytest.mark.usefixtures("never")
def test_every_setting_that_is_imported_takes_consent(
    record: dict[str, Any], names: str, tmp_path: Path
) -> None:
    folder = RunFolder.open(strangers(tmp_path / "run", **record))
    with pytest.raises(ConfigError, match=rf"import {names}, .* add --trust {names}$"):
        folder.config()
    for name in names.split():
        with pytest.raises(ConfigError, match=rf"import {name}, .* add --trust {name}$"):
            folder.config(set(names.split()) - {name})


def test_names_that_the_user_gives_are_imported(tmp_path: Path) -> None:
    folder = RunFolder.open(strangers(tmp_path / "run", env="evil:World", network=MINE))
    assert folder.config(["evil:World", MINE]).env == "evil:World"
    assert folder.config(trust=None).net.network == MINE


@pytest.mark.usefixtures("never")
def test_a_run_of_seedbeds_own_parts_needs_no_consent(tmp_path: Path) -> None:
    record = to_json(configure("ALE/Pong-v5", run_dir="elsewhere.run", env_options=("sticky_actions=0.25",)))
    assert RunFolder.open(strangers(tmp_path / "run", **record)).config().env == "ALE/Pong-v5"


@pytest.mark.parametrize(
    "record",
    [
        "[]",
        "7",
        '{"env": ["evil:World"]}',
        '{"agent": 5}',
        '{"arch": null}',
        '{"agent": {"a": 1}}',
        '{"network": 3}',
        '{"env_options": [3]}',
        '{"env_options": "a=b"}',
        '{"placement": {}}',
        '{"log": null}',
        '{"log": 5}',
        '{"env": "toy:catch", "env": "evil:World"}',
        '{"a": ' + "[" * 99_999,
        '{"env": "toy:catch", "env_options": ["a=' + "[" * 99_999 + '"], "frames": "x"}',
        '{"env": "toy:catch", "env_options": ["a:=' + "[" * 99_999 + '"], "frames": "x"}',
    ],
)
@pytest.mark.usefixtures("never")
def test_a_hostile_record_is_one_error(record: str, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run/config.json").write_text(record)
    with pytest.raises(ConfigError):
        RunFolder.open(tmp_path / "run").config()


@pytest.mark.parametrize(
    "name",
    ["checkpoints", "logs", "instances/shard-0", "hosts", "variants/0", "wandb/run/files", "mlflow.db"],
)
def test_a_strangers_folder_leads_nowhere_else(name: str, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    folder = strangers(tmp_path / "run", env="toy:catch")
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    (folder / name).symlink_to("../run/nothing" if "/" not in name else "../nothing")
    (folder / "round").symlink_to("round")
    assert RunFolder.open(folder).config().env == "toy:catch", "a link within the folder leads nowhere else"
    (folder / name).unlink()
    (folder / name).symlink_to(tmp_path / "mine" / ("none" if "." in name else ""))
    with pytest.raises(ConfigError, match=f"{name} is a link"):
        RunFolder.open(folder).config()
    # Whoever began the run may have put its checkpoints on another disk.
    ours = own(tmp_path / "ours", env="toy:catch", network="auto")
    shutil.rmtree(tmp_path / "ours" / name, ignore_errors=True)
    (tmp_path / "ours" / name).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / "ours" / name).symlink_to(tmp_path / "mine")
    assert ours.config().env == "toy:catch"


# -- one's own ------------------------------------------------------------------------------------------


def test_the_runs_that_a_user_has_begun_here_are_known_again(tmp_path: Path) -> None:
    folder = own(tmp_path / "run")
    again = RunFolder.open(tmp_path / "run")
    assert again.unknown_names() == set() and _consent(tmp_path / "run") == ""
    assert again.config() == folder.config() and again.own_names() == {"mine:World", MINE}
    again.keep(replace(folder.config(), frames=99, env_options=("a=b",)))
    assert RunFolder.open(tmp_path / "run").config().env_options == ("a=b",)
    (tmp_path / "link").symlink_to("run")
    assert RunFolder.open(tmp_path / "link").config().env == "mine:World", "it is the same folder"


def test_the_same_command_again_names_what_is_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = own(tmp_path / "run").config()
    (tmp_path / "run/signature").unlink()  # the machine that began it is gone, and its key with it
    asked: dict[str, Any] = {}

    def go_on(folder: RunFolder, store: Any, trust: Any, changes: dict[str, Any], **_: Any) -> None:
        asked.update(trust=trust, **changes)

    monkeypatch.setattr(training, "_go_on", go_on)
    training._again(RunFolder(tmp_path / "run"), replace(before, frames=9, begin_or_resume=True), None)
    assert asked == {"trust": {"mine:World", MINE}, "frames": 9, "begin_or_resume": True}
    with pytest.raises(ConfigError, match="add --trust mine:World"):
        training._again(
            RunFolder(tmp_path / "run"), replace(before, env="toy:catch", begin_or_resume=True), None
        )


def copied(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return Path(shutil.copytree(folder, folder.with_name("copy")))


def moved(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return folder.rename(folder.with_name("moved"))


def another_user(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(folder.with_name("home of another")))
    own(folder.with_name("theirs"))
    return folder


def changed(**settings: Any) -> Callable[..., Path]:
    def change(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        file = folder / "config.json"
        file.write_text(json.dumps({**json.loads(file.read_text()), **settings}))
        return folder

    return change


def unsigned(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (folder / "signature").unlink()
    return folder


def odd_signature(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (folder / "signature").write_bytes(b"\xff" * 64)
    return folder


@pytest.mark.parametrize(
    "becomes",
    [
        copied,
        moved,
        another_user,
        changed(env="evil:World"),
        changed(env_options=["a=evil:World"]),
        changed(network="evil:Torso"),
        changed(log=["evil:Sink"]),
        unsigned,
        odd_signature,
    ],
)
def test_what_is_no_longer_that_run_says_what_to_type(
    becomes: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "home"))
    own(tmp_path / "run")
    folder = RunFolder.open(becomes(tmp_path / "run", monkeypatch))
    assert folder.own_names() == set()
    with pytest.raises(ConfigError, match="not known as a run that this user began") as refusal:
        folder.config()
    names = str(refusal.value).rpartition("--trust ")[2].split()
    if all("evil" not in name for name in names):
        folder.keep(folder.config(names))
        assert RunFolder.open(folder.path).config().env == "mine:World", "resumed once, it is this user's"


def test_of_foreign_parts_all_settings_are_signed(tmp_path: Path) -> None:
    for parts, other in (({"agent": "a:b"}, False), ({"arch": "a:b"}, False), ({"agent": "ppo"}, True)):
        record = {"env": "toy:catch", "run_dir": "x", "its_own": "c", **parts}
        signed = signature.sign(tmp_path, record)
        assert signature.is_signed(signed, tmp_path, {**record, "run_dir": "y"})
        assert signature.is_signed(signed, tmp_path, {**record, "its_own": "d"}) is other


def test_a_signature_that_is_older_than_services_of_ones_own_holds_for_a_run_without(tmp_path: Path) -> None:
    signed = signature.sign(tmp_path, {"env": "toy:catch"})
    assert signature.is_signed(signed, tmp_path, {"env": "toy:catch", "log": []})
    assert not signature.is_signed(signed, tmp_path, {"env": "toy:catch", "log": ["evil:Sink"]})


def test_the_key_is_its_owners_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "home"))
    own(tmp_path / "run")
    key = tmp_path / "home/seedbed/key"
    assert stat.S_IMODE(key.stat().st_mode) == 0o600 and stat.S_IMODE(key.parent.stat().st_mode) == 0o700
    assert [path.name for path in key.parent.iterdir()] == ["key"]
    assert not list((tmp_path / "run").glob("key*"))
    key.chmod(0o644)
    with pytest.raises(ConfigError, match="add --trust"):
        RunFolder.open(tmp_path / "run").config()


def test_of_many_runs_that_begin_together_without_a_key_all_are_signed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "home"))
    start = Barrier(MANY)

    def begin(number: int) -> RunFolder:
        start.wait()
        return own(tmp_path / str(number))

    with ThreadPoolExecutor(MANY) as pool:
        folders = list(pool.map(begin, range(MANY)))
    assert all(folder.own_names() for folder in folders)


def read_only(home: Path) -> None:
    (home / ".config").write_text("")  # whoever may write everywhere cannot make a folder of it either


def damaged(home: Path) -> None:
    (home / ".config/seedbed").mkdir(parents=True)
    (home / ".config/seedbed/key").touch(0o600)


def pipe(home: Path) -> None:
    (home / ".config/seedbed").mkdir(parents=True)
    os.mkfifo(home / ".config/seedbed/key", 0o600)


@pytest.mark.parametrize(
    ("spoilt", "says"),
    [
        (read_only, "Not a directory"),
        (damaged, "is no key"),
        (pipe, "it is a pipe"),
        (Path.rmdir, "does not exist: set HOME"),
        (None, "has no home folder: set HOME"),
    ],
)
def test_without_a_place_for_the_key_a_line_says_what_going_on_takes(
    spoilt: Callable[[Path], None] | None,
    says: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    if spoilt is None:
        monkeypatch.delenv("HOME")
        monkeypatch.setattr(signature.pwd, "getpwuid", {}.__getitem__)
    else:
        spoilt(home)
    folder = at_once(lambda: own(tmp_path / "run"))
    folder.keep(folder.config(trust=None))
    (line,) = capsys.readouterr().out.splitlines()
    assert says in line and line.endswith(f"will need --trust {MINE} mine:World")
    with pytest.raises(ConfigError, match="add --trust"):
        RunFolder.open(tmp_path / "run").config()
    assert RunFolder.open(tmp_path / "run").config([MINE, "mine:World"])
    assert _consent(tmp_path / "run") == f" --trust {MINE} mine:World"
    own(tmp_path / "plain", env="toy:catch", network="auto")
    assert _consent(tmp_path / "plain") == ""
    assert not capsys.readouterr().out, "nothing of that run is imported"


# -- hosts ----------------------------------------------------------------------------------------------


class Gone:
    """A rendezvous that is left."""

    left = ""

    def close(self, reason: str = "") -> None:
        self.left = reason


@pytest.fixture
def impostor(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Gone:
    """A host 0 that knows the token and has the others import anything."""
    gone = Gone()
    told = {
        "settings": {"env": "evil:World", "hosts": 2},
        "run_dir": str(tmp_path / "run"),
        "resumed": True,
        "jax": "",
    }
    monkeypatch.setattr(hosts, "go_to", lambda *_, **__: (gone, told))
    return gone


@pytest.mark.usefixtures("never")
def test_a_host_imports_nothing_that_only_host_0_names(impostor: Gone, tmp_path: Path) -> None:
    config = configure("toy:catch", hosts=2, host=1, coordinator="127.0.0.1:1")
    for begin in (
        lambda: take_part("127.0.0.1:1", 1, config),
        lambda: take_part("127.0.0.1:1", 1, path=tmp_path / "run"),
        lambda: resume(str(tmp_path / "run"), host=1, coordinator="127.0.0.1:1", trust=["evil:Other"]),
    ):
        with pytest.raises(
            ConfigError, match=r"host 0 has this host import evil:World.* add --trust evil:World"
        ):
            begin()
        assert impostor.left


class Joined(Exception):
    """It went on to join the others."""


@pytest.mark.usefixtures("impostor")
def test_a_host_imports_what_its_user_has_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def joined(*_: Any) -> ExitStack:
        raise Joined

    monkeypatch.setattr(hosts, "failing_together", joined)
    named = configure("evil:World", preset="none", hosts=2, host=1, coordinator="127.0.0.1:1")
    with pytest.raises(Joined):
        take_part("127.0.0.1:1", 1, named)
    for trust in (["evil:World"], None):
        with pytest.raises(Joined):
            take_part("127.0.0.1:1", 1, path=tmp_path / "run", trust=trust)
    # A run of one's own, which is resumed without a word: on the same disk, or by what this host has kept.
    for folder in ("run", "other/hosts/1"):
        own(tmp_path / folder, env="evil:World", network="auto")
        with pytest.raises(Joined):
            take_part("127.0.0.1:1", 1, path=tmp_path / folder.partition("/")[0])


@pytest.mark.parametrize(
    ("meta", "says"),
    [
        ({}, "its version is None"),
        ({"version": "7"}, "its version is '7'"),
        ({"version": 7, "seconds": [1]}, r"its seconds is \[1\]"),
        ({"version": 7, "seconds": 1.5, "exact": 0}, "its exact is 0"),
    ],
)
def test_a_checkpoint_that_is_of_no_run_is_one_error(meta: dict[str, Any], says: str, tmp_path: Path) -> None:
    folder = own(tmp_path / "run", env="toy:catch", network="auto")
    save(folder.checkpoints, 7, Contents({"train": {}}, meta))
    for read in (Player, resume, load) if "version" in says else (resume,):
        with pytest.raises(CheckpointError, match=f"is not of a run: {says}"):
            read(str(tmp_path / "run"))


def test_reading_a_run_writes_nothing(tmp_path: Path) -> None:
    own(tmp_path / "run", env="toy:catch", network="auto")
    (tmp_path / "run/logs").rmdir()
    before = sorted(tmp_path.rglob("*"))
    assert RunFolder.open(tmp_path / "run").config().env == "toy:catch"
    assert sorted(tmp_path.rglob("*")) == before


# -- other things in the place of files -----------------------------------------------------------------


def trained(folder: RunFolder) -> None:
    with folder.held():
        folder.session(resumed=True)


READERS: dict[str, tuple[str, Callable[[RunFolder], Any]]] = {
    "config": ("config.json", RunFolder.config),
    "token": ("token", RunFolder.token),
    "invitation": ("token", lambda folder: folder.invitation(insecure=False)),
    "certificate": (
        "certificate.pem",
        lambda folder: folder.gate(folder.config(None).placement, ["0.0.0.0:1"]),
    ),
    "key": ("key.pem", lambda folder: folder.gate(folder.config(None).placement, ["0.0.0.0:1"])),
    "spec": ("spec.json", RunFolder.spec),
    "lock": ("lock", trained),
}


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("kind", PLACED)
def test_what_is_no_file_in_a_run_folder_is_refused_at_once(kind: str, reader: str, tmp_path: Path) -> None:
    folder = own(tmp_path / "run", env="toy:catch", network="auto")
    folder.gate(folder.config().placement, ["0.0.0.0:1"])
    name, read = READERS[reader]
    placed(kind, tmp_path / "run" / name)
    with pytest.raises(ConfigError, match=rf"{name}.*({PLACED[kind]})"):
        at_once(lambda: read(RunFolder.open(tmp_path / "run")))
    assert kind != "link" or (tmp_path / "run/aim").read_text() == "mine"


@pytest.mark.parametrize("kind", PLACED)
@pytest.mark.parametrize("name", ["session", "addresses.json", "signature"])
def test_what_may_be_missing_is_as_good_as_missing(name: str, kind: str, tmp_path: Path) -> None:
    folder = own(tmp_path / "run", env="toy:catch", network="auto")
    (tmp_path / "run" / name).touch()
    placed(kind, tmp_path / "run" / name)
    assert at_once(lambda: folder.session(resumed=True)) >= 1
    assert at_once(lambda: folder.addresses(["0.0.0.0:1"])) == ["0.0.0.0:1"]
    if (name, kind) == (
        "signature",
        "device",
    ):  # a link: without it the run is nobody's, where none may lead out
        with pytest.raises(ConfigError, match="signature is a link that leads out"):
            at_once(folder.config)
    else:
        assert at_once(folder.config).env == "toy:catch"


def test_other_runs_that_are_named_when_there_is_none_are_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    own(tmp_path / "runs/good", env="toy:catch", network="auto")
    for kind in ("pipe", "device", "folder"):
        (tmp_path / "runs" / kind).mkdir()
        placed(kind, tmp_path / "runs" / kind / "config.json")
    (tmp_path / "runs/none").mkdir()
    (tmp_path / "runs/none/config.json").symlink_to("nowhere")
    with pytest.raises(ConfigError, match=r"the newest here: runs/good$"):
        at_once(lambda: RunFolder.open("runs/better"))
