"""The forward-pass servers of a host: started, watched, started again, stopped."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import jax

from seedbed.acting.reporting import REPORT_SECONDS
from seedbed.architectures.rapid import ForwardServer
from seedbed.config.resolve import to_json
from seedbed.config.settings import RunConfig
from seedbed.errors import RunFailed
from seedbed.launch.actors import Actor, Guard, ProcessActor, Supervisor
from seedbed.launch.folder import RunFolder
from seedbed.transport.connect import CARRIERS
from seedbed.types import Agent, EnvSpec

START_SECONDS = 120.0
"""In which a server is to be ready: it imports JAX, and compiles the policy."""
_LATE_SECONDS = 5 * REPORT_SECONDS
"""Silence after which what is late may be the server's doing."""


class ForwardPool:
    """The forward-pass servers of one optimizer: each in a process of its own or, in-process, in threads of this one.

    Args:
      arch: the optimizer, which is open.
      config: the run's settings.
      agent: whose policy.
      spec: of its environments.
      folder: the run's.
      note: takes one line for people.

    Attributes:
      addresses: of the servers, where rollout workers join in turn.
    """

    def __init__(
        self,
        arch: Any,
        config: RunConfig,
        agent: Agent,
        spec: EnvSpec,
        folder: RunFolder,
        note: Callable[[str], None],
    ) -> None:
        place = config.placement
        self._arch, self._config, self._agent, self._spec, self._folder = arch, config, agent, spec, folder
        carrier, path = CARRIERS[place.transport], folder.socket()
        self.addresses = [f"{carrier}:{path}.{index}" for index in range(place.forward_servers)]
        self._here = ExitStack()
        self._begun: dict[int, float] = {}
        self._ending = False
        self._guard = None if place.transport == "inproc" else Guard()
        self._supervisor = Supervisor(
            self._start,
            place.forward_servers,
            late_with="it gave no sign of life for {:.0f} s (--env-timeout allows more)".format,
            stalled=self._silent,
            most_restarts=config.placement.actor_restarts,
            restart=not config.lag.exact,
            on_failure=arch.fail,
            note=note,
            noun="forward-pass server",
        )

    @property
    def restarts(self) -> int:
        """How many servers were started again."""
        return self._supervisor.restarts

    def start(self, optimizer: str) -> None:
        """Starts the servers for the optimizer whose registry is at this address."""
        self._optimizer = optimizer
        if self._guard is not None:
            self._supervisor.start()
            return
        for index, address in enumerate(self.addresses):
            server = ForwardServer(
                self._config,
                self._agent,
                self._spec,
                index=index,
                optimizer=optimizer,
                token=self._folder.token(),
                on_failure=self._arch.fail,
                on_lost=self._lost,
            )
            self._here.enter_context(closing(server)).open(address)

    def _start(self, index: int) -> Actor:
        assert self._guard is not None
        name = f"forward-pass-{index}"
        job = self._folder.logs / f"{name}.json"
        job.write_text(
            json.dumps(
                {
                    "run": to_json(self._config),
                    "spec": self._spec.to_json(),
                    "index": index,
                    "optimizer": self._optimizer,
                    "address": self.addresses[index],
                }
            )
        )
        self._begun[index] = time.monotonic()
        words = ["seedbed.launch.forward_pass", str(job)]
        log = self._folder.logs / f"{name}.log"
        return ProcessActor(words, self._folder.token(), log, self._guard, beside=_beside())

    def _lost(self, reason: str) -> None:
        if not self._ending:
            self._arch.fail(RunFailed(f"forward-pass server: {reason}"))

    def _silence(self, index: int) -> tuple[float, bool]:
        """For how long nothing was heard of a server that was started, in s, and whether it is ready."""
        begun, heard = self._begun[index], self._arch.source.registry.server_heard(index)
        return time.monotonic() - max(begun, heard), heard > begun

    def _silent(self) -> dict[int, float]:
        found = {}
        for index in self._begun:
            seconds, ready = self._silence(index)
            patience = self._config.safety.env_timeout
            if seconds > (patience if ready else max(patience, START_SECONDS)):
                found[index] = seconds
        return found

    def holds_up(self, worker: int) -> bool:
        """Whether the server of the rollout worker with this index is silent, so that the worker cannot go on."""
        index = worker % len(self.addresses)
        return index in self._begun and self._silence(index)[0] > _LATE_SECONDS

    def stand_down(self) -> None:
        """From now on servers may end without being replaced."""
        self._ending = True
        self._supervisor.stand_down()

    def stop(self) -> None:
        """Ends the servers, whose optimizer is gone; safe to call twice."""
        self._here.close()
        self._supervisor.stop()
        if self._guard is not None:
            self._guard.close()
            for address in self.addresses:  # that of a server that was killed
                Path(address.partition(":")[2]).unlink(missing_ok=True)


def _beside() -> dict[str, str]:
    """What a server's JAX is told so that it runs where the optimizer's does."""
    if jax.default_backend() == "cpu":
        return {"JAX_PLATFORMS": "cpu"}
    # The same platform as here; of its memory the optimizer has taken most at its beginning.
    return {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
