"""Gorila: workers that act and learn from a replay, and a parameter server (Nair et al. 2015, sections 3 and 4).

::

      worker processes                                                  shard processes
    ┌──────────────────────────────────────────────────────┐ gradients ┌────────────────┐
    │ environments ─► copy of the policy ─► replay ─► loss │ ────────► │ parameters,    │
    │      ▲──── actions ◄────┘                            │ ◄──────── │ optimizer      │
    └──────────────────────────────────────────────────────┘ parameters└────────────────┘
                         × actors                                           × shards

Each worker is a whole learner (the paper's bundled mode), except for the last step: all workers send their gradients to
the parameter server, whose shards apply them as they come. Each worker has its own replay and its own exploration. The
head computes nothing: it watches, counts and writes checkpoints.
"""

from __future__ import annotations

import contextlib
import secrets
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from dataclasses import replace as with_changes
from typing import Any

from seedbed.acting.actor import act
from seedbed.acting.assignment import lanes_of
from seedbed.architectures.checks import acts_and_samples, no_actors, not_exact, processes_alone, too_heavy
from seedbed.architectures.devices import pick
from seedbed.architectures.interface import Architecture, Setup
from seedbed.architectures.parts import assignment_of, make_parts
from seedbed.architectures.program import Context, Program
from seedbed.architectures.roles import with_shards
from seedbed.architectures.seed import SEED, central_inference
from seedbed.architectures.with_shards import ParameterServerRun, Work, plain, push_gradients
from seedbed.config.placement import (
    BatchingSettings,
    EngineSettings,
    LearnerSettings,
    ShardProcessSettings,
    TransportSettings,
)
from seedbed.config.resolve import replace
from seedbed.config.settings import RunConfig
from seedbed.errors import RunFailed
from seedbed.instances import GRACE_SECONDS, ThreadInstance
from seedbed.metrics.ledger import carried_out
from seedbed.parameter_server.pushing import Outliers, ParameterServer, PushingLearner
from seedbed.parameter_server.server import RemoteShards
from seedbed.seeding import key
from seedbed.transport.connect import connect
from seedbed.types import Agent, DataPlan, EnvSpec

STALENESS_PER_WORKER = 4
"""Default bound on a gradient's staleness, in gradients of every worker that its shard has taken meanwhile."""
OUTLIER_DEVIATIONS = 5.0
"""Standard deviations above the mean loss beyond which a gradient is not pushed; the paper says "several"."""


@dataclass(frozen=True)
class GorilaSettings(
    EngineSettings, ShardProcessSettings, LearnerSettings, BatchingSettings, TransportSettings
):
    """Placement of Gorila's workers and shards."""

    actors: int = 2
    """Workers that act and learn, each in a process of its own."""


def place(config: RunConfig) -> RunConfig:
    """Returns the settings with a bound on the staleness of gradients, if the user has given none."""
    if config.placement.max_staleness is not None:
        return config
    return replace(config, max_staleness=STALENESS_PER_WORKER * config.placement.actors)


def worker_config(config: RunConfig) -> RunConfig:
    """Returns the settings of one worker, which consists of SEED's parts in one process, with one actor."""
    evaluating = config.placement.eval_envs // config.placement.actors
    return replace(config, arch=SEED.name, on="here", transport="inproc", actors=1, eval_envs=evaluating)


