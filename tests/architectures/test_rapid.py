"""Rapid, end to end: pools of processes compute what one would, and whatever is killed comes back."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from harness import (
    Command,
    alive,
    balanced,
    checkpoints,
    flags,
    learned,
    refusal,
    rows,
    servers,
    sockets,
    summary,
    thorough,
    tiny,
    until,
)
from small_runs import params

import seedbed
from seedbed.acting.meters import Meters
from seedbed.architectures.compatibility import why_not
from seedbed.architectures.program import Role
from seedbed.envs.make import spec_of
from seedbed.errors import RunFailed
from seedbed.launch.build import build_agent
from seedbed.launch.local import LocalLauncher
from seedbed.launch.train import resume, train
from seedbed.learning.checkpoint import load_latest
from seedbed.learning.loop import LearnerLoop
from seedbed.serving.source import FORWARD_SERVER, ServedActors
from seedbed.serving.unroll_service import UnrollService
from seedbed.weights.store import WeightStore

PPO: dict[str, Any] = {"agent": "ppo", "lag": "free", "reuse": 2, "minibatches": 2}
RAPID = {**PPO, "arch": "rapid", "forward_servers": 2}
FRAMES_A_ROUND = 2 * 4 * 5  # actors, environments, steps: see harness.TINY


@pytest.mark.thorough
@pytest.mark.slow
def test_every_carrier_gives_the_same_bits(tmp_path: Path) -> None:
    told = []
    for carrier in ("inproc", "shm", "grpc"):
        settings = {**RAPID, "transport": carrier, "lag": 0, "frames": 10 * FRAMES_A_ROUND, "lstm": 8}
        run = train(tiny("toy:catch", tmp_path / carrier, **settings)).to_json()
        told.append(
            {name: run[name] for name in ("params_sha256", "weights_version", "agent_steps", "episodes")}
        )
    assert told[0] == told[1] == told[2]
    assert told[0]["weights_version"] > 5


@pytest.mark.parametrize("lag", [0, *thorough(2)])
def test_servers_share_the_workers_and_compute_what_central_inference_does(lag: int, tmp_path: Path) -> None:
    settings = {**PPO, "lag": lag, "transport": "inproc", "frames": 8 * FRAMES_A_ROUND, "actors": 4}
    settings |= {"envs_per_actor": 2, "lstm": 8}
    runs = {
        name: train(tiny("toy:catch", tmp_path / name, **settings, **more)).to_json()
        for name, more in {
            "seed": {"arch": "seed"},
            "one": {"arch": "rapid"},
            "three": {"arch": "rapid", "forward_servers": 3},
        }.items()
    }
    assert min(run["weights_version"] for run in runs.values()) > 20
    assert len({run["policy_lag_max"] for run in runs.values()}) == 1
    if lag:  # then acting is ahead when the run ends, and by how much is chance
        return
    theirs = params(tmp_path / "seed")
    for name in ("one", "three"):
        assert runs[name]["weights_version"] == runs["seed"]["weights_version"]
        for leaf, array in params(tmp_path / name).items():
            np.testing.assert_allclose(array, theirs[leaf], rtol=1e-4, atol=1e-5, err_msg=f"{name} {leaf}")


def test_weights_are_published_after_so_many_updates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    published: list[int] = []
    publish = WeightStore.publish

    def watch(self: WeightStore, params: Any, version: int) -> None:
        # The servers have stores of their own, which take what they fetch.
        if any(store is self for store in optimizers):
            published.append(version)
        publish(self, params, version)

    optimizers: list[WeightStore] = []
    make = UnrollService.__init__

    def know(
        self: UnrollService, agent: Any, pace: Any, assignment: Any, store: WeightStore, **more: Any
    ) -> None:
        optimizers.append(store)
        make(self, agent, pace, assignment, store, **more)

    monkeypatch.setattr(WeightStore, "publish", watch)
    monkeypatch.setattr(UnrollService, "__init__", know)
    settings = {**RAPID, "publish_updates": 3, "transport": "inproc", "frames": 1000}
    run = train(tiny("toy:catch", tmp_path / "run", **settings)).to_json()
    assert published == [*range(0, run["weights_version"] + 1, 3)][: len(published)]
    assert len(published) > 5
    assert run["policy_lag_mean"] >= 1
    row = rows(tmp_path / "run")[-1]
    assert {row["sample_reuse"] for row in rows(tmp_path / "run") if "sample_reuse" in row} == {2.0}
    # What the servers have done is told by them, of both together.
    assert row["bytes_from_actors"] > 1000 * 4 * 10 * 5
    assert balanced(run)


def test_passes_that_are_left_out_do_not_put_publication_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Versions leap by them, so that hardly any is a multiple of anything."""
    published: list[int] = []
    publish = LearnerLoop._publish

    def watch(self: LearnerLoop) -> None:
        before = self._published
        publish(self)
        if self._published != before:
            published.append(self.version)

    monkeypatch.setattr(LearnerLoop, "_publish", watch)
    settings = {**RAPID, "reuse": 4, "target_kl": 1e-12, "publish_updates": 5, "transport": "inproc"}
    run = train(tiny("toy:catch", tmp_path / "run", **settings, frames=1500)).to_json()
    assert run["weights_version"] > 100
    assert set(np.diff(published)) <= {5, 6, 7, 8}


