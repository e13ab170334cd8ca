"""Gorila: workers that act, remember and learn, and a parameter server (Nair et al. 2015, sections 3 and 4).

::

      worker processes                                                  shard processes
    ┌──────────────────────────────────────────────────────┐ gradients ┌────────────────┐
    │ environments ─► copy of the policy ─► replay ─► loss │ ────────► │ parameters,    │
    │      ▲──── actions ◄────┘                            │ ◄──────── │ optimizer      │
    └──────────────────────────────────────────────────────┘ parameters└────────────────┘
                         × actors                                           × shards

Each worker is a whole learner (the paper's bundled mode), but for its last step: the gradients of all of them go to the
server, whose shards apply them as they come. The replay, and what is explored, are each worker's own. This process
computes nothing: it watches, counts and writes checkpoints.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from dataclasses import replace as with_changes
from typing import Any

from seedbed.acting.assignment import Assignment
from seedbed.architectures.checks import acts_and_samples, no_actors, not_exact, processes_alone, too_heavy
from seedbed.architectures.interface import Architecture, Setup
from seedbed.architectures.seed import SEED, Seed
from seedbed.architectures.with_shards import WithShards, plain
from seedbed.config.placement import (
    BatchingSettings,
    LearnerSettings,
    ShardProcessSettings,
    TransportSettings,
)
from seedbed.config.resolve import replace
from seedbed.config.settings import RunConfig
from seedbed.metrics.ledger import carried_out
from seedbed.parameter_server.pushing import Outliers, ParameterServer, PushingLearner
from seedbed.seeding import key
from seedbed.types import Agent, EnvSpec

STALENESS_PER_WORKER = 4
"""Gradients of every worker that a shard may have taken since the parameters of a gradient."""
OUTLIER_DEVIATIONS = 5.0
"""Above the mean of losses, one whose gradient is not pushed; the paper says "several"."""


@dataclass(frozen=True)
class GorilaSettings(ShardProcessSettings, LearnerSettings, BatchingSettings, TransportSettings):
    """Placement of Gorila's workers and shards."""

    actors: int = 2
    """Workers that act and learn, each in a process of its own."""


def place(config: RunConfig) -> RunConfig:
    """Bounds the staleness of gradients, where the settings do not."""
    if config.placement.max_staleness is not None:
        return config
    return replace(config, max_staleness=STALENESS_PER_WORKER * config.placement.actors)


def worker_config(config: RunConfig) -> RunConfig:
    """Returns the settings of one worker: SEED's parts in one process, with one actor."""
    evaluating = config.placement.eval_envs // config.placement.actors
    return replace(config, arch=SEED.name, transport="inproc", actors=1, eval_envs=evaluating)


class GorilaWorker(Seed):
    """One worker: what is in its process.

    Args:
      config: the run's settings, not placed yet.
      agent: what is computed.
      spec: of the environments.
      server: who applies its gradients.
      index: its place among the workers.
      epoch: how many had that place before.
    """

    def __init__(
        self,
        config: RunConfig,
        agent: Agent,
        spec: EnvSpec,
        *,
        server: ParameterServer,
        index: int,
        epoch: int,
    ) -> None:
        self._server = server
        self._index = index
        self._epoch = epoch
        self._workers = config.placement.actors
        self._outlier_deviations = config.placement.outlier_deviations
        self._ended: list[tuple[float, int]] = []
        self._telling = threading.Lock()
        super().__init__(worker_config(config), agent, spec, token="", first_epoch=epoch)

    learner: PushingLearner

    def _make_learner(self, devices: Sequence[Any]) -> PushingLearner:
        deviations = self._outlier_deviations
        outliers = Outliers(OUTLIER_DEVIATIONS if deviations is None else deviations)
        # All begin with the server's parameters.
        own = key(self._config.seed, "learner", self._stream)
        return PushingLearner(self._agent, devices, own, self._server, outliers)

    @property
    def _stream(self) -> int:
        return self._index + self._workers * self._epoch

    def _assignment(self, token: str = "") -> Assignment:
        # As if each were a host: their environments, and their shares of exploration, are those of one large actor.
        return with_changes(super()._assignment(token), host=self._index, hosts=self._workers)

    def updates(self, stop: threading.Event) -> Iterator[Mapping[str, Any] | None]:
        """Learns, and fetches while there is nothing to learn from yet.

        So whoever fills its replay first acts with what the others have learned.
        """
        for metrics in super().updates(stop):
            if metrics is None and self._lag == "free":
                self.learner.fetch()
                self._publish()
            yield metrics

    def enough(self, steps: int) -> bool:
        """Whether so many steps are made."""
        return carried_out(self.ledger.counts()) >= steps

    def _count(self, episodes: Iterable[tuple[float, int]]) -> None:
        with self._telling:
            self._ended.extend(episodes)

    def told(self, metrics: Mapping[str, Any]) -> dict[str, Any]:
        """What is reported, and not reported again."""
        with self._telling:
            ended, self._ended = self._ended, []
        return {
            "books": self.ledger.counts(),
            "episodes": ended,
            "pushed": self.learner.pushed()._asdict(),
            "skipped": self.skipped,
            "metrics": plain(metrics),
        }


class Gorila(WithShards):
    """One run of Gorila: everything but its processes; see :class:`~seedbed.architectures.with_shards.WithShards`."""


def check(config: RunConfig, agent: Agent) -> str | None:
    """Refuses settings that do not go together."""
    place = config.placement
    return (
        not_exact(
            config,
            "gorila's workers race, and their replays are in no checkpoint (with --actors 1 --lag 0 a run is "
            "reproducible while nothing is interrupted)",
        )
        or no_actors(config, "workers")
        or processes_alone(config, "gorila's workers and shards")
        or _unequal_evaluation(place.eval_envs, place.actors)
        or too_heavy(config, agent)
    )


def _unequal_evaluation(eval_envs: int, workers: int) -> str | None:
    if eval_envs % workers == 0:
        return None
    return (
        f"eval_envs is {eval_envs}, and {workers} workers cannot share them equally: use --eval-envs "
        f"{-(-eval_envs // workers) * workers}"
    )


def updates(config: RunConfig, transitions: float) -> float:
    """Returns the gradients that so many acted transitions allow: each worker fills a replay of its own first."""
    filling = config.placement.actors * config.settings.transitions_before_learning
    learned: float = (transitions - filling) * config.settings.updates_a_transition
    return learned


def build(setup: Setup) -> Gorila:
    """Puts together what watches shards and workers."""
    return Gorila(
        setup.config,
        setup.agent,
        setup.spec,
        token=setup.token,
        checkpoint=setup.checkpoint,
        first_epoch=setup.first_epoch,
    )


GORILA = Architecture(
    "gorila", GorilaSettings, build, refuses=acts_and_samples, check=check, place=place, updates=updates
)
