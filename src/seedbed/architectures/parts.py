"""The parts of a run with one learner that do not depend on the kind of actors: learner, memory, weights, counts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from seedbed.acting.assignment import Assignment, lanes_of
from seedbed.acting.lag import ExactLag, Lag, Rounds
from seedbed.acting.lag_control import ExactControl, HandOver, RoundBuffer
from seedbed.acting.meters import Meters
from seedbed.architectures.devices import pick_everywhere
from seedbed.architectures.interface import Setup
from seedbed.config.placement import EnvironmentSettings
from seedbed.config.settings import RunConfig
from seedbed.learning.books import Books
from seedbed.learning.failure import Failure
from seedbed.learning.learner import Learner
from seedbed.learning.loop import Beginning, Beside, LearnerLoop, LoopSettings, resumed
from seedbed.learning.memory import (
    Memory,
    QueueMemory,
    ReplayMemory,
    into,
    make_device_replay,
    make_replay,
    parts_here,
    rounds,
    shared,
)
from seedbed.learning.source import Source
from seedbed.nets.build import is_mlp
from seedbed.replay.device import DeviceReplay
from seedbed.replay.queue import UnrollQueue
from seedbed.replay.replay import Replay
from seedbed.seeding import integer, key
from seedbed.serving.actor_registry import ActorRegistry
from seedbed.serving.service import Service
from seedbed.serving.source import ServedActors
from seedbed.types import Agent, EnvSpec, Tree, Unroll
from seedbed.weights.store import WeightStore


@dataclass
class Parts:
    """The parts of one run; :meth:`loop` puts them together.

    Attributes:
      setup: ingredients of the run.
      lag: lag of the run.
      rounds: schedule of rounds and weight versions under an exact lag; None under a free one.
      settings: settings of the loop.
      learner: learner that makes the updates.
      memory: queue or replay between acting and learning.
      store: published weights.
      books: counts of steps and episodes.
      failure: first failure of any part.
      beginning: state in which the run begins: new, or restored from a checkpoint.
      hand_over: function that takes complete unrolls.
      assignment: assignment for actors.
      meters: meters of acting.
    """

    setup: Setup
    lag: Lag
    rounds: Rounds | None
    settings: LoopSettings
    learner: Learner
    memory: Memory
    store: WeightStore
    books: Books
    failure: Failure
    beginning: Beginning
    hand_over: HandOver
    assignment: Assignment
    meters: Meters = field(default_factory=Meters)

    def exact_control(self, device: int, actors: int, collect: RoundBuffer) -> ExactControl:
        """Returns the lag control of the lanes on one device, under an exact lag.

        Args:
          device: index of the device in the weight store.
          actors: number of actors whose lanes are on the device.
          collect: buffer of the unrolls of a round.
        """
        assert self.rounds is not None
        halves = dict.fromkeys(range(lanes_of(self.setup.config.placement.envs_per_actor)[0]), actors)
        return ExactControl(self.rounds, halves=halves, store=self.store, device=device, collect=collect)

    def served(self, services: Sequence[Service[Any]], **more: Any) -> ServedActors:
        """Returns the source of actors that join over a transport.

        Args:
          services: services of the actors, one for each acting device.
          **more: further arguments of :class:`~seedbed.serving.source.ServedActors`.
        """
        setup = self.setup
        registry = ActorRegistry(
            self.assignment,
            services,
            setup.config.placement.slots,
            resumable=self.beginning.lanes,
            first_epoch=self.beginning.first_epoch,
            on_join=setup.on_join,
            on_leave=setup.on_leave,
            on_note=setup.on_note,
        )
        for service in services:
            self.store.listen(service.thread.poke)
            self.memory.listen(service.thread.poke)
        return ServedActors(
            registry,
            services,
            self.meters,
            patience=setup.config.safety.env_timeout,
            gate=setup.gate,
            most=setup.config.placement.most_actors,
            **more,
        )

    def loop(
        self,
        source: Source,
        assemble: Callable[[Sequence[Unroll]], Unroll] | None = None,
        while_idle: Callable[[], bool] = lambda: False,
        beside: Beside | None = None,
    ) -> LearnerLoop:
        """Returns the run.

        Args:
          source: source of the unrolls.
          assemble: function that joins unrolls into a batch on the training devices; None if unrolls are host arrays.
          while_idle: function that is called while no batch is ready, and returns whether there are newer weights to
            publish.
          beside: part of the run that keeps parameters of its own.
        """
        return LearnerLoop(
            self.setup.agent,
            self.setup.spec,
            self.settings,
            learner=self.learner,
            memory=self.memory,
            store=self.store,
            source=source,
            assemble=assemble or self.learner.assemble,
            books=self.books,
            failure=self.failure,
            beginning=self.beginning,
            while_idle=while_idle,
            beside=beside,
        )


def make_parts(
    setup: Setup,
    devices: Sequence[Any],
    *,
    lanes: int,
    learner: Learner | None = None,
    stream: int | None = None,
    publish_every: int = 0,
    assignment: Assignment | None = None,
    count: Callable[[Iterable[tuple[float, int]]], None] | None = None,
    replay_device: Any = None,
) -> Parts:
    """Makes the parts, and restores the state that a checkpoint holds.

    Args:
      setup: ingredients of the run.
      devices: JAX devices to which the weights are published.
      lanes: number of lanes, each with an equal share of the environments.
      learner: learner that makes the updates; None for one on the training devices of all hosts.
      stream: index of this learner's random stream among the run's learners; None for the host's index.
      publish_every: updates between two publications of the weights; 0: whenever they are due.
      assignment: assignment for actors; None for that of this host.
      count: function that takes the returns and lengths of ended episodes; None: the books count them.
      replay_device: JAX device that holds an agent's replay; None for the host's memory.

    Raises:
      ConfigError: a setting does not fit the agent, this machine or the checkpoint.
    """
    config, agent, spec = setup.config, setup.agent, setup.spec
    place, plan, lag = config.placement, agent.data, config.lag
    host = config.cluster.host
    books, failure = Books(host, config.cluster.hosts), Failure()
    rows = plan.batch_size // config.cluster.hosts
    acting = place.planned - place.eval_envs
    if learner is None:
        training = pick_everywhere("training", place.training_devices)
        at_once = trains_at_once(config, spec)
        learner = Learner(agent, training, key(config.seed, "learner"), at_once=at_once)
    filling, batches = rounds(shared(plan, config.cluster.hosts), acting, rows) if lag.exact else (0, 1)
    updates = batches * plan.updates_a_batch
    store = WeightStore(list(devices), keep=lag.snapshots_kept(batches))
    settings = LoopSettings(
        lag=lag,
        exact=config.deterministic,
        ahead=lag.ahead(place.prefetch),
        publish_every=lag.every(publish_every),
        max_skipped=config.safety.max_skipped_updates,
        rows=rows,
        insert_rows=place.planned // lanes if lanes else lanes_of(place.envs_per_actor)[1],
        rhythm={
            "lag": lag.setting,
            "updates in a round": updates,
            "halves of actors": lanes,
            "devices that act": len(devices),
            "hosts": config.cluster.hosts,
        },
    )
    memory: Memory
    if plan.replay is None:
        capacity = lag.queue_capacity(place.planned, place.queue_size or rows)
        memory = QueueMemory(UnrollQueue(capacity, rows), books.ledger, exact=config.deterministic)
    else:
        hosts = config.cluster.hosts
        here = parts_here(plan.replay, hosts)
        more: dict[str, Any] = {
            "lag": lag,
            "batch_size": rows // here,
            "acting": acting // here,
            "largest_insert": place.largest_batch,
            "share": here * hosts,
        }
        numbers = [(host if stream is None else stream) * here + part for part in range(here)]
        replays: list[Replay] | list[DeviceReplay]
        if replay_device is None:
            replays = [
                make_replay(agent, spec, seed=integer(config.seed, "replay", number), **more)
                for number in numbers
            ]
        else:
            draws = key(config.seed, "replay")
            replays = [
                make_device_replay(
                    agent, spec, envs=acting, device=replay_device, key=draws, part=number, **more
                )
                for number in numbers
            ]
        memory = ReplayMemory(
            replays,
            agent,
            books.ledger,
            lanes if lag.exact else None,
            planned=place.planned,
            alone=hosts == 1,
            number=numbers[0],
        )
    beginning = Beginning(setup.first_epoch, 0, filling)
    if setup.checkpoint is not None:
        beginning = resumed(
            setup.checkpoint,
            agent,
            spec,
            settings,
            learner=learner,
            memory=memory,
            books=books,
            beginning=beginning,
            acting=acting,
        )
    return Parts(
        setup=setup,
        lag=lag,
        rounds=Rounds(lag, updates, beginning.filling, beginning.base) if isinstance(lag, ExactLag) else None,
        settings=settings,
        learner=learner,
        memory=memory,
        store=store,
        books=books,
        failure=failure,
        beginning=beginning,
        hand_over=into(memory, count or books.count),
        assignment=assignment or assignment_of(config, agent, spec, setup.token, claim=setup.claim),
    )


def trains_at_once(config: RunConfig, spec: EnvSpec) -> bool:
    """Returns whether all updates with a batch are one program.

    In lockstep nobody waits for the weights between them. Convolutions stay out of it: without oneDNN they take twenty
    times as long in a loop.
    """
    net = config.net
    alone = config.cluster.hosts == 1
    return config.lag.exact and alone and not net.lstm and is_mlp(net, spec.observation)


def restored_tables(parts: Parts, like: Callable[[], dict[str, Tree]]) -> dict[str, Tree]:
    """Returns the agent's recurrent states from the checkpoint, by name; empty if the checkpoint has none.

    Args:
      parts: parts of the run.
      like: function that returns trees with the shapes and dtypes of the states, by name.
    """
    checkpoint = parts.setup.checkpoint
    if checkpoint is None or not parts.beginning.lanes:
        return {}
    return {name: checkpoint.tree(name, tree) for name, tree in like().items()}


def assignment_of(
    config: RunConfig, agent: Agent, spec: EnvSpec, token: str, *, claim: str = "", envs: int | None = None
) -> Assignment:
    """Returns the assignment for the actors of a host.

    Args:
      config: settings of the run.
      agent: the agent.
      spec: spec of the environments.
      token: secret by which actors are admitted over a transport.
      claim: secret by which actors on other machines take an index of the run's own; empty if none may.
      envs: number of environments of each actor; None to take it from the settings.
    """
    place = config.placement
    of_actors = isinstance(place, EnvironmentSettings)
    return Assignment(
        env=config.env,
        options=config.making,
        spec=spec,
        actors=place.actors,
        envs=place.envs_per_actor if envs is None else envs,
        seed=config.seed,
        unroll_length=agent.data.unroll_length,
        overlap=agent.data.overlap,
        evaluating=place.eval_envs if of_actors else 0,
        token=token,
        claim=claim,
        keep_log=config.deterministic,
        lockstep=config.lag.exact,
        guests=getattr(place, "guests", 0),
        host=config.cluster.host,
        hosts=config.cluster.hosts,
        env_timeout=config.safety.env_timeout,
    )
