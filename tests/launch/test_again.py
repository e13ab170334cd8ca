"""The same command, executed again: by an engine, after a machine or a process was lost."""

from __future__ import annotations

import signal
from contextlib import ExitStack
from dataclasses import fields
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from faulty_stores import never_trained
from harness import GATED, PATIENCE, Command, balanced, checkpoints, flags, summary, thorough, tiny, until

from seedbed.cli.ending import status_of
from seedbed.cli.main import main
from seedbed.cli.resume import Resume
from seedbed.cli.status import Status
from seedbed.config.resolve import flat, replace
from seedbed.errors import ConfigError, ExecuteAgain, InUse, Overtaken, RunFailed
from seedbed.launch import session, train
from seedbed.metrics.reports import Summary, summary_from

ALONE = {"transport": "inproc", "actors": 1}


def test_a_run_that_is_over_is_not_trained_again_and_a_longer_one_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tiny("toy:catch", tmp_path / "run", **ALONE, frames=400, begin_or_resume=True)
    first = train.train(config)
    kept = checkpoints(tmp_path / "run")
    with monkeypatch.context() as patch:
        patch.setattr(train, "resume", lambda *_, **__: pytest.fail("a run that is over was started"))
        assert train.train(config) == first, "it says what it came to"
    assert checkpoints(tmp_path / "run") == kept
    longer = train.train(replace(config, frames=1_200))
    assert longer.env_frames >= 1_200 and longer.weights_version > first.weights_version
    assert balanced(summary(tmp_path / "run"))


def test_a_command_with_other_settings_is_refused(tmp_path: Path) -> None:
    config = tiny("toy:catch", tmp_path / "run", **ALONE, frames=200, begin_or_resume=True)
    train.train(config)
    with pytest.raises(ConfigError, match=r"holds a run with other settings: seed was 0 and is 3"):
        train.train(replace(config, seed=3))
    with pytest.raises(ConfigError, match="give --run-dir"):
        replace(config, run_dir=None)


def test_a_command_of_a_manifest_may_have_another_number_of_actors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = never_trained(tmp_path / "run")
    room = {"max_envs": 90, "max_actors": 9, "inference_batch": 4, "actors": 0, "listen": ("127.0.0.1:0",)}
    again = replace(begun.config(), begin_or_resume=True, tls_cert=("a", "b"), **room)
    monkeypatch.setattr(train, "_built", lambda *_, **__: (None, None))
    monkeypatch.setattr(
        session.Session, "__init__", lambda self, config, *_, **__: vars(self).update(config=config)
    )
    monkeypatch.setattr(session.Session, "run", lambda self: flat(self.config))
    found: Any = train.train(again)
    assert {name: found[name] for name in room} == room and found["tls_cert"] == ("a", "b")


def test_a_folder_that_is_in_use_is_waited_for_by_a_command_of_an_engine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = never_trained(tmp_path / "run")
    monkeypatch.setattr(session.Session, "run", lambda self: "gone on")
    with ExitStack() as holding:
        holding.enter_context(begun.held())
        with pytest.raises(InUse, match="another process trains in"):
            train.resume(str(begun.path))
        monkeypatch.setattr(train, "_IN_USE_SECONDS", 0.0)
        with pytest.raises(ExecuteAgain, match="another process trains in"):
            train.train(replace(begun.config(), begin_or_resume=True))
        monkeypatch.setattr(train, "_IN_USE_SECONDS", PATIENCE)
        looked = Mock(side_effect=lambda seconds: holding.close())
        monkeypatch.setattr(train.time, "sleep", looked)
        assert train.train(replace(begun.config(), begin_or_resume=True)) == "gone on"
        assert looked.call_count == 1


def test_a_session_is_an_engines_if_its_command_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun = never_trained(tmp_path / "run")
    monkeypatch.setattr(train, "_built", lambda *_, **__: (None, None))
    monkeypatch.setattr(
        session.Session, "__init__", lambda self, config, *_, **__: vars(self).update(config=config)
    )
    monkeypatch.setattr(session.Session, "run", lambda self: self.config)
    engines: Any = train.train(replace(begun.config(), begin_or_resume=True))
    begun.keep(engines)
    ours: Any = train.resume(str(begun.path))
    assert (engines.begin_or_resume, ours.begin_or_resume) == (True, False)


