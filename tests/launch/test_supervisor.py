"""The watch over the instances of a program; whole runs with faults are in tests/faults."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from harness import PATIENCE, PLACED, at_once, placed, until

from seedbed.architectures.program import Edge, Program, Role, Task
from seedbed.errors import RunFailed
from seedbed.faults import Fault
from seedbed.instances import Instance, Instances
from seedbed.launch import logs
from seedbed.launch import supervisor as module
from seedbed.launch.processes import Guard, ProcessInstance
from seedbed.launch.supervisor import Supervisor


class Dead:
    """An instance that ended, or lives if it has no fault."""

    log = "logs/actor-0.log"
    machine = "box"
    begun: float | None = 0.0

    def __init__(self, fault: Fault | None = None) -> None:
        self.fault = fault
        self.killed = self.asked = self.still = False

    def stopped(self) -> bool:
        return self.still

    def ended(self) -> Fault | None:
        return self.fault

    def ask_to_end(self) -> None:
        self.asked = True

    def kill(self) -> bool:
        self.killed = True
        return True

    def finish(self, seconds: float) -> None: ...


class FakeLauncher:
    """Starts what it is told to, and writes down what is asked of it."""

    def __init__(self, start: Callable[[int], Dead]) -> None:
        self._start = start
        self.tasks: list[Task] = []
        self.prepared: list[tuple[str, int, Any]] = []

    def address(self, role: Role, index: int) -> str:
        return f"{role.name}:{index}"

    def prepare(self, role: Role, index: int, contents: Any) -> None:
        self.prepared.append((role.name, index, contents))

    def folder(self, role: Role, index: int) -> str:
        return f"{role.name}/{index}"

    def standing(self, role: Role, index: int) -> str | None:
        return None

    def start(self, role: Role, task: Task) -> Instance:
        self.tasks.append(task)
        return self._start(task.index)

    def watch(self, on_loss: Callable[[str], None]) -> None:
        self.lose = on_loss

    def look_after(self) -> list[str]:
        return []

    listens: tuple[str, ...] = ()

    def close(self) -> None: ...


def program_of(**role: Any) -> Program:
    actor = Role("actor", **{"count": 1, "entry": "nowhere:run", "dials": (Edge("learner"),), **role})
    return Program((Role("learner", 1, silent_after=60.0), actor))


def supervisor_of(
    start: Callable[[int], Dead] = lambda index: Dead(),
    on_failure: Callable[[BaseException], None] = lambda error: None,
    note: Callable[[str], None] = lambda text: None,
    instances: dict[str, Instances] | None = None,
    program: Program | None = None,
) -> Supervisor:
    return Supervisor(
        program or program_of(restarts=1, silent_after=30.0),
        FakeLauncher(start),
        instances or {},
        run={"seed": 3},
        spec={},
        on_failure=on_failure,
        note=note,
        version=lambda: 7,
    )


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [1000.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    return now


def looked_at_by_hand(
    clock: list[float], owes: dict[int, float | None], silent_after: float, *, begins: bool = True
) -> tuple[Supervisor, Callable[[float], dict[int, float]]]:
    """A supervisor of three actors whose own thread is over, and those that are late some seconds after the start."""
    program = program_of(count=3, restarts=1, silent_after=silent_after, starts_within=100.0, patience=20.0)
    watch = supervisor_of(program=program, instances={"actor": Instances(owes=lambda: owes)})
    watch.start(program.after, ["here"])
    watch.stop([])
    watch._stopping.clear()
    watch._start_what_is_due()
    if begins:
        watch.begin()

    def late_at(seconds: float) -> dict[int, float]:
        clock[0] = watch._looked = 1000.0 + seconds
        return watch._late(program["actor"])

    return watch, late_at


@pytest.mark.parametrize(
    ("niceness", "platform", "wanted"), [(0, "gpu", 0), (7, "gpu", 7), (None, "cpu", 0), (None, "gpu", 20)]
)
def test_actors_leave_the_cores_to_the_head_of_an_accelerator(
    monkeypatch: pytest.MonkeyPatch, niceness: int | None, platform: str, wanted: int
) -> None:
    monkeypatch.setattr(module.jax, "default_backend", lambda: platform)
    watch = supervisor_of(program=program_of(count=1, niceness=niceness))
    watch.start(watch._program.after, ["here"])
    watch.stop([])
    watch._stopping.clear()
    watch._start_what_is_due()
    assert {task.niceness for task in watch._launcher.tasks} == {wanted}
    watch._launcher.listens = ("tcp:0",)  # others may stand on machines without the head
    assert watch._niceness(watch._program["actor"]) == (niceness or 0)


def test_what_a_launcher_has_lost_for_good_ends_the_run_with_its_reason() -> None:
    failures: list[BaseException] = []
    watch = supervisor_of(on_failure=failures.append)
    watch._launcher.lose("the cluster is gone")
    (failure,) = failures
    assert isinstance(failure, RunFailed) and str(failure) == "the cluster is gone"


def test_a_launcher_that_waits_for_lost_machines_does_not_hold_up_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "GRACE_SECONDS", 0.01)
    inside, over = threading.Event(), threading.Event()
    watch = supervisor_of()

    def look_after() -> list[str]:
        inside.set()
        over.wait(PATIENCE)
        return []

    watch._launcher.look_after = look_after
    watch.start(watch._program.after, ["here"])
    try:
        assert inside.wait(PATIENCE)
        at_once(watch.stop)
    finally:
        over.set()


def test_silence_is_counted_from_the_start_or_from_when_an_instance_was_heard_of_last(
    clock: list[float],
) -> None:
    owes: dict[int, float | None] = {}
    watch, late_at = looked_at_by_hand(clock, owes, silent_after=30.0, begins=False)

    assert late_at(999.0) == {}, "the head compiles"
    clock[0] = 1000.0
    watch.begin()
    assert late_at(119.0) == {}, "one that starts has two minutes to be ready"
    assert late_at(121.0) == {0: 121.0, 1: 121.0, 2: 121.0}
    owes.update({0: 1100.0, 1: 1085.0, 2: None})
    assert late_at(121.0) == {1: 36.0}, "one that owes nothing is never late"
    watch._watched["actor"][1].begun = 1121.0  # it was started again, and has not been heard of since
    assert late_at(125.0) == {}
    owes[1] = 1130.0
    assert late_at(159.0) == {0: 59.0}
    assert late_at(161.0) == {0: 61.0, 1: 31.0}
    watch._looked = clock[0] - 60.0  # Ctrl-Z, and fg a minute later
    assert watch._late(watch._program["actor"]) == {}, "a head that stood still itself blames nobody"


def test_one_that_waits_for_a_machine_is_not_late(clock: list[float]) -> None:
    owes: dict[int, float | None] = {}
    watch, late_at = looked_at_by_hand(clock, owes, silent_after=30.0)
    owes.update({0: 1001.0, 1: 1001.0})
    waiting, elsewhere = (watch._watched["actor"][index].instance for index in (0, 1))
    assert isinstance(waiting, Dead) and isinstance(elsewhere, Dead)
    waiting.begun, elsewhere.begun = None, 1400.0
    assert late_at(500.0) == {2: 500.0}, "1 has just begun on another machine"
    assert late_at(521.0) == {1: 121.0, 2: 521.0}


def test_one_that_the_head_no_longer_knows_owes_what_it_owed(clock: list[float]) -> None:
    """As an actor that stands still, whose conversation ends by the network's own keepalive."""
    owes: dict[int, float | None] = {}
    _, late_at = looked_at_by_hand(clock, owes, silent_after=20.0)

    owes.update({0: 1002.0, 1: 1004.0})
    assert late_at(5.0) == {}
    owes[1] = None
    assert late_at(6.0) == {}
    owes.clear()
    assert late_at(21.0) == {}
    assert late_at(23.0) == {0: 21.0}
    assert late_at(27.0) == {0: 25.0, 1: 21.0}, "the other one owed nothing when it was known last"
    assert late_at(119.0).keys() == {0, 1}, "one that was never known has its time to start"
    assert late_at(121.0).keys() == {0, 1, 2}


