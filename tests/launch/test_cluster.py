"""Whole runs on a Ray cluster of several nodes, all on this machine: what is computed, and what is lost and found."""

from __future__ import annotations

import contextlib
import json
import shutil
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from harness import (
    SEEDBED,
    SLEEPY,
    Command,
    alive,
    balanced,
    checkpoints,
    flags,
    learned,
    learns_on,
    rows,
    summary,
    thorough,
    tiny,
    until,
    words_of,
)
from machines import may_unshare
from raylets import Actors, Nodes, ours, pids, two_nodes
from small_runs import write_catch

from seedbed.cli.logs import log_of
from seedbed.cli.status import Status
from seedbed.errors import ConfigError
from seedbed.launch.train import resume, train

pytestmark = pytest.mark.slow
ray = pytest.importorskip("ray")


@pytest.fixture(scope="module")
def nodes() -> Iterator[Nodes]:
    with two_nodes() as found:
        yield found


@pytest.mark.parametrize(
    "settings",
    [
        {"arch": "seed", "deterministic": True},
        *thorough({"arch": "impala", "lag": 0}, {"arch": "rapid", "lag": 0}),
    ],
    ids=["seed, deterministic", "impala, in lockstep", "rapid, in lockstep"],
)
def test_the_cluster_changes_nothing_that_is_computed(
    settings: dict[str, Any], nodes: Nodes, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    runs = {
        place: train(tiny("toy:catch", tmp_path / place, **settings, frames=1_200, on=place)).to_json()
        for place in ("here", "ray")
    }
    assert "actors 2 of 2 placed" in capfd.readouterr().out
    assert runs["ray"]["params_sha256"] == runs["here"]["params_sha256"]
    assert runs["ray"]["agent_steps"] == runs["here"]["agent_steps"] >= 1_200
    assert runs["ray"]["actor_restarts"] == 0 and balanced(runs["ray"])
    host = ray.util.get_node_ip_address()
    assert (tmp_path / "ray" / "certificate.pem").exists() == (not host.startswith("127.")), (
        "the network is encrypted"
    )
    assert not (tmp_path / "here" / "certificate.pem").exists()
    until(lambda: not ours(tmp_path), "the end of all")


@pytest.mark.thorough
def test_a_learner_goes_on_from_a_store_with_actors_on_the_cluster(nodes: Nodes, tmp_path: Path) -> None:
    found = {}
    for place in ("here", "ray"):
        store = {"store": f"file://{tmp_path}/bucket", "begin_or_resume": True} if place == "ray" else {}
        train(tiny("toy:catch", tmp_path / place, deterministic=True, frames=600, on=place, **store))
        if place == "here":
            found[place] = resume(str(tmp_path / place), frames=1_200)
        else:
            shutil.rmtree(tmp_path / place)
            found[place] = resume(str(tmp_path / place), store=store["store"], frames=1_200)
    assert found["ray"].params_sha256 == found["here"].params_sha256
    assert found["ray"].weights_version == found["here"].weights_version > 0
    until(lambda: not ours(tmp_path), "the end of all")


@pytest.mark.parametrize("arch", thorough("gorila", "distbelief"))
def test_workers_push_their_gradients_from_there_to_shards_here(
    arch: str, nodes: Nodes, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    agents: dict[str, dict[str, Any]] = {
        "gorila": {"agent": "dqn", "replay_size": 400, "replay_min_size": 40, "eval_envs": 0},
        "distbelief": {"agent": "bc", "dataset": str(write_catch(tmp_path / "set"))},
    }
    found = train(
        tiny("toy:catch", tmp_path / "run", arch=arch, **agents[arch], shards=2, frames=1_200, on="ray")
    ).to_json()
    noun = "worker" if arch == "gorila" else "replica"
    assert f"{noun}s 2 of 2 placed" in capfd.readouterr().out
    assert found["agent_steps"] >= 1_200 and found["weights_version"] > 0
    assert found["actor_restarts"] == 0 and balanced(found)
    until(lambda: not ours(tmp_path), "the end of all")


def test_what_is_lost_is_replaced_and_the_books_balance(nodes: Nodes, tmp_path: Path) -> None:
    actor = Actors(tmp_path / "run")
    (tmp_path / "sleepy.py").write_text(SLEEPY)
    words = flags(
        "sleepy:World", "run", frames=10**9, on="ray", begin_or_resume=True, checkpoint_minutes=0.02
    )
    with Command(*words, cwd=tmp_path) as driver:
        driver.says("actors 2 of 2 placed")
        learned(tmp_path / "run")
        (tmp_path / "run/logs/actor-1.log").write_text("heard\n")
        assert log_of(str(tmp_path / "run"), "actor-1") == b"heard\n"
        (tmp_path / "run/logs/actor-1.log").rename(tmp_path / "elsewhere.log")
        with pytest.raises(
            ConfigError, match=r"there is no log of actor-7 in .*run, and no machine has actor-7"
        ):
            log_of(str(tmp_path / "run"), "actor-7")
        assert log_of(str(tmp_path / "run"), "actor-1") == b"", "asked of its machine, which has none either"
        first, second = (until(lambda index=index: actor(index), f"actor {index}") for index in (0, 1))

        first.kill()
        driver.says("actor 0: killed by signal 9; restart 1 of 3")
        first = until(lambda: actor(0, first), "another actor 0")

        second.parent().kill()  # the engine's process, with its guard nobody's child
        before, second = second, until(lambda: actor(1, second), "another actor 1")
        until(lambda: not alive(before), "the end of the one before")

        far, near = sorted((0, 1), key=lambda index: actor.raylet_of(index) in pids(nodes.home))
        assert actor.raylet_of(far) in pids(nodes.other) and actor.raylet_of(near) in pids(nodes.home)
        lost, told = [first, second][far], len(driver.output)
        nodes.lose_the_other()
        until(lambda: not alive(lost), "the end of the actor of a lost machine")
        waits = "actors 1 of 2 placed (1 waits for machines)"
        until(lambda: waits in driver.output[told:], "the line that says so")
        learns_on(tmp_path / "run", "updates with the actor that is left")
        nodes.find_another()
        until(lambda: actor(far, lost), "the actor on another machine")
        until(lambda: "actors 2 of 2 placed" in driver.output[told:], "the line that says so")

        stop_as_a_job(driver)
        assert driver.wait() == Status.EXECUTE_AGAIN, driver.output
    found = summary(tmp_path / "run")
    assert found["actor_restarts"] == 1, "lost machines are no faults of actors"
    assert balanced(found) and found["steps_dropped"] > 0
    assert int(checkpoints(tmp_path / "run")[-1].name) == found["weights_version"]
    assert "Traceback" not in driver.output and "raylet" not in driver.output
    until(lambda: not ours(tmp_path), "the end of all")

    with Command(*words, cwd=tmp_path) as driver:
        driver.says("resumed from")
        driver.says("actors 2 of 2 placed")
        learns_on(tmp_path / "run", "updates of the second session")
        driver.process.kill()
        driver.wait()
        until(lambda: not ours(tmp_path), "the end of all")


def test_a_learner_whose_own_node_is_killed_saves_and_ends_and_the_same_command_goes_on(
    tmp_path: Path,
) -> None:
    (tmp_path / "sleepy.py").write_text(SLEEPY)
    words = flags("sleepy:World", "run", frames=10**9, on="ray", begin_or_resume=True)
    with two_nodes() as nodes:  # of its own: the head stays without a raylet
        with Command(*words, cwd=tmp_path) as driver:
            driver.says("actors 2 of 2 placed")
            learned(tmp_path / "run")
            (raylet,) = nodes.home.all_processes["raylet"]
            raylet.process.kill()
            raylet.process.wait()
            assert driver.wait() == Status.FAILED, driver.output
            assert "this machine is no node of the Ray cluster any more" in driver.last_line
        found = summary(tmp_path / "run")
        assert balanced(found)
        assert int(checkpoints(tmp_path / "run")[-1].name) == found["weights_version"] > 0
        until(lambda: not ours(tmp_path), "the end of all")

        nodes.find_another()
        with Command(*words, cwd=tmp_path) as driver:
            driver.says("resumed from")
            driver.says("actors 2 of 2 placed")
            learns_on(tmp_path / "run", "updates of the second session")
            driver.interrupt()
            assert driver.wait() == Status.EXECUTE_AGAIN, driver.output
        until(lambda: not ours(tmp_path), "the end of all")


def stop_as_a_job(driver: Command) -> None:
    """Does as ``ray job stop`` does it, which needs the dashboard: SIGTERM to the driver and all below it."""
    for process in [driver.process, *driver.family()]:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.terminate()


def test_apex_has_its_actors_there_and_ctrl_c_saves_and_ends_everything(nodes: Nodes, tmp_path: Path) -> None:
    (tmp_path / "sleepy.py").write_text(SLEEPY)
    agent = {"agent": "dqn", "replay_size": 2_000, "replay_min_size": 64, "eval_envs": 0}
    words = flags("sleepy:World", "run", arch="apex", **agent, frames=10**9, on="ray")
    with Command(*words, cwd=tmp_path) as driver:
        driver.says("actors 2 of 2 placed")
        learned(tmp_path / "run")
        assert (
            len([process for process in ours(tmp_path / "run") if "launch.entry" in str(words_of(process))])
            == 2
        )
        driver.interrupt()
        assert driver.wait() == Status.OVER, driver.output
    found = summary(tmp_path / "run")
    assert found["interrupted_by"] == "SIGINT" and found["actor_restarts"] == 0
    assert balanced(found) and found["steps_trained"] > 0
    assert int(checkpoints(tmp_path / "run")[-1].name) == found["weights_version"] > 0
    assert "Traceback" not in driver.output
    until(lambda: not ours(tmp_path / "run"), "the end of all")


@pytest.mark.thorough
@pytest.mark.skipif(not may_unshare("--mount"), reason="this machine allows no mount of a tiny disk")
def test_a_full_disk_of_the_learner_ends_the_run_in_one_line_and_all_that_it_had_placed(
    nodes: Nodes, tmp_path: Path
) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "sleepy.py").write_text(SLEEPY)
    settings = {"frames": 6_000, "checkpoint_minutes": 1e-6, "hidden": (64, 64), "keep_checkpoints": 99}
    words = flags("sleepy:World", "disk/run", on="ray", **settings)
    script = 'mount -t tmpfs -o size=2m none disk && exec "$@"'
    command = ["unshare", "--mount", "sh", "-c", script, "sh", SEEDBED]
    with Command(*words, cwd=tmp_path, command=command) as driver:
        driver.says("actors 2 of 2 placed")
        placed = ours(tmp_path / "run")
        assert len(placed) == 2, "what the engine has started for this run, whose folder only the driver sees"
        driver.says("cannot write the checkpoint of step")
        assert driver.wait() == Status.FAILED, driver.output
        assert "free" in driver.last_line and "Traceback" not in driver.output
    until(lambda: not any(map(alive, placed)), "the end of all")


@pytest.mark.thorough
def test_the_actors_of_every_run_of_a_sweep_stand_on_the_cluster(nodes: Nodes, tmp_path: Path) -> None:
    pytest.importorskip("optuna")
    from seedbed.search.sweep import plan, sweep

    settings = {"on": "ray", "actors": 2, "envs_per_actor": 1, "frames": 2000}
    config = tiny("toy:catch", tmp_path / "sweep", **settings)
    said: list[str] = []
    result = sweep(plan(config, ["learning_rate=1e-3,3e-3"], by="all", at_once=1), said.append)
    assert [(one.state, one.part) for one in result.tried] == [("finished", 1.0)] * 2, said
    for number in range(2):
        assert balanced(summary(tmp_path / "sweep" / f"{number:04}"))
        assert "actors 2 of 2 placed" in (tmp_path / "sweep" / f"{number:04}.log").read_text()


@pytest.mark.thorough
def test_a_forward_pass_server_that_dies_is_found_again_at_its_port(nodes: Nodes, tmp_path: Path) -> None:
    (tmp_path / "sleepy.py").write_text(SLEEPY)
    words = flags("sleepy:World", "run", arch="rapid", frames=10**9, on="ray")
    task = str(tmp_path / "run/logs/forward-pass-server-0.json")

    def server() -> psutil.Process | None:
        return next((each for each in psutil.process_iter() if task in words_of(each) and alive(each)), None)

    with Command(*words, cwd=tmp_path) as driver:
        driver.says("actors 2 of 2 placed")
        learned(tmp_path / "run")
        until(server, "the forward-pass server").kill()
        driver.says("forward-pass server 0: killed by signal 9; restart 1 of 3")
        until(server, "another one")
        told = rows(tmp_path / "run")[-1]["updates"]
        until(lambda: rows(tmp_path / "run")[-1]["updates"] > told + 20, "updates by way of it")
        driver.interrupt()
        assert driver.wait() == Status.OVER, driver.output
    assert balanced(summary(tmp_path / "run"))
    until(lambda: not ours(tmp_path / "run"), "the end of all")


class OtherHost:
    """The process of the other host of the run in a folder."""

    def __init__(self, folder: Path) -> None:
        self._task = str(folder / "logs/host-1.json")

    def __call__(self) -> psutil.Process | None:
        named = (process for process in psutil.process_iter() if self._task in words_of(process))
        return next((process for process in named if alive(process)), None)


HOSTS: dict[str, dict[str, Any]] = {
    "sebulba": {"actors": 1, "envs_per_actor": 8},
    "anakin": {},
}


def two_hosts(folder: str, arch: str, **settings: Any) -> list[str]:
    settings = {"agent": "vtrace", "arch": arch, "hosts": 2, "batch_size": 16, **HOSTS[arch], **settings}
    return flags("gymnax:CartPole-v1" if arch == "anakin" else "CartPole-v1", folder, **settings)


@pytest.mark.thorough
@pytest.mark.parametrize("arch", ["sebulba", *thorough("anakin")])
def test_hosts_that_the_cluster_places_compute_what_they_do_here(
    arch: str, nodes: Nodes, tmp_path: Path
) -> None:
    for place in ("here", "ray"):
        words = two_hosts(place, arch, frames=600, deterministic=True, on=place)
        with Command(*words, cwd=tmp_path) as driver:
            if place == "ray":
                driver.says("hosts 1 of 1 placed")
                other = until(OtherHost(tmp_path / place), "the other host")
                assert other.parent().ppid() in pids(nodes.other), "the head has its machine to itself"
            assert driver.wait() == Status.OVER, driver.output
    here, there = (summary(tmp_path / place) for place in ("here", "ray"))
    assert here["params_sha256"] == there["params_sha256"]
    assert there["params_sha256"] == summary(tmp_path / "ray/hosts/1")["params_sha256"]
    until(lambda: not OtherHost(tmp_path / "ray")(), "the end of the other host")
    until(lambda: not ours(tmp_path), "the end of all")


@pytest.mark.thorough
@pytest.mark.parametrize("lost", ["the machine", *thorough("the engine's process")])
def test_a_lost_host_ends_the_others_with_a_checkpoint_and_the_run_goes_on_from_it(
    lost: str, nodes: Nodes, tmp_path: Path
) -> None:
    words = two_hosts("run", "sebulba", frames=10**9, on="ray", begin_or_resume=True, host_timeout=10.0)
    with Command(*words, cwd=tmp_path) as driver:
        learned(tmp_path / "run")
        other = until(OtherHost(tmp_path / "run"), "the other host")
        if lost == "the machine":
            nodes.lose_the_other()
        else:
            other.parent().kill()
        assert driver.wait() == Status.FAILED, driver.output
        assert "host 1 is gone" in driver.last_line
    before = summary(tmp_path / "run")
    assert int(checkpoints(tmp_path / "run")[-1].name) == before["weights_version"] > 0
    until(lambda: not alive(other) and not ours(tmp_path), "the end of all")

    nodes.cluster.wait_for_nodes(
        60
    )  # until the engine has missed the lost one, to which it might send the driver
    with Command(*words, cwd=tmp_path) as driver:
        if lost == "the machine":
            driver.says("hosts 0 of 1 placed (1 waits for machines)")
            nodes.find_another()
        driver.says("hosts 1 of 1 placed")
        driver.says("resumed from")
        learns_on(tmp_path / "run", "updates of the second session")
        driver.interrupt()
        assert driver.wait() == Status.EXECUTE_AGAIN, driver.output
    assert balanced(summary(tmp_path / "run"))
    until(lambda: not ours(tmp_path), "the end of all")


def test_hosts_that_no_machine_has_room_for_are_waited_for_and_ctrl_c_ends_that(
    nodes: Nodes, tmp_path: Path
) -> None:
    with Command(
        *two_hosts("run", "sebulba", hosts=3, batch_size=18, frames=10**9, on="ray"), cwd=tmp_path
    ) as driver:
        driver.says("hosts 0 of 2 placed (2 wait for machines)")
        driver.interrupt()
        assert driver.wait() == 130, driver.output
    assert not (tmp_path / "run").exists() or not checkpoints(tmp_path / "run")
    assert "Traceback" not in driver.output
    until(lambda: not ours(tmp_path), "the end of all")


def test_a_learner_outside_of_the_cluster_is_refused_and_nothing_begun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "ray://127.0.0.1:10001")
    with pytest.raises(ConfigError, match="the learner has to run inside of the cluster"):
        train(tiny("toy:catch", tmp_path / "run", on="ray", frames=100))
    assert not (tmp_path / "run").exists()


