"""The learner's loop: takes batches from the memory, makes updates, publishes weights, and keeps the books.

Its :class:`~seedbed.learning.source.Source` makes the unrolls; its :class:`~seedbed.learning.memory.Memory` holds them
until they are trained on.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, final

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
_OF_LANES = ("steps", "rounds", "digest", "games", "players")
"""JSON values of the state of a lane, where it has them; earlier versions kept the players of games alone."""
NOBODY: Mapping[str, list[str]] = {}
"""The addresses given to a head that dials no other role."""


@dataclass(frozen=True)
class Beginning:
    """The point at which a run begins, or resumes.

    Attributes:
      first_epoch: epoch of the first actor at each index.
      base: version of the weights that the first round acts with.
      filling: rounds that only fill the memory, before the first update.
      lanes: states of the lanes that a checkpoint resumes exactly, by lane order; empty if it resumes none.
    """

    first_epoch: int = 0
    base: int = 0
    filling: int = 0
    lanes: dict[tuple[int, int], dict[str, Any]] = field(default_factory=dict)


@dataclass(frozen=True)
class LoopSettings:
    """The settings of a loop.

    Attributes:
      lag: policy lag of the run.
      exact: whether checkpoints hold the state of acting too; acting then rests whenever its state is read.
      ahead: number of batches that are assembled ahead of time.
      publish_every: number of updates between two publications of the weights; 0: publish whenever they are due.
      max_skipped: number of updates in a row that may be skipped before the run fails.
      rows: unrolls in this host's share of a batch.
      insert_rows: environments in one lane of an actor.
      rhythm: settings that must be equal before and after an exact resumption, by their names in error messages.
    """

    lag: Lag
    exact: bool
    ahead: int
    publish_every: int
    max_skipped: int
    rows: int
    insert_rows: int
    rhythm: Mapping[str, int | str]


class Beside(Protocol):
    """A part of a run that keeps parameters of its own, which checkpoints hold too."""

    def kept(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Returns trees of arrays by their names in a checkpoint, and JSON values."""

    def meters(self) -> dict[str, float]:
        """Returns metrics by name."""


