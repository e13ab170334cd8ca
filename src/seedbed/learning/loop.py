"""The learner's loop: batches from the memory, updates, weights that are published, and the books.

Where the unrolls come from is its :class:`~seedbed.learning.source.Source`; what keeps them until they are learned from
is its :class:`~seedbed.learning.memory.Memory`.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, final

from seedbed.acting.example import example_unroll
from seedbed.acting.lag import Lag
from seedbed.errors import ConfigError
from seedbed.instances import Instances
from seedbed.learning.books import Books
from seedbed.learning.checkpoint import Checkpoint, Contents
from seedbed.learning.failure import Failure
from seedbed.learning.learner import Learner
from seedbed.learning.memory import Batch, Memory
from seedbed.learning.prefetch import Prefetch
from seedbed.learning.source import Source
from seedbed.learning.update import TrainState, require_finite
from seedbed.metrics.meters import Ratio, Share
from seedbed.types import Agent, EnvSpec, Unroll
from seedbed.weights.store import WeightStore

_POLL_SECONDS = 0.2
NOBODY: Mapping[str, list[str]] = {}
"""The addresses of a head that dials nobody."""


@dataclass(frozen=True)
class Beginning:
    """Where a run begins, or goes on.

    Attributes:
      first_epoch: of the first actor at each index.
      base: version of the weights that the first round acts with.
      filling: rounds that only fill the memory before the first of them is learned from.
      lanes: by their order, what a checkpoint kept of the lanes that go on exactly; empty if none do.
    """

    first_epoch: int = 0
    base: int = 0
    filling: int = 0
    lanes: dict[tuple[int, int], dict[str, Any]] = field(default_factory=dict)


@dataclass(frozen=True)
class LoopSettings:
    """Settings of a loop.

    Attributes:
      lag: of the run.
      exact: whether a checkpoint holds acting too: it is at rest whenever something is read.
      ahead: batches that are assembled ahead of time.
      publish_every: updates after which the weights are published; 0: whenever they are due.
      max_skipped: updates in a row that may be skipped.
      rows: unrolls of a batch on this host.
      insert_rows: environments in one lane of an actor.
      rhythm: what a run that goes on exactly has to have in common with the run before, by its name for people.
    """

    lag: Lag
    exact: bool
    ahead: int
    publish_every: int
    max_skipped: int
    rows: int
    insert_rows: int
    rhythm: Mapping[str, int | str]


@final
class LearnerLoop:
    """A :class:`~seedbed.learning.run.Run` with one learner; used by one thread but for :meth:`fail`.

    Args:
      agent: the agent that is trained.
      spec: of the environments.
      settings: of the loop.
      learner: makes the updates.
      memory: keeps unrolls until they are learned from.
      store: takes the weights that are published.
      source: acts.
      assemble: puts unrolls together to a batch ``[T+1, B, ...]`` on the devices that train.
      books: the counts.
      failure: the error that ends the run.
      beginning: where it begins.
      while_idle: called while no batch comes; returns whether there are newer weights to publish.
    """

    def __init__(
        self,
        agent: Agent,
        spec: EnvSpec,
        settings: LoopSettings,
        *,
        learner: Learner,
        memory: Memory,
        store: WeightStore,
        source: Source,
        assemble: Callable[[Sequence[Unroll]], Unroll],
        books: Books,
        failure: Failure,
        beginning: Beginning,
        while_idle: Callable[[], bool] = lambda: False,
    ) -> None:
        self.learner = learner
        self.memory = memory
        self.source = source
        self.books = books
        self._agent = agent
        self._spec = spec
        self._settings = settings
        self._store = store
        self._assemble = assemble
        self._failure = failure
        self._beginning = beginning
        self._while_idle = while_idle
        self._learner_time = Share()
        self._reuse = Ratio()
        self._published: int | None = None
        self._prefetch: Prefetch[tuple[Unroll, Batch]] | None = None

    # Life.

    def open(self, addresses: list[str], dialled: Mapping[str, list[str]] = NOBODY) -> list[str]:
        """Compiles, publishes the first weights, and begins to act and to make batches."""
        del dialled
        plan, settings = self._agent.data, self._settings
        self.learner.warm_up(example_unroll(self._agent, self._spec, plan.trained_length, settings.rows))
        length = plan.overlap + plan.unroll_length
        inserted = example_unroll(self._agent, self._spec, length, settings.insert_rows)
        self.memory.warm_up(inserted._replace(weight=None))
        self._publish()
        self._prefetch = Prefetch(self._make_batch, settings.ahead, self.fail)
        return self.source.open(addresses)

    @property
    def instances(self) -> Mapping[str, Instances]:
        """The instances of the roles that act."""
        return self.source.instances

    def rest(self, stand_down: Callable[[], None], stop: Callable[[], None]) -> bool:
        """Nobody learns but the run's own thread."""
        del stand_down, stop
        return False

    def close(self) -> None:
        """Stops everything; safe to call twice."""
        self.memory.close()
        if self._prefetch is not None:
            self._prefetch.close()
        self.source.close()

    def fail(self, error: BaseException) -> None:
        """Ends the run with this error; from any thread."""
        self._failure.report(error)

    def updates(self, stop: threading.Event) -> Iterator[Mapping[str, Any] | None]:
        """Learns: yields the metrics of each batch's last update (scalars on the device), before its weights are
        published. In deterministic mode acting then rests, so that all counters are reproducible too.

        Yields None now and then while no batch comes; ends when ``stop`` is set.

        Raises:
          RunFailed: a part of the run failed, or too many updates in a row were not finite.
        """
        assert self._prefetch is not None, "open() comes first"
        while not stop.is_set():
            self._failure.check()
            batch = self._prefetch.take(_POLL_SECONDS)
            if batch is None:
                if self._while_idle():
                    self._publish()
                yield None
                continue
            metrics = self._train(*batch)
            if self._settings.exact:
                self._rest()
            yield metrics
            self._publish()

    def _make_batch(self) -> tuple[Unroll, Batch] | None:
        batch = self.memory.take(_POLL_SECONDS)
        return None if batch is None else (self._assemble(batch.unrolls), batch)

    def _train(self, unroll: Unroll, batch: Batch) -> Mapping[str, Any]:
        """The updates on one batch; with a free lag the weights of each but the last are published here."""
        updates = self.learner.updates(unroll)
        counted = last = False
        while not last:
            self.books.policy_lag.add(self.version - batch.version)
            with self._learner_time:
                metrics, last = next(updates)
            self._reuse.add(batch.version.size / self._agent.data.minibatches, 0 if counted else batch.fresh)
            if not counted:
                self.memory.learned(batch, lambda: self.learner.priorities)
                counted = True
            require_finite(self.learner.state.skipped_in_row, self._settings.max_skipped)
            if not last and not self._settings.lag.exact:
                self._publish()
        return metrics

    def _publish(self) -> None:
        every, version = self._settings.publish_every, self.version
        # Versions may leap: passes over a batch that are left out count.
        if self._published is None or version - self._published >= every or not every:
            self._published = version
            self._store.publish(self.learner.params, version)

    def _rest(self) -> None:
        # Without a time limit: an actor that hangs is noticed by its supervisor.
        while not self.source.wait_blocked(_POLL_SECONDS):
            self._failure.check()

    # State.

    @property
    def train_state(self) -> TrainState:
        """Parameters, optimizer and counters."""
        return self.learner.state

    @property
    def version(self) -> int:
        """Updates so far."""
        return int(self.learner.state.updates)

    @property
    def skipped(self) -> int:
        """How many of them were skipped."""
        return int(self.learner.state.skipped)

    @property
    def frames_per_step(self) -> int:
        """Environment frames in one agent step."""
        return self._spec.frames_per_step

    def variants(self) -> list[dict[str, Any]]:
        """There is one agent."""
        return []

    def report(self) -> dict[str, Any]:
        """The ledger, and the episodes that ended since the last report."""
        return self.books.report(self.source.last_epoch)

    def merge(self, reports: Sequence[Mapping[str, Any]]) -> None:
        """Counts all hosts' episodes."""
        self.books.merge(reports)

    def meters(self) -> dict[str, float]:
        """Metrics since the last call, by name."""
        reuse = self._reuse.take()
        return {
            **self.books.progress(self.version, self.frames_per_step),
            **self.memory.meters(),
            "learner_busy": self._learner_time.take(),
            **({} if reuse is None else {"sample_reuse": reuse}),
            **self.source.meters(),
        }

    # Checkpoints.

    def snapshot(self, *, alone: bool = False) -> Contents:
        """Everything that the next update depends on; needs no other host.

        In deterministic mode it waits until every lane has come to the weights that are not published yet, and
        holds their logged actions, the agent's states and the queue too.
        """
        del alone
        exact = self._settings.exact
        if exact:
            self._rest()
            self.books.look()
        kept = self.memory.snapshot()
        trees: dict[str, Any] = {"train": self.learner.state}
        blobs = dict(kept.blobs)
        meta: dict[str, Any] = {
            **kept.meta,
            **self.books.kept(self.version),
            "exact": exact,
            # Of all hosts: any of them may go on from this.
            "last_epoch": self.books.last_epoch(self.source.last_epoch),
            "first_epoch": self._beginning.first_epoch,
            "base_version": self._beginning.base,
            "pace": dict(self._settings.rhythm),
        }
        if exact:
            lanes = sorted(self.source.lane_states().items())
            meta["lanes"] = [
                {"order": order, "steps": s["steps"], "rounds": s["rounds"], "digest": s["digest"]}
                for order, s in lanes
            ]
            blobs["actions"] = [state["actions"] for _, state in lanes]
            blobs["shared"] = [array for _, state in lanes for array in state["shared"]]
            meta["shared"] = [len(state["shared"]) for _, state in lanes]
            trees.update(self.source.tables())
            meta["untold"] = self.books.untold
        return Contents(trees, meta, blobs, kept.pieces)


