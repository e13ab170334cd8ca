"""Bundles: what the engine's process on a machine does, and what the driver makes of its reports; without an engine."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from concurrent.futures import Future, wait
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import psutil
import pytest
from harness import PATIENCE, alive, at_once, until

from seedbed.architectures.program import Edge, Resources, Role, Task
from seedbed.faults import Fault
from seedbed.instances import GRACE_SECONDS
from seedbed.launch import bundle as module
from seedbed.launch import cluster
from seedbed.launch.bundle import Bundle, Plan, Report
from seedbed.launch.cluster import ClusterLauncher, PlacedInstance, Progress, _Held, bundle_size
from seedbed.launch.folder import RunFolder
from seedbed.launch.launcher import LAUNCHERS, launcher_on
from seedbed.transport.admission import Invitation

TOKEN = "0123456789abcdef"
WAITING = "import time\ndef run(context): print(context.task.dials, flush=True); time.sleep(86_393)"


def task(index: int, entry: str = "waiting:run") -> Task:
    return Task("actor", index, entry, {}, {}, {"learner": ["shm:/here"]})


@pytest.fixture
def plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Plan:
    (tmp_path / "waiting.py").write_text(WAITING)
    (tmp_path / "ending.py").write_text("def run(context): raise ValueError(f'number {context.task.index}')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    (tmp_path / "run" / "logs").mkdir(parents=True)
    (tmp_path / "run" / "token").write_text(TOKEN + "\n")
    monkeypatch.setattr(module, "runtime_folder", lambda: tmp_path)
    monkeypatch.setenv("OMP_NUM_THREADS", "7")  # as the engine does
    monkeypatch.chdir("/")
    return Plan(
        (replace(task(4), niceness=4), task(5, "ending:run")),
        {"learner": ["learner.example:7700"]},
        "node of the head",
        Invitation(TOKEN),
        "claimed here",
        str(tmp_path / "run"),
        str(tmp_path),
        {"OMP_NUM_THREADS": None},
        os.getpriority(os.PRIO_PROCESS, 0) + 3,
        GRACE_SECONDS,
    )


def faults(bundle: Bundle) -> dict[int, str | None]:
    return {index: fault and fault.text for index, (_, fault) in bundle.report().lives.items()}


def test_a_bundle_starts_all_reports_ends_and_leaves_nothing(plan: Plan, tmp_path: Path) -> None:
    with closing(Bundle(plan, "another node")) as bundle:
        assert Path.cwd() == tmp_path
        first = bundle._processes[4].pid
        until(lambda: faults(bundle)[5], "the end of 5")
        assert faults(bundle) == {4: None, 5: "ValueError: number 5"}
        until(lambda: b"learner.example" in bundle.tail(4), "what 4 prints")
        assert bundle.report().shares_folder
        assert (tmp_path / "run" / "logs" / "actor-4.log").exists()
        assert "OMP_NUM_THREADS" not in psutil.Process(first).environ()
        assert psutil.Process(first).nice() == min(
            19, os.getpriority(os.PRIO_PROCESS, 0) + 3 + 4
        )  # it has printed
        life = bundle.report().lives[4][0]
        for late in (bundle.start, bundle.kill, bundle.ask_to_end):
            late(4, "of a process before")
        assert bundle.report().lives[4] == (life, None) and alive(psutil.Process(first))
        bundle.kill(4, life)
        until(lambda: faults(bundle)[4] == "killed by signal 9", "the end of 4")
        bundle.start(4, life)
        bundle.start(4, life)  # once more, by mistake
        assert bundle.report().lives[4][0] != life
        second = psutil.Process(bundle._processes[4].pid)
        assert alive(second)
    assert not alive(second)
    bundle.kill(4, life)
    bundle.start(4, life)
    assert bundle.report().lives == {}


@pytest.mark.parametrize(
    ("node", "dialled"), [("node of the head", "shm:/here"), ("another", "learner.example:7700")]
)
def test_the_network_is_for_other_machines(node: str, dialled: str, plan: Plan) -> None:
    assert [each.dials for each in plan.on(node)] == [{"learner": [dialled]}] * 2


def test_secrets_are_not_shown(plan: Plan) -> None:
    assert TOKEN not in repr(plan) and "claimed here" not in repr(plan)


def test_a_machine_without_the_run_folder_keeps_logs_until_they_are_fetched(
    plan: Plan, tmp_path: Path
) -> None:
    (tmp_path / "run" / "token").write_text("of another run")
    with closing(Bundle(replace(plan, tasks=(task(5, "ending:run"),)), "another node")) as bundle:
        until(lambda: faults(bundle)[5], "its end")
        assert not bundle.report().shares_folder
        assert b"ValueError: number 5" in bundle.tail(5)
        (scratch,) = tmp_path.glob("claimed -*")
        assert scratch.stat().st_mode & 0o777 == 0o700
    assert not scratch.exists()
    assert not list((tmp_path / "run" / "logs").iterdir())


# -- what the driver makes of reports --------------------------------------------------------------------------


class Died(Exception):
    """As the engine says it."""


class Engine:
    """Calls are futures that a test fulfils."""

    exceptions = SimpleNamespace(ActorDiedError=Died, RayError=Exception)

    def __init__(self) -> None:
        self.calls: list[tuple[str, tuple[Any, ...], Future[Any]]] = []

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)

        def remote(*arguments: Any) -> Future[Any]:
            self.calls.append((name, arguments, Future()))
            return self.calls[-1][2]

        return SimpleNamespace(remote=remote)

    def wait(self, calls: list[Future[Any]], timeout: float) -> tuple[list[Any], list[Any]]:
        done, rest = wait(calls, timeout)
        return list(done), list(rest)

    def get(self, call: Future[Any]) -> Any:
        return call.result(0)

    def answer(self, what: Any) -> None:
        """Answers the last call for a report, and has the driver hear it."""
        (*_, call) = [call for name, _, call in self.calls if name == "report"]
        if isinstance(what, Exception):
            call.set_exception(what)
        else:
            call.set_result(Report("machine", True, what))

    def told(self) -> list[tuple[str, tuple[Any, ...]]]:
        return [(name, arguments) for name, arguments, _ in self.calls if name != "report"]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [1000.0]
    monkeypatch.setattr(cluster.time, "monotonic", lambda: now[0])
    return now


@pytest.fixture
def held(clock: list[float]) -> Iterator[tuple[_Held, Engine, list[float]]]:
    engine = Engine()
    role = Role("actor", 2, "nowhere:run", dials=(Edge("learner"),), restarts=3)
    bundle = _Held(engine, role, {4: task(4), 5: task(5)}, threading.RLock())
    bundle.handle = engine
    bundle.instances = {index: PlacedInstance(bundle, index, f"actor-{index}.log") for index in (4, 5)}
    yield bundle, engine, clock


def hear(held: _Held, engine: Engine, clock: list[float], what: Any) -> None:
    clock[0] += 1.0
    held.look()
    engine.answer(what)
    held.look()


def test_an_instance_begins_when_it_is_placed_and_again_where_it_is_placed_again(
    held: tuple[_Held, Engine, list[float]],
) -> None:
    bundle, engine, clock = held
    bundle.look()
    assert not bundle.placed and bundle.instances[4].begun is None
    hear(bundle, engine, clock, {4: ("a.0", None), 5: ("a.1", None)})
    assert bundle.placed and bundle.instances[4].begun == clock[0]
    begun = clock[0]
    hear(bundle, engine, clock, {4: ("a.0", None), 5: ("a.1", None)})
    assert bundle.instances[4].begun == begun
    clock[0] += 1.0
    bundle.look()
    clock[0] += 4.0
    bundle.look()
    assert not bundle.placed, "nothing has come for four seconds: its machine may be gone"
    assert bundle.instances[4].begun is None and bundle.instances[4].ended() is None
    engine.answer({4: ("b.0", None), 5: ("b.1", None)})
    bundle.look()
    assert bundle.placed and bundle.instances[5].begun == clock[0] and bundle.instances[5].life == "b.1"
    assert engine.told() == []


def test_a_replacement_takes_no_word_of_its_predecessor_for_its_own(
    held: tuple[_Held, Engine, list[float]],
) -> None:
    bundle, engine, clock = held
    fault = Fault("killed by signal 9")
    hear(bundle, engine, clock, {4: ("a.0", fault), 5: ("a.1", None)})
    assert bundle.instances[4].ended() == fault
    bundle.instances[4] = PlacedInstance(bundle, 4, "actor-4.log", "a.0")
    hear(bundle, engine, clock, {4: ("a.0", fault), 5: ("a.1", None)})
    assert bundle.instances[4].ended() is None and bundle.instances[4].begun is None
    assert engine.told() == [("start", (4, "a.0"))], "the command has been lost, so it is given again"
    hear(bundle, engine, clock, {4: ("a.2", None), 5: ("a.1", None)})
    assert bundle.instances[4].life == "a.2"
    bundle.instances[4].kill()
    assert engine.told()[-1] == ("kill", (4, "a.2"))


def test_a_bundle_that_the_engine_gives_up_is_the_end_of_all_in_it(
    held: tuple[_Held, Engine, list[float]],
) -> None:
    bundle, engine, clock = held
    hear(bundle, engine, clock, {4: ("a.0", None), 5: ("a.1", None)})
    hear(bundle, engine, clock, Died("while it is begun anew"))
    hear(bundle, engine, clock, {4: ("b.0", None), 5: ("b.1", None)})
    assert bundle.instances[4].ended() is None
    for _ in range(3):
        hear(bundle, engine, clock, Died("the constructor\n  raised"))
    assert str(bundle.instances[5].ended()) == "its place on the cluster is gone: the constructor raised"
    assert bundle.dead


def test_progress_is_said_at_once_when_all_are_there_and_else_when_nothing_changes() -> None:
    now = [0.0]
    progress = Progress(lambda: now[0])

    def at(seconds: float, placed: int) -> str | None:
        now[0] = seconds
        return progress.line(Role("actor", 64), placed)

    assert [at(0, 0), at(1, 8), at(2, 16), at(4, 61), at(8.9, 61)] == [None] * 5
    assert at(9, 61) == "actors 61 of 64 placed (3 wait for machines)"
    assert at(30, 61) is None
    assert at(31, 63) is None
    assert at(32, 64) == "actors 64 of 64 placed"
    assert at(40, 63) is None
    assert at(45, 63) == "actors 63 of 64 placed (1 waits for machines)"
    assert at(46, 64) == "actors 64 of 64 placed"


@pytest.mark.parametrize(
    ("actors", "placed", "line"),
    [
        (2, (2, 1), "actors 2 of 2 and 1 of 3 guests placed (2 wait for machines)"),
        (2, (0, 2), "actors 0 of 2 and 2 of 3 guests placed (3 wait for machines)"),
        (2, (2, 3), "actors 2 of 2 and 3 of 3 guests placed"),
        (0, (0, 2), "2 of 3 guests placed (1 waits for machines)"),
    ],
)
def test_progress_tells_guests_from_the_others(actors: int, placed: tuple[int, int], line: str) -> None:
    now = [0.0]
    progress = Progress(lambda: now[0])
    role = Role("actor", actors, guests=3)
    first = progress.line(role, *placed)
    assert first == (None if "wait" in line else line)
    now[0] = 5.0
    assert (first or progress.line(role, *placed)) == line


class Seekers:
    """An engine that finds no machine: it notes for which bundles it seeks one, and which it was told to forget."""

    exceptions = Engine.exceptions

    def __init__(self) -> None:
        self.sought: list[tuple[list[int], float]] = []
        self.forgotten: list[Any] = []

    def remote(self, kind: type[Bundle]) -> Any:
        assert kind is Bundle
        return self

    def options(self, *, num_cpus: float, **_: Any) -> Any:
        def remote(plan: Plan) -> Engine:
            self.sought.append(([task.index for task in plan.tasks], num_cpus))
            return Engine()

        return SimpleNamespace(remote=remote)

    def nodes(self) -> list[dict[str, Any]]:
        return [{"Alive": True, "Resources": {"CPU": 4.0}}]

    def wait(self, calls: list[Any], **_: Any) -> tuple[list[Any], list[Any]]:
        return [], calls

    def kill(self, handle: Any, *, no_restart: bool) -> None:
        assert no_restart
        self.forgotten.append(handle)

    def get_runtime_context(self) -> Any:
        return SimpleNamespace(get_node_id=lambda: "node of the head")


@pytest.fixture
def launcher(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[tuple[ClusterLauncher, Seekers]]:
    engine = Seekers()
    monkeypatch.setattr(cluster, "connected", lambda: (engine, False))
    made = ClusterLauncher(RunFolder(tmp_path / "run"), "shm")
    made.meet(Invitation(TOKEN), "claimed here", ())
    made.reach_head(["learner.example:7700"])
    yield made, engine
    made.close()


def test_a_guest_asks_for_a_core_alone_after_the_others_and_is_forgotten_at_the_end(
    launcher: tuple[ClusterLauncher, Seekers],
) -> None:
    driver, engine = launcher
    role = Role("actor", 6, dials=(Edge("learner"),), restarts=3, guests=2)
    instances = [driver.start(role, task(index)) for index in range(8)]
    assert engine.sought == [([0, 1, 2, 3], 4.0), ([4, 5], 2.0), ([6], 1.0), ([7], 1.0)]
    assert driver.look_after() == []
    for instance in instances:
        at_once(partial(instance.finish, 86_400.0))  # nobody waits for what is on no machine
    driver.close()
    assert len(engine.forgotten) == 4


@pytest.fixture
def left(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The engines of which a process has not taken its leave."""
    found: list[Any] = []
    monkeypatch.setattr(cluster, "end_without_ray", found.append)
    return found