@pytest.mark.parametrize("transport", ["shm", *thorough("grpc")])
def test_pools_of_processes_learn_and_go_on_after_a_stop(transport: str, tmp_path: Path) -> None:
    first = train(tiny("toy:catch", tmp_path / "run", **RAPID, transport=transport, frames=1500)).to_json()
    assert balanced(first)
    assert first["agent_steps"] >= 1500
    again = resume(str(tmp_path / "run"), frames=2500, forward_servers=1).to_json()
    assert again["weights_version"] > first["weights_version"] > 50
    assert again["agent_steps"] >= 2500
    assert balanced(again)
    assert seedbed.evaluate(tmp_path / "run", episodes=3).count == 3
    assert not sockets(tmp_path / "run"), "servers end when the optimizer is gone"


@pytest.mark.slow
def test_a_server_and_a_worker_are_killed_and_the_run_goes_on(tmp_path: Path) -> None:
    words = flags("toy:catch", "run", **RAPID, frames=10**9, checkpoint_minutes=0.02)
    with Command(*words, cwd=tmp_path) as command:

        def goes_on() -> None:
            before = learned(tmp_path / "run")
            until(lambda: learned(tmp_path / "run") > before + 50, "the run to go on")

        goes_on()
        servers(command)[0].kill()
        until(lambda: "killed by signal 9; restart 1 of 3" in command.output, "the server to be replaced")
        until(lambda: len(command.actors()) == 2 and len(servers(command)) == 2, "all to be there again")
        joined = "joined"
        log = tmp_path / "run/logs/learner.log"
        until(lambda: log.read_text().count(joined) >= 3, "its worker to join again")
        goes_on()
        (_, victim) = until(lambda: len(found := command.actors()) == 2 and found, "both workers")
        before = log.read_text().count(joined)
        victim.kill()
        until(lambda: log.read_text().count(joined) > before, "the worker to be replaced")
        goes_on()
        command.interrupt()
        assert command.wait() == 0, command.output
        assert not [p for p in command.family() if alive(p)]
    left = summary(tmp_path / "run")
    # Of the server, of its worker (which may have come back too soon once more), and of the other worker.
    assert left["actor_restarts"] >= 3
    assert balanced(left)
    assert all(np.isfinite(leaf).all() for leaf in params(tmp_path / "run").values())


@pytest.mark.thorough
@pytest.mark.slow
def test_a_server_that_stands_still_is_replaced(tmp_path: Path) -> None:
    """A stopped process does not die, and gives no sign of life."""
    words = flags("toy:catch", "run", **RAPID, frames=10**9, env_timeout=5)
    with Command(*words, cwd=tmp_path) as command:
        before = learned(tmp_path / "run")
        servers(command)[0].suspend()
        until(lambda: "its process was stopped by a signal" in command.output, "the server to be missed")
        until(lambda: "restart 1 of 3" in command.output, "the server to be replaced")
        until(lambda: learned(tmp_path / "run") > before + 50, "the run to go on")
        command.interrupt()
        assert command.wait() == 0, command.output
        assert not [p for p in command.family() if alive(p)]
    assert balanced(summary(tmp_path / "run"))


@pytest.mark.slow
def test_without_a_server_an_exact_lag_ends_the_run_with_its_cause(tmp_path: Path) -> None:
    words = flags("toy:catch", "run", **{**RAPID, "lag": 1}, frames=10**9)
    with Command(*words, cwd=tmp_path) as command:
        learned(tmp_path / "run")
        servers(command)[1].kill()
        assert command.wait() == 1, command.output
        assert not [p for p in command.family() if alive(p)]
    # Whichever is missed first: the server, or a worker that it acted for.
    assert "cannot go on without it: 'seedbed resume'" in command.last_line
    assert balanced(summary(tmp_path / "run"))
    assert checkpoints(tmp_path / "run")