def test_one_that_is_not_ready_in_time_is_not_said_to_have_environments_that_hang(clock: list[float]) -> None:
    notes: list[str] = []
    program = program_of(restarts=2, silent_after=5.0, starts_within=60.0, late="a step took {seconds} s")
    watch = supervisor_of(note=notes.append, program=program, instances={"actor": Instances()})
    watch._to_start.put(program["actor"])
    watch._addresses["learner"] = ["here"]
    watch._start_what_is_due()
    watch.begin()
    clock[0] = watch._looked = 1065.0
    watch._watch()
    assert notes == []
    clock[0] = watch._looked = 1066.0
    watch._watch()
    (line,) = notes
    assert line.startswith("actor 0: it was not ready 66 s after its start") and "restart 1 of 2" in line


def test_a_role_of_which_the_head_says_nothing_is_not_watched_for_silence(clock: list[float]) -> None:
    program = program_of(restarts=1, silent_after=30.0)
    watch = supervisor_of(program=program)
    watch._to_start.put(program["actor"])
    watch._addresses["learner"] = ["here"]
    watch._start_what_is_due()
    clock[0] = watch._looked = 9000.0
    assert watch._late(program["actor"]) == {}


def test_an_instance_that_is_late_is_killed_and_started_again(clock: list[float]) -> None:
    begun: list[Dead] = []
    notes: list[str] = []

    def start(index: int) -> Dead:
        begun.append(Dead())
        return begun[-1]

    program = program_of(restarts=2, silent_after=30.0, late="no step for {seconds} s")
    owes = {0: 1000.5}
    watch = supervisor_of(
        start, note=notes.append, program=program, instances={"actor": Instances(owes=lambda: owes)}
    )
    watch._to_start.put(program["actor"])
    watch._addresses["learner"] = ["here"]
    watch._start_what_is_due()
    clock[0] = watch._looked = 1031.0
    watch._watch()
    assert [one.killed for one in begun] == [True, False]
    assert notes == ["actor 0: no step for 30 s; restart 1 of 2"]
    assert watch.restarts == 1


