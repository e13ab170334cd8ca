"""The end of a session is written once: by the run's own thread, or without a lost host that blocks it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from seedbed.errors import RunFailed
from seedbed.launch import ending
from seedbed.launch.ending import Ending

LOST = "host 1 is gone: the connection was closed"


class Quit(BaseException):
    """Stands for the end of the process."""


class Scene:
    """An ending of a run at version 7, whose last checkpoint is of version 5, and what it writes."""

    def __init__(
        self, *, paused: bool = False, broken: bool = False, overtaken: str | None = None, hosts: int = 2
    ) -> None:
        self.written: list[Any] = []
        self.broken = broken
        self.run: Any = SimpleNamespace(
            version=7,
            books=SimpleNamespace(agent_steps=10),
            instances={"actor": SimpleNamespace(say_over=lambda: self.written.append("over"))},
        )
        self.lose: Callable[[str], None] = lambda lost: None
        folder = SimpleNamespace(
            log=Path("run/learner.log"), summary=Path("summary.json"), overtaken=lambda: overtaken
        )
        others = SimpleNamespace(count=hosts, lost=lambda seconds: None, watch=self._watch)
        self.saver = saver = SimpleNamespace(saved_version=5, wait=lambda: None, save=self._save)
        self.ending = Ending(
            folder,  # type: ignore[arg-type]
            others,  # type: ignore[arg-type]
            saver,  # type: ignore[arg-type]
            paused=paused,
            contents=self._contents,
            summary=lambda run, reason, standing: SimpleNamespace(  # type: ignore[arg-type, return-value]
                write=lambda path: self.written.append((reason, standing))
            ),
        )
        self.ending.watch(lambda run: {"moment": "loss"}, lambda: self.written.append("display closed"))

    def _watch(self, lose: Callable[[str], None]) -> None:
        self.lose = lose

    def _contents(self, run: Any, /, *, alone: bool = False) -> Any:
        if self.broken:
            raise OSError("no device")
        return f"contents at {run.version}{' alone' if alone else ''}"

    def _save(self, version: int, contents: Any) -> None:
        self.written.append((version, contents))


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    def leave(status: int) -> None:
        raise Quit(status)

    monkeypatch.setattr(ending, "_HEARSAY_SECONDS", 0.01)
    monkeypatch.setattr(ending.os, "_exit", leave)
    # The last resort, which would end the tests a minute later.
    monkeypatch.setattr(ending.threading, "Timer", lambda *_: SimpleNamespace(start=lambda: None))


def test_a_run_that_is_over_saves_sums_up_and_tells_its_actors() -> None:
    scene = Scene()
    taken = scene.ending.last_snapshot(scene.run)
    scene.ending.end(scene.run, "400 frames spent", {"moment": "end"}, taken, None)
    assert scene.written == [(7, "contents at 7"), ("400 frames spent", {"moment": "end"}), "over"]
    assert scene.ending.reason == "400 frames spent"


@pytest.mark.parametrize(
    ("begun", "saved", "steps", "scene", "new"),
    [
        (7, 7, 25, {"hosts": 1}, True),  # a replay was filled further
        (7, 7, 10, {"hosts": 1}, False),
        (5, 7, 25, {"hosts": 1}, False),  # the newest checkpoint is of this session
        (7, 7, 25, {"hosts": 1, "paused": True}, False),  # such a run begins anew
        (7, 7, 25, {"hosts": 2}, False),  # not all may have new steps
        (5, 5, 10, {"hosts": 2}, True),
    ],
)
def test_a_session_without_an_update_saves_the_steps_that_fill_a_replay(
    begun: int, saved: int, steps: int, scene: dict[str, Any], new: bool
) -> None:
    it = Scene(**scene)
    it.saver.saved_version = begun
    it.ending.run = it.run
    it.saver.saved_version, it.run.books.agent_steps = saved, steps
    assert it.ending.last_snapshot(it.run) == ("contents at 7" if new else None)
    it.ending.end(it.run, "interrupted", {}, None, None)
    saves = [(7, "contents at 7 alone" if scene["hosts"] > 1 else "contents at 7")]
    assert it.written == [*(saves if new else []), ("interrupted", {})]


def test_after_a_failure_the_last_checkpoint_is_taken_without_the_others() -> None:
    scene, failure = Scene(), RunFailed("learner: no batch")
    with pytest.raises(RunFailed, match="learner: no batch"):
        scene.ending.end(scene.run, "failed", {}, None, failure)
    assert scene.written == [(7, "contents at 7 alone"), ("failed", {})]


def test_after_a_failure_none_is_taken_where_acting_has_to_be_paused_for_it() -> None:
    scene = Scene(paused=True)
    with pytest.raises(RunFailed):
        scene.ending.end(scene.run, "failed", {}, None, RunFailed("learner: no batch"))
    assert scene.written == [("failed", {})]


def test_a_checkpoint_that_cannot_be_taken_is_the_failure_and_in_the_summary() -> None:
    scene = Scene(broken=True)
    assert scene.ending.last_snapshot(scene.run) is None
    with pytest.raises(RunFailed, match="no device"):
        scene.ending.end(scene.run, "400 frames spent", {}, None, None)
    ((reason, _),) = scene.written
    assert reason.startswith("400 frames spent, and ") and "no device" in reason


def test_a_session_that_was_overtaken_writes_nothing() -> None:
    scene = Scene(overtaken="another session has begun")
    with pytest.raises(RunFailed, match="another session has begun"):
        scene.ending.end(scene.run, "400 frames spent", {}, None, None)
    assert not scene.written


def test_a_lost_host_that_blocks_the_run_ends_it(capfd: pytest.CaptureFixture[str]) -> None:
    scene = Scene()
    scene.ending.run = scene.run
    with pytest.raises(Quit):
        scene.lose(LOST)
    says = f"{LOST} (log: run/learner.log)"
    assert scene.written == [
        (7, "contents at 7 alone"),
        (f"failed: {says}", {"moment": "loss"}),
        "display closed",
    ]
    assert capfd.readouterr().err == f"seedbed: {says}\n"


def test_a_lost_host_ends_the_process_also_before_the_run_is_built() -> None:
    scene = Scene()
    with pytest.raises(Quit):
        scene.lose(LOST)
    assert scene.written == ["display closed"]


def test_a_run_that_is_not_blocked_ends_itself() -> None:
    scene = Scene()
    scene.ending.run = scene.run
    scene.ending.come_back()
    scene.lose(LOST)
    assert not scene.written
