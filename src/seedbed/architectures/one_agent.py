"""What every run of one agent has, wherever its parts stand: its settings, its books, and what broke it."""

from __future__ import annotations

import logging
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any, Literal

from seedbed.acting.crew import Crew
from seedbed.acting.desk import Desk
from seedbed.acting.ledger import Ledger
from seedbed.acting.recipe import Recipe
from seedbed.config.settings import RunConfig
from seedbed.errors import RunFailed, SeedbedError
from seedbed.metrics.meters import Episodes, Tally
from seedbed.types import Agent, EnvSpec

_log = logging.getLogger(__name__)


class OneAgent(ABC):
    """The beginning of an :class:`~seedbed.architectures.interface.Architecture`.

    Args:
      config: the run's settings.
      agent: what is computed.
      spec: of the environments.
    """

    desk: Desk | None = None
    crew: Crew | None = None

    def __init__(self, config: RunConfig, agent: Agent, spec: EnvSpec) -> None:
        self._config = config
        self._agent = agent
        self._spec = spec
        self._lag = lag_of(config)
        self._host, self._hosts = config.cluster.host, config.cluster.hosts
        self._failure: BaseException | None = None
        self.ledger = Ledger()
        self.episodes = Episodes()
        self.lag = Tally()

    @abstractmethod
    def open(self, addresses: list[str]) -> list[str]:
        """See :class:`~seedbed.architectures.interface.Architecture`."""

    @abstractmethod
    def close(self) -> None:
        """Stops everything; safe to call twice."""

    @property
    def frames_per_step(self) -> int:
        """Environment frames in one agent step."""
        return self._spec.frames_per_step

    def members(self) -> list[dict[str, Any]]:
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

    def _recipe(self, token: str = "") -> Recipe:
        """What actors are told; ``token`` lets them in where they come over a transport."""
        return recipe_of(self._config, self._agent, self._spec, token)


def lag_of(config: RunConfig) -> int | Literal["free"]:
    """An exact number of rounds, or "free"."""
    return 0 if config.deterministic and config.placement.lag == "free" else config.placement.lag


def recipe_of(config: RunConfig, agent: Agent, spec: EnvSpec, token: str) -> Recipe:
    """What the actors of a host are told; ``token`` lets them in where they come over a transport."""
    return Recipe(
        env=config.env,
        options=config.env_options,
        spec=spec,
        actors=config.placement.actors,
        envs=config.placement.envs_per_actor,
        seed=config.seed,
        unroll_length=agent.data.unroll_length,
        overlap=agent.data.overlap,
        evaluating=config.placement.eval_envs,
        token=token,
        keep_log=config.deterministic,
        lockstep=lag_of(config) != "free",
        host=config.cluster.host,
        hosts=config.cluster.hosts,
    )
