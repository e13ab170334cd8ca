"""The processes of a parameter server's run: its shards and its workers, started, watched and stopped."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

from seedbed.architectures.with_shards import ParameterServerRun
from seedbed.config.resolve import to_json
from seedbed.config.settings import RunConfig
from seedbed.errors import CheckpointError
from seedbed.launch.actors import Actor, Guard, ProcessActor, Supervisor
from seedbed.launch.folder import RunFolder
from seedbed.launch.shard import keep
from seedbed.learning.checkpoint import load_latest
from seedbed.types import EnvSpec


class Pools:
    """The shards and the workers of one run, each in a process of its own.

    Args:
      arch: the run that they belong to.
      config: its settings.
      spec: of its environments.
      folder: its folder.
      note: takes one line for people.
    """

    def __init__(
        self,
        arch: ParameterServerRun,
        config: RunConfig,
        spec: EnvSpec,
        folder: RunFolder,
        note: Callable[[str], None],
    ) -> None:
        self._arch = arch
        self._config = config
        self._spec = spec
        self._folder = folder
        self._note = note
        self._guard = Guard()
        self._shards = self._supervisor(self._start_shard, config.placement.shards, "shard")
        self._workers = self._supervisor(self._start_worker, config.placement.actors, "worker")
        self._begun: set[int] = set()
        self._address = ""

    def _supervisor(self, start: Callable[[int], Actor], count: int, noun: str) -> Supervisor:
        return Supervisor(
            start,
            count,
            stalled=dict,
            most_restarts=self._config.placement.actor_restarts,
            restart=True,
            on_failure=self._arch.fail,
            note=self._note,
            noun=noun,
        )

    @property
    def restarts(self) -> int:
        """How many processes were started again."""
        return self._shards.restarts + self._workers.restarts

    def start_shards(self, carrier: str) -> None:
        """Starts the shards, with what they begin with; ``carrier`` is ``shm`` or ``unix``."""
        path = self._folder.socket()
        addresses = [f"{carrier}:{path}.{index}" for index in range(self._config.placement.shards)]
        for index, (part, address) in enumerate(zip(self._arch.parts(), addresses, strict=True)):
            folder = self._folder_of(index)
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
            keep(folder, part)
            job = {
                "run": to_json(self._config),
                "spec": self._spec.to_json(),
                "index": index,
                "folder": str(folder),
                "address": address,
            }
            (folder / "job.json").write_text(json.dumps(job))
        self._shards.start()
        self._arch.reach(addresses)

    def start_workers(self, address: str) -> None:
        """Starts the workers, whose registry is at ``address``."""
        self._address = address
        self._workers.start()

    def stand_down(self) -> None:
        """From now on processes may end without being replaced."""
        self._workers.stand_down()
        self._shards.stand_down()

    def stop_workers(self) -> None:
        """Waits for the workers, whose registry is gone, and ends those that stay; safe to call twice."""
        self._workers.stop()

    def stop(self) -> None:
        """Ends all processes; safe to call twice."""
        self.stop_workers()
        for shard in self._shards.actors.values():
            shard.ask_to_end()
        self._shards.stop()
        self._guard.close()

    def _folder_of(self, index: int) -> Path:
        return self._folder.shards / str(index)

    def _start_shard(self, index: int) -> Actor:
        folder = self._folder_of(index)
        if index in self._begun:
            self._note(f"shard {index} {_standing(folder)}; the others have come to {self._arch.version}")
        self._begun.add(index)
        return self._process(f"shard-{index}", "seedbed.launch.shard", str(folder / "job.json"))

    def _start_worker(self, index: int) -> Actor:
        return self._process(f"worker-{index}", "seedbed.launch.worker", self._address, "--index", str(index))

    def _process(self, name: str, *words: str) -> ProcessActor:
        return ProcessActor(words, self._folder.token(), self._folder.logs / f"{name}.log", self._guard)


def _standing(folder: Path) -> str:
    try:
        version = load_latest(folder).step
    except CheckpointError as error:
        return f"has no snapshot to go on from ({error})"
    return f"goes on from its snapshot of version {version}"