class GorilaWorker:
    """One worker: the parts in its process.

    Args:
      config: settings of the run, before :func:`worker_config`.
      agent: the agent.
      spec: spec of the environments.
      server: parameter server that applies its gradients.
      index: number of the worker.
      epoch: number of earlier workers with the same index.

    Attributes:
      learner: learner that pushes gradients.
      source: source of the unrolls, with the policy.
      loop: SEED's parts around the learner.
      token: token by which its own actor joins.
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
        placed, workers = worker_config(config), config.placement.actors
        self._lag = placed.lag
        self.token = secrets.token_hex(8)
        self._ended: list[tuple[float, int]] = []
        self._telling = threading.Lock()
        stream = index + workers * epoch
        deviations = config.placement.outlier_deviations
        self.learner = PushingLearner(
            agent,
            pick("training", placed.placement.training_devices),
            key(config.seed, "learner", stream),  # all begin with the server's parameters
            server,
            Outliers(OUTLIER_DEVIATIONS if deviations is None else deviations),
        )
        # Each worker counts as a host, so that environments and exploration are divided as among several hosts.
        assignment = with_changes(assignment_of(placed, agent, spec, self.token), host=index, hosts=workers)
        devices = pick("inference", placed.placement.inference_devices)
        parts = make_parts(
            Setup(placed, agent, spec, first_epoch=epoch),
            devices,
            lanes=lanes_of(placed.placement.envs_per_actor)[0],
            learner=self.learner,
            stream=stream,
            assignment=assignment,
            count=self._count,
        )
        self._meters = parts.meters
        self.source = central_inference(parts, devices)
        self.loop = parts.loop(self.source, while_idle=self._fetch)
        self.updates = self.loop.updates

    def _fetch(self) -> bool:
        """Fetches parameters while the replay is being filled, so that the worker acts with the others' progress.

        Returns:
          Whether it has fetched; it does not under an exact lag.
        """
        if self._lag.exact:
            return False
        self.learner.fetch()
        return True

    def enough(self, steps: int) -> bool:
        """Returns whether ``steps`` steps are made."""
        return carried_out(self.loop.books.ledger.counts()) >= steps

    def _count(self, episodes: Iterable[tuple[float, int]]) -> None:
        with self._telling:
            self._ended.extend(episodes)

    def told(self, metrics: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the next report to the head; news is reported once.

        News are ended episodes, what their environments told, and statistics of pushed gradients.
        """
        with self._telling:
            ended, self._ended = self._ended, []
        return {
            "books": self.loop.books.ledger.counts(),
            "episodes": ended,
            "pushed": self.learner.pushed()._asdict(),
            "skipped": self.loop.skipped,
            "info": self._meters.take_info(),
            "metrics": plain(metrics),
        }


def refuses(plan: DataPlan) -> str | None:
    """Refuses agents without a replay, and targets that only the one who makes the updates can compute."""
    return acts_and_samples(plan) or (
        "its target parameters follow every update, and here the shards make the updates and keep no targets"
        if plan.target_rate < 1
        else None
    )


def check(config: RunConfig, agent: Agent) -> str | None:
    """Returns the reason why settings do not go together; None if they do."""
    place = config.placement
    if agent.prepare is not None:
        annealed = getattr(config.settings, "epsilon_steps", 0)
        without = f", or --epsilon-steps 0 (it is {annealed})" if annealed else ""
        return f"{agent.name} keeps numbers of whole batches; gorila's workers give gradients: use --arch seed{without}"
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
    """Returns the number of gradients for ``transitions`` acted ones; each worker fills its own replay first."""
    filling = config.placement.actors * config.settings.transitions_before_learning
    learned: float = (transitions - filling) * config.settings.updates_a_transition
    return learned


def program(config: RunConfig, agent: Agent, spec: EnvSpec) -> Program:
    """Returns the roles of a run: shards, head and workers."""
    del spec
    return with_shards(config, agent, "worker", "seedbed.architectures.gorila:work")


def work(context: Context) -> None:
    """Runs one worker, until the loss of the head raises :class:`~seedbed.errors.ConnectionLost`."""
    push_gradients(context, _begin)


@contextlib.contextmanager
def _begin(
    context: Context, shards: RemoteShards, job: Mapping[str, Any]
) -> Iterator[tuple[Work, Callable[[], None]]]:
    """Starts the worker's actor in a thread; yields the worker, and a check of its environments.

    The check raises :class:`RunFailed` if the environments have failed, or hang.
    """
    index, epoch = context.task.index, job["epoch"]
    mine = GorilaWorker(context.config, context.agent, context.spec, server=shards, index=index, epoch=epoch)
    [address] = mine.loop.open([f"inproc:worker-{secrets.token_hex(8)}"])

    def step() -> None:
        with contextlib.closing(connect(address, timeout=0.0)) as client:
            act(client, token=mine.token, index=0, make_agent=_decided_here)

    actor = ThreadInstance("actor", step, "the log of this worker")
    patience = context.config.safety.env_timeout

    def require_alive() -> None:
        if (fault := actor.ended()) is not None:
            raise RunFailed(fault)
        for _, seconds in mine.source.registry.stalled(patience):
            raise RunFailed(
                f"its environments took more than {seconds:.0f} s for one step, or to begin (--env-timeout allows more)"
            )

    try:
        mine.loop.begin()
        yield mine, require_alive
    finally:
        mine.loop.close()
        actor.finish(GRACE_SECONDS)


def _decided_here(policy: dict[str, Any], spec: EnvSpec) -> Agent:
    raise AssertionError("the actor of a worker only steps")


GORILA = Architecture(
    "gorila",
    GorilaSettings,
    ParameterServerRun,
    program,
    refuses=refuses,
    check=check,
    place=place,
    updates=updates,
)
