"""DistBelief: Downpour SGD, replicas of a model on parts of a data set (Dean et al. 2012, section 4.1, algorithm 7.1).

::

      replica processes                                            shard processes
    ┌──────────────────────────────────────────┐ gradients       ┌────────────────┐
    │ part of the data set ─► batch ─► loss    │ ── n_push ────► │ parameters,    │
    │              copy of the parameters ──┘  │ ◄─ n_fetch ──── │ optimizer      │
    └──────────────────────────────────────────┘ parameters      └────────────────┘
                    × actors                                          × shards

There is no acting: the data set does not depend on the parameters. Each replica reads its own part of it, in an order
of its own. At first one replica learns alone (the paper's warm start), since gradients become stale fastest while the
parameters are untrained.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from seedbed.acting.example import example_unroll
from seedbed.acting.unrolls import resets_in
from seedbed.architectures.checks import not_exact, processes_alone, too_heavy
from seedbed.architectures.devices import pick
from seedbed.architectures.interface import Architecture, Setup, own_share
from seedbed.architectures.program import Context, Program
from seedbed.architectures.roles import with_shards
from seedbed.architectures.with_shards import ParameterServerRun, Work, plain, push_gradients
from seedbed.config.placement import EngineSettings, ShardProcessSettings, TransportSettings, at_least
from seedbed.config.settings import RunConfig
from seedbed.learning.update import require_finite
from seedbed.metrics.ledger import Ledger, carried_out
from seedbed.parameter_server.pushing import Outliers, ParameterServer, PushingLearner
from seedbed.parameter_server.server import RemoteShards
from seedbed.replay.dataset import Batches, Dataset
from seedbed.replay.exchange import located
from seedbed.seeding import key
from seedbed.types import Agent, DataPlan, EnvSpec, Unroll

_LOOK_SECONDS = 0.05
REPLICA = "replica"


@dataclass(frozen=True)
class DistBeliefSettings(EngineSettings, ShardProcessSettings, TransportSettings):
    """Placement of DistBelief's replicas and shards."""

    actors: int = 2
    """Replicas that learn, each in a process of its own."""
    dataset: str | None = None
    """Folder of the data set to learn from (see seedbed collect), or minari:NAME or minari:FOLDER."""
    n_fetch: int = 1
    """Gradients after which a replica fetches the newest parameters."""
    n_push: int = 1
    """Gradients that a replica pushes together, as their mean."""
    warm_start: int = 0
    """Gradients that the first replica pushes before the others begin."""

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(self, 1, "n_fetch", "n_push")
        at_least(self, 0, "warm_start")


def open_dataset(config: RunConfig, spec: EnvSpec, *, verify: bool) -> Dataset:
    """Opens the run's data set.

    Args:
      config: settings of the run.
      spec: spec of the environments.
      verify: whether to verify the checksums of its files.

    Raises:
      DatasetError: the folder holds no data set, or one of other environments.
    """
    assert config.placement.dataset is not None, "check() sees to it"
    dataset = Dataset.open(located(config.placement.dataset, spec), verify=verify)
    dataset.require(spec)
    return dataset


def batches_of(
    dataset: Dataset, index: int, config: RunConfig, agent: Agent, position: Mapping[str, Any] | None
) -> Batches:
    """Returns the batches of one replica, from its part of the data set.

    Args:
      dataset: the whole data set.
      index: number of the replica.
      config: settings of the run.
      agent: the agent.
      position: position at which to go on; None for the beginning.

    Raises:
      DatasetError: the part is too small, or cannot be read from that position on.
    """
    shard = dataset.shard(index, config.placement.actors)
    return shard.batches(agent.data, agent.initial_state, seed=config.seed, position=position)


