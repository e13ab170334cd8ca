"""A3C: threads of one host that act and learn, each by itself, onto shared parameters (Mnih et al. 2016, algorithm S3).

::

      one process
    ┌──────────────────────────────────────────────────────────────────────────────┐
    │ threads                                                   shared             │
    │ ┌────────────────────────────────────────────┐ gradients ┌────────────────┐  │
    │ │ environments ─► copy of the policy ─► loss │ ────────► │ parameters,    │  │
    │ │      ▲──── actions ◄────┘      T steps     │ ◄──────── │ optimizer      │  │
    │ └────────────────────────────────────────────┘  newest   └────────────────┘  │
    │                    × actors                 parameters       × shards        │
    └──────────────────────────────────────────────────────────────────────────────┘

A thread fetches the newest parameters, acts with them for T steps, and applies the gradient of these steps to the
shared parameters at once. Other threads have changed them meanwhile, which is the gradient's staleness. No thread waits
for another.

The paper's threads write without locks. Here a shard applies one gradient after the other: an update is a compiled
program with an input and an output, and its result does not depend on how threads are scheduled.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

from seedbed.acting.actor_threads import ActorThreads
from seedbed.acting.example import example_unroll
from seedbed.acting.rollout import CompiledPolicy
from seedbed.acting.unrolls import Delivery
from seedbed.architectures.asynchronous import Asynchronous
from seedbed.architectures.checks import acts, acts_and_queues, no_actors, not_exact
from seedbed.architectures.devices import pick
from seedbed.architectures.interface import Architecture, Setup
from seedbed.architectures.parts import assignment_of
from seedbed.architectures.program import Program
from seedbed.architectures.roles import learner, threads
from seedbed.config.placement import InferenceDeviceSettings, InstanceSettings, ShardSettings
from seedbed.config.settings import RunConfig
from seedbed.errors import RunFailed
from seedbed.instances import Instances
from seedbed.learning.checkpoint import Contents
from seedbed.learning.loop import NOBODY
from seedbed.learning.update import Gradient, TrainState, Update, require_finite
from seedbed.metrics.ledger import Ledger, carried_out
from seedbed.parameter_server.shards import Bound, Fetched, LocalShards, Part, Receipt
from seedbed.seeding import key
from seedbed.types import Agent, DataPlan, EnvSpec, Unroll, Weights


@dataclass(frozen=True)
class A3CSettings(ShardSettings, InferenceDeviceSettings, InstanceSettings):
    """Placement of A3C's threads and shards, all in one process."""

    actors: int = 2
    """Threads that act and learn, each with as many environments as a batch has unrolls."""


