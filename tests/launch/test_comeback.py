"""Whole runs with a store: killed, preempted, and gone on with where no run folder is."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

import pytest
from faulty_stores import Faulty, never_trained, no_fault, steps_in
from harness import GATED, Command, balanced, checkpoints, flags, rows, summary, tiny, until

from seedbed.cli.main import main
from seedbed.cli.status import Status
from seedbed.config.resolve import replace
from seedbed.errors import ConfigError, ConnectionLost, RunFailed, StoreUnreachable
from seedbed.launch import copier, directory, session, train
from seedbed.launch.bucket import Bucket
from seedbed.launch.folder import RunFolder
from seedbed.launch.signals import Terminated
from seedbed.launch.store import Copy, Store

ALONE = {"transport": "inproc", "actors": 1}


@pytest.fixture(autouse=True)
def _mended() -> Iterator[None]:
    Faulty.reset()
    yield
    Faulty.reset()


def test_a_run_goes_on_from_memory(tmp_path: Path) -> None:
    url = f"memory://{tmp_path.name}"
    config = tiny("toy:catch", tmp_path / "run", **ALONE, frames=400, store=url, begin_or_resume=True)
    first = train.train(config)
    shutil.rmtree(tmp_path / "run")
    assert train.train(config) == first, "what is over is fetched, and not trained again"
    shutil.move(tmp_path / "run", tmp_path / "elsewhere")
    longer = train.train(replace(config, frames=1_200))
    assert longer.env_frames >= 1_200 and longer.weights_version > first.weights_version
    values = summary(tmp_path / "run")
    assert balanced(values) and rows(tmp_path / "run")[0] == rows(tmp_path / "elsewhere")[0]
    assert {row["session"] for row in rows(tmp_path / "run")} == {0, 1}
    assert steps_in(Store(Bucket(url)))[0] == longer.weights_version
    over = train.resume(str(tmp_path / "third"), store=url)
    assert over.weights_version == longer.weights_version and summary(tmp_path / "third")["run_dir"].endswith(
        "third"
    )


def test_a_command_that_goes_on_looks_once_for_what_is_in_the_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked: list[Store] = []
    monkeypatch.setattr(train, "bring_back", lambda folder, store: looked.append(store))
    monkeypatch.setattr(session.Session, "run", lambda self: self.store)
    begun = never_trained(tmp_path / "run", store="faulty://b")
    again = replace(begun.config(), begin_or_resume=True)
    assert train.train(again) is looked[0] and len(looked) == 1  # type: ignore[comparison-overlap]


def test_actors_know_that_a_run_goes_on_before_its_environments_are_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = never_trained(tmp_path / "run")
    begun.keep_session(0)
    begun.summary.write_text('{"stopped_because": "4 frames spent"}')
    later = begun.summary.stat().st_mtime_ns + 1
    os.utime(begun.summary, ns=(later, later))
    assert directory.learner_of(begun.path) is None

    def build(*_: Any, **__: Any) -> NoReturn:
        with pytest.raises(ConnectionLost, match="no learner listens"):
            directory.learner_of(begun.path)
        raise Terminated

    monkeypatch.setattr(train, "_built", build)
    with pytest.raises(Terminated):
        train.resume(str(begun.path), frames=10**6)


def test_a_run_of_ones_own_goes_on_copying_without_a_word(tmp_path: Path) -> None:
    config = tiny("toy:catch", tmp_path / "run", **ALONE, frames=200, store="faulty://b")
    first = train.train(config)
    second = train.resume(str(tmp_path / "run"), frames=600)
    store = Store(Bucket("faulty://b"))
    assert steps_in(store)[0] == second.weights_version > first.weights_version
    third = train.resume(str(tmp_path / "run"), frames=900, store=None)
    assert third.weights_version > second.weights_version == steps_in(store)[0]
    assert RunFolder(tmp_path / "run").store() is None
    with pytest.raises(ConfigError, match="already holds a run"):
        train.train(replace(config, run_dir=str(tmp_path / "other")))
    assert not (tmp_path / "other").exists()


def test_a_store_that_cannot_be_written_is_refused_before_any_work(tmp_path: Path) -> None:
    def broken(what: str, path: str) -> None:
        raise FileNotFoundError("no such bucket")

    Faulty.fault = staticmethod(broken)
    with pytest.raises(ConfigError, match=r"cannot write trial-.*no such bucket"):
        train.train(tiny("no:such", tmp_path / "run", store="faulty://b"))
    assert not (tmp_path / "run").exists()


class Away:
    """A fault of all objects whose name has a word in it, for some attempts."""

    def __init__(self, word: str, attempts: int) -> None:
        self.word, self.attempts = word, attempts

    def __call__(self, what: str, path: str) -> None:
        if self.word in path and self.attempts:
            self.attempts -= 1
            raise ConnectionError("no network")


@pytest.mark.parametrize("word", ["trial-", "claim"])
def test_a_short_outage_does_not_keep_a_run_from_beginning(
    word: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("seedbed.launch.store._WAITS", (0.0, 0.0))
    Faulty.fault = staticmethod(Away(word, 2))
    train.train(tiny("toy:catch", tmp_path / "run", **ALONE, frames=200, store="faulty://b"))
    assert steps_in(Store(Bucket("faulty://b"))) and summary(tmp_path / "run")
    assert capsys.readouterr().out.count("tried again for") == 1


@pytest.mark.parametrize("word", ["trial-", "identity", "claim"])
def test_a_run_that_cannot_reach_its_store_begins_nothing(
    word: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("seedbed.launch.store._WAITS", (0.0, 0.0))
    Faulty.fault = staticmethod(Away(word, 99))
    with pytest.raises(StoreUnreachable, match=r"no network.*execute the command again"):
        train.train(tiny("toy:catch", tmp_path / "run", **ALONE, store="faulty://b"))
    assert not (tmp_path / "run").exists()
    begun = never_trained(tmp_path / "begun", store="faulty://b")
    with pytest.raises(StoreUnreachable):
        train.resume(str(begun.path))
    assert begun.begun and begun.last_session == 0


def test_a_run_that_could_not_start_leaves_its_store_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unfit(self: session.Session) -> None:
        raise ConfigError("does not fit")

    monkeypatch.setattr(session.Session, "_build", unfit)
    with pytest.raises(ConfigError, match="does not fit"):
        train.train(tiny("toy:catch", tmp_path / "run", **ALONE, store="faulty://b"))
    assert not (tmp_path / "run").exists()
    Store(Bucket("faulty://b")).require_empty()


@pytest.mark.parametrize(("denied", "status"), [(False, Status.EXECUTE_AGAIN), (True, Status.FAILED)])
def test_an_engine_begins_a_command_again_whose_store_was_away(
    denied: bool, status: Status, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(arguments: list[str]) -> int:
        raise StoreUnreachable("no network", denied=denied)

    monkeypatch.setattr("seedbed.cli.train.run", away)
    with pytest.raises(SystemExit) as end:
        main(["train"])
    assert end.value.code == status


@pytest.mark.parametrize("interrupted", [False, True])
def test_a_store_that_fails_at_the_end_leaves_the_run_as_it_is(
    interrupted: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    limits = {False: "LATE_SECONDS", True: "SOON_SECONDS"}
    monkeypatch.setattr(copier, limits[interrupted], 0.2)
    begun: list[str] = []
    order: list[str] = []
    for kind, name in ((session.Session, "_stop"), (copier.Copier, "finish")):
        inner = getattr(kind, name)

        def spied(*given: Any, inner: Any = inner, name: str = name) -> Any:
            order.append(name)
            return inner(*given)

        monkeypatch.setattr(kind, name, spied)

    def away(what: str, path: str) -> None:
        if what == "write" and path.endswith("copy.json") and "copies/000000" not in path:
            begun.append(path)
            if len(begun) == 1 and interrupted:
                os.kill(os.getpid(), signal.SIGTERM)
            raise ConnectionError("no network")

    Faulty.fault = staticmethod(away)
    frames = {"frames": None} if interrupted else {"frames": 400}
    found = train.train(tiny("toy:catch", tmp_path / "run", **ALONE, **frames, store="faulty://b"))
    assert found.stopped_because == ("interrupted" if interrupted else "400 frames spent")
    assert checkpoints(tmp_path / "run") and summary(tmp_path / "run")
    assert order == ["_stop", "finish"], "nobody acts while a store is waited for"
    said = capsys.readouterr().out
    assert "no network); training goes on" in said
    assert "the end of this run is not in store faulty://b (store faulty://b: cannot write" in said
    assert f"but in {tmp_path / 'run'} only: 'seedbed resume" in said


def test_a_learner_that_was_replaced_elsewhere_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("seedbed.launch.copier._LOOK_SECONDS", 0.01)

    def replaced(what: str, path: str) -> None:
        if what == "write" and path.endswith("copies/000001/config.json"):
            Faulty.fault = staticmethod(no_fault)
            Bucket("faulty://b").write("sessions/000003/claim", b"of another machine")

    Faulty.fault = staticmethod(replaced)
    with pytest.raises(
        RunFailed, match=r"another session of this run has begun in store faulty://b \(number 3\)"
    ):
        train.train(tiny("toy:catch", tmp_path / "run", **ALONE, frames=None, store="faulty://b"))
    assert steps_in(Store(Bucket("faulty://b"))) == [None], "its settings alone, from when it began"


def newest(store: Store) -> Copy | None:
    """The newest whole copy, if it has a checkpoint and rows."""
    found = next((copy for copy in store.copies() if isinstance(copy, Copy)), None)
    rows = found and found.files.get("metrics.jsonl", {}).get(
        "bytes"
    )  # the file is there before its first row
    return found if found and found.checkpoint and rows else None


@pytest.mark.slow
def test_a_killed_run_comes_back_bit_for_bit_without_its_folder(tmp_path: Path) -> None:
    url = f"file://{tmp_path}/bucket"
    settings: dict[str, Any] = {"deterministic": True, "keep_checkpoints": 99, "checkpoint_minutes": 1e-3}
    store = Store(Bucket(url))
    with Command(*flags("toy:catch", "run", **settings, frames=10**7, store=url), cwd=tmp_path) as first:
        copy = until(lambda: newest(store), "a checkpoint and rows in the store")
        first.process.kill()
        first.wait()
    step = f"{(newest(store) or copy).checkpoint:012d}"
    (tmp_path / "run").rename(tmp_path / "kept")
    for later in checkpoints(tmp_path / "kept"):
        if later.name > step:  # as it was when this checkpoint was the newest one
            shutil.rmtree(later)
    frames = str(int(rows(tmp_path / "kept")[-1]["env_frames"]) + 5_000)
    outcomes = []
    for folder, place in (("kept", "None"), ("back", url)):
        words = ("resume", folder, "--store", place, "--frames", frames, "--no-video")
        with Command(*words, cwd=tmp_path) as again:
            assert again.wait() == Status.OVER, again.output
            assert f"/{folder}/checkpoints/{step}: weights version" in again.output
            assert ("fetched copy" in again.output) == (folder == "back")
        outcomes.append(summary(tmp_path / folder))
    same = ("params_sha256", "weights_version", "agent_steps", "episodes", "mean_return", "steps_received")
    assert [outcomes[0][name] for name in same] == [outcomes[1][name] for name in same]
    assert outcomes[0]["weights_version"] > int(step) and balanced(outcomes[1])
    # Rows until the copy was made, and then, in both folders, from the checkpoint on.
    before = [row for row in rows(tmp_path / "back") if row["session"] == 0]
    assert before and before == rows(tmp_path / "kept")[: len(before)]
    begins = [next(row for row in rows(tmp_path / name) if row["session"] == 1) for name in ("kept", "back")]
    assert begins[0] == begins[1]


@pytest.mark.thorough
@pytest.mark.slow
def test_a_preempted_run_goes_on_on_another_machine(tmp_path: Path) -> None:
    """Another machine has another home, and so another key, and another folder."""
    url = f"file://{tmp_path}/bucket"
    store = Store(Bucket(url))
    (tmp_path / "gated.py").write_text(GATED)

    def words(folder: str) -> list[str]:
        return flags("gated:World", folder, frames=4_000, begin_or_resume=True, store=url)

    with Command(*words("here"), cwd=tmp_path) as first:
        until(lambda: any(row.get("updates") for row in rows(tmp_path / "here")), "a row after an update")
        first.process.send_signal(signal.SIGTERM)
        assert first.wait() == Status.EXECUTE_AGAIN, first.output
    left = summary(tmp_path / "here")
    assert newest(store).checkpoint == left["weights_version"], "the last checkpoint is there"  # type: ignore[union-attr]
    (tmp_path / "home").mkdir()
    (tmp_path / "open").touch()
    with Command(*words("there"), cwd=tmp_path, XDG_CONFIG_HOME=str(tmp_path / "home")) as last:
        assert last.wait() == Status.OVER, last.output
        assert "fetched copy" in last.output and f"weights version {left['weights_version']}," in last.output
    assert summary(tmp_path / "there")["env_frames"] >= 4_000
    there = rows(tmp_path / "there")
    assert there[: len(rows(tmp_path / "here"))] == rows(tmp_path / "here"), "rows of both machines"
    with Command(*words("here"), cwd=tmp_path) as again:
        assert again.wait() == Status.OVER, again.output
        assert "went on elsewhere" in again.output and "is over: 4000 frames spent" in again.output