def test_a_longer_run_that_was_killed_is_not_taken_for_the_shorter_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tiny("toy:catch", tmp_path / "run", **ALONE, frames=200, begin_or_resume=True)
    train.train(config)
    longer = replace(config, frames=600)
    with monkeypatch.context() as patch:
        patch.setattr(session.Session, "_build", Mock(side_effect=KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            train.train(longer)
    assert train.train(longer).env_frames >= 600


def test_an_empty_folder_is_begun_in(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    found = train.train(tiny("toy:catch", tmp_path / "run", **ALONE, frames=100, begin_or_resume=True))
    assert found.env_frames >= 100


def test_what_may_change_is_what_resume_takes() -> None:
    assert {part.name for part in fields(Resume)} - {
        "run",
        "json",
        "video",
        "rotate_token",
        "trust",
    } == train.CHANGEABLE


@pytest.mark.parametrize(
    ("stopped", "by", "engine", "status"),
    [
        ("400 frames spent", "", False, Status.OVER),
        ("400 frames spent", "", True, Status.OVER),
        ("interrupted", "SIGINT", False, Status.OVER),
        ("interrupted", "SIGINT", True, Status.EXECUTE_AGAIN),
        ("interrupted", "SIGTERM", False, Status.EXECUTE_AGAIN),
        ("interrupted", "SIGTERM", True, Status.EXECUTE_AGAIN),
    ],
)
def test_the_status_says_whether_to_execute_the_command_again(
    stopped: str, by: str, engine: bool, status: Status, tmp_path: Path
) -> None:
    config = tiny("toy:catch", tmp_path / "run", begin_or_resume=engine)
    names = {part.name for part in fields(Summary)} - {"more", "stopped_because"}
    values: dict[str, Any] = dict.fromkeys(names)
    found = summary_from({**values, "stopped_because": stopped, **({"interrupted_by": by} if by else {})})
    assert status_of(found, config) == status
    with pytest.raises(ConfigError, match="a summary without env, seed"):
        summary_from(dict.fromkeys({*names, "stopped_because"} - {"env", "seed"}))


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (ExecuteAgain("x"), Status.EXECUTE_AGAIN),
        (Overtaken("x"), Status.OVERTAKEN),
        (RunFailed("x"), Status.FAILED),
        (InUse("x"), Status.WRONG_USAGE),
    ],
)
def test_errors_have_statuses(error: Exception, status: Status, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(train, "train", Mock(side_effect=error))
    with pytest.raises(SystemExit) as stop:
        main(["train", "toy:catch"])
    assert stop.value.code == status


@pytest.mark.parametrize(
    ("number", "status"), [(signal.SIGTERM, Status.EXECUTE_AGAIN), (signal.SIGINT, Status.INTERRUPTED)]
)
def test_an_end_that_is_asked_for_while_nothing_trains_has_the_command_executed_again(
    number: signal.Signals, status: Status, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(train, "train", lambda config: signal.raise_signal(number))
    with pytest.raises(SystemExit) as stop:
        main(["train", "toy:catch"])
    assert stop.value.code == status


@pytest.mark.slow
def test_a_preempted_run_ends_with_75_and_the_same_command_ends_it(tmp_path: Path) -> None:
    (tmp_path / "gated.py").write_text(GATED)
    words = flags("gated:World", "run", frames=4_000, checkpoint_minutes=1e-3, begin_or_resume=True)
    with Command(*words, cwd=tmp_path) as first:
        until(lambda: checkpoints(tmp_path / "run"), "a checkpoint")
        first.process.send_signal(signal.SIGTERM)
        assert first.wait() == Status.EXECUTE_AGAIN, first.output
    assert summary(tmp_path / "run")["interrupted_by"] == "SIGTERM"
    with Command(*words, cwd=tmp_path) as killed:
        killed.says("resumed from")
        killed.process.kill()
        killed.wait()
    (tmp_path / "open").touch()
    with Command(*words, cwd=tmp_path) as last:
        assert last.wait() == Status.OVER, last.output
        assert "resumed from" in last.output
    with Command(*words, cwd=tmp_path) as again:
        assert again.wait() == Status.OVER
        assert "is over: 4000 frames spent" in again.output
    assert summary(tmp_path / "run")["env_frames"] >= 4_000


@pytest.mark.slow
@pytest.mark.parametrize("arch", ["impala", *thorough("seed")])
def test_actors_elsewhere_end_with_the_run(arch: str, tmp_path: Path) -> None:
    (tmp_path / "gated.py").write_text(GATED)
    words = flags(
        "gated:World", "run", arch=arch, actors=0, listen=("127.0.0.1:0",), transport="grpc", frames=4_000
    )
    with Command(*words, cwd=tmp_path) as learner:
        line = learner.says("more actors: seedbed actor").split("more actors: seedbed ")[1].split("\n")[0]
        with Command(*line.split(), cwd=tmp_path) as preempted:
            learner.says("joined from elsewhere")
            preempted.process.send_signal(signal.SIGTERM)
            assert preempted.wait() == Status.EXECUTE_AGAIN, preempted.output
        (tmp_path / "open").touch()
        with Command(*line.split(), cwd=tmp_path) as actor:
            assert actor.wait() == Status.OVER, actor.output
            assert actor.last_line == "the run is over"
            assert learner.wait() == Status.OVER, learner.output
    assert balanced(summary(tmp_path / "run"))
