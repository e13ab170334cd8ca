"""What every run of one agent has, wherever its parts stand: its settings, its books, and what broke it."""

from __future__ import annotations

import logging
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any

from seedbed.acting.actor_threads import ActorThreads
from seedbed.acting.assignment import Assignment
from seedbed.config.placement import EnvironmentSettings
from seedbed.config.settings import RunConfig
from seedbed.errors import RunFailed, SeedbedError
from seedbed.metrics.ledger import Ledger
from seedbed.metrics.meters import Episodes, Tally
from seedbed.serving.actor_registry import ActorRegistry
from seedbed.types import Agent, EnvSpec

_log = logging.getLogger(__name__)


class OneAgent(ABC):
    """The beginning of an :class:`~seedbed.architectures.run.Run`.

    Args:
      config: the run's settings.
      agent: what is computed.
      spec: of the environments.
    """

    registry: ActorRegistry | None = None
    threads: ActorThreads | None = None

    def __init__(self, config: RunConfig, agent: Agent, spec: EnvSpec) -> None:
        self._config = config
        self._agent = agent
        self._spec = spec
        self._lag = config.lag
        self._host, self._hosts = config.cluster.host, config.cluster.hosts
        self._failure: BaseException | None = None
        self.ledger = Ledger()
        self.episodes = Episodes()
        self.lag = Tally()

    @abstractmethod
    def open(self, addresses: list[str]) -> list[str]:
        """See :class:`~seedbed.architectures.run.Run`."""

    @abstractmethod
    def close(self) -> None:
        """Stops everything; safe to call twice."""

    @property
    def frames_per_step(self) -> int:
        """Environment frames in one agent step."""
        return self._spec.frames_per_step

    def variants(self) -> list[dict[str, Any]]:
        """There is one agent."""
        return []

    def fail(self, error: BaseException) -> None:
        """Ends the run with this error; from any thread."""
        if not isinstance(error, SeedbedError):
            where = threading.current_thread().name
            _log.error("%s failed", where, exc_info=error)
            error = RunFailed(f"{where}: {type(error).__name__}: {error}")
        if self._failure is None:
            self._failure = error

    def _count(self, episodes: Iterable[tuple[float, int]]) -> None:
        for episode_return, length in episodes:
            self.episodes.add(episode_return, length)

    def _assignment(self, token: str = "") -> Assignment:
        """What actors are told; ``token`` lets them in where they come over a transport."""
        return assignment_of(self._config, self._agent, self._spec, token)


def assignment_of(
    config: RunConfig, agent: Agent, spec: EnvSpec, token: str, *, envs: int | None = None
) -> Assignment:
    """Returns what the actors of a host are told.

    Args:
      config: the run's settings.
      agent: the agent that is trained.
      spec: of the environments.
      token: secret that lets actors in where they come over a transport.
      envs: environments of each actor, where the settings do not say it.
    """
    place = config.placement
    of_actors = isinstance(place, EnvironmentSettings)
    return Assignment(
        env=config.env,
        options=config.env_options,
        spec=spec,
        actors=place.actors,
        envs=place.envs_per_actor if envs is None else envs,
        seed=config.seed,
        unroll_length=agent.data.unroll_length,
        overlap=agent.data.overlap,
        evaluating=place.eval_envs if of_actors else 0,
        token=token,
        keep_log=config.deterministic,
        lockstep=config.lag != "free",
        host=config.cluster.host,
        hosts=config.cluster.hosts,
    )
