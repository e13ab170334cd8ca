"""The memory between acting and learning: a queue of unrolls, or a replay, as the agent's data plan states.

Acting threads put unrolls in; the learning thread takes batches out.
"""

from __future__ import annotations

import dataclasses
import logging
import math
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import jax
import numpy as np
from numpy.typing import NDArray

from seedbed.acting.codec import blind
from seedbed.acting.example import example_unroll
from seedbed.acting.lag import ExactLag, Lag, batches_per_round
from seedbed.acting.lag_control import HandOver
from seedbed.acting.unrolls import Delivery
from seedbed.errors import ConfigError
from seedbed.learning.checkpoint import Checkpoint, Contents
from seedbed.metrics.ledger import Ledger
from seedbed.replay.device import DeviceReplay, require_room_on
from seedbed.replay.limiter import RateLimiter
from seedbed.replay.queue import UnrollQueue, select
from seedbed.replay.replay import SLOT, Replay, Sample
from seedbed.replay.ring import Ring
from seedbed.types import Agent, DataPlan, EnvSpec, ReplayPlan, Unroll

_log = logging.getLogger(__name__)


class Batch(NamedTuple):
    """The unrolls of the next batch.

    Attributes:
      unrolls: unrolls that make up the batch, in order.
      version: int32 ``[T, B]``, version of the weights that acted, for each transition that is trained on.
      fresh: number of these transitions that were not trained on before.
      samples: the sample of each part of the replay; empty where the unrolls come from a queue.
      carried: share of the transitions that earned a sample of a replay that environments carried out; resets are not.
    """

    unrolls: Sequence[Unroll]
    version: NDArray[np.int32]
    fresh: int
    samples: tuple[Sample, ...] = ()
    carried: float = 1.0


class Memory(Protocol):
    """The interface of queue and replay to the loop; safe to use from any thread."""

    def listen(self, wake: Callable[[], None]) -> None:
        """Registers a function to be called whenever room was made."""

    def offer(self, delivery: Delivery) -> bool:
        """Takes a complete unroll; returns False if there is no room. Never blocks."""

    def take(self, timeout: float) -> Batch | None:
        """Returns the next batch; None when ``timeout`` s have passed, or once it is closed."""

    def warm_up(self, unroll: Unroll) -> None:
        """Compiles for unrolls like this one, so that no actor waits for it."""

    def learned(self, batch: Batch, priorities: Callable[[], NDArray[np.float32]]) -> None:
        """Books an update that was made with the batch; ``priorities`` returns those of its items, float32 ``[B]``."""

    def meters(self) -> dict[str, float]:
        """Returns gauges by the names of metrics."""

    def snapshot(self) -> Contents:
        """Returns the memory's part of a checkpoint; it has no trees."""

    def restore(self, checkpoint: Checkpoint, example: Unroll | None) -> int | None:
        """Restores the memory's part of a checkpoint.

        Args:
          checkpoint: checkpoint to restore from.
          example: an unroll with the structure of incoming ones, if the waiting unrolls are restored too; else None.

        Returns:
          The number of restored transitions that were never trained on; None if the ledger's count is right.
        """

    def begin_anew(self, inserted: int) -> int:
        """Starts rounds of ``inserted`` items each; updates that were due before are not made up for.

        Returns the number of rounds that only fill the memory.
        """

    def close(self) -> None:
        """Wakes the threads that wait; nothing can be taken afterwards."""


def into(memory: Memory, count: Callable[[Sequence[tuple[float, int]]], None]) -> HandOver:
    """Makes the function that hands complete unrolls to the memory, and episodes that ended in them to ``count``."""

    def hand_over(delivery: Delivery) -> bool:
        if not memory.offer(delivery):
            return False
        count(delivery.episodes)
        return True

    return hand_over


def _carried_out(deliveries: Sequence[Delivery], length: int) -> float:
    """Returns the share of the trained transitions of some unrolls, ``length`` each, that are no resets."""
    unrolls = filter(None, map(trained_part, deliveries))
    first = [np.asarray(unroll.timestep.first)[-length:] for unroll in unrolls]
    return 1.0 - float(np.concatenate(first, axis=1).mean())


def trained_part(delivery: Delivery) -> Unroll | None:
    """Returns the unroll of the environments that are trained on; None if all of them only evaluate."""
    if delivery.trains is None or delivery.trains.all():
        return delivery.unroll
    rows = int(delivery.trains.sum())
    return select(delivery.unroll, 0, rows) if rows else None


