"""What ``seedbed doctor --on ray`` finds on a Ray cluster of several nodes, all on this machine, and without one."""

from __future__ import annotations

import os
import signal
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from seedbed import __version__
from seedbed.cli.main import main
from seedbed.errors import ConfigError
from seedbed.installation import extra_line
from seedbed.launch import nodes
from seedbed.launch.cluster_connection import connected
from seedbed.launch.machine import Finding
from seedbed.launch.node_probe import probe

HERE = "127.0.0.1"
OWN = os.getpriority(os.PRIO_PROCESS, 0)
FIT: dict[str, Any] = {
    "python": nodes.platform.python_version(),
    "ray": "",
    "seedbed": __version__,
    "broken": "",
    "niceness": OWN,
    "superuser": False,
    "shared_memory": [2**30, 2**31],
    "learner": "",
}


@pytest.fixture
def doctor(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    """The command for the cluster alone; returns its exit status and lines."""
    monkeypatch.setattr("seedbed.launch.machine.findings", lambda: [("this machine", "is fit", "")])

    def run() -> tuple[int, list[str]]:
        with pytest.raises(SystemExit) as stop:
            main(["doctor", "--on", "ray"])
        return int(stop.value.code or 0), capsys.readouterr().out.splitlines()

    return run


def closed_port() -> int:
    with socket.socket() as probe:
        probe.bind((HERE, 0))
        return int(probe.getsockname()[1])


# -- without a cluster -----------------------------------------------------------------------------------------


def test_ray_that_is_not_installed_is_one_command_away(doctor: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nodes, "version_of", lambda package: None)
    status, lines = doctor()
    assert status == 1
    assert lines[1].split(None, 1) == ["Ray", f"not installed  (needed: {extra_line('ray')})"]


@pytest.mark.parametrize(
    "address", ["ray://127.0.0.1:10001", f"{HERE}:{closed_port()}"], ids=["client", "none"]
)
def test_a_cluster_that_is_none_is_refused_in_the_words_of_train(
    address: str, doctor: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("ray")
    monkeypatch.setenv("RAY_ADDRESS", address)
    with pytest.raises(ConfigError) as refused:
        connected()
    status, lines = doctor()
    assert status == 1
    assert lines[2].split(None, 2) == ["Ray", "cluster", f"none  (needed: {refused.value})"]
    assert "start this command on one of its machines" in lines[2] or "'ray start --head'" in lines[2]


def test_an_examination_that_hangs_or_dies_is_a_finding_and_ends() -> None:
    first = "import json; print(json.dumps(['Ray', '1', '']), flush=True);"
    hangs = [sys.executable, "-c", f"{first} import signal; signal.pause()"]
    assert list(nodes.findings_of(hangs, 1.0)) == [
        ("Ray", "1", ""),
        ("Ray cluster", "no answer within 1 s", f"needed: {nodes._LOOK_AT_IT}"),
    ]
    dies = [sys.executable, "-c", f"{first} import os, sys; sys.stderr.write('so it is'); os._exit(7)"]
    assert list(nodes.findings_of(dies, 60.0))[1:] == [
        ("Ray cluster", "its examination ended with status 7: so it is", f"needed: {nodes._LOOK_AT_IT}")
    ]


# -- what a node tells -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("told", "trouble"),
    [
        ({}, None),
        ({"niceness": 19}, ("niceness 19 of Ray's processes", "its actors wait for everything else there: ")),
        ({"niceness": 19, "superuser": True}, ("niceness 19", "actors of a superuser take it back")),
        ({"ray": "1.2"}, ("Ray 1.2", "needed: as here, ")),
        ({"seedbed": "0.0.7"}, ("Seedbed 0.0.7", f"needed: as here, {__version__}")),
        (
            {"seedbed": "", "broken": "ImportError: no"},
            ("Seedbed cannot be imported (ImportError: no)", f"needed: Seedbed {__version__}"),
        ),
        ({"python": "3.2.1"}, ("Python 3.2.1", "needed: as here, 3.")),
        ({"python": ".".join([*FIT["python"].split(".")[:2], "99"])}, ("Python 3.", "here it is 3.")),
        ({"learner": "timed out"}, ("cannot reach 10.0.0.1:7 (timed out)", "needed: the learner listens")),
        ({"shared_memory": [0, 64 * 2**20]}, ("/dev/shm of 64 MiB", "some environments need more")),
        ({"shared_memory": None}, None),
    ],
)
def test_each_trouble_of_a_node_has_a_line(told: dict[str, Any], trouble: tuple[str, str] | None) -> None:
    ray = pytest.importorskip("ray")
    found = list(nodes._troubles({**FIT, "ray": ray.__version__, **told}, "10.0.0.1:7"))
    assert len(found) == (trouble is not None)
    if trouble is not None:
        assert found[0][0].startswith(trouble[0]) and found[0][1].startswith(trouble[1])


def test_a_node_says_whether_it_reaches_the_learner() -> None:
    pytest.importorskip("ray")
    with nodes._Listener(HERE, "said here") as listener:
        told = probe(HERE, listener.port, "said here", 10.0)
        assert told["learner"] == "" and told["seedbed"] == __version__
        assert told["niceness"] == OWN
        assert probe(HERE, listener.port, "of a learner", 10.0)["learner"] == "something else listens there"
    assert "refused" in probe(HERE, listener.port, "said here", 10.0)["learner"]


# -- on a cluster ----------------------------------------------------------------------------------------------


class Cluster:
    """A cluster whose nodes may differ in their environment variables."""

    def __init__(self) -> None:
        from ray.cluster_utils import Cluster as OnThisMachine

        self.cluster = OnThisMachine()
        self.add(include_dashboard=False, no_monitor=True)

    def add(self, **more: Any) -> Any:
        """Adds a node; returns it."""
        small = {"object_store_memory": 80_000_000, "include_log_monitor": False}
        return self.cluster.add_node(wait=False, **{"num_cpus": 1, **small, **more})


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    pytest.importorskip("ray")
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    monkeypatch.setenv("RAY_worker_niceness", "0")
    made = Cluster()
    monkeypatch.setenv("RAY_ADDRESS", made.cluster.address)
    try:
        yield made
    finally:
        made.cluster.shutdown()


@pytest.mark.thorough
@pytest.mark.slow
def test_every_node_is_examined_and_the_ones_in_trouble_are_named(
    cluster: Cluster, doctor: Any, tmp_path: Path
) -> None:
    status, lines = doctor()
    assert status == 0, lines
    assert [line.split()[:2] for line in lines[1:3]] == [["Ray", nodes.version_of("ray")], ["Ray", "cluster"]]
    assert f"{cluster.cluster.address}: 1 node, 1 core, " in lines[2]
    assert lines[3].startswith("node ") and "(here)" in lines[3] and len(lines) == 4
    for fact in (
        f"Seedbed {__version__}",
        f"no accelerators; niceness {OWN}; ",
        "reaches the learner's address",
    ):
        assert fact in lines[3]

    (tmp_path / "seedbed.py").write_text("raise ImportError('none on this node')")
    # Without a free core, as one whose actors are there already.
    bare = cluster.add(num_cpus=0, env_vars={"PYTHONPATH": str(tmp_path), "RAY_worker_niceness": "19"})
    still = cluster.add()
    raylet = still.all_processes["raylet"][0].process
    raylet.send_signal(signal.SIGSTOP)
    try:
        found = list(nodes.cluster_findings(15.0))
    finally:
        raylet.send_signal(signal.SIGCONT)
    assert "3 nodes, 2 cores, " in found[1][1]
    assert len(about(found, "(here)")) == 1
    of_bare = about(found, bare.node_id[:6])
    assert "Seedbed missing" in of_bare[0][1]
    assert "Seedbed cannot be imported (ImportError: none on this node)" in [what for _, what, _ in of_bare]
    assert any(what.startswith("niceness 19 ") for _, what, _ in of_bare)
    assert [each[1:] for each in about(found, still.node_id[:6])] == [
        ("no answer within 15 s", f"needed: {nodes._LOOK_AT_IT}")
    ]


def about(found: list[Finding], word: str) -> list[Finding]:
    """The findings whose name has a word."""
    return [finding for finding in found if word in finding[0]]
