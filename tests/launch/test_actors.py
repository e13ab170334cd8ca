"""The watch over a run's own actors; whole runs with faults are in tests/faults."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from seedbed.errors import RunFailed
from seedbed.faults import Fault
from seedbed.launch.actors import Actor, Guard, ProcessActor, Supervisor


def supervisor_of(
    start: Callable[[int], Actor] = lambda index: None,  # type: ignore[assignment,return-value]
    on_failure: Callable[[BaseException], None] = lambda error: None,
    note: Callable[[str], None] = lambda text: None,
    most_restarts: int = 1,
) -> Supervisor:
    return Supervisor(
        start,
        1,
        stalled=lambda: {0: 99.0},
        most_restarts=most_restarts,
        restart=True,
        on_failure=on_failure,
        note=note,
    )


def test_a_learner_that_stood_still_itself_blames_nobody() -> None:
    supervisor = supervisor_of()
    assert supervisor._look() == {0: 99.0}
    supervisor._looked -= 60.0  # Ctrl-Z, and fg a minute later
    assert supervisor._look() == {}
    assert supervisor._look() == {0: 99.0}


class Dead:
    """An actor that ended."""

    log = "logs/actor-0.log"

    def __init__(self, fault: Fault) -> None:
        self._fault = fault

    def ended(self) -> Fault | None:
        return self._fault

    def ask_to_end(self) -> None: ...

    def kill(self) -> bool:
        return True

    def finish(self, seconds: float) -> None: ...


def stalled_at(step: int | None) -> Fault:
    return Fault("ValueError: the engine has stalled", "EnvironmentFault", "engine.py", 7, step)


@pytest.mark.parametrize(
    ("deaths", "starts", "words"),
    [
        # The third one of those that are all alike is not begun.
        (
            [stalled_at(50)] * 9,
            2,
            "it was the same before its restart, so that another one would come to the same",
        ),
        ([stalled_at(50), stalled_at(51), stalled_at(51)], 3, "it was the same before its restart"),
        ([stalled_at(step) for step in range(9)], 4, "it was restarted 3 times already"),
        ([Fault("killed by signal 9")] * 9, 4, "it was restarted 3 times already"),
        ([stalled_at(None)] * 9, 4, "it was restarted 3 times already"),
    ],
)
def test_a_fault_that_repeats_at_the_same_step_ends_the_run(
    deaths: list[Fault], starts: int, words: str
) -> None:
    begun: list[Dead] = []
    failed: list[BaseException] = []
    over = threading.Event()

    def start(index: int) -> Dead:
        begun.append(Dead(deaths[len(begun)]))
        return begun[-1]

    def fail(error: BaseException) -> None:
        failed.append(error)
        over.set()

    notes: list[str] = []
    supervisor = supervisor_of(start, fail, notes.append, most_restarts=3)
    supervisor.start()
    assert over.wait(60)
    supervisor.stop()
    (error,) = failed
    assert isinstance(error, RunFailed)
    assert words in str(error)
    assert str(error).startswith(f"actor 0: {deaths[starts - 1]} (log: logs/actor-0.log); ")
    assert len(begun) == starts
    assert notes == [f"actor 0: {deaths[n]}; restart {n + 1} of 3" for n in range(starts - 1)]


@pytest.fixture
def guard() -> Iterator[Guard]:
    with contextlib.closing(Guard()) as guard:
        yield guard


FAREWELL = "import atexit; atexit.register(print, 'Thank you for flying with us.', flush=True)\n"
LEAVES = """
from seedbed import faults
try:
    raise ValueError("the engine has stalled")
except ValueError as error:
    raise SystemExit(faults.leave(error))
"""
ENDINGS = [
    (FAREWELL + LEAVES, "ValueError: the engine has stalled"),
    (FAREWELL + "raise SystemExit(4)", "ended with status 4; its last line: Thank you for flying with us."),
    ("import os; os._exit(0)", "ended with status 0"),
    ("import os; os.kill(os.getpid(), 9)", "killed by signal 9"),
]


@pytest.mark.parametrize(("program", "said"), ENDINGS)
def test_why_a_process_ended(
    program: str, said: str, guard: Guard, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "ending.py").write_text(program)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    log = tmp_path / "actor-0.log"
    actor = ProcessActor(["ending"], "", log, guard)
    actor._process.wait(60)
    assert str(actor.ended()) == said
    actor.finish(1)
    assert sorted(path.name for path in tmp_path.iterdir() if path.is_file()) == ["actor-0.log", "ending.py"]


def test_the_fault_of_the_one_before_is_not_taken_for_its_own(
    guard: Guard, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "first.py").write_text(LEAVES)
    (tmp_path / "second.py").write_text("raise SystemExit(4)")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    log = tmp_path / "actor-0.log"
    ended = []
    for module in ("first", "second"):
        actor = ProcessActor([module], "", log, guard)
        actor._process.wait(60)
        ended.append(str(actor.ended()))
    assert ended == ["ValueError: the engine has stalled", "ended with status 4"]
