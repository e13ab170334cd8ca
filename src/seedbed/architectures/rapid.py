"""Rapid: pools of rollout workers, forward-pass servers and optimizers (OpenAI et al. 2019, "Dota 2 with Large Scale
Deep Reinforcement Learning", section 3.2).

::

      rollout workers                 forward-pass servers                  optimizers (one a host)
    ┌──────────────────┐ observations ┌──────────────────────┐   unrolls   ┌──────────────────────────────┐
    │ environments     │ ───────────► │ proxy ─► lanes ─►    │ ──────────► │ registry ─► service ─► queue │
    │ (one half steps, │  transport   │ inference ─► open    │  transport  │   ▲                     │    │
    │  one half waits) │ ◄─────────── │ unrolls              │ ◄────────── │  weights   learner ◄────┘    │
    └──────────────────┘   actions    └──────────────────────┘   weights   └─────────┬────────────────────┘
            × actors                      × forward_servers                   gradients, all-reduced

Rollout workers only step environments, as under SEED. The policy runs on machines of its own, always with the newest
published weights. Each optimizer learns from the unrolls of its own rollout workers, and averages its gradients with
the other optimizers' at every update.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax

from seedbed.acting.assignment import lanes_of
from seedbed.acting.batcher import BatchRule, buckets
from seedbed.acting.inference import Inference
from seedbed.acting.lag import ExactLag
from seedbed.acting.lag_control import BatchControl
from seedbed.acting.meters import Meters
from seedbed.acting.opponents import PoolCopy
from seedbed.architectures.checks import acts_and_queues, not_exact, too_far_behind, too_heavy
from seedbed.architectures.devices import pick
from seedbed.architectures.impala import learning_from_actors
from seedbed.architectures.interface import Architecture, Setup
from seedbed.architectures.parts import assignment_of
from seedbed.architectures.program import Acts, Context, Edge, Program, Resources, Role
from seedbed.architectures.roles import LEARNER, actors, learner, training
from seedbed.architectures.self_play import pool_settings, too_late_for_games
from seedbed.architectures.traffic import snapshots, steps, unrolls
from seedbed.config.placement import (
    EngineSettings,
    HostSettings,
    InferenceSettings,
    LearnerSettings,
    OpponentSettings,
    TrainingDeviceSettings,
    TransportSettings,
    at_least,
)
from seedbed.config.settings import RunConfig
from seedbed.errors import ConnectionLost
from seedbed.instances import START_SECONDS
from seedbed.learning.loop import LearnerLoop
from seedbed.metrics.ledger import Ledger
from seedbed.seeding import key
from seedbed.serving.forward_pass import AsTold, Fetch, Newest, RemoteRecipient
from seedbed.serving.inference_service import InferenceService
from seedbed.serving.proxy import Proxy, ServerReporter
from seedbed.serving.source import FORWARD_SERVER
from seedbed.transport.admission import Gate
from seedbed.transport.connect import connect, listen
from seedbed.transport.interface import Server
from seedbed.types import Agent, EnvSpec
from seedbed.weights.store import WeightStore

_CONNECT_SECONDS = 5.0


@dataclass(frozen=True)
class RapidSettings(
    OpponentSettings,
    EngineSettings,
    InferenceSettings,
    TransportSettings,
    TrainingDeviceSettings,
    LearnerSettings,
    HostSettings,
):
    """Placement of Rapid's parts."""

    forward_servers: int = 1
    """Forward-pass servers of each host, which run the policy for its actors."""
    publish_updates: int = 1
    """Updates after which the weights are published to the forward-pass servers. (Free lag only.)"""

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(self, 1, "forward_servers", "publish_updates")

    @property
    def slots(self) -> int:
        """Number of environments of all rollout workers; remote ones cannot join."""
        return self.planned


def build(setup: Setup) -> LearnerLoop:
    """Builds the head, one optimizer.

    To it, rollout workers and forward-pass servers together are actors that run the policy themselves.
    """
    place = setup.config.placement
    pick("inference", place.inference_devices)  # so that a wrong index is an error here, not of a server
    return learning_from_actors(setup, publish_every=place.publish_updates, servers=place.forward_servers)