class Replica:
    """One replica: the parts in its process.

    Args:
      config: settings of the run.
      agent: the agent.
      spec: spec of the data set's environments.
      server: parameter server that applies its gradients.
      index: number of the replica.
      position: position in its part of the data set at which to go on; None for the beginning.
    """

    def __init__(
        self,
        config: RunConfig,
        agent: Agent,
        spec: EnvSpec,
        *,
        server: ParameterServer,
        index: int,
        position: Mapping[str, Any] | None,
    ) -> None:
        self.ledger = Ledger()
        self._config = config
        self._index = index
        dataset = open_dataset(config, spec, verify=False)
        self._batches = batches_of(dataset, index, config, agent, position)
        settings = config.placement
        self.learner = PushingLearner(
            agent,
            pick("training", (0,)),
            key(config.seed, "learner", index),
            server,
            Outliers(settings.outlier_deviations),
            n_fetch=settings.n_fetch,
            n_push=settings.n_push,
        )
        self.learner.warm_up(example_unroll(agent, spec, agent.data.trained_length, agent.data.batch_size))

    def updates(self, stop: threading.Event) -> Iterator[Mapping[str, Any] | None]:
        """Learns until ``stop`` is set: yields metrics after each batch, and None while the first replica warms up.

        Raises:
          RunFailed: too many gradients in a row were not finite.
        """
        while not stop.is_set():
            if self._index and self._warming_up:
                time.sleep(_LOOK_SECONDS)
                self.learner.fetch()
                yield None
                continue
            yield self._learn(next(self._batches))

    @property
    def _warming_up(self) -> bool:
        return self.learner.newest < self._config.placement.warm_start

    def enough(self, steps: int) -> bool:
        """Returns whether ``steps`` steps are made; the first replica goes on until the others can begin."""
        return carried_out(self.ledger.counts()) >= steps and not (self._index == 0 and self._warming_up)

    def _learn(self, batch: Unroll) -> Mapping[str, Any]:
        trained = slice(-self._config.settings.unroll_length, None)
        steps = batch.version[trained].size
        self.ledger.decide(steps, resets_in(batch.timestep.first[trained]))
        self.ledger.cut(steps)
        [(metrics, _)] = self.learner.updates(self.learner.put(batch))
        require_finite(self.learner.state.skipped_in_row, self._config.safety.max_skipped_updates)
        self.ledger.train(steps)
        return metrics

    def told(self, metrics: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the next report to the head; statistics of pushed gradients are reported once."""
        return {
            "books": self.ledger.counts(),
            "episodes": [],
            "pushed": self.learner.pushed()._asdict(),
            "skipped": int(self.learner.state.skipped),
            "metrics": plain(metrics),
            "position": self._batches.position,
        }


def refuses(plan: DataPlan) -> str | None:
    """Returns the reason to refuse agents that act; None for agents that learn from a data set."""
    return (
        None if plan.dataset else "its replicas learn from a data set, and from nothing that the agent does"
    )


def check(config: RunConfig, agent: Agent) -> str | None:
    """Returns the reason why settings do not go together; None if they do."""
    if config.placement.dataset is None:
        return "distbelief learns from a data set: add --dataset DIR (seedbed collect RUN makes one)"
    if config.placement.actors == 0:
        return "actors is 0, and they are the replicas that learn: give one or more"
    return (
        not_exact(config, "distbelief's replicas race, so that no two runs are alike")
        or processes_alone(config, "distbelief's replicas and shards")
        or too_heavy(config, agent)
    )


def updates(config: RunConfig, transitions: float) -> float:
    """Returns the number of updates for ``transitions`` of the data set; ``n_push`` gradients make one update."""
    return own_share(config, transitions) / float(config.placement.n_push)


def build(setup: Setup) -> ParameterServerRun:
    """Builds the head.

    Raises:
      DatasetError: there is no such data set, or it is damaged, of other environments, or too small.
    """
    config = setup.config
    positions = setup.checkpoint.meta["positions"] if setup.checkpoint else {}
    # Verified once, here: replicas begin with a data set that has been read without a fault.
    dataset = open_dataset(config, setup.spec, verify=True)
    for index in range(config.placement.actors):
        batches_of(dataset, index, config, setup.agent, positions.get(str(index)))
    return ParameterServerRun(setup, REPLICA)


def program(config: RunConfig, agent: Agent, spec: EnvSpec) -> Program:
    """Returns the roles of a run: shards, head and replicas."""
    del spec
    place, entry = config.placement, "seedbed.architectures.distbelief:replicate"
    return with_shards(config, agent, REPLICA, entry, n_push=place.n_push, n_fetch=place.n_fetch)


def replicate(context: Context) -> None:
    """Runs one replica, until the loss of the head raises :class:`~seedbed.errors.ConnectionLost`."""
    push_gradients(context, _begin)


@contextlib.contextmanager
def _begin(
    context: Context, shards: RemoteShards, job: Mapping[str, Any]
) -> Iterator[tuple[Work, Callable[[], None]]]:
    """Yields the replica, and a check of its health that never fails."""
    yield (
        Replica(
            context.config,
            context.agent,
            context.spec,
            server=shards,
            index=context.task.index,
            position=job["position"],
        ),
        lambda: None,
    )


DISTBELIEF = Architecture(
    "distbelief", DistBeliefSettings, build, program, refuses=refuses, check=check, updates=updates
)
