"""The forward-pass servers of a host: started, watched, started again, stopped."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from contextlib import ExitStack, closing

import jax

from orchard.architectures.rapid import ForwardPassServer, Rapid
from orchard.config.resolve import to_json
from orchard.config.settings import RunConfig
from orchard.launch.actors import Actor, Guard, ProcessActor, Supervisor
from orchard.launch.folder import RunFolder
from orchard.types import Agent, EnvSpec

_CARRIERS = {"inproc": "inproc", "shm": "shm", "grpc": "unix"}


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
        arch: Rapid,
        config: RunConfig,
        agent: Agent,
        spec: EnvSpec,
        folder: RunFolder,
        note: Callable[[str], None],
    ) -> None:
        place = config.placement
        self._arch, self._config, self._agent, self._spec, self._folder = arch, config, agent, spec, folder
        carrier, path = _CARRIERS[place.transport], folder.socket()
        self.addresses = [f"{carrier}:{path}.{index}" for index in range(place.forward_servers)]
        self._here = ExitStack()
        self._begun: dict[int, float] = {}
        self._guard = None if place.transport == "inproc" else Guard()
        self._supervisor = Supervisor(
            self._start,
            place.forward_servers,
            late_with="it gave no sign of life for {:.0f} s (--env-timeout allows more)",
            stalled=self._silent,
            most_restarts=config.safety.actor_restarts,
            restart=place.lag == "free",
            on_failure=arch.fail,
            note=note,
            noun="forward-pass server",
        )

    @property
    def restarts(self) -> int:
        """How many servers were started again."""
        return self._supervisor.restarts

    def start(self, optimizer: str) -> None:
        """Starts the servers for the optimizer whose desk is at this address."""
        self._optimizer = optimizer
        if self._guard is not None:
            self._supervisor.start()
            return
        for index, address in enumerate(self.addresses):
            server = ForwardPassServer(
                self._config,
                self._agent,
                self._spec,
                index=index,
                optimizer=optimizer,
                token=self._folder.token(),
                on_failure=self._arch.fail,
                on_lost=lambda reason: None,  # the run ends
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
        words = ["orchard.launch.forward_pass", str(job)]
        log = self._folder.logs / f"{name}.log"
        return ProcessActor(words, self._folder.token(), log, self._guard, beside=_beside())

    def _silent(self) -> dict[int, float]:
        now, found = time.monotonic(), {}
        for index, begun in self._begun.items():
            seconds = now - max(begun, self._arch.desk.server_heard(index))
            if seconds > self._config.safety.env_timeout:
                found[index] = seconds
        return found

    def stand_down(self) -> None:
        """From now on servers may end without being replaced."""
        self._supervisor.stand_down()

    def stop(self) -> None:
        """Ends the servers, whose optimizer is gone; safe to call twice."""
        self._here.close()
        self._supervisor.stop()
        if self._guard is not None:
            self._guard.close()


def _beside() -> dict[str, str]:
    """What a server's JAX is told so that it runs where the optimizer's does."""
    if jax.default_backend() == "cpu":
        return {"JAX_PLATFORMS": "cpu"}
    # The optimizer has taken most of the accelerator's memory at its beginning.
    return {"JAX_PLATFORMS": jax.default_backend(), "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