@final
class LearnerLoop:
    """A :class:`~seedbed.learning.run.Run` with one learner; used by one thread, except for :meth:`fail`.

    Args:
      agent: the agent that is trained.
      spec: spec of the environments.
      settings: settings of this loop.
      learner: maker of the updates.
      memory: queue or replay that holds unrolls until they are trained on.
      store: store in which weights are published.
      source: source of the unrolls.
      assemble: function that joins unrolls to a batch ``[T+1, B, ...]`` on the training devices.
      books: counters of steps, episodes and lag.
      failure: holder of the error that ends the run.
      beginning: point at which the run begins or resumes.
      while_idle: function that is called while there is no batch; returns whether there are newer weights to publish.
      beside: part that keeps parameters of its own; None if there is none.
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
        beside: Beside | None = None,
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
        self._beside = beside
        if beside is not None:
            books.beside = beside.meters
        self._learner_time = Share()
        self._reuse = Ratio()
        self._published: int | None = None
        self._prefetch: Prefetch[tuple[Unroll, Batch]] | None = None

    # Life cycle.

    def open(self, addresses: list[str], dialled: Mapping[str, list[str]] = NOBODY) -> list[str]:
        """Publishes the first weights and admits actors; returns the addresses as actors can reach them."""
        del dialled
        self._publish()
        return self.source.open(addresses)

    def begin(self) -> None:
        """Compiles the update, and starts prefetching and acting."""
        plan, settings = self._agent.data, self._settings
        self.learner.warm_up(example_unroll(self._agent, self._spec, plan.trained_length, settings.rows))
        length = plan.overlap + plan.unroll_length
        inserted = example_unroll(self._agent, self._spec, length, settings.insert_rows)
        self.memory.warm_up(inserted._replace(weight=None))
        self._prefetch = Prefetch(self._make_batch, settings.ahead, self.fail)
        self.source.begin()

    @property
    def instances(self) -> Mapping[str, Instances]:
        """Instances of the roles that act, by the name of the role."""
        return self.source.instances

    def rest(self, stand_down: Callable[[], None], stop: Callable[[], None]) -> bool:
        """Does nothing and returns False: only the run's own thread learns."""
        del stand_down, stop
        return False

    def close(self) -> None:
        """Stops acting and prefetching, and closes the memory; safe to call twice."""
        self.memory.close()
        if self._prefetch is not None:
            self._prefetch.close()
        self.source.close()

    def fail(self, error: BaseException) -> None:
        """Ends the run with this error; may be called from any thread."""
        self._failure.report(error)

    def updates(self, stop: threading.Event) -> Iterator[Mapping[str, Any] | None]:
        """Trains, and yields the metrics of each batch's last update (device scalars) before publishing its weights.

        Yields None now and then while there is no batch; ends when ``stop`` is set. In deterministic mode acting rests
        at each yield of metrics, so that all counters are reproducible too.

        Raises:
          RunFailed: a part of the run failed, or too many updates in a row were not finite.
        """
        assert self._prefetch is not None, "begin() comes first"
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
        """Makes the updates on one batch; under a free lag, publishes the weights after each but the last."""
        updates = self.learner.updates(unroll, batch.carried)
        counted = last = False
        self.books.batch_lag.add((self.version - batch.version) / self._agent.data.updates_a_batch)
        while not last:
            for version in range(self.version, self.version + self.learner.updates_a_step):
                self.books.policy_lag.add(version - batch.version)
            with self._learner_time:
                metrics, last = next(updates)
            trained = batch.version.size * self.learner.updates_a_step / self._agent.data.minibatches
            self._reuse.add(trained, 0 if counted else batch.fresh)
            if not counted:
                self.memory.learned(batch, lambda: self.learner.priorities)
                counted = True
            require_finite(self.learner.state.skipped_in_row, self._settings.max_skipped)
            if not last and not self._settings.lag.exact:
                self._publish()
        return metrics

    def _publish(self) -> None:
        every, version = self._settings.publish_every, self.version
        # Versions may skip numbers: passes over a batch that are left out count.
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
        """Number of updates so far, skipped ones included."""
        return int(self.learner.state.updates)

    @property
    def skipped(self) -> int:
        """Number of updates that were skipped."""
        return int(self.learner.state.skipped)

    @property
    def frames_per_step(self) -> int:
        """Environment frames in one agent step."""
        return self._spec.frames_per_step

    def variants(self) -> list[dict[str, Any]]:
        """Returns an empty list: the run trains one agent."""
        return []

    def report(self) -> dict[str, Any]:
        """Returns this host's ledger, and the episodes that ended since the last report; empty for a single host."""
        return self.books.report(self.source.last_epoch)

    def merge(self, reports: Sequence[Mapping[str, Any]]) -> None:
        """Counts the episodes of all hosts."""
        self.books.merge(reports)

    def meters(self) -> dict[str, float]:
        """Returns the metrics since the last call, by name."""
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
        """Returns all state that the next update depends on; needs no other host.

        In deterministic mode it waits until every lane is blocked on weights that are not published yet. The snapshot
        then also holds the logged actions of the lanes, the agent's recurrent states and the queued unrolls.
        """
        del alone
        exact = self._settings.exact
        if exact:
            self._rest()
            self.books.look()
        kept = self.memory.snapshot()
        trees: dict[str, Any] = {"train": self.learner.state}
        own, of_own = self._beside.kept() if self._beside else ({}, {})
        trees.update(own)
        blobs = dict(kept.blobs)
        meta: dict[str, Any] = {
            **kept.meta,
            **self.books.kept(self.version),
            "exact": exact,
            # The highest of all hosts: any of them may resume from this checkpoint.
            "last_epoch": self.books.last_epoch(self.source.last_epoch),
            "first_epoch": self._beginning.first_epoch,
            "base_version": self._beginning.base,
            "pace": dict(self._settings.rhythm),
            **({"beside": of_own} if of_own else {}),
        }
        if exact:
            lanes = sorted(self.source.lane_states().items())
            meta["lanes"] = [
                {"order": order, **{name: s[name] for name in _OF_LANES if name in s}} for order, s in lanes
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
    """Restores learner, memory and books from a checkpoint; returns the point at which the run resumes.

    Args:
      checkpoint: the checkpoint to resume from.
      agent: the agent that is trained.
      spec: spec of the environments.
      settings: settings of the loop.
      learner, memory, books: parts that are restored in place.
      beginning: point at which the run would begin without the checkpoint; its epochs may be higher.
      acting: number of environments that act in a round.

    Raises:
      ConfigError: the run should resume exactly, and a setting of its rhythm has changed.
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
            **{name: lane[name] for name in _OF_LANES if name in lane},
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