def started_by_hand(
    start: Callable[[int], Dead], notes: list[str], program: Program, owes: dict[int, float | None]
) -> Supervisor:
    """A supervisor whose thread never began, with its actors started and its head ready."""
    instances = {"actor": Instances(owes=lambda: owes)}
    watch = supervisor_of(start, note=notes.append, program=program, instances=instances)
    watch._to_start.put(program["actor"])
    watch._addresses["learner"] = ["here"]
    watch._start_what_is_due()
    watch.begin()
    return watch


@pytest.mark.parametrize("ready", [True, False])
def test_one_whose_process_is_stopped_is_not_waited_for(ready: bool, clock: list[float]) -> None:
    """A slow environment has its time; a process that is stopped has 20 s, also before it is ready."""
    begun: list[Dead] = []
    notes: list[str] = []

    def start(index: int) -> Dead:
        begun.append(Dead())
        return begun[-1]

    program = program_of(count=2, restarts=2, silent_after=60.0, starts_within=100.0)
    owes: dict[int, float | None] = {0: 1000.5, 1: 1000.5} if ready else {}
    watch = started_by_hand(start, notes, program, owes)
    begun[1].still = True
    for now, restarts in ((1020.0, 0), (1021.0, 1)):
        clock[0] = watch._looked = now
        watch._watch()
        assert watch.restarts == restarts
    assert [one.killed for one in begun] == [False, True, False]
    assert notes[0].startswith("actor 1: its process was stopped by a signal, and has owed something for 2")