def resumed(
    checkpoint: Checkpoint,
    agent: Agent,
    spec: EnvSpec,
    settings: LoopSettings,
    *,
    learner: Learner,
    memory: Memory,
    books: Books,
    beginning: Beginning,
    acting: int,
) -> Beginning:
    """Restores learner, memory and books; returns where the run goes on.

    Args:
      checkpoint: the state to go on from.
      agent: the agent that is trained.
      spec: of the environments.
      settings: of the loop.
      learner, memory, books: the parts that are restored.
      beginning: where it would begin without the checkpoint, whose epochs may have come further.
      acting: environments that act in a round.

    Raises:
      ConfigError: the run is to go on exactly, and its rhythm is another one.
    """
    meta = checkpoint.meta
    learner.restore(checkpoint.tree("train", learner.state))
    exact = bool(meta["exact"]) and settings.exact
    if exact:
        _require_rhythm(meta["pace"], settings.rhythm)
    example = example_unroll(agent, spec, 1, 1)._replace(weight=None)
    queued = memory.restore(checkpoint, example if exact else None)
    books.restore(meta, open_steps=exact, queued=queued)
    if not exact:
        filling = memory.begin_anew(acting * agent.data.items) if settings.lag.exact else 0
        first = max(meta["last_epoch"] + 1, beginning.first_epoch)
        return Beginning(first, int(learner.state.updates), filling)
    books.untold = meta["untold"]
    shared = iter(checkpoint.blob("shared"))
    lanes = {
        (int(lane["order"][0]), int(lane["order"][1])): {
            "steps": lane["steps"],
            "rounds": lane["rounds"],
            "digest": lane["digest"],
            "actions": actions,
            "shared": list(itertools.islice(shared, count)),
            "record": example.record,
        }
        for lane, actions, count in zip(
            meta["lanes"], checkpoint.blob("actions"), meta["shared"], strict=True
        )
    }
    return Beginning(meta["first_epoch"], meta["base_version"], beginning.filling, lanes)


def _require_rhythm(before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    for name, value in now.items():
        if before[name] != value:
            raise ConfigError(
                f"{name} was {before[name]} and is {value} now: a deterministic run goes on as it was"
            )
