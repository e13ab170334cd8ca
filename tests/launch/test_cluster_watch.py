"""The watch over the connection to a cluster, with nodes that are made up and a clock of its own."""

from __future__ import annotations

import os
import queue
import threading
from types import SimpleNamespace
from typing import Any

import pytest
from harness import PATIENCE, at_once

from seedbed.errors import ConfigError
from seedbed.launch import cluster_connection
from seedbed.launch.cluster_connection import (
    _RAYS_LIMIT,
    HEAD_SECONDS,
    ClusterWatch,
    _patient,
    connected,
    end_without_ray,
)
from seedbed.launch.rendezvous import free_port

ALIVE: list[dict[str, Any]] = [{"NodeID": "other", "Alive": False}, {"NodeID": "mine", "Alive": True}]
DEAD: list[dict[str, Any]] = [{"NodeID": "mine", "Alive": False}]
OTHERS: list[dict[str, Any]] = [{"NodeID": "other", "Alive": True}]
SILENT = f"the head of the Ray cluster has not answered for {HEAD_SECONDS + 1:.0f} s: look at its machine"


class Cluster:
    """A cluster that answers what a test says, and the watch over it."""

    def __init__(self) -> None:
        self.now = 0.0
        self.answer: list[dict[str, Any]] | Exception = ALIVE
        self.told: list[str] = []
        self.watch = ClusterWatch(self._nodes, "mine", lambda: self.now)

    def _nodes(self) -> list[dict[str, Any]]:
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer

    def passes(self, seconds: float, *, asked: bool = True) -> None:
        """Lets time pass as it does in a run; a question that hangs is none that is asked."""
        for _ in range(round(seconds)):
            self.now += 1.0
            if asked:
                self.watch.ask()
            self.watch.judge(self.told.append)


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()


def test_a_cluster_that_answers_now_and_then_is_there_though_other_nodes_are_lost(cluster: Cluster) -> None:
    for _ in range(3):
        cluster.passes(HEAD_SECONDS, asked=False)
        cluster.passes(1)
    assert cluster.watch.lost is None and cluster.told == []


@pytest.mark.parametrize("nodes", [DEAD, OTHERS, []])
def test_a_machine_that_is_no_node_any_more_has_lost_it(
    nodes: list[dict[str, Any]], cluster: Cluster
) -> None:
    cluster.answer = nodes
    cluster.passes(1)
    assert cluster.told == [], "one such answer may be of a head that has only begun"
    cluster.answer = ALIVE
    cluster.passes(1)
    cluster.answer = nodes
    cluster.passes(1)
    assert cluster.told == []
    cluster.passes(1)
    (told,) = cluster.told
    assert told.startswith("this machine is no node of the Ray cluster any more") and "ray start" in told


@pytest.mark.parametrize("asked", [False, True], ids=["a question hangs", "questions fail"])
def test_a_head_that_is_silent_for_too_long_is_lost_for_good_and_told_once(
    asked: bool, cluster: Cluster
) -> None:
    cluster.passes(1)
    cluster.answer = RuntimeError("Failed to connect to GCS")
    cluster.passes(HEAD_SECONDS, asked=asked)
    assert cluster.told == []
    cluster.passes(1, asked=asked)
    assert [told.startswith(SILENT) for told in cluster.told] == [True]
    cluster.now += 60.0  # the run saves meanwhile, and nobody judges
    cluster.answer = ALIVE
    cluster.passes(2 * HEAD_SECONDS)
    assert cluster.watch.lost == cluster.told[0], "whoever asks later, too"
    assert len(cluster.told) == 1


def test_a_process_that_stood_still_itself_has_not_lost_it(cluster: Cluster) -> None:
    cluster.passes(1)
    cluster.now += 10 * HEAD_SECONDS  # Ctrl-Z, and later fg
    cluster.passes(HEAD_SECONDS, asked=False)
    assert cluster.told == []
    cluster.passes(2, asked=False)
    assert len(cluster.told) == 1


def test_threads_tell_it_while_a_question_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_connection, "_LOOK_SECONDS", 0.001)
    monkeypatch.setattr(cluster_connection, "HEAD_SECONDS", 0.01)
    told: queue.Queue[str] = queue.Queue()
    asked, over = threading.Event(), threading.Event()

    def nodes() -> list[dict[str, Any]]:
        asked.set()
        over.wait(PATIENCE)
        return ALIVE

    watch = ClusterWatch(nodes, "mine")
    watch.begin(told.put)
    try:
        assert asked.wait(PATIENCE)
        assert told.get(timeout=PATIENCE) == watch.lost
    finally:
        over.set()
        watch.close()


@pytest.mark.parametrize("given", [None, "7"])
def test_ray_is_asked_for_time_to_save_where_it_is_imported_and_nodes_keep_their_own_limit(
    given: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(_RAYS_LIMIT, raising=False)
    if given is not None:
        monkeypatch.setenv(_RAYS_LIMIT, given)
    with _patient():
        assert os.environ[_RAYS_LIMIT] == (given or "600")
    assert os.environ.get(_RAYS_LIMIT) == given


def test_a_process_whose_cluster_is_lost_begins_no_other_run_there(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("ray")
    bound, held = threading.Event(), threading.Event()
    monkeypatch.setattr(cluster_connection, "_bound", bound)
    monkeypatch.setattr(cluster_connection, "stuck", held)
    unregistered: list[object] = []
    monkeypatch.setattr(cluster_connection.atexit, "unregister", unregistered.append)
    end_without_ray(SimpleNamespace(shutdown="its end"))
    assert unregistered == ["its end"] and held.is_set()
    with pytest.raises(ConfigError, match=r"bound to a Ray cluster that is lost, .*: start another process"):
        connected()


def test_a_head_that_is_gone_is_noticed_before_ray_waits_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    services = pytest.importorskip("ray._private.services")
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    gone = f"127.0.0.1:{free_port('127.0.0.1')}"
    monkeypatch.setattr(services, "canonicalize_bootstrap_address", lambda address: gone)
    with pytest.raises(ConfigError, match="there is no Ray cluster at 'auto'"):
        at_once(connected)