def machines(run: Path) -> dict[int, str]:
    """The machine of each actor, as its run has told it last."""
    instances = json.loads((run / "live.json").read_text())["instances"]
    return {each["index"]: each["machine"] for each in instances if each["role"] == "actor"}


@pytest.mark.thorough
@pytest.mark.parametrize(
    "settings",
    [
        {"arch": "apex", "agent": "dqn", "replay_size": 2_000, "replay_min_size": 64, "eval_envs": 0},
        *thorough({"arch": "seed"}, {"arch": "impala"}),
    ],
    ids=["apex", "seed", "impala"],
)
def test_guests_come_with_a_machine_and_go_with_it(
    settings: dict[str, Any], nodes: Nodes, tmp_path: Path
) -> None:
    run, actor = tmp_path / "run", Actors(tmp_path / "run")
    (tmp_path / "sleepy.py").write_text(SLEEPY)
    words = flags("sleepy:World", "run", **settings, frames=10**9, on="ray", guests=2)
    with Command(*words, cwd=tmp_path) as driver:
        driver.says("actors 2 of 2 and 0 of 2 guests placed (2 wait for machines)")
        assert learned(run), "the run does not wait for them"
        more = nodes.add()
        try:
            driver.says("actors 2 of 2 and 1 of 2 guests placed (1 waits for machines)")
            guest, index = until(lambda: found_guest(actor), "the guest")
            assert guest.parent().ppid() in pids(more)
            until(lambda: f"actor {index} joined" in learners_log(run), "its environments")
            other = 5 - index  # indices 2 and 3 are the guests'
            here = dict.fromkeys(range(4), socket.gethostname()) | {other: ""}
            until(lambda: machines(run) == here, "a row with the machine of each instance that has one")

            guest.kill()
            driver.says(f"guest actor {index}: killed by signal 9; it comes again in 1 s")
            again = until(lambda: actor(index, guest), "the guest, once more")
            until(lambda: learners_log(run).count(f"actor {index} joined") == 2, "its environments")
            told = len(driver.output)
        finally:
            nodes.cluster.remove_node(more, allow_graceful=False)
        until(lambda: not alive(again), "the end of the guest of a lost machine")
        until(
            lambda: "actors 2 of 2 and 0 of 2 guests placed (2 wait for machines)" in driver.output[told:],
            "the line that says so",
        )
        learns_on(run, "updates without guests")
        driver.interrupt()
        assert driver.wait() == Status.OVER, driver.output
    found = summary(run)
    assert found["actor_restarts"] == 0, "guests cost no restarts"
    assert balanced(found)
    assert found["steps_dropped"] or settings["arch"] != "seed", "the open unrolls of the lost guest"
    assert "Traceback" not in driver.output
    until(lambda: not ours(run), "the end of all")
    until(lambda: not pending(nodes), "no guest to wait for a machine")


def found_guest(actor: Actors) -> tuple[psutil.Process, int] | None:
    """A guest beside two actors of the run's own, with its index."""
    return next(((found, index) for index in (2, 3) if (found := actor(index)) is not None), None)


def learners_log(run: Path) -> str:
    """The learner's log, which tells of actors that come and go."""
    return (run / "logs/learner.log").read_text()


def pending(nodes: Nodes) -> list[str]:
    """Names of what the engine still has of runs, or seeks a machine for."""
    ray.init(address=nodes.cluster.address, namespace="seedbed", log_to_driver=False)
    try:
        return list(ray.util.list_named_actors())
    finally:
        ray.shutdown()