def test_an_engine_whose_head_is_lost_is_asked_to_forget_nothing_and_left_without_a_leave(
    launcher: tuple[ClusterLauncher, Seekers], left: list[Any]
) -> None:
    driver, engine = launcher
    driver.start(Role("actor", 1, dials=(Edge("learner"),), restarts=3), task(0))
    driver._watch.lost = "the head is gone"
    driver.close()
    assert (engine.forgotten, left) == ([], [engine])


def test_an_engine_that_fails_at_the_end_is_left_without_a_leave_and_the_run_is_not_told(
    launcher: tuple[ClusterLauncher, Seekers], left: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    driver, engine = launcher
    driver.start(Role("actor", 1, dials=(Edge("learner"),), restarts=3), task(0))
    monkeypatch.setattr(engine, "kill", Mock(side_effect=RuntimeError("no head")), raising=False)
    driver.close()
    assert left == [engine]


def test_an_instance_is_finished_while_the_launcher_waits_for_its_engine(
    held: tuple[_Held, Engine, list[float]],
) -> None:
    bundle, engine, clock = held
    hear(bundle, engine, clock, {4: ("a.0", None), 5: ("a.1", None)})
    taken, over = threading.Event(), threading.Event()

    def waits() -> None:
        with bundle.lock:
            taken.set()
            over.wait(PATIENCE)

    thread = threading.Thread(target=waits, daemon=True)
    thread.start()
    try:
        assert taken.wait(PATIENCE)
        at_once(partial(bundle.look, 0.01))
        assert [name for name, _ in engine.told()] == []
    finally:
        over.set()
        thread.join(PATIENCE)


def test_an_engine_that_does_not_answer_at_the_end_is_left_after_a_while(
    launcher: tuple[ClusterLauncher, Seekers], left: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster, "_LEAVE_SECONDS", 0.01)
    driver, engine = launcher
    driver.start(Role("actor", 1, dials=(Edge("learner"),), restarts=3), task(0))
    over = threading.Event()
    monkeypatch.setattr(engine, "kill", lambda *_, **__: over.wait(PATIENCE), raising=False)
    driver.close()
    over.set()
    assert left == [engine]


@pytest.mark.parametrize(
    ("head", "platforms", "each"),
    [
        ({"CPU": 4.0, "GPU": 2.0}, None, {"CPU": 3.0, "GPU": 2.0}),
        ({"CPU": 4.0, "GPU": 2.0}, "cpu", {"CPU": 3.0}),
        ({"CPU": 2.0}, None, {"CPU": 2.0}),
        ({}, None, {"CPU": 3.0}),
    ],
)
def test_hosts_ask_for_machines_like_the_heads_together_and_for_none_that_is_the_heads(
    head: dict[str, float],
    platforms: str | None,
    each: dict[str, float],
    launcher: tuple[ClusterLauncher, Seekers],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    driver, engine = launcher
    asked: list[Any] = []
    removed: list[Any] = []
    options: list[dict[str, Any]] = []

    def ask(bundles: list[dict[str, float]], **how: Any) -> str:
        asked.append((bundles, how))
        return "group"

    def remote(plan: Plan) -> Engine:
        assert plan.trains and plan.grace == 60.0 and plan.variables["JAX_PLATFORMS"] == platforms
        return Engine()

    engine.util = SimpleNamespace(placement_group=ask, remove_placement_group=removed.append)  # type: ignore[attr-defined]
    engine.nodes = lambda: [{"NodeID": "node of the head", "Resources": head}]  # type: ignore[method-assign]
    engine.options = lambda **given: options.append(given) or SimpleNamespace(remote=remote)  # type: ignore[method-assign]
    placed = SimpleNamespace(PlacementGroupSchedulingStrategy=lambda group, **where: (group, where))
    monkeypatch.setattr(cluster, "import_module", lambda name: placed)
    monkeypatch.setenv("JAX_PLATFORMS", platforms) if platforms else monkeypatch.delenv(
        "JAX_PLATFORMS", raising=False
    )
    role = Role("host", 2, needs=Resources(3.0), dials=(Edge("learner"),), grace=60.0, has_machine=True)
    for index in (1, 2):
        driver.start(role, task(index))
    elsewhere = {"bundle_label_selector": [{"ray.io/node-id": "!node of the head"}] * 2}
    assert asked == [([each, each], {"strategy": "STRICT_SPREAD", **elsewhere})]
    wanted = {"num_cpus": each["CPU"], "num_gpus": each.get("GPU", 0.0)}
    for number, given in enumerate(options):
        assert given["scheduling_strategy"] == ("group", {"placement_group_bundle_index": number})
        assert given["max_restarts"] == 0 and given | wanted == given
    for held in driver._bundles:
        held.placed = True
    assert driver._placed(role) == (2, 0), "none is a guest, though hosts count from 1"
    driver.close()
    assert removed == ["group"]


def test_every_place_has_a_launcher_that_is_loaded_when_it_is_named() -> None:
    from typing import get_args, get_type_hints

    from seedbed.config.placement import RemoteSettings

    assert get_args(get_type_hints(RemoteSettings)["on"]) == tuple(LAUNCHERS)
    assert [launcher_on(place).__name__ for place in LAUNCHERS] == ["LocalLauncher", "ClusterLauncher"]  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("room", "count", "size"),
    [
        ([12, 12], 24, 6),
        ([36, 36], 72, 6),
        ([10, 10, 10], 30, 5),
        ([8, 4, 4], 16, 4),
        ([8, 8], 16, 8),
        ([0, 16], 16, 8),
        ([7, 5], 12, 1),
        ([64], 3, 2),
        ([1, 1], 8, 1),
        ([], 4, 1),
        ([0], 4, 1),
    ],
)
def test_bundles_fill_every_machine(room: list[int], count: int, size: int) -> None:
    assert bundle_size(room, count) == size
    if count == sum(room):
        assert sum(each // size for each in room) == -(-count // size), "all of them are placed"


def test_bundles_of_two_runs_at_one_path_of_two_machines_have_different_names() -> None:
    """Names are the cluster's; disks are the machines' own."""
    one, other = (cluster._title("/runs/catch", token) for token in ("a" * 32, "b" * 32))
    assert one != other and one == cluster._title("/runs/catch", "a" * 32)
