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

A thread takes the newest parameters, acts with them for T steps, and gives the gradient of what it saw to the shared
ones, as it comes: others have changed them meanwhile, which is the gradient's staleness. Nobody waits for anybody.

The paper's threads write without locks. Here a shard takes one gradient after the other: an update is a compiled
program with an input and an output, and what it leaves is the same whichever way threads are switched.
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
    """One run of A3C: everything but what starts and watches its threads.

    Args:
      setup: what the run is built from.

    Attributes:
      threads: act and learn.
      gate: where they fetch parameters and push gradients.
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
        """The threads."""
        return {"actor": Instances(owes=self.threads.owes, start=self.threads.start)}

    def open(self, addresses: list[str], dialled: Mapping[str, list[str]] = NOBODY) -> list[str]:
        """Compiles."""
        del addresses, dialled
        fetched = self._shards.fetch()
        self.threads.warm_up([_weights(fetched)])
        plan = self._agent.data
        unroll = example_unroll(self._agent, self._spec, plan.unroll_length, plan.batch_size)
        jax.block_until_ready(self._gradient_of(fetched, unroll))
        return []

    def close(self) -> None:
        """Stops the threads; safe to call twice."""
        self.gate.close()

    def rest(self, stand_down: Callable[[], None], stop: Callable[[], None]) -> bool:
        """See :class:`~seedbed.learning.run.Run`; a gradient that is under way is pushed."""
        stand_down()
        self.gate.close()
        stop()
        return True

    # What the threads do.

    def _gradient_of(self, fetched: Fetched, unroll: Unroll) -> Gradient:
        version = np.int32(_weights(fetched).version)
        return self._gradient(fetched.params, None, self._key, version, self._put(unroll))

    def _tell(self) -> None:
        """Lets the run look whether it is over."""
        with self._news:
            self._metrics = self._metrics or {}
            self._news.notify_all()

    def _learned(self, delivery: Delivery, found: Gradient | None, receipts: Sequence[Receipt]) -> None:
        """Books an unroll and its gradient, which was not pushed if it was not finite, or could not be computed."""
        taken = any(receipt.taken for receipt in receipts)
        # What was acted with is what the gradient was computed at.
        for tally in (self.books.policy_lag, self.staleness):
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

    # What others read.

    @property
    def train_state(self) -> TrainState:
        """Parameters, optimizer and counters, as the shards have them."""
        whole = self._shards.whole()
        version, skipped = jnp.int32(whole.version), jnp.int32(self.skipped)
        return TrainState(whole.params, whole.opt_state, self._key, version, skipped, jnp.zeros_like(skipped))

    @property
    def version(self) -> int:
        """Gradients that the shards have taken."""
        return max(shard.part.version for shard in self._shards.shards)

    @property
    def skipped(self) -> int:
        """Gradients that were not finite, or would have led to parameters that are not."""
        return self._not_finite + max(shard.part.skipped for shard in self._shards.shards)

    def meters(self) -> dict[str, float]:
        """Metrics since the last call, by name."""
        return {**super().meters(), **self.threads.meters.take(), "actors": self.threads.alive()}

    def snapshot(self, *, alone: bool = False) -> Contents:
        """Parameters, optimizer and counters; the threads go on."""
        del alone
        # The counters first: what is learned meanwhile is in the parameters, and not counted twice.
        meta = {**self.books.kept(self.version), "exact": False, "last_epoch": self.threads.last_epoch}
        return Contents({"train": self.train_state}, meta)


class OpenSteps:
    """How many steps may still be begun, so that a run of so many steps does not go beyond them.

    Args:
      ledger: the books.
      unroll: steps that a thread makes with the parameters it has fetched.
      most: of the run; None for any.
    """

    def __init__(self, ledger: Ledger, unroll: int, most: int | None) -> None:
        self._ledger = ledger
        self._unroll = unroll
        self._most = most
        self._begun: set[int] = set()

    def begin(self, index: int) -> bool:
        """Whether the thread ``index`` may make an unroll; one that it had begun before is over."""
        self._begun.discard(index)
        books = self._ledger.counts()
        # If no episode ends in what is begun; those that do leave steps for others to make.
        begun = carried_out(books) - books["open"] + len(self._begun) * self._unroll
        if self._most is not None and begun >= self._most:
            return False
        self._begun.add(index)
        return True


class LearningGate:
    """The gate of threads that learn by themselves, see :class:`seedbed.acting.actor_threads.Gate`.

    Args:
      shards: the shared parameters.
      gradient: of an unroll, at the parameters that acted.
      learned: told of every unroll, its gradient (None if that failed), and what became of it; from any thread.
      waits: told when a thread finds that all steps are made.
      steps: those that may be made.
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
        """See :class:`seedbed.acting.actor_threads.Gate`; learns from the unroll."""
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
    """The parameters, of the version of the shard that is least far."""
    return Weights(fetched.params, min(fetched.versions))


def _steps(frames: int | None, spec: EnvSpec) -> int | None:
    return None if frames is None else -(-frames // spec.frames_per_step)


def refuses(plan: DataPlan) -> str | None:
    """Refuses agents that learn more than once, or later, from an unroll."""
    if plan.on_policy:
        return acts_and_queues(plan)
    return (
        acts(plan) or "its threads learn once from what they have just done, and the agent is made for more"
    )


def check(config: RunConfig, agent: Agent) -> str | None:
    """Refuses settings that do not go together."""
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
    """Returns the process of the shared parameters and its threads."""
    del spec
    return Program((learner(config, agent), threads(config)))


A3C = Architecture("a3c", A3CSettings, A3CRun, program, refuses=refuses, check=check)
