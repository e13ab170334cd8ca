"""What hosts agree on before they begin: from which checkpoint, and with which settings."""

from __future__ import annotations

import atexit
import dataclasses
import json
import queue
import re
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NoReturn
from unittest.mock import Mock

import jax
import numpy as np
import pytest
from jax._src import xla_bridge

from seedbed.architectures.program import Role, Task
from seedbed.config.resolve import configure, replace, to_json
from seedbed.errors import ConfigError, ExecuteAgain, RunFailed
from seedbed.launch import hosts as module
from seedbed.launch.folder import RunFolder
from seedbed.launch.hosts import (
    _OF_GLOO,
    HOST_0,
    Hosts,
    _difference,
    _have_gloo_listen_towards,
    _Others,
    common_checkpoint,
    follow,
    lead,
)
from seedbed.launch.rendezvous import free_port
from seedbed.launch.train import _invitation, take_part, train
from seedbed.learning.checkpoint import Checkpoint, Contents, intact_steps, pack, save
from seedbed.metrics.reports import Summary
from seedbed.transport.admission import Invitation

PATIENCE = 20.0


class Table:
    """Stands for the rendezvous, without sockets: whoever exchanges waits for all others."""

    def __init__(self, count: int) -> None:
        self._said: list[bytes] = [b""] * count
        self._all = threading.Barrier(count, timeout=PATIENCE)

    def at(self, index: int) -> Any:
        class Seat:
            lost = None

            def exchange(_, message: bytes) -> list[bytes]:  # noqa: N805
                self._said[index] = message
                self._all.wait()
                said = list(self._said)
                self._all.wait()
                return said

        return Seat()


@pytest.fixture
def agreed(tmp_path: Path) -> Iterator[Callable[..., list[Checkpoint | None]]]:
    with ThreadPoolExecutor(4) as threads:

        def agree(*saved: list[int], own: bool = False) -> list[Checkpoint | None]:
            for index, steps in enumerate(saved):
                for step in steps:
                    tree = {"x": np.arange(3.0) + step}
                    save(tmp_path / str(index), step, Contents({"train": tree}, {"from": index}), keep=9)
            table = Table(len(saved))
            hosts = [Hosts(index, len(saved), table.at(index)) for index in range(len(saved))]
            asked = [
                threads.submit(common_checkpoint, one, tmp_path / str(one.index), own=own) for one in hosts
            ]
            return [one.result(PATIENCE) for one in asked]

        yield agree


def steps(found: list[Checkpoint | None]) -> list[int | None]:
    return [each.step if each else None for each in found]


def test_a_host_whose_jax_does_not_come_is_told_of_by_its_own_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits = threading.Event()

    def initialize(address: str, count: int, index: int, **_: Any) -> None:
        if index:
            raise RuntimeError("no device is left")
        waits.wait(10 * PATIENCE)

    monkeypatch.setattr(jax.distributed, "initialize", initialize)
    monkeypatch.setattr(atexit, "register", lambda *_: None)
    address = f"127.0.0.1:{free_port('127.0.0.1')}"
    config = configure(
        "toy:catch", preset="none", hosts=2, coordinator=address, run_dir=str(tmp_path / "run")
    )

    def first() -> None:
        with ExitStack() as stack:
            lead(config, RunFolder.create(config), stack, resumed=False)

    def second() -> None:
        with ExitStack() as stack:
            follow(
                address,
                1,
                None,
                stack,
                invitation=lambda: RunFolder(tmp_path / "run").invitation(insecure=False),
                trust=(),
            )

    with ThreadPoolExecutor(2) as threads, ExitStack() as stack:
        stack.callback(waits.set)  # so that a failure is one, and no wait
        ours, theirs = threads.submit(first), threads.submit(second)
        with pytest.raises(
            RunFailed, match=r"^JAX did not come together .* at 127\.0\.0\.1:\d+, .*no device"
        ):
            theirs.result(PATIENCE)
        with pytest.raises(RunFailed, match=r"^host 1 failed: JAX did not come .*no device is left"):
            ours.result(PATIENCE)


