"""Actors and environments that die, raise or hang while a run goes on around them."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from harness import (
    Command,
    alive,
    balanced,
    checkpoints,
    flags,
    is_actor,
    learned,
    rows,
    sockets,
    summary,
    thorough,
    tiny,
    until,
    words_of,
)

from seedbed.acting.lag_control import FreeControl
from seedbed.acting.unrolls import step_fields
from seedbed.architectures import seed
from seedbed.envs.make import spec_of
from seedbed.errors import Refused, RunFailed, SpecError
from seedbed.launch.train import resume, train
from seedbed.learning.learner import Learner
from seedbed.serving.inference_service import InferenceService
from seedbed.serving.unroll_service import UnrollService
from seedbed.transport.admission import Invitation
from seedbed.transport.connect import connect
from seedbed.transport.interface import PROTOCOL, Client, Layout, Layouts

LONGEST = 5  # of toy:count


def standing(folder: Path) -> list[dict[str, Any]]:
    """The instances of a run, as it has told them last."""
    live = folder / "live.json"  # written with the first row, which a checkpoint may come before
    told: list[dict[str, Any]] = json.loads(live.read_text())["instances"] if live.exists() else []
    return told


@pytest.fixture
def worlds(monkeypatch: pytest.MonkeyPatch) -> None:
    here = str(Path(__file__).parent)
    monkeypatch.syspath_prepend(here)
    monkeypatch.setenv("PYTHONPATH", here, prepend=os.pathsep)  # for the actors


def own_actor(index: int) -> psutil.Process:
    """The process of the actor with this index, a child of the tests' own process."""
    return next(
        process
        for process in psutil.Process().children()
        if alive(process) and any(word.endswith(f"/actor-{index}.json") for word in words_of(process))
    )


def counted(env: int, steps: int) -> list[tuple[int, int, int]]:
    """The first observations ``(env, episode, step)`` of environment ``env`` of toy:count."""
    stream: list[tuple[int, int, int]] = []
    episode = 0
    while len(stream) < steps:
        length = 1 + (env + episode) % LONGEST
        stream += [(env, episode, time) for time in range(length + 1)]
        episode += 1
    return stream[:steps]


@pytest.mark.slow
def test_a_killed_actor_is_replaced_and_every_step_is_trained_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    handed: list[tuple[tuple[int, int, int], np.ndarray[Any, Any]]] = []
    trained: list[np.ndarray[Any, Any]] = []
    killed: list[psutil.Process] = []
    stopped: list[bool] = []
    lost: list[int] = []
    hand_over, put, serve, leave = (
        FreeControl.hand_over,
        Learner.put,
        InferenceService._serve,
        InferenceService.remove,
    )

    def watch_hand_over(self: FreeControl, lane: Any) -> bool:
        unroll = lane.outbox
        if not hand_over(self, lane):
            return False
        key = (*lane.order, lane.member.epoch)
        handed.append((key, unroll.timestep.observation.copy()))
        if key[0] == 0 and key[2] == 1 and sum(k == key for k, _ in handed) == 8 and not stopped:
            stopped.append(True)
            os.kill(os.getpid(), signal.SIGINT)
        return True

    def watch_serve(self: InferenceService, lanes: Any) -> None:
        serve(self, lanes)
        in_the_middle = any(lane.member.index == 0 and lane.open.decided == 3 for lane in lanes)
        # Both of its halves have handed something over, however late it came.
        known = {(0, 0, 0), (0, 1, 0)} <= {key for key, _ in handed}
        if in_the_middle and known and len(handed) > 20 and not killed:
            killed.append(own_actor(0))
            killed[0].kill()

    def watch_leave(self: InferenceService, lane: Any) -> None:
        if lane.member.index == 0 and lane.member.epoch == 0:
            lost.append(lane.open.transitions + (5 * lane.rows if lane.outbox is not None else 0))
        leave(self, lane)

    def watch_put(self: Learner, unroll: Any) -> Any:
        trained.append(unroll.timestep.observation.copy())
        return put(self, unroll)

    monkeypatch.setattr(FreeControl, "hand_over", watch_hand_over)
    monkeypatch.setattr(Learner, "put", watch_put)
    monkeypatch.setattr(InferenceService, "_serve", watch_serve)
    monkeypatch.setattr(InferenceService, "remove", watch_leave)
    run = train(tiny("toy:count", tmp_path / "run", batch_size=6, prefetch=1)).to_json()
    assert killed
    assert run["actor_restarts"] == 1
    assert run["stopped_because"] == "interrupted"
    assert balanced(run)
    assert run["steps_dropped"] == sum(lost) > 0

    streams: dict[tuple[int, int, int], list[np.ndarray[Any, Any]]] = {}
    for key, observation in handed:
        streams.setdefault(key, []).append(observation)
    assert set(streams) == {(0, 0, 0), (0, 1, 0), (0, 0, 1), (0, 1, 1), (1, 0, 0), (1, 1, 0)}
    for unrolls in streams.values():
        # T steps of each unroll, for its last one begins the next: together a stream without gap or repetition.
        joined = np.concatenate([unroll[:-1] for unroll in unrolls])
        for env in range(joined.shape[1]):
            assert [tuple(row[:3]) for row in joined[:, env].tolist()] == counted(env, len(joined))
    # What the learner took is what was handed over, in that order, each unroll once. (The first one was made up,
    # to compile; the last ones may wait in the queue.)
    taken = np.concatenate(trained[1:], axis=1)
    given = np.concatenate([unroll for _, unroll in handed], axis=1)
    np.testing.assert_array_equal(taken, given[:, : taken.shape[1]])
    assert run["steps_trained"] % (5 * 6) == 0
    assert run["steps_trained"] <= 5 * taken.shape[1]
    # Two interpreters with NumPy at least, though one of them was killed.
    assert 20e6 < rows(tmp_path / "run")[-1]["actors_memory_bytes"] < 1e9