def program(config: RunConfig, agent: Agent, spec: EnvSpec) -> Program:
    """Returns the roles of a run: optimizer, forward-pass servers that dial it, and rollout workers that dial these."""
    place = config.placement
    rows = lanes_of(place.envs_per_actor)[1]
    weights = snapshots(
        agent, place.publish_updates if not config.lag.exact else 1, opponents=place.opponents
    )
    full = place.inference_batch or -(-place.actors // place.forward_servers) * rows
    server = Role(
        FORWARD_SERVER,
        place.forward_servers,
        entry="seedbed.architectures.rapid:serve",
        needs=Resources(cores=1.0, accelerators=1),
        dials=(Edge(LEARNER, (*unrolls(agent, spec, rows, players=place.opponents > 0), weights)),),
        listens=True,
        near=LEARNER,
        restarts=None if config.lag.exact else place.actor_restarts,
        silent_after=config.safety.env_timeout,
        patience=_CONNECT_SECONDS,
        accelerated=True,
        acts=Acts(max(full, rows), place.inference_wait_ms / 1e3, place.inference_devices),
    )
    workers = actors(
        config, FORWARD_SERVER, steps(spec), patience=START_SECONDS, niceness=place.actor_niceness
    )
    head = learner(config, agent, trains=training(config, agent))
    return Program((head, server, workers), hosts=config.cluster.hosts)


def serve(context: Context) -> None:
    """Runs one forward-pass server until it is told to end.

    Raises:
      ConnectionLost: the optimizer is gone.
      Exception: the error with which acting ended.
    """
    failed: list[BaseException] = []

    def fail(error: BaseException) -> None:
        failed.append(error)
        context.over.set()

    def lose(reason: str) -> None:
        fail(ConnectionLost(reason))

    server = ForwardServer(
        context.config,
        context.agent,
        context.spec,
        index=context.task.index,
        optimizer=context.address_of(LEARNER),
        token=context.token,
        on_failure=fail,
        on_lost=lose,
    )
    with contextlib.closing(server):
        assert context.task.listens is not None
        server.open(context.task.listens)
        if context.task.abroad:
            server.open(context.task.abroad, context.gate)
        context.over.wait()
    for error in failed:
        raise error


class ForwardServer:
    """A server that runs the policy for some rollout workers of one optimizer.

    Args:
      config: settings of the run, on this optimizer's host.
      agent: the agent.
      spec: spec of the environments.
      index: number of the server on this host; it serves every ``forward_servers``-th rollout worker from this one on.
      optimizer: address of the optimizer.
      token: token by which the optimizer admits the server.
      on_failure: callback for the exception that ended acting.
      on_lost: callback for the loss of the optimizer, with the reason.
    """

    def __init__(
        self,
        config: RunConfig,
        agent: Agent,
        spec: EnvSpec,
        *,
        index: int,
        optimizer: str,
        token: str,
        on_failure: Callable[[BaseException], None],
        on_lost: Callable[[str], None],
    ) -> None:
        place, lag = config.placement, config.lag
        self._index, self._token, self._on_lost = index, token, on_lost
        self._most = place.most_actors
        devices = pick("inference", place.inference_devices)
        device = devices[index % len(devices)]
        workers = len(range(index, place.actors, place.forward_servers))
        rows = lanes_of(place.envs_per_actor)[1]
        # A worker that joins again finds free slots, also before its earlier ones are released.
        capacity = 2 * workers * place.envs_per_actor
        full = max(place.inference_batch or workers * rows, rows)
        # In lockstep, lanes are at most so many rounds apart, and every round has its own weights.
        store = WeightStore([device], keep=lag.rounds + 3 if isinstance(lag, ExactLag) else 1)
        settings = pool_settings(config)
        pool = None if settings is None else PoolCopy(settings)
        fetch = Fetch(store, pool)
        control: BatchControl
        sizes: tuple[int, ...]
        if lag.exact:
            control, sizes = AsTold(fetch), (rows,)
        else:
            control = Newest(BatchRule(full, place.inference_wait_ms / 1e3), fetch)
            sizes = buckets(min(rows, full), full)
        self._connect = partial(connect, optimizer, timeout=_CONNECT_SECONDS)
        inference = Inference(agent, spec, capacity, sizes, device, key(config.seed, "acting"))
        inference.warm_up(jax.device_put(agent.init(key(config.seed, "example")), device))
        self._meters = Meters()
        self._service = InferenceService(
            inference,
            control,
            assignment_of(config, agent, spec, token),
            ledger=Ledger(),  # the run's books are the optimizer's
            meters=self._meters,
            full_batch=sizes[-1],
            on_failure=on_failure,
            pool=pool,
            recipient=RemoteRecipient(inference),
        )
        self._relay = Proxy(
            self._connect,
            self._service,
            fetch,
            agent,
            spec,
            capacity=capacity,
            device=device,
            opponents=place.opponents,
        )
        self._servers: list[Server] = []
        self._reporter: ServerReporter | None = None

    def open(self, address: str, gate: Gate | None = None) -> str:
        """Starts serving at an address, where others may be served already; returns it as rollout workers dial it.

        Args:
          address: address to listen at.
          gate: admission of rollout workers on other machines.
        """
        if self._reporter is None:
            self._service.thread.start()
            self._service.thread.begin()
            self._reporter = ServerReporter(
                self._connect, self._token, self._index, self._tell, self._on_lost
            )
        self._servers.append(listen(address, self._relay, gate=gate, most=self._most))
        return self._servers[-1].address

    def _tell(self) -> dict[str, Any] | None:
        """Returns the next report to the optimizer; None while the acting thread makes no progress."""
        if not self._service.thread.beats():
            return None
        return {"heard": self._relay.heard(), **self._meters.hand_on()}

    def close(self) -> None:
        """Stops everything; safe to call twice."""
        for server in self._servers:
            server.close()
        if self._reporter is not None:
            self._reporter.close()
        self._service.thread.stop()


def check(config: RunConfig, agent: Agent) -> str | None:
    """Returns the reason why settings do not go together; None if they do."""
    place = config.placement
    if place.actors < place.forward_servers:
        return (
            f"actors is {place.actors}, so of {place.forward_servers} forward-pass servers some have no environments "
            "to act for: give as many --actors or more, or fewer --forward-servers"
        )
    if place.opponents and config.cluster.hosts > 1:
        return "opponents need the games of one host: leave out --hosts, and give more --forward-servers"
    return (
        not_exact(
            config,
            "the agent's states are with the forward-pass servers, and no checkpoint could hold them (--lag 0 alone is "
            "reproducible while nothing is interrupted)",
        )
        or too_far_behind(config, agent)
        or too_heavy(config, agent)
        or too_late_for_games(config)
    )


RAPID = Architecture(
    "rapid", RapidSettings, build, program, refuses=acts_and_queues, check=check, policy="server"
)