class QueueMemory:
    """A memory that gives out unrolls once, in the order in which they come.

    Args:
      queue: queue in which unrolls wait.
      ledger: ledger in which trained steps are booked.
      exact: whether checkpoints hold the queued unrolls.
    """

    def __init__(self, queue: UnrollQueue, ledger: Ledger, *, exact: bool) -> None:
        self._queue = queue
        self._ledger = ledger
        self._exact = exact
        self.listen = queue.listen
        self.close = queue.close

    def offer(self, delivery: Delivery) -> bool:
        """See :class:`Memory`."""
        unroll = trained_part(delivery)
        if unroll is not None and not self._queue.offer(unroll):
            return False
        if unroll is not delivery.unroll:
            kept = 0 if unroll is None else unroll.version.size
            self._ledger.drop(queued_steps=int(delivery.counted) - kept)
        return True

    def warm_up(self, unroll: Unroll) -> None:
        """Does nothing: a queue compiles nothing."""

    def begin_anew(self, inserted: int) -> int:
        """Returns 0: unrolls of a queue are trained on from the first round."""
        del inserted
        return 0

    def take(self, timeout: float) -> Batch | None:
        """See :class:`Memory`."""
        unrolls = self._queue.take(timeout)
        if unrolls is None:
            return None
        version = np.concatenate([unroll.version for unroll in unrolls], axis=1)
        return Batch(unrolls, version, version.size)

    def learned(self, batch: Batch, priorities: Callable[[], NDArray[np.float32]]) -> None:
        """See :class:`Memory`."""
        del priorities
        self._ledger.train(batch.fresh)

    def meters(self) -> dict[str, float]:
        """See :class:`Memory`."""
        return {"queue_fill": len(self._queue) / self._queue.capacity}

    def snapshot(self) -> Contents:
        """See :class:`Memory`."""
        if not self._exact:
            return Contents({}, {})
        queued = jax.device_get(self._queue.contents())
        return Contents({}, {}, {"queue": [leaf for unroll in queued for leaf in jax.tree.leaves(unroll)]})

    def restore(self, checkpoint: Checkpoint, example: Unroll | None) -> int | None:
        """See :class:`Memory`; a queue is restored only with an ``example``."""
        if example is None:
            return None
        leaves = checkpoint.blob("queue")
        structure, size = jax.tree.structure(example), len(jax.tree.leaves(example))
        for start in range(0, len(leaves), size):
            taken = self._queue.offer(jax.tree.unflatten(structure, leaves[start : start + size]))
            assert taken, "the queue is as large as before, since the lag and the actors are the same"
        return None