class Standing:
    """Stands for an instance and for its launcher: notes what is asked of it."""

    listens = ()
    log = "host-1.log"

    def __init__(self) -> None:
        self.looked: queue.SimpleQueue[None] = queue.SimpleQueue()
        self.patience: list[float] = []

    def watch(self, on_loss: Callable[[str], None]) -> None:
        self.lose = on_loss

    def meet(self, *_: Any) -> None: ...

    def reach_head(self, *_: Any) -> None: ...

    def start(self, role: Role, task: Task) -> Standing:
        assert task.dials == {HOST_0: ["127.0.0.1:7"]}
        return self

    def look_after(self) -> list[str]:
        self.looked.put(None)
        return []

    def finish(self, seconds: float) -> None:
        self.patience.append(seconds)


@pytest.mark.parametrize(
    "reason", [ConfigError("no such device"), RunFailed("host 0 failed: no such device")]
)
def test_hosts_whose_run_could_not_begin_leave_nothing_that_the_next_start_would_find(
    reason: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = configure("toy:catch", preset="none", hosts=2, host=1, coordinator="127.0.0.1:7")
    joined = (Hosts(), settings, tmp_path / "run", False)

    def part(*_: Any) -> None:
        assert (tmp_path / "run/hosts/1/config.json").exists()
        raise reason

    monkeypatch.setattr("seedbed.launch.train.follow", lambda *_, **__: joined)
    monkeypatch.setattr("seedbed.launch.train._with_others", part)
    for _ in range(2):
        with pytest.raises(type(reason), match=f"^{reason}$"):
            take_part("127.0.0.1:7", 1)
    assert not (tmp_path / "run/hosts/1").exists()


def test_a_part_of_a_run_that_is_over_waits_for_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "run"
    host_0 = configure("toy:catch", preset="none", hosts=2, coordinator="here:7", run_dir=str(run))
    config = replace(host_0, host=1, coordinator="there:7", begin_or_resume=True)
    part = RunFolder.create(replace(host_0, run_dir=str(run / "hosts/1")))
    values = dict.fromkeys({field.name for field in dataclasses.fields(Summary)} - {"more"})

    class Waits(Exception):
        """It has gone to host 0."""

    def follow(*_: Any, **__: Any) -> NoReturn:
        raise Waits

    monkeypatch.setattr("seedbed.launch.train.follow", follow)
    for reason, longer in (("interrupted", 0), ("failed: x", 0), ("400 frames spent", 1)):
        part.summary.write_text(json.dumps({**values, "stopped_because": reason}))
        with pytest.raises(Waits):
            train(replace(config, frames=400 + longer) if longer else config)
    assert train(config).stopped_because == "400 frames spent"
    whole = RunFolder.create(host_0)
    part.keep_session(1)
    with pytest.raises(Waits):
        train(config)  # a longer one that was killed
    (part.path / "session").unlink()
    with pytest.raises(Waits):
        train(config)  # host 0 was lost while it ended
    whole.summary.write_text(json.dumps({**values, "stopped_because": "400 frames spent"}))
    assert train(config).stopped_because == "400 frames spent"
    with part.held(), monkeypatch.context() as patch:
        part.summary.unlink()
        patch.setattr("seedbed.launch.train._IN_USE_SECONDS", 0.0)
        with pytest.raises(ExecuteAgain, match="another process trains in"):
            train(config)
    part.summary.write_text(json.dumps({**values, "stopped_because": "400 frames spent"}))
    with pytest.raises(Waits):
        train(replace(config, begin_or_resume=False))


@pytest.mark.parametrize("has_folder", [False, True])
def test_a_host_without_the_token_is_told_how_to_get_it(
    has_folder: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SEEDBED_JOIN", raising=False)
    with pytest.raises(
        ConfigError, match="set SEEDBED_JOIN to what host 0 printed, or give the --run-dir"
    ) as told:
        _invitation(tmp_path if has_folder else None, False)
    assert (f"and {tmp_path} on this machine has none" in str(told.value)) == has_folder
    RunFolder(tmp_path).token()
    assert _invitation(tmp_path, False).token == RunFolder(tmp_path).token()


class Losing(Standing):
    """A launcher whose other host is a thread, and which loses it when it is told to."""

    advice = ""

    def __init__(self) -> None:
        super().__init__()
        self.over = threading.Event()

    def meet(self, invitation: Invitation, *_: Any) -> None:
        self.invitation = invitation

    def reach_head(self, addresses: list[str]) -> None:
        self.head = addresses[0]

    def start(self, role: Role, task: Task) -> Losing:
        self._thread = threading.Thread(target=self._follow, daemon=True)
        self._thread.start()
        return self

    def _follow(self) -> None:
        with ExitStack() as stack:
            follow(self.head, 1, None, stack, invitation=lambda: self.invitation, trust=())
            self.over.wait(PATIENCE)

    def watch(self, on_loss: Callable[[str], None]) -> None:
        assert not hasattr(self, "_thread"), "before the first start"
        self.lose = on_loss

    def ended(self) -> None: ...

    def close(self) -> None:
        self.over.set()
        self._thread.join(PATIENCE)  # before `atexit` is its own again
        assert not self._thread.is_alive()


def test_hosts_whose_launcher_has_lost_them_are_lost_with_its_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    launcher = Losing()
    config = configure("toy:catch", preset="none", hosts=2, run_dir=str(tmp_path / "run"))
    monkeypatch.setattr(module, "launcher_on", lambda place: lambda *_: launcher)
    monkeypatch.setattr(module, "_join_jax", lambda *_: None)
    monkeypatch.setattr(atexit, "register", lambda *_: None)
    with pytest.raises(RunFailed, match=r"^the cluster is gone$"), ExitStack() as stack:
        hosts = lead(config, RunFolder.create(config), stack, resumed=False)
        launcher.lose("the cluster is gone")
        assert hosts.lost(PATIENCE) == "the cluster is gone"
        hosts.agree({})


def test_hosts_that_are_lost_before_they_have_joined_are_not_waited_for() -> None:
    standing = Standing()
    others = _Others(standing, configure("toy:catch", preset="none", hosts=3), "127.0.0.1:7")  # type: ignore[arg-type]
    others.start(Invitation("token" * 5))
    standing.lose("the cluster is gone")
    with pytest.raises(RunFailed, match=r"^the cluster is gone$"):
        others.look()
    heard: list[str] = []
    others.report_losses_to(heard.append)
    assert heard == ["the cluster is gone"], "those who ask later hear of it, too"


def test_gloo_listens_at_the_address_that_others_reach(monkeypatch: pytest.MonkeyPatch) -> None:
    library = xla_bridge._jax
    made: list[dict[str, Any]] = []
    monkeypatch.setattr(
        library, _OF_GLOO, lambda **given: made.append(given)
    )  # it is there in this version of JAX
    for address in ("127.0.0.1:7", "localhost:7"):
        _have_gloo_listen_towards(address)
        getattr(library, _OF_GLOO)(distributed_client=None)
    assert made[0] == {"distributed_client": None, "hostname": "127.0.0.1"}
    assert made[1]["hostname"] in ("127.0.0.1", "::1")
    monkeypatch.setattr(module, "address_towards", Mock(side_effect=OSError("no way to it")))
    _have_gloo_listen_towards("far.example:7")  # whoever dials it says so


@pytest.mark.parametrize("joined", [False, True])
def test_hosts_that_have_joined_are_looked_after_and_may_save_at_the_end(
    joined: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("seedbed.launch.hosts._KEEP_SECONDS", 0.01)
    standing = Standing()
    others = _Others(standing, configure("toy:catch", preset="none", hosts=3), "127.0.0.1:7")  # type: ignore[arg-type]
    others.start(Invitation("token" * 5))
    if joined:
        others.keep()
        for _ in range(3):
            standing.looked.get(timeout=PATIENCE)
    others.end()
    assert [seconds > 10 for seconds in standing.patience] == [joined] * 2
    assert not any(thread.name == "others" for thread in threading.enumerate())


def test_a_run_without_checkpoints_begins_anew(agreed: Callable[..., Any]) -> None:
    assert agreed([], [], []) == [None, None, None]


def test_the_newest_of_all_is_given_to_those_that_do_not_have_it(
    agreed: Callable[..., Any], tmp_path: Path
) -> None:
    found = agreed([10], [10, 30], [20, 30], [])
    assert steps(found) == [30, 30, 30, 30]
    assert [each.meta["from"] for each in found] == [1, 1, 2, 1], "the first that has it gives it"
    for index, each in enumerate(found):
        assert each.path.parent == tmp_path / str(index)
        np.testing.assert_array_equal(each.tree("train", {"x": np.zeros(3)})["x"], np.arange(3.0) + 30)
    assert intact_steps(tmp_path / "0") == [10, 30]


def test_one_of_those_that_have_the_newest_sends_it(
    agreed: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    packed: list[int] = []
    monkeypatch.setattr(module, "pack", lambda found: packed.append(found.step) or pack(found))
    assert steps(agreed([10], [30], [30], [30])) == [30, 30, 30, 30]
    assert packed == [30]


def test_hosts_that_need_their_own_take_the_newest_that_all_have(agreed: Callable[..., Any]) -> None:
    found = agreed([10, 20, 30], [10, 20], own=True)
    assert steps(found) == [20, 20]
    assert [each.meta["from"] for each in found] == [0, 1]


def test_hosts_that_need_their_own_and_have_none_in_common(agreed: Callable[..., Any]) -> None:
    with pytest.raises(ConfigError, match="no checkpoint that every host has"):
        agreed([10, 30], [20], own=True)


def test_a_damaged_checkpoint_is_as_good_as_none(agreed: Callable[..., Any], tmp_path: Path) -> None:
    save(tmp_path / "0", 40, Contents({"train": {"x": np.arange(3.0)}}, {}))
    file = tmp_path / "0" / f"{40:012d}" / "train.safetensors"
    file.write_bytes(file.read_bytes()[:-1] + b"?")
    assert steps(agreed([10], [20])) == [20, 20]


def test_damaged_checkpoints_alone_are_not_begun_anew(agreed: Callable[..., Any], tmp_path: Path) -> None:
    save(tmp_path / "1", 40, Contents({"train": {"x": np.arange(3.0)}}, {}))
    (tmp_path / "1" / f"{40:012d}" / "train.safetensors").write_bytes(b"?")
    with pytest.raises(ConfigError, match=r"no checkpoint in .*0 or with the other hosts is intact"):
        agreed([], [])


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({}, None),
        ({"host": 1, "coordinator": "there:1", "run_dir": "elsewhere", "json": True}, None),
        ({"learning_rate": 1e-3}, "learning_rate is 0.001 there and 0.0006 on host 0"),
        ({"hidden": (3,)}, r"hidden is \[3\] there and \[\] on host 0"),
        ({"seed": 7}, "seed is 7 there and 0 on host 0"),
    ],
)
def test_settings_are_compared(settings: dict[str, Any], says: str | None) -> None:
    ours = configure("toy:catch", preset="none", hosts=2, coordinator="here:1", learning_rate=6e-4)
    theirs = configure(
        "toy:catch",
        **{"preset": "none", "hosts": 2, "coordinator": "here:1", "learning_rate": 6e-4, **settings},
    )
    found = _difference(to_json(ours), json.loads(json.dumps(to_json(theirs))))
    if says is None:
        assert found is None
    else:
        assert found is not None
        assert re.search(says, found)