class A3CRun(Asynchronous):
    """One run of A3C, whose threads the supervisor starts and watches.

    Args:
      setup: ingredients of the run.

    Attributes:
      threads: threads that act and learn.
      gate: the threads' access to the shared parameters.
    """

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        config, agent, spec, checkpoint = setup.config, setup.agent, setup.spec, setup.checkpoint
        place = config.placement
        [device] = pick("inference", place.inference_devices)
        update = Update(agent, [device])
        state: TrainState = jax.jit(update.begin)(key(config.seed, "learner"))
        if checkpoint is not None:
            state = checkpoint.tree("train", state)
            self.books.restore(checkpoint.meta, open_steps=False)
        state = jax.device_put(state, device)
        self._key = state.key
        whole = Part(state.params, state.opt_state, int(state.updates), int(state.skipped))
        bound = Bound(place.max_staleness, place.stale_gradients)
        self._shards = LocalShards(agent.optimizer, whole, place.shards, bound)
        self._gradient: Callable[..., Gradient] = jax.jit(update.gradient)
        self._put = lambda unroll: jax.device_put(unroll, update.shares)
        unroll_steps = agent.data.batch_size * agent.data.unroll_length
        self.gate = LearningGate(
            self._shards,
            self._gradient_of,
            self._learned,
            self._tell,
            OpenSteps(self.books.ledger, unroll_steps, _steps(config.stop.frames, spec)),
        )
        self.threads = ActorThreads(
            assignment=assignment_of(config, agent, spec, "", envs=agent.data.batch_size),
            program=CompiledPolicy(agent, spec, agent.data.batch_size, key(config.seed, "acting")),
            devices=[device],
            gate=self.gate,
            ledger=self.books.ledger,
            log=str(setup.log),
            first_epoch=max(setup.first_epoch, checkpoint.meta["last_epoch"] + 1 if checkpoint else 0),
        )
        self._not_finite = self._not_finite_in_row = 0

    @property
    def instances(self) -> Mapping[str, Instances]:
        """The threads, as the supervisor watches them."""
        return {"actor": Instances(owes=self.threads.owes, start=self.threads.start)}

    def open(self, addresses: list[str], dialled: Mapping[str, list[str]] = NOBODY) -> list[str]:
        """Returns no addresses: nothing listens."""
        del addresses, dialled
        return []

    def begin(self) -> None:
        """Compiles acting and the gradient."""
        fetched = self._shards.fetch()
        self.threads.warm_up([_weights(fetched)])
        plan = self._agent.data
        unroll = example_unroll(self._agent, self._spec, plan.unroll_length, plan.batch_size)
        jax.block_until_ready(self._gradient_of(fetched, unroll))

    def close(self) -> None:
        """Stops the threads; safe to call twice."""
        self.gate.close()

    def rest(self, stand_down: Callable[[], None], stop: Callable[[], None]) -> bool:
        """See :class:`~seedbed.learning.run.Run`; a gradient that is being computed is still pushed."""
        stand_down()
        self.gate.close()
        stop()
        return True

    # Called by the threads.

    def _gradient_of(self, fetched: Fetched, unroll: Unroll) -> Gradient:
        version = np.int32(_weights(fetched).version)
        return self._gradient(fetched.params, None, self._key, version, self._put(unroll))

    def _tell(self) -> None:
        """Wakes the run's thread, which checks whether the run is over."""
        with self._news:
            self._metrics = self._metrics or {}
            self._news.notify_all()

    def _learned(self, delivery: Delivery, found: Gradient | None, receipts: Sequence[Receipt]) -> None:
        """Counts an unroll and its gradient; without receipts if the gradient was not finite, or not computed."""
        taken = any(receipt.taken for receipt in receipts)
        # The gradient is computed at the parameters that acted, so its staleness is the policy lag too.
        for tally in (self.books.policy_lag, self.books.batch_lag, self.staleness):
            tally.add([receipt.staleness for receipt in receipts])
        with self._news:
            steps = delivery.unroll.version.size
            if taken:
                self.books.ledger.train(steps)
            else:
                self.books.ledger.drop(queued_steps=steps)
            self.books.count(delivery.episodes)
            self._dropped += len(receipts) > 0 and not taken
            self._not_finite += found is not None and not receipts
            skipped = not receipts or any(receipt.skipped for receipt in receipts)
            self._not_finite_in_row = self._not_finite_in_row + 1 if skipped else 0
            if found is not None:
                self._metrics = found.metrics
            self._news.notify_all()
        try:
            require_finite(self._not_finite_in_row, self._config.safety.max_skipped_updates)
        except RunFailed as error:
            self.fail(error)

    # Read by the session.

    @property
    def train_state(self) -> TrainState:
        """Parameters, optimizer state and counters, read from the shards."""
        whole = self._shards.whole()
        version, skipped = jnp.int32(whole.version), jnp.int32(self.skipped)
        return TrainState(whole.params, whole.opt_state, self._key, version, skipped, jnp.zeros_like(skipped))

    @property
    def version(self) -> int:
        """Number of gradients that the shards have taken, including skipped ones."""
        return max(shard.part.version for shard in self._shards.shards)

    @property
    def skipped(self) -> int:
        """Number of gradients that were skipped: not finite themselves, or leading to parameters that are not."""
        return self._not_finite + max(shard.part.skipped for shard in self._shards.shards)

    def meters(self) -> dict[str, float]:
        """Returns the metrics since the last call, by name."""
        return {**super().meters(), **self.threads.meters.take(), "actors": self.threads.alive()}

    def snapshot(self, *, alone: bool = False) -> Contents:
        """Returns parameters, optimizer state and counters; the threads go on."""
        del alone
        # The counters first: steps that are learned from meanwhile are in the parameters, and not counted twice.
        meta = {**self.books.kept(self.version), "exact": False, "last_epoch": self.threads.last_epoch}
        return Contents({"train": self.train_state}, meta)