class ReplayMemory:
    """A memory that keeps unrolls in a replay, and samples batches from them.

    The replay may have several parts, each with the steps of its own environments: an equal share of every batch is
    sampled from each.

    Args:
      parts: parts of the replay on this host.
      agent: agent that the replay is for; its ``priorities`` gives the priorities of new items.
      ledger: ledger of steps: a step counts as trained once an update has used an item of its own, and as dropped if
        it is overwritten before.
      round_size: unrolls in a round, under an exact lag: the sampling thread inserts each round as a whole, once all
        samples that earlier rounds earned are taken. None: unrolls are inserted as they come.
      planned: number of environments of this host's own actors, which are divided among the parts in their order.
      alone: whether there are no further parts on other hosts.
      number: number of the first part among those of all hosts. A checkpoint of other parts gives it no contents.
    """

    def __init__(
        self,
        parts: Sequence[Replay | DeviceReplay],
        agent: Agent,
        ledger: Ledger,
        round_size: int | None = None,
        *,
        planned: int = 0,
        alone: bool = True,
        number: int = 0,
    ) -> None:
        assert agent.data.replay is not None
        self._parts = parts
        self._ledger = ledger
        self._round_size = round_size
        self._planned = planned
        self._one = alone and len(parts) == 1
        self._number = number
        self._waiting: deque[Delivery] = deque()
        self._taken: list[Sample] = []
        self._came = threading.Condition()
        self._start = agent.data.replay.start
        self._unroll_length = agent.data.unroll_length
        # Where unrolls are inserted as they come, resets earn no samples.
        self._carried = 1.0
        self._priorities = None if agent.priorities is None else jax.jit(agent.priorities)
        self._processor = _processor()

    def listen(self, wake: Callable[[], None]) -> None:
        """See :class:`Memory`."""
        for part in self._parts:
            part.listen(wake)

    def close(self) -> None:
        """See :class:`Memory`."""
        for part in self._parts:
            part.close()

    def offer(self, delivery: Delivery) -> bool:
        """See :class:`Memory`."""
        if self._round_size is None:
            return self._insert(delivery)
        with self._came:
            # The lag bounds the number of waiting unrolls.
            self._waiting.append(delivery)
            self._came.notify_all()
        return True

    def _insert_round(self, timeout: float) -> None:
        """Inserts the next round, if all its unrolls have come within ``timeout`` s."""
        with self._came:
            if not self._came.wait_for(lambda: len(self._waiting) >= (self._round_size or 0), timeout):
                return
            whole = [self._waiting.popleft() for _ in range(self._round_size or 0)]
        for delivery in whole:
            if not self._insert(delivery):
                raise AssertionError("the tolerance was chosen for the lag, and a round has to fit")
        self._carried = _carried_out(whole, self._unroll_length)

    def _insert(self, delivery: Delivery) -> bool:
        assert delivery.streams is not None
        unroll = trained_part(delivery)
        if unroll is None:
            self._ledger.drop(queued_steps=int(delivery.counted))
            return True
        rows = unroll.action.shape[1]
        part = self._part_of(int(delivery.streams[0]))
        if not part.has_room(rows):
            return False
        taken = part.offer(
            unroll, delivery.streams[:rows], int(delivery.end), self._initial(delivery, unroll)
        )
        if taken is None:
            return False
        # One booking: steps that begin a new segment, since the one before was overwritten, are in both terms.
        self._ledger.drop(queued_steps=int(delivery.counted) - taken + part.take_dropped())
        return True

    def _part_of(self, stream: int) -> Replay | DeviceReplay:
        """Returns the part that keeps a stream, by the slot of its environment."""
        slot, count = stream & SLOT, len(self._parts)
        return self._parts[slot * count // self._planned if slot < self._planned else slot % count]

    def _initial(self, delivery: Delivery, unroll: Unroll) -> NDArray[np.float32] | None:
        """Returns the initial priorities ``[items, B]``: the actor's if it has computed them, else computed here.

        None if the agent has no priorities, or if the replay computes them.
        """
        if self._priorities is None or self._parts[0].own_priorities:
            return None
        if delivery.priorities is not None:
            return delivery.priorities[:, : len(unroll.action[0])]
        return np.asarray(self._priorities(jax.device_put(blind(unroll), self._processor)))

    def warm_up(self, unroll: Unroll) -> None:
        """See :class:`Memory`."""
        self._initial(Delivery(unroll, []), unroll)

    def take(self, timeout: float) -> Batch | None:
        """See :class:`Memory`."""
        if self._round_size and not self._parts[0].may_sample():
            self._insert_round(timeout)
            timeout = 0.0
        while len(self._taken) < len(self._parts):
            sample = self._parts[len(self._taken)].take(timeout)
            if sample is None:
                return None
            self._taken.append(sample)
        samples, self._taken = tuple(self._taken), []
        unrolls = [self._weighed(sample) for sample in samples]
        version = np.concatenate([unroll.version[self._start :] for unroll in unrolls], axis=1)
        return Batch(unrolls, version, sum(sample.fresh for sample in samples), samples, self._carried)

    def _weighed(self, sample: Sample) -> Unroll:
        """Returns a sample's unroll, with importance weights that can be compared with those of other parts."""
        if self._one:
            return sample.unroll
        greatest = np.float32(min(sample.greatest, _GREATEST))
        return sample.unroll._replace(weight=sample.unroll.weight * greatest)

    def learned(self, batch: Batch, priorities: Callable[[], NDArray[np.float32]]) -> None:
        """See :class:`Memory`."""
        self._ledger.train(batch.fresh)
        if self._priorities is None:
            return
        shares = np.split(priorities(), len(self._parts))
        for part, sample, share in zip(self._parts, batch.samples, shares, strict=True):
            part.update(sample.items, sample.generations, share)

    def meters(self) -> dict[str, float]:
        """See :class:`Memory`."""
        return {
            "replay_fill": sum(part.fill for part in self._parts) / len(self._parts),
            "replay_transitions": sum(map(len, self._parts)),
            "replay_late_priorities": sum(part.late for part in self._parts),
            "replay_ignored_priorities": sum(part.ignored for part in self._parts),
        }

    def snapshot(self) -> Contents:
        """See :class:`Memory`."""
        kept = [part.snapshot() for part in self._parts]
        with self._came:  # where acting does not rest meanwhile
            deliveries = list(self._waiting)
        waiting = [leaf for delivery in deliveries for leaf in jax.tree.leaves(_without_episodes(delivery))]
        return Contents(
            {},
            {
                _CARRIED: self._carried,
                _NUMBER: self._number,
                **{_name(index): meta for index, (_, meta) in enumerate(kept)},
            },
            {"waiting": waiting},
            {_name(index): pieces for index, (pieces, _) in enumerate(kept)},
        )

    def restore(self, checkpoint: Checkpoint, example: Unroll | None) -> int:
        """See :class:`Memory`."""
        names = [_name(index) for index in range(len(self._parts))]
        if names[-1] not in checkpoint.meta or _name(len(names)) in checkpoint.meta:
            raise ConfigError(
                f"the replay has {len(names)} parts on this host, and in the checkpoint it has another number of them: "
                "give the --replay-parts that the run had"
            )
        if checkpoint.meta.get(_NUMBER, self._number) != self._number:
            _log.warning("the checkpoint is another host's: the replay of this one begins empty")
            return 0
        for name, part in zip(names, self._parts, strict=True):
            part.restore(checkpoint.pieces(name), checkpoint.meta[name])
            part.take_dropped()  # the restored ledger counts these steps as dropped already
        self._carried = checkpoint.meta.get(_CARRIED, 1.0)
        unsampled = sum(part.unsampled for part in self._parts)
        if example is None:
            return unsampled
        empty = _without_episodes(Delivery(example, [], np.zeros(1, np.int64), 0, np.zeros(1, np.bool_), 0))
        structure, size = jax.tree.structure(empty), len(jax.tree.leaves(empty))
        leaves = checkpoint.blob("waiting")
        for start in range(0, len(leaves), size):
            self._waiting.append(jax.tree.unflatten(structure, leaves[start : start + size]))
        return unsampled + sum(int(delivery.counted) for delivery in self._waiting)

    def begin_anew(self, inserted: int) -> int:
        """See :class:`Memory`."""
        share = inserted // len(self._parts)
        filling = math.ceil(max(part.missing for part in self._parts) / share)
        for part in self._parts:
            part.settle(filling * share)
        return filling


_CARRIED = "replay_carried"
"""Name of the newest round's share of carried-out transitions in a checkpoint."""
_NUMBER = "replay_number"
"""Name of the number of the first part in a checkpoint."""
_GREATEST = 1e30
"""Bound of importance weights, so that they stay finite as float32."""


def _name(part: int) -> str:
    """Returns the name of a part of the replay in a checkpoint."""
    return f"replay_{part}" if part else "replay"


def _processor() -> Any:
    """Returns the device that computes priorities of new items: a CPU, since their inputs are on the host."""
    try:
        return jax.local_devices(backend="cpu")[0]
    except RuntimeError:  # JAX is configured for accelerators only
        return jax.local_devices()[0]


def _without_episodes(delivery: Delivery) -> Delivery:
    """Removes the episodes, for a checkpoint: they were counted when the unroll was handed over."""
    return delivery._replace(episodes=[])


def make_replay(
    agent: Agent,
    spec: EnvSpec,
    *,
    lag: Lag,
    batch_size: int,
    acting: int,
    largest_insert: int,
    seed: int,
    share: int = 1,
) -> Replay:
    """Makes the agent's replay, or a part of it.

    Args:
      agent: the agent whose data it keeps.
      spec: spec of the environments.
      lag: policy lag of the run.
      batch_size: number of items that are sampled from it for a batch.
      acting: number of environments of this run's own actors whose data it keeps.
      largest_insert: largest number of environments in one unroll.
      seed: seed of the sampling.
      share: number of such parts, over all hosts, that share the agent's sizes.

    Raises:
      ConfigError: it does not fit into memory, could stall, or does not go with an exact lag.
    """
    plan, base, tolerance = _flow(shared(agent.data, share), lag, acting, batch_size)
    return Replay(
        plan,
        _example(agent, spec),
        batch_size=batch_size,
        largest_insert=largest_insert * plan.unroll_length,
        seed=seed,
        base=base,
        by_places=lag.exact,
        tolerance=tolerance,
    )


def make_device_replay(
    agent: Agent,
    spec: EnvSpec,
    *,
    lag: Lag,
    batch_size: int,
    acting: int,
    envs: int,
    largest_insert: int,
    device: Any,
    key: Any,
    part: int = 0,
    share: int = 1,
) -> DeviceReplay:
    """Makes the agent's replay on an accelerator, or a part of it; arguments as for :func:`make_replay`, and further:

    Args:
      agent, spec, lag, batch_size, acting, largest_insert, share: see there.
      envs: number of environments whose data it keeps.
      device: the JAX device.
      key: random key of the sampling.
      part: number of this part.

    Raises:
      ConfigError: as for :func:`make_replay`.
    """
    plan, base, tolerance = _flow(shared(agent.data, share), lag, acting, batch_size)
    replay = plan.replay
    assert replay is not None
    ring = Ring.of(plan, _example(agent, spec), envs, agent.priorities)
    require_room_on(device, ring, envs)
    geometry = ring.geometry
    limiter = RateLimiter(
        replay.ratio,
        -(-replay.min_size // geometry.own) if base is None else base,
        batch_size,
        largest_insert * geometry.items,
        tolerance,
    )
    return DeviceReplay(
        ring,
        envs,
        device,
        limiter,
        key=lambda count: part_key(jax.random.fold_in(key, count), part),
        batch_size=batch_size,
        by_places=lag.exact,
    )


def _example(agent: Agent, spec: EnvSpec) -> Unroll:
    length = agent.data.overlap + agent.data.unroll_length
    return example_unroll(agent, spec, length, 1)._replace(weight=None)


def _flow(
    plan: DataPlan, lag: Lag, acting: int, batch_size: int
) -> tuple[DataPlan, int | None, float | None]:
    """Returns the plan with the exact ratio, and base and tolerance of the rate limiter; None for its own."""
    assert plan.replay is not None
    if not isinstance(lag, ExactLag):
        return plan, None, None
    filling, batches = rounds(plan, acting, batch_size)
    # Exact to the last digit, or some round would earn a batch more or less.
    ratio = batches * batch_size / (acting * plan.items)
    plan = dataclasses.replace(plan, replay=dataclasses.replace(plan.replay, ratio=ratio))
    # This many rounds may have come before the first of them is trained on.
    tolerance = float((lag.rounds + 2) * batches * batch_size + batch_size)
    return plan, filling * acting * plan.items, tolerance


def parts_here(plan: ReplayPlan, hosts: int) -> int:
    """Returns the number of parts of the replay on each of ``hosts`` hosts."""
    return max((plan.parts or hosts) // hosts, 1)


def shared(plan: DataPlan, share: int) -> DataPlan:
    """Returns the plan of one of ``share`` equal parts of the replay: with its share of the sizes."""
    if plan.replay is None or share == 1:
        return plan
    sizes = {name: -(-getattr(plan.replay, name) // share) for name in ("capacity", "min_size")}
    return dataclasses.replace(plan, replay=dataclasses.replace(plan.replay, **sizes))


def part_key(key: Any, part: Any) -> Any:
    """Returns the key of one of the parts that a batch is sampled from, by the key of the batch."""
    return jax.random.fold_in(key, part)


def rounds(plan: DataPlan, acting: int, batch_size: int) -> tuple[int, int]:
    """Returns, for an exact lag, the number of rounds that only fill the memory, and of batches in each later round.

    Args:
      plan: the agent's data plan.
      acting: number of environments that act in a round, one unroll each.
      batch_size: items in this host's share of a batch.

    Raises:
      ConfigError: a round does not make a whole number of batches.
    """
    if plan.replay is None:
        return 0, batches_per_round(acting, batch_size)
    if acting == 0:
        raise ConfigError("an exact lag needs actors that this run starts itself: use --actors 1 or more")
    inserted = acting * plan.items
    if plan.replay.ratio is None:
        raise ConfigError("replay_ratio is none, and an exact lag needs a number: give --replay-ratio")
    batches = plan.replay.ratio * inserted / batch_size
    if round(batches) < 1 or abs(batches / round(batches) - 1) > 1e-4:
        nearest = max(1, round(batches)) * batch_size / inserted
        raise ConfigError(
            f"replay_ratio is {plan.replay.ratio:g}, which makes {batches:g} batches of {batch_size} of each round of "
            f"{inserted} new items; with an exact lag they have to be a whole number: use --replay-ratio {nearest:g}"
        )
    per_item = plan.unroll_length // plan.items
    least = -(-plan.replay.min_size // per_item)
    return max(-(-least // inserted) - 1, 0), round(batches)