def test_the_standing_tells_the_machine_of_each_instance_and_of_those_that_came_by_themselves() -> None:
    joined = {4: "10.0.0.7", 3: "127.0.0.1", 2: "", 1: "box"}
    known = Instances(owes=lambda: {0: None}, elsewhere=lambda: joined)
    program = program_of(count=1, guests=1)
    watch = supervisor_of(program=program, instances={"actor": known})
    watch.start(program.after, ["here"])
    watch.stop([])
    watch._stopping.clear()
    watch._start_what_is_due()
    told, here = watch.standing(), socket.gethostname()
    assert [(each["index"], each["machine"], each["state"]) for each in told] == [
        *[(0, "box", "running"), (1, "box", "running")],
        *[(2, here, "running"), (3, here, "running"), (4, "10.0.0.7", "running")],
    ], "a guest of the run that has joined is told once"


def test_a_guest_that_ends_comes_again_and_again_and_later_each_time(clock: list[float]) -> None:
    begun: dict[int, list[Dead]] = {0: [], 1: [], 2: []}
    notes: list[str] = []

    def start(index: int) -> Dead:
        begun[index].append(Dead())
        return begun[index][-1]

    program = program_of(count=1, guests=2, restarts=0, silent_after=30.0)
    owes: dict[int, float | None] = {}
    watch = started_by_hand(start, notes, program, owes)
    owes |= {0: None, 2: None}

    def look(seconds: float) -> list[int]:
        clock[0] = watch._looked = clock[0] + seconds
        watch._watch()
        return [len(begun[index]) for index in (0, 1, 2)]

    assert look(0.0) == [1, 1, 1]
    for pause in (1, 2, 4, 8, 16, 32, 60, 60):
        begun[1][-1].fault = Fault("killed by signal 9")
        starts = look(1.0)
        assert [each["state"] == "away" for each in watch.standing()] == [False, True, False]
        assert look(pause - 0.1) == starts, "it does not come at once"
        assert look(0.2) == [1, starts[1] + 1, 1]
        assert watch._watched["actor"][1].pause == pause
    assert notes == ["guest actor 1: killed by signal 9; it comes again in 1 s"], "said once"
    owes[1] = None
    look(100.0)
    begun[1][-1].fault = Fault("ended with status 0")
    look(1.0)
    assert notes[1:] == ["guest actor 1: ended with status 0; it comes again in 1 s"]
    owes[2] = clock[0]
    look(31.0)
    assert begun[2][0].killed and notes[2].startswith("guest actor 2: it gave no sign of life for 31 s")
    assert watch.restarts == 0, "guests cost no restarts, and have no bound on them"
    begun[0][0].fault = Fault("killed by signal 9")
    with pytest.raises(RunFailed, match="actor 0: killed by signal 9"):
        look(1.0)


def test_a_head_that_does_not_come_round_is_told_once(clock: list[float]) -> None:
    notes: list[str] = []
    watch = supervisor_of(note=notes.append)
    clock[0] += 500.0
    watch._watch()
    assert notes == [], "it has not begun"
    watch.seen()
    for seconds in (59.0, 2.0, 60.0):
        clock[0] += seconds
        watch._watch()
    (line,) = notes
    assert line.startswith("the learner has made no update and waited for no batch for 61 s")


