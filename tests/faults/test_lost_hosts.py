"""A host of several is lost: the others end with the reason and a checkpoint, and the run goes on from it."""

from __future__ import annotations

import signal
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
from harness import Command, alive, checkpoints, flags, is_actor, rows, summary, thorough, until, words_of

pytestmark = pytest.mark.slow

ARCHS: dict[str, dict[str, Any]] = {
    "anakin": {},
    "seed": {"actors": 1, "envs_per_actor": 8},
    "sebulba": {"actors": 1, "envs_per_actor": 8},
    "rapid": {"actors": 1, "envs_per_actor": 8},
}


INTERRUPTED = """
import os, signal, sys, time
from seedbed.cli.main import main
from seedbed.launch import train

def interrupted(*_):
    while not os.path.exists("run/hosts/1"):
        time.sleep(0.02)
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(60)

train._with_others = interrupted
main(sys.argv[1:])
"""
"""``seedbed`` whose host 0 is interrupted when the other host has joined and looks for its devices, which may wait."""


def two_hosts(cwd: Path, arch: str, command: list[str] | None = None, **settings: Any) -> Command:
    settings = {
        **{"agent": "vtrace", "arch": arch, "hosts": 2, "batch_size": 16, "seed": 3},
        **ARCHS[arch],
        **settings,
    }
    env = "gymnax:CartPole-v1" if arch == "anakin" else "CartPole-v1"
    return Command(*flags(env, "run", **settings), cwd=cwd, command=command)


def hosts_of(learner: Command) -> list[psutil.Process]:
    """The processes of the other hosts."""
    named = ((each, " ".join(words_of(each))) for each in learner.family())
    return [each for each, words in named if "launch.entry" in words and words.endswith("host-1.json")]


def other_host(learner: Command) -> psutil.Process:
    (found,) = hosts_of(learner)
    return found


def learning(folder: Path) -> None:
    until(lambda: any(row["updates"] > 0 for row in rows(folder)), f"updates in {folder}")


def resumed(cwd: Path, frames: int) -> dict[str, Any]:
    with Command("resume", "run", "--frames", str(frames), "--no-video", cwd=cwd) as learner:
        assert learner.wait() == 0, learner.output
    both = [summary(cwd / folder) for folder in ("run", "run/hosts/1")]
    for what in ("params_sha256", "agent_steps", "episodes", "weights_version"):
        assert both[0][what] == both[1][what], what
    parts = sum(both[0][f"steps_{name}"] for name in ("trained", "queued", "open", "dropped"))
    assert parts == both[0]["steps_received"]
    assert both[0]["agent_steps"] == both[0]["steps_received"] - both[0]["steps_resets"] >= frames
    return both[0]


@pytest.mark.parametrize(
    ("arch", "host"), [("anakin", 0), *thorough(("rapid", 1), ("seed", 0), ("anakin", 1), ("sebulba", 1))]
)
def test_the_others_end_with_the_reason_and_a_checkpoint(arch: str, host: int, tmp_path: Path) -> None:
    folders = [tmp_path / "run", tmp_path / "run/hosts/1"]
    with two_hosts(tmp_path, arch) as learner:
        for folder in folders:
            learning(folder)
        processes = [learner.process, other_host(learner)]
        family = learner.family()
        processes[host].kill()
        said = f": host {host} is gone: the connection was closed (log: "
        if host == 1:
            assert learner.wait() == 1
            assert learner.last_line.startswith(f"seedbed{said}")
        until(lambda: not any(map(alive, family)), "everything to end")
    if host == 0:
        last = (folders[0] / "logs/host-1.log").read_text().rstrip().rsplit("\n", 1)[-1]
        assert last.startswith(f"RunFailed{said}")
    left = folders[1 - host]
    before = summary(left)
    assert before["stopped_because"].startswith(f"failed: host {host} is gone")
    assert int(checkpoints(left)[-1].name) == before["weights_version"] > 0
    assert not checkpoints(folders[host])
    after = resumed(tmp_path, before["agent_steps"] + 2000)
    assert after["weights_version"] > before["weights_version"]
    assert before["episodes"] <= after["episodes"] < before["episodes"] + 1000