@pytest.mark.thorough
@pytest.mark.slow
def test_a_run_that_is_killed_takes_its_processes_along_and_can_be_resumed(tmp_path: Path) -> None:
    words = flags("toy:catch", "run", **RAPID, frames=10**9, checkpoint_minutes=0.01)
    with Command(*words, cwd=tmp_path) as command:
        until(lambda: checkpoints(tmp_path / "run"), "a checkpoint")
        family = command.family()
        os.kill(command.process.pid, signal.SIGKILL)
        until(lambda: not [p for p in family if alive(p)], "all processes to end")
    kept = load_latest(tmp_path / "run/checkpoints")
    again = resume(str(tmp_path / "run"), frames=kept.meta["ledgers"][0]["received"] + 500).to_json()
    assert again["weights_version"] > kept.step
    assert balanced(again)


def test_a_server_whose_agent_fails_ends_the_run_with_its_last_words(tmp_path: Path) -> None:
    """It may be started again; what keeps it from working is told."""
    folder = tmp_path / "run"

    class Nowhere(LocalLauncher):
        def address(self, role: Role, index: int) -> str:
            return "unix:/nowhere/at/all" if role.name == FORWARD_SERVER else super().address(role, index)

    with pytest.raises(RunFailed, match=r"forward-pass server \d: .*nowhere.*restarted 1 times already"):
        train(tiny("toy:catch", folder, **RAPID, actor_restarts=1), launch=Nowhere)
    assert balanced(summary(folder))


def test_what_the_workers_of_a_silent_server_owe_is_its_doing(monkeypatch: pytest.MonkeyPatch) -> None:
    now, heard = [100.0], {1: 98.0}
    monkeypatch.setattr("seedbed.serving.source.time.monotonic", lambda: now[0])
    registry: Any = SimpleNamespace(
        lane_states=dict,
        dismiss_stalled=lambda seconds: None,
        servers_heard=lambda: heard,
        owes=lambda: dict.fromkeys(range(4), 90.0),
        elsewhere=dict,
        say_over=lambda: None,
    )
    source = ServedActors(registry, [], Meters(), patience=60.0, servers=2)
    owes = source.instances["actor"].owes
    assert owes() == {0: None, 1: 90.0, 2: None, 3: 90.0}, "server 0 is not there yet"
    heard[0] = 99.0
    assert owes() == dict.fromkeys(range(4), 90.0)
    now[0], heard[0] = 103.5, 103.0
    assert owes() == {0: 90.0, 1: None, 2: 90.0, 3: None}, "nothing was heard of server 1 for five reports"


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"deterministic": True}, "states are with the forward-pass servers"),
        (
            {"actors": 2, "forward_servers": 3},
            "of 3 forward-pass servers some have no environments to act for",
        ),
        ({"listen": ("0.0.0.0:0",)}, "listen is a setting of seed, impala and apex"),
        ({"max_envs": 100}, "max_envs is a setting of seed, impala and apex"),
        ({"fetch_steps": 100}, "fetch_steps is a setting of impala and apex"),
        ({"batches_per_call": 3}, "batches_per_call is a setting of anakin"),
        ({"agent": "a2c", "lag": "free"}, "the lag is free: add --lag 0"),
        ({"agent": "dqn"}, "it samples from a replay, and here"),
        ({"opponents": 2, "hosts": 2}, "opponents need the games of one host"),
        ({"agent": "bc"}, "it learns from a data set, and here agents act; use --arch distbelief"),
        ({"shards": 2}, "shards is a setting of distbelief, gorila and a3c"),
        ({"arch": "seed", "forward_servers": 2}, "forward_servers is a setting of rapid"),
        ({"arch": "anakin", "publish_updates": 2}, "publish_updates is a setting of rapid"),
    ],
)
def test_what_does_not_go_with_it_is_refused_with_the_reason(
    settings: dict[str, Any], said: str, tmp_path: Path
) -> None:
    chosen = {"arch": "rapid", "agent": "ppo", **settings}
    assert said in str(refusal(lambda: tiny("toy:catch", tmp_path, **chosen)))


def test_what_goes_with_it_is_not_refused(tmp_path: Path) -> None:
    for settings in ({"agent": "vtrace"}, {"agent": "ppo", "hosts": 2}, {"agent": "a2c", "lag": 0}):
        config = tiny("toy:catch", tmp_path, **{"arch": "rapid", "publish_updates": 1, **settings})
        assert why_not(config, build_agent(config, spec_of("toy:catch"))) is None, settings