class OpenSteps:
    """The steps that threads have begun, bounded so that a run does not exceed its number of steps.

    Args:
      ledger: counts of the run's steps.
      unroll: number of steps that a thread makes with the parameters it has fetched.
      most: number of steps of the whole run; None for no limit.
    """

    def __init__(self, ledger: Ledger, unroll: int, most: int | None) -> None:
        self._ledger = ledger
        self._unroll = unroll
        self._most = most
        self._begun: set[int] = set()

    def begin(self, index: int) -> bool:
        """Ends the thread's unroll before; returns whether it may begin another one.

        Args:
          index: number of the thread.
        """
        self._begun.discard(index)
        books = self._ledger.counts()
        # The count assumes that no episode ends in a begun unroll; an end leaves a step for other threads.
        begun = carried_out(books) - books["open"] + len(self._begun) * self._unroll
        if self._most is not None and begun >= self._most:
            return False
        self._begun.add(index)
        return True


class LearningGate:
    """The gate of threads that learn by themselves, see :class:`seedbed.acting.actor_threads.Gate`.

    Args:
      shards: the shared parameters.
      gradient: function that computes the gradient of an unroll at the parameters that acted.
      learned: callback for every unroll with its gradient (None if that failed) and the shards' receipts; from any
        thread.
      waits: callback for a thread that finds all steps made or begun.
      steps: the bound on begun steps.
    """

    def __init__(
        self,
        shards: LocalShards,
        gradient: Callable[[Fetched, Unroll], Gradient],
        learned: Callable[[Delivery, Gradient | None, Sequence[Receipt]], None],
        waits: Callable[[], None],
        steps: OpenSteps,
    ) -> None:
        self._shards = shards
        self._gradient = gradient
        self._learned = learned
        self._waits = waits
        self._steps = steps
        self._news = threading.Condition()
        self._closed = False
        self._copies: dict[int, Fetched] = {}

    @property
    def closed(self) -> bool:
        """See :class:`seedbed.acting.actor_threads.Gate`."""
        return self._closed

    def close(self) -> None:
        """Stops all threads."""
        with self._news:
            self._closed = True
            self._news.notify_all()

    def weights(self, index: int, rounds: int, device: int) -> Weights | None:
        """See :class:`seedbed.acting.actor_threads.Gate`; waits once all steps of the run are made or begun."""
        del rounds, device
        with self._news:
            while not self._closed and not self._steps.begin(index):
                self._waits()
                self._news.wait()
            if self._closed:
                return None
        self._copies[index] = self._shards.fetch()
        return _weights(self._copies[index])

    def pass_on(self, index: int, rounds: int, delivery: Delivery) -> bool:
        """See :class:`seedbed.acting.actor_threads.Gate`; pushes the gradient of the unroll."""
        del rounds
        fetched = self._copies.pop(index)
        try:
            found = self._gradient(fetched, delivery.unroll)
            receipts = self._push(found, fetched) if found.finite else []
        except BaseException:
            self._learned(delivery, None, [])
            raise
        self._learned(delivery, found, receipts)
        return True

    def _push(self, found: Gradient, fetched: Fetched) -> list[Receipt]:
        return self._shards.push(found.gradient, fetched.versions, float(found.carried))


def _weights(fetched: Fetched) -> Weights:
    """Returns the fetched parameters as weights; their version is that of the shard that is furthest behind."""
    return Weights(fetched.params, min(fetched.versions))


def _steps(frames: int | None, spec: EnvSpec) -> int | None:
    return None if frames is None else -(-frames // spec.frames_per_step)


def refuses(plan: DataPlan) -> str | None:
    """Returns the reason to refuse agents that learn from an unroll more than once, or later; None for others."""
    if plan.on_policy:
        return acts_and_queues(plan)
    return (
        acts(plan) or "its threads learn once from what they have just done, and the agent is made for more"
    )


def check(config: RunConfig, agent: Agent) -> str | None:
    """Returns the reason why settings do not go together; None if they do."""
    place = config.placement
    if agent.prepare is not None:
        return "a3c's threads give gradients alone, and --scale-rewards keeps statistics of whole batches: leave it out"
    if len(place.inference_devices) > 1:
        return f"inference_devices is {place.inference_devices}, but all of a3c is on one device: give one"
    if place.stale_gradients != "drop" and place.max_staleness is None:
        return "stale_gradients is scale, and a3c takes gradients however stale they are: add --max-staleness"
    return not_exact(config, "a3c's threads race, so that no two runs are alike") or no_actors(
        config, "threads"
    )


def program(config: RunConfig, agent: Agent, spec: EnvSpec) -> Program:
    """Returns the roles of a run: the process of the shared parameters, and its threads."""
    del spec
    return Program((learner(config, agent), threads(config)))


A3C = Architecture("a3c", A3CSettings, A3CRun, program, refuses=refuses, check=check)