def test_roles_are_told_where_the_others_are_and_what_they_begin_with() -> None:
    shard = Role("shard", 2, entry="nowhere:shard", listens=True)
    head = Role("head", 1, dials=(Edge("shard"),))
    worker = Role("worker", 1, entry="nowhere:work", dials=(Edge("shard"), Edge("head")), patience=7.0)
    program = Program((shard, head, worker), head="head")
    watch = supervisor_of(
        program=program, instances={"shard": Instances(begins=lambda index: f"part {index}")}
    )
    launcher: Any = watch._launcher
    assert watch.start(program.before) == {"shard": ["shard:0", "shard:1"]}
    watch.start(program.after, ["here"])
    watch.stop([])
    watch._stopping.clear()
    watch._start_what_is_due()
    assert launcher.prepared == [("shard", 0, "part 0"), ("shard", 1, "part 1")]
    tasks = {(task.role, task.index): task for task in launcher.tasks}
    assert tasks["shard", 1].listens == "shard:1" and tasks["shard", 1].dials == {}
    last = tasks["worker", 0]
    assert last.dials == {"shard": ["shard:0", "shard:1"], "head": ["here"]}
    assert (last.listens, last.patience, last.run, last.folder) == (None, 7.0, {"seed": 3}, "worker/0")
    watch.stop()
    # A worker hears it by its connections; nobody closes a shard's.
    asked = {name: [one.instance.asked for one in each.values()] for name, each in watch._watched.items()}
    assert asked == {"shard": [True, True], "head": [], "worker": [False]}


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
    program = program_of(restarts=3)
    supervisor = supervisor_of(start, fail, notes.append, program=program)
    supervisor.start(program.after, ["here"])
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


def lives(process: int) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        return psutil.Process(process).status() != psutil.STATUS_ZOMBIE
    return False


def test_a_guard_that_was_killed_is_replaced_and_knows_what_there_is(tmp_path: Path) -> None:
    program = "from seedbed.launch.processes import Guard\nimport subprocess\n" + KILLED_TWICE
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as head:
        assert head.stdout is not None
        before, sleeper, guard = map(int, head.stdout.readline().split())
        assert before != guard
        assert lives(sleeper)
        head.kill()
    until(lambda: not lives(sleeper), "the second guard to end what the first was told of")
    until(lambda: not lives(guard), "its end")


KILLED_TWICE = """
guard = Guard()
sleeper = guard.start(["sleep", "86396"], stdout=subprocess.DEVNULL)
gone = guard.start(["true"], stdout=subprocess.DEVNULL)
gone.wait()
guard.forget(gone.pid)
first = guard._process
guard.look_after()
assert guard._process is first, "it lives"
first.kill()
first.wait()
guard.forget(gone.pid)
guard.look_after()
print(first.pid, sleeper.pid, guard._process.pid, flush=True)
sleeper.wait()
"""


def test_a_guard_apart_is_nobodys_child_and_outlives_whoever_kills_children(tmp_path: Path) -> None:
    """An engine kills the children of a worker that it has lost, and the worker itself."""
    with subprocess.Popen([sys.executable, "-c", APART], stdout=subprocess.PIPE, text=True) as worker:
        assert worker.stdout is not None
        first, second, sleeper = map(int, worker.stdout.readline().split())
        assert not lives(first) and lives(second) and lives(sleeper)
        children = psutil.Process(worker.pid).children(recursive=True)
        assert second not in [child.pid for child in children]
        group = os.getpgid(sleeper)
        worker.kill()
        for child in children:
            if child.pid != group:  # the leader; what it has started stays
                child.kill()
    until(lambda: not lives(sleeper), "the guard to end what a child had started")
    until(lambda: not lives(second), "its end")


APART = """
from seedbed.launch.processes import Guard
import os, psutil, subprocess, sys
def guards():
    return {p.pid for p in psutil.process_iter(["cmdline", "environ"])
            if any(word.endswith("guard.py") for word in p.info["cmdline"] or ())
            and (p.info["environ"] or {}).get("MARK") == os.environ["MARK"]}
os.environ["MARK"] = str(os.getpid())
guard = Guard(apart=True)
shell = guard.start(["sh", "-c", "sleep 86394 & echo $!; wait"], stdout=subprocess.PIPE, text=True)
sleeper = int(shell.stdout.readline())
(first,) = guards()
psutil.Process(first).kill()
while psutil.pid_exists(first) and psutil.Process(first).status() != psutil.STATUS_ZOMBIE:
    pass
guard.look_after()
second = max(guards() - {first})
print(first, second, sleeper, flush=True)
shell.wait()
"""


