"""A Ray cluster of several nodes on this machine, and the processes of a run on it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import psutil
from harness import TESTS, alive, words_of


class Nodes:
    """A cluster of two nodes with one core each: each of two actors has a node of its own, one the learner's."""

    def __init__(self) -> None:
        from ray.cluster_utils import Cluster

        self.cluster = Cluster()
        self.home = self.add(include_dashboard=False, no_monitor=True)
        self.other = self.add()

    def find_another(self) -> None:
        """Adds a node in the place of the lost one; a busy machine may take longer than the engine waits for it."""
        for left in (2, 1, 0):
            try:
                self.other = self.add()
                return
            except Exception:
                if not left:
                    raise

    def add(self, **more: Any) -> Any:
        """Adds a node, with as few processes of the engine's own as there can be."""
        small = {"object_store_memory": 80_000_000, "include_log_monitor": False}
        return self.cluster.add_node(num_cpus=1, wait=False, **small, **more)

    def lose_the_other(self) -> None:
        """Kills the raylet of the node where no learner is."""
        self.cluster.remove_node(self.other, allow_graceful=False)


@contextmanager
def two_nodes() -> Iterator[Nodes]:
    """A cluster that runs find by their environment."""
    path = os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")])
    quiet = {"RAY_USAGE_STATS_ENABLED": "0"}
    awake = {"RAY_worker_niceness": "0"}  # a busy machine would let them starve
    with mock.patch.dict(os.environ, {"PYTHONPATH": path, **quiet, **awake}):
        found = Nodes()
        try:
            os.environ["RAY_ADDRESS"] = found.cluster.address
            yield found
        finally:
            found.cluster.shutdown()


def pids(node: Any) -> set[int]:
    """Process ids of a node of the engine."""
    return {info.process.pid for infos in node.all_processes.values() for info in infos}


def ours(folder: Path) -> list[psutil.Process]:
    """Living processes of a run's actors, and of the engine that start actors."""
    named = ((process, " ".join(words_of(process))) for process in psutil.process_iter())
    return [
        process
        for process, words in named
        if (words.startswith("ray::Bundle") and works_for(process, folder))
        or ("launch.entry" in words and str(folder) in words)
    ]


def works_for(process: psutil.Process, folder: Path) -> bool:
    """Whether a process of the engine has the current folder of this run: others may test on this machine."""
    try:
        return Path(process.cwd()) in (folder, folder.parent, Path.cwd())
    except psutil.Error:
        return False


class Actors:
    """The living actors of the run in a folder, and of no other."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __call__(self, index: int, before: psutil.Process | None = None) -> psutil.Process | None:
        """Returns the process of an actor, if it is another one than before."""
        task = str(self._folder / "logs" / f"actor-{index}.json")
        named = (process for process in psutil.process_iter() if task in words_of(process) and alive(process))
        return next((process for process in named if process != before), None)

    def raylet_of(self, index: int) -> int:
        """Process id of the node where an actor is: its own parent is the engine's process that started it."""
        found = self(index)
        assert found is not None
        return int(found.parent().ppid())