@pytest.mark.slow
@pytest.mark.parametrize("transport", ["shm", *thorough("grpc")])
def test_an_actor_killed_while_it_sends_unrolls_is_replaced(
    transport: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed whenever an unroll of its own has just come, with the next ones under way: none is torn or repeated."""
    handed: dict[tuple[int, int, int], list[np.ndarray[Any, Any]]] = {}
    killed: list[psutil.Process] = []
    arrive, hand_over = UnrollService.take, FreeControl.hand_over

    def watch_arrive(self: UnrollService, lane: Any, arrays: Any, now: float) -> None:
        arrive(self, lane, arrays, now)
        if lane.member.index == 0 and lane.rounds == 7 and len(killed) == lane.member.epoch < 2:
            killed.append(own_actor(0))
            killed[-1].kill()

    def watch_hand_over(self: FreeControl, lane: Any) -> bool:
        unroll = lane.outbox
        if not hand_over(self, lane):
            return False
        key = (*lane.order, lane.member.epoch)
        handed.setdefault(key, []).append(unroll.timestep.observation)
        if key == (0, 1, 2) and len(handed[key]) == 5:
            os.kill(os.getpid(), signal.SIGINT)
        return True

    monkeypatch.setattr(UnrollService, "take", watch_arrive)
    monkeypatch.setattr(FreeControl, "hand_over", watch_hand_over)
    run = train(
        tiny("toy:count", tmp_path / "run", arch="impala", transport=transport, batch_size=6)
    ).to_json()
    assert run["actor_restarts"] == len(killed) == 2
    assert run["stopped_because"] == "interrupted"
    assert balanced(run)
    assert run["weights_version"] > 0
    for unrolls in handed.values():
        joined = np.concatenate([unroll[:-1] for unroll in unrolls])
        for env in range(joined.shape[1]):
            assert [tuple(row[:3]) for row in joined[:, env].tolist()] == counted(env, len(joined))


@pytest.mark.slow
@pytest.mark.usefixtures("worlds")
def test_an_environment_that_raises_stops_the_run_after_its_restarts(tmp_path: Path) -> None:
    words = flags("worlds:raising", "run", actor_restarts=1, env_options=("at=33",), actors=1, batch_size=4)
    with Command(*words, "--json", cwd=tmp_path, PYTHONPATH=os.environ["PYTHONPATH"]) as learner:
        assert learner.wait() == 1, learner.output
        assert "restart 1 of 1" in learner.output
        assert learner.last_line.startswith(
            "seedbed: actor 0: EnvironmentFault: worlds:raising failed in receive()"
        )
        assert "ValueError: the world has ended" in learner.last_line
        assert f"log: {tmp_path}/run/logs/actor-0.log" in learner.last_line
        assert not learner.actors()
    assert "the world has ended" in (tmp_path / "run/logs/actor-0.log").read_text()
    left = summary(tmp_path / "run")
    assert left["stopped_because"].startswith("failed: actor 0: EnvironmentFault")
    assert left["actor_restarts"] == 1
    assert balanced(left)
    assert int(checkpoints(tmp_path / "run")[-1].name) == left["weights_version"] > 0


@pytest.mark.slow
@pytest.mark.usefixtures("worlds")
@pytest.mark.parametrize(
    ("world", "says"),
    [
        ("hanging", r"its environments \(worlds:hanging\) took more than [45] s .*--env-timeout.* "),
        # Whatever takes so long there: it may have to compile.
        *thorough(
            (
                "never_made_by_actors",
                r"it was not ready [789] s after its start: what it makes or compiles takes longer",
            ),
        ),
    ],
)
def test_an_environment_that_hangs_stops_the_run_after_its_restarts(
    world: str, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    declared = seed.actors
    monkeypatch.setattr(
        seed, "actors", lambda *args, **named: replace(declared(*args, **named), starts_within=2.0)
    )
    env = f"worlds:{world}"
    config = tiny(env, tmp_path / "run", actor_restarts=1, env_timeout=4.0, actors=1, batch_size=4)
    with pytest.raises(RunFailed, match=rf"actor 0: {says}.*restarted 1 times .*--actor-restarts"):
        train(config)
    assert not [child for child in psutil.Process().children() if alive(child) and is_actor(child)]
    assert summary(tmp_path / "run")["actor_restarts"] == 1


@pytest.mark.slow
@pytest.mark.usefixtures("worlds")
@pytest.mark.parametrize(("world", "moment"), [("never_made", "made"), ("never_reset", "reset")])
def test_an_environment_that_never_begins_ends_the_run_before_it_begins(
    world: str, moment: str, tmp_path: Path
) -> None:
    words = flags(f"worlds:{world}", "run", env_timeout=1.0)
    with Command(*words, cwd=tmp_path, PYTHONPATH=os.environ["PYTHONPATH"]) as learner:
        assert learner.wait() == 2, learner.output
        assert learner.output == (
            f"seedbed: worlds:{world} was not {moment} within 1 s: mend it if it hangs, or allow it more time with "
            "--env-timeout\n"
        )
        assert not engines(worlds_child(), tmp_path)
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
@pytest.mark.usefixtures("worlds")
def test_an_environment_that_hangs_in_this_process_ends_the_run(tmp_path: Path) -> None:
    import worlds

    config = tiny(
        "worlds:hanging", tmp_path / "run", transport="inproc", env_timeout=1.0, actors=1, batch_size=4
    )
    try:
        with pytest.raises(
            RunFailed, match=r"\(worlds:hanging\) took more than [12] s .*--transport shm.*learner\.log"
        ):
            train(config)
    finally:
        worlds.released.set()
    until(lambda: not [t for t in threading.enumerate() if t.name.startswith("actor")], "the thread's end")
    worlds.released.clear()


@pytest.mark.slow
@pytest.mark.usefixtures("worlds")
def test_what_environments_have_started_ends_with_their_actor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import worlds

    # Where it starts its actors says which processes are this test's own, also of those that lost their parent.
    monkeypatch.chdir(tmp_path)

    def started() -> list[psutil.Process]:
        return engines(worlds.CHILD, tmp_path)

    orphans: list[psutil.Process] = []
    update = Learner.update

    def kill_the_actor_once(self: Learner, *given: Any) -> Any:
        if not orphans:
            orphans.extend(started())
            own_actor(0).kill()
        elif not any(map(alive, orphans)) and len(started()) == 4:
            os.kill(os.getpid(), signal.SIGINT)
        return update(self, *given)

    monkeypatch.setattr(Learner, "update", kill_the_actor_once)
    train(tiny("worlds:with_child", tmp_path / "run", actors=1, batch_size=4, actor_restarts=1))
    assert len(orphans) == 4
    assert not started()


@pytest.mark.slow
@pytest.mark.usefixtures("worlds")
@pytest.mark.parametrize("world", ["with_child", "frozen"])
def test_a_killed_learner_leaves_no_process(world: str, tmp_path: Path) -> None:
    words = flags(f"worlds:{world}", "run", actors=1, batch_size=4)
    with Command(*words, cwd=tmp_path, PYTHONPATH=os.environ["PYTHONPATH"]) as learner:
        learned(tmp_path / "run")
        if world == "frozen":
            until((tmp_path / "frozen").exists, "an environment that stands still")
        family = learner.family()
        assert sum(words_of(process) == [*worlds_child()] for process in family) == 4
        learner.process.kill()
        learner.wait()
        until(lambda: not any(map(alive, family)), "everything that it started to end", 20)


def engines(command: tuple[str, ...], place: Path) -> list[psutil.Process]:
    """Living processes with these words that were started at ``place``."""
    found = [process for process in psutil.process_iter() if words_of(process) == [*command]]
    return [process for process in found if alive(process) and place_of(process) == place]


def place_of(process: psutil.Process) -> Path | None:
    try:
        return Path(process.cwd())
    except psutil.Error:
        return None  # it has just ended


def worlds_child() -> tuple[str, str]:
    import worlds

    return worlds.CHILD


@pytest.mark.slow
@pytest.mark.usefixtures("worlds")
@pytest.mark.parametrize("deterministic", [False, True])
def test_an_environment_that_raises_in_this_process(deterministic: bool, tmp_path: Path) -> None:
    config = tiny(
        "worlds:raising",
        tmp_path / "run",
        transport="inproc",
        actor_restarts=0,
        actors=1,
        batch_size=4,
        deterministic=deterministic,
        checkpoint_minutes=1e-6,
    )
    with pytest.raises(RunFailed, match="actor 0: EnvironmentFault: worlds:raising failed in receive"):
        train(config)
    assert checkpoints(tmp_path / "run")
    assert summary(tmp_path / "run")["stopped_because"].startswith("failed: actor 0")
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("actor")]


@pytest.mark.slow
def test_updates_that_are_not_finite_are_skipped_counted_and_end_the_run(tmp_path: Path) -> None:
    too_fast = {"learning_rate": 1e38, "gradient_clip": 0.0, "max_skipped_updates": 3}
    config = tiny("CartPole-v1", tmp_path / "run", transport="inproc", actors=1, batch_size=4, **too_fast)
    with pytest.raises(RunFailed, match=r"learner: 3 updates in a row .* not finite .*--learning-rate"):
        train(config)
    left = summary(tmp_path / "run")
    assert left["skipped_updates"] == 3
    assert left["weights_version"] >= 3
    assert left["stopped_because"].startswith("failed: learner")
    assert checkpoints(tmp_path / "run")
    with pytest.raises(RunFailed, match="not finite"):
        resume(str(tmp_path / "run"))


DQN = {"agent": "dqn", "replay_size": 4000, "replay_min_size": 40, "replay_ratio": 0.5, "fetch_steps": 5}


@pytest.mark.slow
@pytest.mark.parametrize("arch", ["seed", *thorough("impala", "apex")])
def test_actors_come_from_elsewhere_and_survive_their_learner(arch: str, tmp_path: Path) -> None:
    words = flags(
        *("CartPole-v1", "run"),
        arch=arch,
        **(DQN if arch == "apex" else {}),
        actors=0,
        listen=("127.0.0.1:0",),
        transport="grpc",
        checkpoint_minutes=1e-3,
    )
    folder = tmp_path / "run"
    with Command(*words, cwd=tmp_path) as learner:
        line = learner.pasted()
        address = line[1]
        with Command(*line, cwd=tmp_path) as first:
            until(lambda: checkpoints(folder), "a checkpoint")
            (live,) = until(lambda: standing(folder), "a row after it has joined")
            assert (live["index"], live["state"], live["machine"]) == (0, "running", socket.gethostname())
            # Strangers while it trains: a wrong token, garbage, another environment, steps of another shape.
            with Command("actor", address, "--join", "wrong" * 5, cwd=tmp_path) as stranger:
                assert stranger.wait() == 1
                assert "wrong token" in stranger.last_line
            _send_garbage(address)
            _bring_another_environment(address, line[-1])
            _send_another_shape(address, line[-1])
            until(lambda: learner.output.count("actor 1 left") == 2, "both strangers to be sent away")
            with Command(*line, "--envs", "2", cwd=tmp_path) as second:
                until(
                    lambda: learner.output.count("actor 1 joined from elsewhere") == 2, "the second to join"
                )
                second.process.send_signal(signal.SIGINT)
                assert second.wait() == 0
                until(lambda: learner.output.count("actor 1 left") == 3, "the second to leave")
            # By the run's Unix socket, and killed in the middle: the others notice nothing.
            (own,) = sockets(folder)
            with Command("actor", f"unix:{own}", *line[2:], cwd=tmp_path) as third:
                until(lambda: learner.output.count("actor 1 joined from elsewhere") == 3, "the third to join")
                third.process.kill()
                until(lambda: learner.output.count("actor 1 left") == 4, "the third to be missed")
            assert alive(first.process)
            assert "actor 0 left" not in learner.output
            learner.process.kill()
            learner.wait()
            first.says("waiting for it to come back")
            reached = int(checkpoints(folder)[-1].name)
            with Command("resume", "run", "--json", cwd=tmp_path) as again:
                again.says(f"more actors: seedbed actor {address}")
                again.says("actor 0 joined from elsewhere")
                until(lambda: int(checkpoints(folder)[-1].name) > reached, "training to go on")
                again.interrupt()
                assert again.wait() == 0, again.output
                assert again.last_line.startswith('{"env": "CartPole-v1"')
                assert alive(first.process)
    left = summary(folder)
    assert balanced(left)
    assert left["stopped_because"] == "interrupted"


@pytest.mark.slow
def test_an_actor_elsewhere_that_hangs_stalls_nobody_is_dismissed_and_may_come_back(tmp_path: Path) -> None:
    # Less than the 10 s after which gRPC may miss it.
    words = flags("CartPole-v1", "run", actors=0, listen=("127.0.0.1:0",), transport="grpc", env_timeout=8.0)
    with Command(*words, cwd=tmp_path) as learner:
        line = learner.pasted()
        with Command(*line, cwd=tmp_path) as good, Command(*line, cwd=tmp_path) as hanging:
            until(lambda: learner.output.count("joined from elsewhere") == 2, "both to join")
            learned(tmp_path / "run")
            hanging.process.suspend()
            before = learned(tmp_path / "run")
            # So many that they are not of what it had sent.
            until(lambda: learned(tmp_path / "run") >= before + 10, "training to go on beside it")
            assert " left: " not in learner.output, learner.output
            learner.says("left: no step for")
            assert learner.output.count(" left: ") == 1, learner.output
            before = learned(tmp_path / "run")
            until(lambda: learned(tmp_path / "run") > before, "training to go on without it")
            hanging.process.resume()
            until(lambda: learner.output.count("joined from elsewhere") == 3, "it to come back")
            assert alive(good.process)
            learner.interrupt()
            assert learner.wait() == 0, learner.output
    assert balanced(summary(tmp_path / "run"))


@pytest.mark.thorough
@pytest.mark.slow
def test_an_actor_that_is_stopped_is_replaced_after_twenty_seconds(tmp_path: Path) -> None:
    """Also over gRPC, which misses it after about as long: the learner may no longer know it when it is late."""
    words = flags("CartPole-v1", "run", transport="grpc")
    with Command(*words, cwd=tmp_path) as learner:
        learned(tmp_path / "run")
        still = next(one for one in learner.actors() if words_of(one)[-1].endswith("actor-0.json"))
        still.suspend()
        # Sooner than --env-timeout, which is for environments that are slow.
        line = learner.says("restart 1 of 3", timeout=55)
        assert "actor 0: its process was stopped by a signal, and has owed something for 2" in line
        assert not alive(still)
        before = learned(tmp_path / "run")
        until(lambda: learned(tmp_path / "run") > before, "training to go on")
        learner.interrupt()
        assert learner.wait() == 0, learner.output
    assert balanced(summary(tmp_path / "run"))


@pytest.mark.slow
def test_actors_join_by_tls_with_no_secret_in_sight(tmp_path: Path) -> None:
    """By file and by variable; another run's line is refused; a resumed run has the same certificate."""
    words = flags("CartPole-v1", "run", actors=0, listen=("0.0.0.0:0",), checkpoint_minutes=1e-3)
    with Command(*words, cwd=tmp_path) as learner:
        _, named, _, secret = (
            learner.says("seedbed actor").split("more actors: ")[1].splitlines()[0].split()[1:]
        )
        address = f"127.0.0.1:{named.rpartition(':')[2]}"
        (tmp_path / "join").write_text(secret)
        (tmp_path / "join").chmod(0o600)
        other = "0" * 64 + secret[64:]
        for wrong, says in (
            (["--join", other], "another run"),
            (["--join", secret[65:], "--insecure"], "cannot reach"),
        ):
            with Command("actor", address, *wrong, cwd=tmp_path) as stranger:
                stranger.says(says)
        with (
            Command("actor", address, "--join", "@join", cwd=tmp_path) as first,
            Command("actor", address, cwd=tmp_path, SEEDBED_JOIN=secret) as second,
        ):
            until(lambda: learner.output.count("joined from elsewhere") == 2, "both to join")
            assert not any(secret[65:] in " ".join(one.process.cmdline()) for one in (first, second))
            until(lambda: checkpoints(tmp_path / "run"), "a checkpoint")
            learner.process.kill()
            learner.wait()
            with Command("resume", "run", cwd=tmp_path) as again:
                again.says(secret)
                until(lambda: again.output.count("joined from elsewhere") == 2, "both to come back")
                again.interrupt()
                assert again.wait() == 0, again.output
    with Command("resume", "run", "--rotate-token", cwd=tmp_path) as last:
        newest = last.says("more actors: ").split("--join ")[1].splitlines()[0]
        assert newest[:64] == secret[:64] and newest != secret
        with Command("actor", address, cwd=tmp_path, SEEDBED_JOIN=secret) as late:
            late.says("wrong token")
        with Command("actor", address, cwd=tmp_path, SEEDBED_JOIN=newest):
            last.says("joined from elsewhere")
        last.interrupt()
        assert last.wait() == 0, last.output
    assert (tmp_path / "run/key.pem").stat().st_mode & 0o777 == 0o600


def _join(client: Client) -> None:
    client.ask({"kind": "join", "protocol": PROTOCOL, "index": None, "envs": 1})


def _bring_another_environment(address: str, token: str) -> None:
    with contextlib.closing(connect(address, timeout=10, invitation=Invitation(token))) as client:
        _join(client)
        with pytest.raises(Refused, match=r"the actor made .* the learner needs"):
            client.ask({"kind": "ready", "spec": spec_of("toy:catch").to_json()})


def _send_another_shape(address: str, token: str) -> None:
    with contextlib.closing(connect(address, timeout=10, invitation=Invitation(token))) as client:
        _join(client)
        spec = spec_of("CartPole-v1")
        client.ask({"kind": "ready", "spec": spec.to_json()})
        with pytest.raises(SpecError, match="the server agreed to"):
            client.open([Layouts(Layout(step_fields(spec, 2)), Layout((((1,), np.dtype(np.int64)),)))])


def _send_garbage(address: str) -> None:
    host, port = address.rsplit(":", 1)
    with socket.create_connection((host, int(port)), timeout=5) as raw:
        raw.sendall(b"\x00\xff" * 4096)