def test_a_guard_that_stands_still_holds_up_no_end() -> None:
    guard = Guard(grace=0.05)
    sleeper = guard.start(["sleep", "86395"])
    os.kill(guard._process.pid, signal.SIGSTOP)
    guard.close()
    assert sleeper.wait(20) == -signal.SIGKILL


def test_a_launcher_looks_after_its_guard_and_its_logs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "printing.py").write_text("print('first'); print('x' * 99, flush=True)\nraise SystemExit(4)")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setattr(logs, "MOST_BYTES", 400)
    monkeypatch.setattr(logs, "_KEPT", 100)
    with contextlib.closing(Guard()) as guard:
        log = tmp_path / "logs" / "actor-0.log"
        log.parent.mkdir()
        log.write_text("of one before\n" * 40)
        actor = ProcessInstance(["printing"], log, guard)
        actor._process.wait(60)
        actor.look_after()
        assert log.stat().st_size < 400 and log.read_text().startswith("of one before\n")
        assert str(actor.ended()) == f"ended with status 4; its last line: {'x' * 99}"


def test_an_instance_starts_without_a_log_if_there_can_be_none(
    guard: Guard, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "ending.py").write_text("print('unheard'); raise SystemExit(4)")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    (tmp_path / "logs").write_text("no folder")
    actor = ProcessInstance(["ending"], tmp_path / "logs" / "actor-0.log", guard)
    actor._process.wait(60)
    assert str(actor.ended()) == "ended with status 4"


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
    (
        r"import os; os.write(2, b'\xff is no letter\n'); os._exit(3)",
        "ended with status 3; its last line: \ufffd is no letter",
    ),
]


@pytest.mark.parametrize(("program", "said"), ENDINGS)
def test_why_a_process_ended(
    program: str, said: str, guard: Guard, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "ending.py").write_text(program)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    log = tmp_path / "actor-0.log"
    actor = ProcessInstance(["ending"], log, guard)
    actor._process.wait(60)
    assert str(actor.ended()) == said
    actor.finish(1)
    assert sorted(path.name for path in tmp_path.iterdir() if path.is_file()) == ["actor-0.log", "ending.py"]


def test_a_process_that_is_stopped_is_seen_to_be(
    guard: Guard, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "waiting.py").write_text("import signal; signal.pause()")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    actor = ProcessInstance(["waiting"], tmp_path / "actor-0.log", guard)
    try:
        for sent, stopped in ((signal.SIGSTOP, True), (signal.SIGCONT, False)):
            assert actor.stopped() is not stopped
            os.kill(actor._process.pid, sent)
            until(lambda stopped=stopped: actor.stopped() is stopped, f"{sent.name} to be seen")
    finally:
        actor.finish(0)
    assert not actor.stopped(), "it is gone"


@pytest.mark.parametrize("kind", PLACED)
def test_a_log_that_is_no_file_is_refused_at_once(kind: str, guard: Guard, tmp_path: Path) -> None:
    placed(kind, tmp_path / "actor-0.log")
    with pytest.raises(OSError, match=PLACED[kind]):
        at_once(lambda: ProcessInstance(["seedbed.nothing"], tmp_path / "actor-0.log", guard))
    assert kind != "link" or (tmp_path / "aim").read_text() == "mine"


def test_the_fault_of_the_one_before_is_not_taken_for_its_own(
    guard: Guard, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "first.py").write_text(LEAVES)
    (tmp_path / "second.py").write_text("raise SystemExit(4)")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    log = tmp_path / "actor-0.log"
    ended = []
    for name in ("first", "second"):
        actor = ProcessInstance([name], log, guard)
        actor._process.wait(60)
        ended.append(str(actor.ended()))
    assert ended == ["ValueError: the engine has stalled", "ended with status 4"]
