"""The watch over the connection to a cluster, with nodes that are made up and a clock of its own."""

from __future__ import annotations

import queue
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from harness import until

from seedbed.launch import cluster_connection
from seedbed.launch.cluster_connection import HEAD_SECONDS, ClusterWatch

Nodes = list[dict[str, Any]]


class Head:
    """The head of a cluster: each look waits for the answer that a test gives it."""

    def __init__(self) -> None:
        self.now = 0.0
        self._answers: queue.Queue[Nodes | Exception | None] = queue.Queue()
        self._looks = 0
        self.watch = ClusterWatch(self._nodes, "mine", lambda: self.now)

    def _nodes(self) -> Nodes:
        self._looks += 1
        answer = self._answers.get()
        if answer is None:
            return [{"NodeID": "mine", "Alive": False}]
        if isinstance(answer, Exception):
            raise answer
        return answer

    def answers(self, answer: Nodes | Exception | None) -> None:
        """Answers the look that waits, and waits for the next one: what was heard is noted by then."""
        before = until(lambda: self._looks, "a look")
        self._answers.put(answer)
        until(lambda: self._looks > before, "the look after it")

    def passes(self, seconds: float) -> None:
        """Lets time pass, in which the watch is asked as it is in a run."""
        for _ in range(round(seconds)):
            self.now += 1.0
            self.watch.trouble()

    def close(self) -> None:
        self.watch.close()
        self._answers.put(None)


ALIVE: Nodes = [{"NodeID": "other", "Alive": False}, {"NodeID": "mine", "Alive": True}]


@pytest.fixture
def head(monkeypatch: pytest.MonkeyPatch) -> Iterator[Head]:
    monkeypatch.setattr(cluster_connection, "_LOOK_SECONDS", 0.001)
    made = Head()
    yield made
    made.close()


def test_a_cluster_that_answers_gives_no_trouble_though_other_nodes_are_lost(head: Head) -> None:
    for _ in range(3):
        head.passes(HEAD_SECONDS - 1)
        head.answers(ALIVE)
    assert head.watch.trouble() is None


@pytest.mark.parametrize(
    "nodes", [[{"NodeID": "mine", "Alive": False}], [{"NodeID": "other", "Alive": True}], []]
)
def test_a_machine_that_is_no_node_any_more_has_lost_the_cluster(nodes: Nodes, head: Head) -> None:
    head.answers(nodes)
    assert "this machine is no node of the Ray cluster any more" in str(head.watch.trouble())


def _refuses(head: Head) -> None:
    head.answers(RuntimeError("Failed to connect to GCS"))


@pytest.mark.parametrize("meanwhile", [lambda head: None, _refuses], ids=["a look hangs", "looks fail"])
def test_a_head_that_is_silent_for_too_long_is_lost(meanwhile: Callable[[Head], None], head: Head) -> None:
    head.answers(ALIVE)
    head.passes(HEAD_SECONDS)
    meanwhile(head)
    assert head.watch.trouble() is None
    head.passes(1)
    assert (
        head.watch.trouble() == f"the head of the Ray cluster has not answered for {HEAD_SECONDS + 1:.0f} s"
    )
    head.answers(ALIVE)
    assert head.watch.trouble() is None, "it was away for a while"


def test_a_process_that_stood_still_itself_has_not_lost_it(head: Head) -> None:
    head.answers(ALIVE)
    head.passes(1)
    head.now += 10 * HEAD_SECONDS  # Ctrl-Z, and later fg
    assert head.watch.trouble() is None
    head.passes(HEAD_SECONDS + 1)
    assert head.watch.trouble() is not None
