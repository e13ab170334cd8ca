"""The store of a run: what is copied there, what comes back, and what does not."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from faulty_stores import Faulty, checkpoint, copied, never_trained, no_fault, steps_in
from harness import placed

from seedbed import atomic_folder
from seedbed.config.resolve import configure, replace
from seedbed.errors import ConfigError, Damaged, StoreError, StoreUnreachable
from seedbed.launch.bucket import Bucket
from seedbed.launch.folder import RunFolder
from seedbed.launch.retrieval import bring_back
from seedbed.launch.store import Copy, Store, patiently
from seedbed.learning.checkpoint import load_latest

MARKER = "sessions/000000/copies/000001/copy.json"


@pytest.fixture(autouse=True)
def _mended() -> Iterator[None]:
    Faulty.reset()
    yield
    Faulty.reset()


def came_back(path: Path, store: Store) -> RunFolder:
    folder = RunFolder(path)
    bring_back(folder, Store(store.bucket))
    return folder


def change(url: str, name: str, change: Any) -> None:
    """Changes the marker of a copy, and seals it anew, as whoever may write there can."""
    bucket = Bucket(url)
    body = atomic_folder.unsealed(bucket.read(name) or b"", "copy.json")
    change(body["files"])
    bucket.write(name, atomic_folder.sealed(body).encode())


# -- what comes back --------------------------------------------------------------------------------------


@pytest.mark.parametrize("scheme", ["file", "memory", "faulty"])
def test_what_was_copied_comes_back(scheme: str, tmp_path: Path) -> None:
    url = f"file://{tmp_path}/bucket" if scheme == "file" else f"{scheme}://{tmp_path.name}/bucket"
    first = never_trained(tmp_path / "first", actors=3)
    first.metrics_of(4).parent.mkdir(parents=True)
    first.metrics_of(4).write_text("{}\n")
    first.summary.write_text("{}")
    os.utime(
        first.summary, (time.time() + 60, time.time() + 60)
    )  # it has ended since the copy's session began
    first.token()
    second = came_back(tmp_path / "second", copied(first, url, 5, 7))
    assert second.config() == first.config() and second.identity() == first.identity()
    assert second.metrics.read_text() == '{"agent_steps": 1}\n', "rows that are whole"
    assert second.metrics_of(4).read_text() == "{}\n" and second.summary.read_text() == "{}"
    assert [path.name for path in second.checkpoints.iterdir()] == [f"{7:012d}"]
    for file in (second.checkpoints / f"{7:012d}").iterdir():
        assert file.read_bytes() == (first.checkpoints / f"{7:012d}" / file.name).read_bytes()
    assert not {"token", "key.pem", "addresses.json"} & {path.name for path in second.path.iterdir()}
    assert sorted(path.name for path in tmp_path.iterdir() if path.name != "bucket") == ["first", "second"]
    before = sorted(second.path.rglob("*"))
    bring_back(second, Store.open(url))
    assert sorted(second.path.rglob("*")) == before, "it is there already"


def test_the_summary_of_an_earlier_session_is_not_copied(tmp_path: Path) -> None:
    first = never_trained(tmp_path / "first")
    first.keep_session(0)
    for session, copied_too in ((None, True), (1, False)):
        if session is None:
            first.summary.write_text("{}")
        else:
            first.keep_session(session)
        later = first.summary.stat().st_mtime_ns + (-1 if session is None else 1)
        os.utime(first.path / "session", ns=(later, later))
        assert ("summary.json" in dict(first.state())) == copied_too
    back = came_back(tmp_path / "second", copied(first, "faulty://b", 5))
    assert not back.summary.exists()


def test_a_run_without_a_checkpoint_comes_back_too_and_an_empty_store_brings_nothing(tmp_path: Path) -> None:
    bring_back(RunFolder(tmp_path / "none"), Store.open("faulty://empty"))
    assert not (tmp_path / "none").exists()
    first = never_trained(tmp_path / "first", seed=3)
    store = copied(first, "faulty://b")
    assert store.keep(first, None, 3) is None
    assert came_back(tmp_path / "second", store).config().seed == 3


def test_a_half_copied_checkpoint_is_never_taken(tmp_path: Path) -> None:
    folder = never_trained(tmp_path / "first")
    store = copied(folder, "faulty://b", 5)
    checkpoint(folder, 7)
    written: list[str] = []

    def killed(what: str, path: str) -> None:
        if what == "write":
            written.append(path)
            if len(written) > killed_after:
                raise ConnectionError("no network")

    killed_after = 99
    Faulty.fault = staticmethod(killed)
    assert store.keep(folder, 7, 9) is None
    needed = len(written)
    assert written[-1].endswith("copy.json"), "it is written last"
    for killed_after in range(needed):
        Faulty.reset()
        again = copied(folder, "faulty://b", 5)
        written.clear()
        Faulty.fault = staticmethod(killed)
        with pytest.raises(StoreUnreachable, match=r"store faulty://b: cannot write .*no network"):
            again.keep(folder, 7, 9)
        Faulty.fault = staticmethod(no_fault)
        assert steps_in(again) == [5]
        second = came_back(tmp_path / f"second{killed_after}", again)
        assert load_latest(second.checkpoints).step == 5


@pytest.mark.parametrize("damage", ["changed", "shorter", "longer", "missing", "marker", "rows"])
def test_a_damaged_copy_is_passed_over_aloud(
    damage: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = copied(never_trained(tmp_path / "first"), f"file://{tmp_path}/bucket", 5, 7)
    place = tmp_path / "bucket/sessions/000000"
    names = {"marker": "copies/000002/copy.json", "rows": "copies/000002/metrics.jsonl"}
    file = place / names.get(damage, "checkpoints/000000000007/train.safetensors")
    content = file.read_bytes()
    if damage == "missing":
        file.unlink()
    else:
        changed = {"shorter": content[:-1], "longer": content + b"x"}
        file.write_bytes(changed.get(damage, content[:-3] + b"abc"))
    second = came_back(tmp_path / "second", store)
    assert load_latest(second.checkpoints).step == 5
    assert "passed over" in (said := capsys.readouterr().out) and "fetched copy 1 of session 0" in said


def test_if_none_is_intact_nothing_is_begun(tmp_path: Path) -> None:
    store = copied(never_trained(tmp_path / "first"), f"file://{tmp_path}/bucket", 5)
    (tmp_path / "bucket/sessions/000000/checkpoints/000000000005/train.safetensors").unlink()
    with pytest.raises(
        StoreError, match=r"no copy of the run in store .* is intact: .*train\.safetensors is missing"
    ):
        came_back(tmp_path / "second", store)
    assert not (tmp_path / "second").exists()


def test_a_store_that_cannot_be_read_is_no_damage(tmp_path: Path) -> None:
    store = copied(never_trained(tmp_path / "first"), "faulty://b", 5, 7)

    def away(what: str, path: str) -> None:
        if "000000000007" in path:
            raise ConnectionError("no network")

    Faulty.fault = staticmethod(away)
    with pytest.raises(StoreUnreachable, match="no network"):
        came_back(tmp_path / "second", store)
    assert not (tmp_path / "second").exists(), "the newest one would be forgotten"
    Faulty.fault = staticmethod(no_fault)
    assert load_latest(came_back(tmp_path / "second", store).checkpoints).step == 7, (
        "what is left of it is removed"
    )


def test_a_folder_that_holds_something_else_is_left_alone(tmp_path: Path) -> None:
    store = copied(never_trained(tmp_path / "first"), "faulty://b", 5)
    (tmp_path / "second").mkdir()
    (tmp_path / "second/mine").touch()
    with pytest.raises(ConfigError, match="does not exist or is empty"):
        came_back(tmp_path / "second", store)
    (tmp_path / "second/mine").unlink()
    assert came_back(tmp_path / "second", store).begun


def test_a_full_disk_is_not_blamed_on_the_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = copied(never_trained(tmp_path / "first"), "faulty://b", 5)
    opened = Path.open

    def full(path: Path, mode: str = "r", *given: Any, **more: Any) -> Any:
        if mode == "xb":
            return opened(Path("/dev/full"), "wb", buffering=0)
        return opened(path, mode, *given, **more)

    monkeypatch.setattr(Path, "open", full)
    with pytest.raises(ConfigError, match=r"^cannot write .*second\.fetched \(No space left on device\)"):
        came_back(tmp_path / "second", store)
    assert [path.name for path in tmp_path.iterdir()] == ["first"], "nothing half-fetched fills the disk"


def test_a_copy_that_is_larger_than_the_disk_is_not_begun(tmp_path: Path) -> None:
    store = copied(never_trained(tmp_path / "first"), "faulty://b", 5)
    change(str(store), MARKER, lambda files: files["config.json"].update(bytes=1 << 60))
    with pytest.raises(ConfigError, match=r"second\.fetched \(copy 1 .* bytes, and [\d,]+ are free there\)"):
        came_back(tmp_path / "second", store)
    assert [path.name for path in tmp_path.iterdir()] == ["first"]


def test_a_run_comes_back_into_a_folder_that_an_engine_has_prepared(tmp_path: Path) -> None:
    store = copied(never_trained(tmp_path / "first"), "faulty://b", 5)
    for name in ("slurm", "pod"):
        prepared = tmp_path / name
        (prepared / "logs").mkdir(parents=True)
        (prepared / "logs/actors.job").write_text("7")
        (prepared / "token").write_text("given" * 4)
        back = came_back(prepared, store)
        assert (back.token(), (prepared / "logs/actors.job").read_text()) == ("given" * 4, "7")
        assert load_latest(back.checkpoints).step == 5
        assert not (prepared / "installing").exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["first", "pod", "slurm"]
    for name in ("thesis.txt", "metrics.jsonl"):  # also one that a run has, of which the settings are gone
        (tmp_path / "mine").mkdir(exist_ok=True)
        (tmp_path / "mine" / name).write_text("mine")
        with pytest.raises(ConfigError, match="that does not exist or is empty, but for logs and a token"):
            came_back(tmp_path / "mine", store)
        assert [path.read_text() for path in (tmp_path / "mine").iterdir()] == ["mine"]
        (tmp_path / "mine" / name).unlink()


def test_a_run_whose_installation_was_killed_comes_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = copied(never_trained(tmp_path / "first"), "faulty://b", 5)
    prepared = tmp_path / "pod"
    prepared.mkdir()
    (prepared / "token").write_text("given" * 4)
    rename = Path.rename

    def killed(self: Path, aim: Path) -> Path:
        if self.name == "config.json":
            raise KeyboardInterrupt
        return rename(self, aim)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Path, "rename", killed)
        came_back(prepared, store)
    assert (prepared / "checkpoints").exists() and not (prepared / "config.json").exists()
    back = came_back(prepared, store)
    assert (back.token(), load_latest(back.checkpoints).step) == ("given" * 4, 5)
    assert not (prepared / "installing").exists()


def test_an_older_folder_of_the_run_is_moved_aside(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = never_trained(tmp_path / "first")
    second = came_back(tmp_path / "second", copied(first, "faulty://b", 5))
    store = copied(second, "faulty://b", 6)
    token = first.token()
    bring_back(first, store)
    assert load_latest(first.checkpoints).step == 6
    assert first.token() == token, "its actors come back with the token that they have"
    assert load_latest(tmp_path / "first.session-0/checkpoints").step == 5
    assert "session 1 of this run went on elsewhere" in capsys.readouterr().out
    first.keep_session(9)
    bring_back(first, store)
    assert first.last_session == 9, "a folder that is newer stays"


def test_a_damaged_newest_copy_does_not_have_the_run_fetched_twice(tmp_path: Path) -> None:
    first = never_trained(tmp_path / "first")
    second = came_back(tmp_path / "second", copied(first, "faulty://b", 5))
    store = copied(second, "faulty://b", 6)
    store.bucket.write(f"sessions/000001/checkpoints/{6:012d}/train.safetensors", b"damaged")
    third = came_back(tmp_path / "third", store)
    assert load_latest(third.checkpoints).step == 5 and third.last_session == 1
    bring_back(third, store)
    assert not (tmp_path / "third.session-0").exists() and not (tmp_path / "third.session-1").exists()
    assert store.claim(third, third.session(resumed=True)) == 2


def test_a_copy_that_an_old_learner_removes_meanwhile_leads_to_the_newer_one(tmp_path: Path) -> None:
    folder = never_trained(tmp_path / "first")
    old = copied(folder, "faulty://b", 5)
    steps = iter((6, 7))

    def meanwhile(what: str, path: str) -> None:
        if what == "read" and path.endswith("train.safetensors"):
            Faulty.fault = staticmethod(no_fault)
            if (step := next(steps, None)) is not None:
                checkpoint(folder, step)
                assert old.keep(folder, step, 1) is None
                Faulty.fault = staticmethod(meanwhile)
                raise FileNotFoundError(path)

    Faulty.fault = staticmethod(meanwhile)
    assert load_latest(came_back(tmp_path / "second", old).checkpoints).step == 7


# -- strangers --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "path",
    [
        "../mine",
        "/etc/passwd",
        "checkpoints/../../mine",
        "checkpoints/000000000005/../../../mine",
        "checkpoints/000000000005/.hidden",
        "checkpoints/5/train.safetensors",
        "variants/../metrics.jsonl",
        "token",
        "lock",
        "logs/learner.log",
    ],
)
def test_no_name_in_a_store_leads_out_of_the_folder(path: str, tmp_path: Path) -> None:
    store = copied(never_trained(tmp_path / "first"), url := f"file://{tmp_path}/bucket", 5)
    for place in (f"sessions/000000/copies/000001/{path}", f"sessions/000000/{path}"):
        change(
            url,
            MARKER,
            lambda files, place=place: files.update({path: {**files["config.json"], "object": place}}),
        )
        with pytest.raises(StoreError, match=r"no copy of the run.* is no file of a run"):
            came_back(tmp_path / "second", store)
    assert sorted(each.name for each in tmp_path.iterdir()) == ["bucket", "first"]


@pytest.mark.parametrize(
    "name", ["../first/token", "/etc/passwd", "sessions/000000/../../identity", "identity", 3]
)
def test_no_object_of_a_copy_is_outside_of_its_store(name: Any, tmp_path: Path) -> None:
    store = copied(never_trained(tmp_path / "first"), url := f"file://{tmp_path}/bucket", 5)
    for path in ("config.json", f"checkpoints/{5:012d}/train.safetensors"):
        change(url, MARKER, lambda files, path=path: files[path].update(object=name))
        found = next(store.copies())
        assert isinstance(found, Damaged) and "no object for it" in str(found)


@pytest.mark.parametrize("size", [-1, -2, True, 1.0, "1", None])
def test_no_size_in_a_store_lifts_the_limit_of_what_is_fetched(size: Any, tmp_path: Path) -> None:
    store = copied(never_trained(tmp_path / "first"), url := f"file://{tmp_path}/bucket", 5)
    change(url, MARKER, lambda files: files["config.json"].update(bytes=size))
    found = next(store.copies())
    assert isinstance(found, Damaged) and "config.json has no size" in str(found)


@pytest.mark.parametrize("kind", ["link", "pipe", "folder"])
@pytest.mark.parametrize("name", ["copies/000001/config.json", "copies/000001/copy.json"])
def test_only_regular_files_are_read(kind: str, name: str, tmp_path: Path) -> None:
    store = copied(never_trained(tmp_path / "first"), f"file://{tmp_path}/bucket", 5)
    placed(kind, tmp_path / "bucket/sessions/000000" / name)
    with pytest.raises(StoreError, match=r"is a link|is something else"):
        came_back(tmp_path / "second", store)


def test_a_link_in_the_place_of_a_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "bucket").mkdir()
    (tmp_path / "bucket/sessions").symlink_to("../elsewhere")
    with pytest.raises(ConfigError, match="is a link"):
        copied(never_trained(tmp_path / "first"), f"file://{tmp_path}/bucket")
    assert not list((tmp_path / "elsewhere").iterdir())


def test_a_folder_from_a_store_is_a_strangers_but_in_the_same_place(tmp_path: Path) -> None:
    first = never_trained(tmp_path / "first", store="faulty://b", network="flax.linen:Dense")
    store = copied(first, "faulty://b", 5)
    second = came_back(tmp_path / "second", store)
    with pytest.raises(ConfigError, match=r"add --trust flax\.linen:Dense"):
        second.config()
    with pytest.raises(ConfigError, match="--store faulty://b if that is yours, or --store None"):
        second.store()
    first.path.rename(tmp_path / "gone")
    again = came_back(tmp_path / "first", store)
    assert again.config().net.network == "flax.linen:Dense" and again.store() == "faulty://b"


def test_a_folder_whose_store_was_changed_is_no_longer_known(tmp_path: Path) -> None:
    folder = never_trained(tmp_path / "run", store="faulty://b")
    assert folder.store() == "faulty://b"
    config = tmp_path / "run/config.json"
    config.write_text(config.read_text().replace("faulty://b", "faulty://of/a/stranger"))
    with pytest.raises(ConfigError, match="--store faulty://of/a/stranger if that is yours"):
        folder.store()


# -- one run, one session ---------------------------------------------------------------------------------


def test_a_session_that_was_overtaken_writes_and_removes_nothing(tmp_path: Path) -> None:
    first = never_trained(tmp_path / "first")
    old = copied(first, "faulty://b", 5)
    second = came_back(tmp_path / "second", old)
    assert old.overtaken() is None
    new = copied(second, "faulty://b", 6, keep=1)
    assert "another session of this run has begun in store faulty://b (number 1)" in str(old.overtaken())
    checkpoint(first, 7)
    before = {path for path in Faulty.store if "sessions/000001" in path}
    assert "number 0, ends" in str(old.keep(first, 7, 1))
    assert steps_in(new) == [6] and before == {path for path in Faulty.store if "sessions/000001" in path}
    assert load_latest(came_back(tmp_path / "third", new).checkpoints).step == 6


def test_a_session_that_is_overtaken_while_it_deletes_leaves_the_later_ones_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = never_trained(tmp_path / "first")
    old = copied(first, "faulty://b", 5)
    second = came_back(tmp_path / "second", old)
    new = copied(second, "faulty://b", 6)
    new.bucket.write("sessions/000001/checkpoints/000000000009/train.safetensors", b"on its way")
    new.bucket.write("sessions/000001/copies/000009/config.json", b"on its way")
    checkpoint(first, 7)
    before = {path for path in Faulty.store if "sessions/000001" in path}
    monkeypatch.setattr(old, "overtaken", lambda: None)
    old.keep(first, 7, 1)
    assert before == {path for path in Faulty.store if "sessions/000001" in path}


def test_of_two_sessions_with_one_number_one_has_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = never_trained(tmp_path / "first")
    store = copied(first, "faulty://b", 5)
    others = [came_back(tmp_path / name, store) for name in ("second", "third")]
    monkeypatch.setattr(Store, "_sessions", lambda self: [0])  # both have looked before the other one began
    assert [Store.open("faulty://b").claim(each, 1) for each in others] == [1, 2]


def test_a_store_without_conditional_writing_tells_the_one_that_came_first(tmp_path: Path) -> None:
    store = copied(never_trained(tmp_path / "first"), "faulty://b", 5)
    store.bucket.write("sessions/000000/claim", b"another")
    assert "another session" in str(store.overtaken())


def test_a_store_holds_one_run(tmp_path: Path) -> None:
    first = never_trained(tmp_path / "first")
    store = Store.open("faulty://b")
    store.require_empty()
    assert store.claim(first, 0) == 0
    with pytest.raises(StoreError, match="already holds a run: go on with it by --begin-or-resume"):
        Store.open("faulty://b").require_empty()
    other = never_trained(tmp_path / "other")
    for refused in (lambda: Store.open("faulty://b").claim(other, 0), lambda: bring_back(other, store)):
        with pytest.raises(StoreError, match=f"holds another run than {tmp_path / 'other'}"):
            refused()
    Bucket("faulty://c").write("identity", b"mine")
    with pytest.raises(StoreError, match="not Seedbed's"):
        Store.open("faulty://c").claim(other, 0)


@pytest.mark.parametrize("killed_at", range(5))
def test_a_store_where_a_session_ended_as_it_began_is_free(killed_at: int, tmp_path: Path) -> None:
    written: list[str] = []

    def killed(what: str, path: str) -> None:
        if what == "write":
            written.append(path)
            if len(written) > killed_at:
                raise ConnectionError("no network")

    Faulty.fault = staticmethod(killed)
    store = Store(Bucket("faulty://b"))
    with pytest.raises(StoreUnreachable):
        store.claim(never_trained(tmp_path / "first"), 0)
    assert written[-1].endswith(("claim", "identity", "config.json", "signature", "copy.json")[killed_at])
    Faulty.fault = staticmethod(no_fault)
    store.require_empty()
    second = never_trained(tmp_path / "second")
    store.claim(second, 0)
    store.keep(second, None, 3)
    assert store.identity() == second.identity() and store.overtaken() is None


@pytest.mark.parametrize("moment", range(9))
def test_of_two_runs_that_begin_at_once_one_goes_on_at_most(moment: int, tmp_path: Path) -> None:
    runs = [never_trained(tmp_path / name) for name in ("one", "other", "third")]
    stores = [Store(Bucket("faulty://b")) for _ in runs]
    seen: list[str] = []
    began: list[int] = []

    def begin(number: int) -> None:
        try:
            stores[number].claim(runs[number], 0)
            began.append(number)
        except StoreError as error:
            assert "another run" in str(error)

    def meanwhile(what: str, path: str) -> None:
        seen.append(path)
        if len(seen) == moment + 1:
            Faulty.fault = staticmethod(no_fault)
            begin(1)

    Faulty.fault = staticmethod(meanwhile)
    begin(0)
    assert len(seen) > moment, "this moment is in the claim"
    Faulty.fault = staticmethod(no_fault)
    begin(2)
    assert len(began) == 1
    assert stores[began[0]].overtaken() is None
    assert stores[0].identity() == runs[began[0]].identity()
    for folder in (run for number, run in enumerate(runs) if number not in began):
        with pytest.raises(StoreError, match="holds another run"):
            stores[0].require_same(folder)


def test_a_run_that_is_refused_as_it_begins_does_not_end_the_other_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, late = Store(Bucket("faulty://b")), Store(Bucket("faulty://b"))
    first.claim(never_trained(tmp_path / "first"), 0)
    looks = iter([True, True, False])  # it has looked before the other one began
    monkeypatch.setattr(late, "_is_empty", lambda: next(looks))
    with pytest.raises(StoreError, match="another run has begun in store faulty://b at this moment"):
        late.claim(never_trained(tmp_path / "late"), 0)
    assert first.overtaken() is None


def test_a_run_that_could_not_start_is_taken_out_of_its_store(tmp_path: Path) -> None:
    folder = never_trained(tmp_path / "first")
    store = Store.open("faulty://b")
    store.claim(folder, 0)
    store.withdraw()
    store.require_empty()
    store.claim(folder, 0)
    checkpoint(folder, 5)
    store.keep(folder, 5, 3)
    store.withdraw()
    assert steps_in(store) == [5], "it was trained"
    again = Store.open("faulty://b")
    again.claim(folder, 1)
    again.withdraw()
    assert steps_in(store) == [5], "it was begun by another session"


# -- the rule of deletion ---------------------------------------------------------------------------------


def test_the_newest_checkpoints_stay_and_the_rest_is_removed(tmp_path: Path) -> None:
    folder = never_trained(tmp_path / "first")
    store = copied(folder, f"file://{tmp_path}/bucket", 5, 6, 7, 8, keep=2)
    sessions = tmp_path / "bucket/sessions"
    kept = [path.name for path in sorted((sessions / "000000/checkpoints").iterdir())]
    assert kept == [f"{7:012d}", f"{8:012d}"] and steps_in(store) == [8, 7]
    assert store.keep(folder, 8, 2) is None
    assert steps_in(store) == [8, 7], "one copy of each"
    second = came_back(tmp_path / "second", store)
    again = Store.open(f"file://{tmp_path}/bucket")
    second.keep_session(again.claim(second, 1))
    assert again.keep(second, 8, 1) is None
    assert not (sessions / "000001/checkpoints").exists(), "the checkpoint of the session before is there"
    assert [path.name for path in (sessions / "000000/checkpoints").iterdir()] == [f"{8:012d}"]
    assert not list((sessions / "000000/copies").iterdir())
    assert load_latest(came_back(tmp_path / "third", again).checkpoints).step == 8
    checkpoint(second, 9)
    assert again.keep(second, 9, 1) is None
    assert not list((sessions / "000000/checkpoints").iterdir()) and steps_in(again) == [9]


def test_a_half_removed_copy_is_never_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = never_trained(tmp_path / "first")
    store = copied(folder, "faulty://b", 5)
    checkpoint(folder, 6)

    def away(self: Bucket, name: str) -> None:
        raise StoreError("no network")

    monkeypatch.setattr(Bucket, "remove_folder", away)
    with pytest.raises(StoreError, match="no network"):
        store.keep(folder, 6, 1)
    assert steps_in(store) == [6]


def test_what_is_half_copied_is_removed_with_the_next_one(tmp_path: Path) -> None:
    folder = never_trained(tmp_path / "first")
    store = copied(folder, f"file://{tmp_path}/bucket", 5)
    copies = tmp_path / "bucket/sessions/000000/copies"
    (copies / "000001/copy.json").unlink()
    checkpoint(folder, 6)
    store.keep(folder, 6, 3)
    assert [path.name for path in copies.iterdir()] == ["000002"]
    assert [path.name for path in (copies.parent / "checkpoints").iterdir()] == [f"{6:012d}"]


# -- outages ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("attempts", [1, 2, 5, 6])
def test_a_short_outage_is_waited_for_with_one_line(attempts: int) -> None:
    failures = [StoreUnreachable("no network")] * (attempts - 1)
    lines: list[str] = []
    waited: list[float] = []

    def attempt() -> str:
        if failures:
            raise failures.pop()
        return "reached"

    assert patiently(attempt, note=lines.append, wait=waited.append) == "reached"
    assert lines == ["no network; tried again for 60 s"] * (attempts > 1) and len(waited) == attempts - 1


@pytest.mark.parametrize("denied", [False, True])
def test_a_long_outage_ends_the_command_after_a_minute(denied: bool) -> None:
    def attempt() -> None:
        raise StoreUnreachable("no word", denied=denied)

    waited: list[float] = []
    with pytest.raises(StoreUnreachable, match="no word; tried for 60 s: ") as end:
        patiently(attempt, note=lambda line: None, wait=waited.append)
    assert ("credentials" in str(end.value)) == denied and sum(waited) == 60 and end.value.denied is denied


def test_nobody_who_interrupts_waits_for_a_store() -> None:
    attempts: list[None] = []

    def attempt() -> None:
        attempts.append(None)
        raise StoreUnreachable("no network")

    with pytest.raises(StoreUnreachable):
        patiently(attempt, note=lambda line: None, wait=lambda seconds: True)
    assert len(attempts) == 1


@pytest.mark.parametrize(
    ("error", "kind", "denied"),
    [
        (ConnectionError("no network"), StoreUnreachable, False),
        (OSError(16, "503 Slow Down"), StoreUnreachable, False),
        (TimeoutError(), StoreUnreachable, False),
        (RuntimeError("no word of it"), StoreUnreachable, False),
        (PermissionError("the token has expired"), StoreUnreachable, True),
        (FileNotFoundError("no such bucket"), StoreError, False),
        (ValueError("invalid name of a bucket"), StoreError, False),
    ],
)
def test_only_what_fails_again_is_a_wrong_setting(error: Exception, kind: type, denied: bool) -> None:
    def broken(what: str, path: str) -> None:
        raise error

    Faulty.fault = staticmethod(broken)
    with pytest.raises(kind, match="give a URL that can be written") as refusal:
        Store.open("faulty://b")
    assert isinstance(refusal.value, ConfigError) == (kind is StoreError)
    assert getattr(refusal.value, "denied", False) is denied


@pytest.mark.parametrize(
    ("error", "denied"),
    [(ConnectionRefusedError(), False), (PermissionError(), True), (RuntimeError("no credentials"), True)],
)
def test_a_store_that_connects_as_it_is_opened_may_be_away_too(
    error: Exception, denied: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(url: str) -> None:
        raise error

    monkeypatch.setattr("fsspec.core.url_to_fs", away)
    with pytest.raises(StoreUnreachable, match="store is ftp://host/run, and cannot be opened") as refusal:
        Store.open("ftp://host/run")
    assert refusal.value.denied is denied


def test_rights_in_a_plain_folder_are_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bucket = Bucket(f"file://{tmp_path}/bucket")

    def denied(*given: Any, **more: Any) -> None:
        raise PermissionError("no rights")

    monkeypatch.setattr(bucket._files, "makedirs", denied)
    with pytest.raises(StoreError, match="no rights"):
        bucket.write("identity", b"")


# -- refusals ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("s3://bucket/run", r"needs a package of its own beside fsspec.*s3fs"),
        ("foo://bucket/run", r"Protocol not known: foo\): give s3://"),
        ("bucket/run", r"has to be a URL"),
        ("/bucket/run", r"has to be a URL.*file:///FOLDER"),
        ("file://", r"has to be a URL"),
        ("ftp://me:secret@host/run", r"store is ftp://…, with a password"),
        ("file:///proc/run", r"store file:///proc/run: cannot write trial-.*give a URL that can be written"),
    ],
)
def test_a_store_that_cannot_be_is_refused(url: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words) as refusal:
        Store.open(url)
    assert "secret" not in str(refusal.value)


def test_a_store_is_tried_out(tmp_path: Path) -> None:
    Store.open("faulty://b")
    assert not Faulty.store

    def silent(what: str, path: str) -> None:
        if what == "read":
            Faulty.store[path].write(b"something else")

    Faulty.fault = staticmethod(silent)
    with pytest.raises(StoreError, match="what was written is not what is read"):
        Store.open("faulty://b")


def test_several_hosts_have_no_store() -> None:
    with pytest.raises(
        ConfigError, match="leave --store out, and give a --run-dir on a disk that all machines share"
    ):
        replace(configure("toy:catch", hosts=2), store="memory://b")


def test_without_fsspec_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fsspec.core", None)
    with pytest.raises(StoreError, match=r"needs the package fsspec: .*\[store\]"):
        Store.open("memory://b")


def test_a_copy_tells_what_it_is() -> None:
    assert str(Copy(1, 2, {}, 5)) == "copy 2 of session 1 (checkpoint 000000000005)"
    assert str(Copy(1, 2, {}, None)) == "copy 2 of session 1 (no checkpoint)"