def test_a_host_that_hangs_is_missed(tmp_path: Path) -> None:
    with two_hosts(tmp_path, "sebulba", host_timeout=8.0) as learner:
        learning(tmp_path / "run")
        hanging = other_host(learner)
        hanging.suspend()
        assert learner.wait() == 1
        assert "host 1 is gone: no sign of life for 8 s" in learner.last_line
        with suppress(psutil.NoSuchProcess):  # the launcher's guard may have ended it by now
            hanging.resume()
        until(lambda: not alive(hanging), "the other host to end")


def test_a_host_whose_part_fails_says_why_to_the_others(tmp_path: Path) -> None:
    with two_hosts(tmp_path, "seed", actor_restarts=0) as learner:
        learning(tmp_path / "run")
        (actor,) = filter(is_actor, other_host(learner).children(recursive=True))
        actor.kill()
        assert learner.wait() == 1
        assert learner.last_line.startswith("seedbed: host 1 failed: actor 0")
    assert summary(tmp_path / "run")["stopped_because"].startswith("failed: host 1 failed: actor 0")


@pytest.mark.parametrize("arch", ["seed", *thorough("anakin")])
def test_ctrl_c_ends_all_hosts_after_the_same_update(arch: str, tmp_path: Path) -> None:
    with two_hosts(tmp_path, arch) as learner:
        learning(tmp_path / "run")
        learner.interrupt()
        assert learner.wait() == 0, learner.output
    told = [summary(tmp_path / folder) for folder in ("run", "run/hosts/1")]
    assert [each["stopped_because"] for each in told] == ["interrupted"] * 2
    assert told[0]["params_sha256"] == told[1]["params_sha256"]
    resumed(tmp_path, told[0]["agent_steps"] + 500)


def test_ctrl_c_just_after_all_have_joined_is_heard_by_all(tmp_path: Path) -> None:
    with two_hosts(tmp_path, "sebulba", [sys.executable, "-c", INTERRUPTED]) as learner:
        other = until(lambda: next(iter(hosts_of(learner)), None), "the other host")
        until((tmp_path / "run/hosts/1").exists, "the other host to have joined")
        began = time.monotonic()
        assert learner.wait() == 130, learner.output
        assert time.monotonic() - began < 45, "it was killed after its minute"
        assert not alive(other)


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 75)])
def test_hosts_that_have_not_joined_yet_are_not_waited_for(number: int, status: int, tmp_path: Path) -> None:
    with two_hosts(tmp_path, "sebulba") as learner:
        other = until(lambda: next(iter(hosts_of(learner)), None), "the other host")
        began = time.monotonic()
        learner.process.send_signal(number)
        assert learner.wait() == status, learner.output
        assert time.monotonic() - began < 30, "one that has joined may save for a minute"
        until(lambda: not alive(other), "the other host to end")
    assert not (tmp_path / "run/config.json").exists()


def test_sigterm_to_one_host_ends_all(tmp_path: Path) -> None:
    with two_hosts(tmp_path, "sebulba") as learner:
        learning(tmp_path / "run")
        other_host(learner).send_signal(signal.SIGTERM)
        assert learner.wait() == 0, learner.output
    assert summary(tmp_path / "run")["stopped_because"] == "interrupted"
    assert summary(tmp_path / "run/hosts/1")["stopped_because"] == "interrupted"


def test_wrong_settings_end_all_hosts_and_leave_nothing(tmp_path: Path) -> None:
    with two_hosts(tmp_path, "seed", training_devices=(7,)) as learner:
        assert learner.wait() == 2
        assert "training device 7 does not exist" in learner.last_line
    assert not (tmp_path / "run/config.json").exists()
