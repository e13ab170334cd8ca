"""Anakin: environment, policy and update in one compiled program (Hessel et al. 2021, "Podracer architectures").

::

    one program, on every device its share of the environments            host
    ┌──────────────────────────────────────────────────────────────┐
    │ ┌─ T steps ─────────────────────┐                            │   a call is
    │ │ environments ─► policy ─┐     │ unrolls  ┌───────────────┐ │   many batches
    │ │      ▲──── actions ◄────┘     │ ───────► │ passes of     │ │ ◄──────────────
    │ └───────────────▲───────────────┘          │ updates       │ │   metrics, the
    │                 └─────── weights ◄──────── └───────────────┘ │   last episodes
    └──────────────────────────────────────────────────────────────┘ ──────────────►

Nothing travels: environments are JAX functions, and each of them gives one unroll to every batch, so the batch size is
the number of environments. What is learned from is always what the newest weights did (a lag of 0).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from operator import itemgetter
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from seedbed.acting.assignment import half_seeds, lanes_of
from seedbed.acting.inference import row_keys
from seedbed.architectures.checks import acts_and_queues
from seedbed.architectures.devices import pick_everywhere
from seedbed.architectures.interface import Architecture, Setup, head_alone
from seedbed.config.placement import HostSettings, PopulationSettings, TrainingDeviceSettings, at_least
from seedbed.config.settings import RunConfig
from seedbed.config.variants import Variant, variants
from seedbed.envs.on_device.episodes import LastEpisodes, OpenEpisodes, finish, go_on, no_episodes
from seedbed.envs.on_device.interface import EnvState, advance, begin
from seedbed.envs.on_device.makers import make_native
from seedbed.envs.on_device.spoilt import Spoilt, spoilt_by
from seedbed.envs.seeds import environment_seeds
from seedbed.errors import ConfigError
from seedbed.instances import Instances
from seedbed.learning.books import Books
from seedbed.learning.checkpoint import Checkpoint, Contents
from seedbed.learning.loop import NOBODY
from seedbed.learning.update import DEVICES, TrainState, Update, require_finite
from seedbed.metrics.meters import Episodes, EpisodesOfSeveral
from seedbed.seeding import key
from seedbed.types import ActOutput, Agent, EnvSpec, TimeStep, Tree, Unroll

_WINDOW = 100
_CALL_SECONDS = 1.0
_TREES_OF_VARIANTS = "members_"
"""Prefix of their trees in a checkpoint, unchanged since version 0.1."""


@dataclass(frozen=True)
class AnakinSettings(HostSettings, PopulationSettings, TrainingDeviceSettings):
    """Placement of Anakin's program."""

    batches_per_call: int = 8
    """Batches that one call of the compiled program acts for and learns from."""

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(self, 1, "batches_per_call")


class Acting(NamedTuple):
    """What acting goes on from, each with a leading axis ``[B]`` of environments.

    Attributes:
      slot: int32, the environment's number.
      stage: where the environment stands.
      timestep: what it shows now, not acted on yet.
      memory: the agent's state.
      step: int32, decisions so far.
      sums: its open episode.
    """

    slot: Any
    stage: EnvState
    timestep: TimeStep
    memory: Tree
    step: Any
    sums: OpenEpisodes


class Carry(NamedTuple):
    """Everything that the program carries from one batch to the next; lives on the devices."""

    train: TrainState
    acting: Acting
    last: LastEpisodes


class Seen(NamedTuple):
    """What the environments have done in some batches (of each agent, where there are several).

    Attributes:
      resets: uint32, transitions that only reset.
      spoilt: int32 ``[fields]``, see :func:`~seedbed.envs.on_device.spoilt.spoilt_by`.
    """

    resets: Any
    spoilt: Any


class Own(NamedTuple):
    """What an agent has of its own, of those that are trained side by side; constant over the run.

    It is given to the program and not part of it: runs with other seeds are the same program.

    Attributes:
      learner: its key for parameters and updates, as raw data, uint32.
      acting: its key for actions, as raw data, uint32.
      values: numbers of the agent that are swept, by name.
    """

    learner: Any
    acting: Any
    values: dict[str, Any]


class Anakin:
    """One run of Anakin.

    Args:
      config: the run's settings.
      agent: what is computed.
      spec: of the environments.
      agent_with: makes the agent with other values for some of its numbers, which are traced.
      checkpoint: where to go on from; None to begin.

    Raises:
      ConfigError: the environment is not native, the devices do not exist or cannot share the batch, a setting cannot
        be swept, or the checkpoint is of other environments.
    """

    registry = threads = None

    def __init__(
        self,
        config: RunConfig,
        agent: Agent,
        spec: EnvSpec,
        *,
        agent_with: Callable[[Mapping[str, Any]], Agent],
        checkpoint: Checkpoint | None = None,
    ) -> None:
        self._config = config
        self._agent = agent
        self._agent_with = agent_with
        self._spec = spec
        self._num_envs = agent.data.batch_size
        self._env = make_native(config.env, config.env_options)
        self._spoilt = Spoilt(spec)
        self._devices = pick_everywhere("training", config.placement.training_devices)
        self._update = Update(agent, self._devices)
        self._steps_a_batch = self._num_envs * agent.data.unroll_length
        # Environments that began together end together: fewer than all of them would be a biased sample.
        self._window = max(_WINDOW, self._num_envs)
        self._variants = variants(config)
        self._several = len(self._variants) > 1
        each = [Episodes(self._window) for _ in self._variants]
        # One for all hosts, which are one program.
        self.books = Books(episodes=EpisodesOfSeveral(each) if self._several else each[0])
        self._batch_seconds: float | None = None
        self._resets = 0  # of all agents together
        self._epoch = 0
        self._compile_parts()
        if checkpoint is None:
            self._carry: Carry = self._begin_all(self._own, self._all_seeds())
        else:
            self._restore(checkpoint)
        self._look()

    def _compile_parts(self) -> None:
        """Makes what will be called."""
        own = [_own(variant) for variant in self._variants]
        if self._several:
            self._own: Own = jax.tree.map(lambda *leaves: np.stack(leaves), *own)
            self._require_sweepable()
            begin, self._one_batch = jax.vmap(self._begin), jax.vmap(self._batch)
            share = PartitionSpec(None, DEVICES)
        else:
            self._own = own[0]
            begin, self._one_batch = self._begin, self._batch
            share = PartitionSpec(DEVICES)
        whole = self._update.whole
        places: Any = (whole, NamedSharding(self._update.mesh, share), whole)
        self._places = Carry(*places)
        # On several hosts a call may fail because another is gone, and what it began with is all that is left then.
        donated = 1 if jax.process_count() == 1 else ()
        self._call: Any = jax.jit(
            self._batches, donate_argnums=donated, out_shardings=(self._places, whole, whole)
        )
        self._begin_all: Any = jax.jit(begin, out_shardings=self._places)

    def _require_sweepable(self) -> None:
        """Raises :class:`ConfigError` if a swept number decides what is computed, so that no one program has all."""
        for name, values in self._own.values.items():
            one = self._own._replace(values={name: values})
            seeds = np.zeros((len(self._variants), self._num_envs), np.uint32)
            try:
                carry = jax.eval_shape(jax.vmap(self._begin), one, seeds)
                jax.eval_shape(jax.vmap(self._batch), one, carry)
            except jax.errors.ConcretizationTypeError:
                raise ConfigError(
                    f"{name} decides what {self._agent.name} computes, and one program computes one thing: "
                    "start a run for each of its values"
                ) from None

    # The program.

    def _all_seeds(self) -> np.ndarray[Any, Any]:
        """The environments' seeds ``[B]``, or ``[variants, B]`` where there are several agents."""
        seeds = [self._seeds(variant.seed) for variant in self._variants]
        return np.stack(seeds) if self._several else seeds[0]

    def _seeds(self, seed: int) -> np.ndarray[Any, Any]:
        """Those of one actor with all the environments, so that SEED with one actor has the same worlds."""
        lanes, rows = (1, self._num_envs) if self._num_envs % 2 else lanes_of(self._num_envs)
        halves = half_seeds(seed, 0, self._epoch, lanes)
        return np.concatenate([environment_seeds(half, rows) for half in halves]).astype(np.uint32)

    def _learner_of(self, own: Own) -> tuple[Agent, Update]:
        if not own.values:
            return self._agent, self._update
        agent = self._agent_with(own.values)
        return agent, Update(agent, self._devices)

    def _begin(self, own: Own, seeds: Any) -> Carry:
        agent, update = self._learner_of(own)
        stage, timestep = begin(self._env, seeds)
        sums, last = no_episodes(self._num_envs, self._window)
        slots = jnp.arange(self._num_envs, dtype=jnp.int32)
        memory = agent.initial_state(self._num_envs)
        acting = Acting(slots, stage, timestep, memory, jnp.zeros_like(slots), sums)
        return Carry(update.begin(jax.random.wrap_key_data(own.learner)), acting, last)

    def _unroll(
        self, key: Any, params: Tree, version: Any, before: Acting
    ) -> tuple[Acting, Unroll, Tree, tuple[OpenEpisodes, Any]]:
        """T steps of the environments of one device, the record of the step after, and ``[T, B]`` sums and ends."""

        def act(acting: Acting) -> tuple[ActOutput, Tree]:
            keys = row_keys(key, acting.slot, jnp.full_like(acting.slot, self._epoch), acting.step)
            return self._agent.act(params, keys, acting.timestep, acting.memory)

        def step(acting: Acting, _: None) -> tuple[Acting, Any]:
            output, memory = act(acting)
            stage, timestep = advance(self._env, acting.stage, output.action)
            sums = go_on(acting.sums, timestep)
            after = Acting(acting.slot, stage, timestep, memory, acting.step + 1, sums)
            ended = timestep.terminated | timestep.truncated
            return after, (acting.timestep, output.action, output.record, (sums, ended))

        after, (timesteps, actions, records, episodes) = jax.lax.scan(
            step, before, None, self._agent.data.unroll_length
        )
        timesteps = jax.tree.map(
            lambda all_but_last, last: jnp.concatenate([all_but_last, last[None]]), timesteps, after.timestep
        )
        versions = jnp.full(actions.shape[:2], version, jnp.int32)
        # Who looks at it before learning learns with the weights that have acted.
        last = act(after)[0].record if self._agent.prepare else None
        return after, Unroll(timesteps, actions, records, before.memory, versions), last, episodes

    def _act(self, own: Own, carry: Carry) -> tuple[Acting, Unroll, Tree, tuple[OpenEpisodes, Any]]:
        """:meth:`_unroll`, each device for its environments."""
        _, update = self._learner_of(own)
        across, whole, over_time = PartitionSpec(DEVICES), PartitionSpec(), PartitionSpec(None, DEVICES)
        act = jax.shard_map(
            self._unroll,
            mesh=update.mesh,
            in_specs=(whole, whole, whole, across),
            out_specs=(across, update.specs, across, over_time),
            check_vma=False,
        )
        acted: tuple[Acting, Unroll, Tree, tuple[OpenEpisodes, Any]] = act(
            jax.random.wrap_key_data(own.acting), carry.train.params, carry.train.updates, carry.acting
        )
        return acted

    def _batch(self, own: Own, carry: Carry) -> tuple[Carry, Tree, Seen]:
        """Acts for one batch and learns from it; counts what it has seen, too."""
        _, update = self._learner_of(own)
        acting, unroll, last, (sums, ended) = self._act(own, carry)
        train, metrics = update.passes(carry.train, unroll, last)
        seen = Seen(unroll.timestep.first[1:].sum(dtype=jnp.uint32), spoilt_by(unroll.timestep))
        return Carry(train, acting, finish(carry.last, sums, ended)), metrics, seen

    def _batches(self, own: Own, carry: Carry, count: Any) -> tuple[Carry, Tree, Seen]:
        """``count`` batches (no constant, so that it is compiled for any).

        Returns means of their metrics, newest counts, and what was seen.
        """
        one_batch = jax.jit(self._one_batch)  # so that its shape and its use are traced once
        shape = jax.eval_shape(one_batch, own, carry)[1:]
        nothing = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shape)

        def one_more(_: Any, now: tuple[Carry, Tree, Seen]) -> tuple[Carry, Tree, Seen]:
            carry, metrics, seen = one_batch(own, now[0])
            metrics = jax.tree.map(lambda old, new: old + new if _is_mean(new) else new, now[1], metrics)
            before = now[2]
            seen = Seen(before.resets + seen.resets, jnp.maximum(before.spoilt, seen.spoilt))
            return carry, metrics, seen

        carry, metrics, seen = jax.lax.fori_loop(0, count, one_more, (carry, *nothing))
        metrics = jax.tree.map(lambda leaf: leaf / count if _is_mean(leaf) else leaf, metrics)
        # One that learns no more must not hide how the others do.
        return (
            carry,
            jax.tree.map(partial(jnp.nanmean, axis=0), metrics) if self._several else metrics,
            seen,
        )

    # Life.

    def open(self, addresses: list[str], dialled: Mapping[str, list[str]] = NOBODY) -> list[str]:
        """Compiles."""
        del addresses, dialled
        self._call = self._call.lower(self._own, self._carry, np.int32(1)).compile()
        return []

    def updates(self, stop: threading.Event) -> Iterator[Mapping[str, Any] | None]:
        """Learns: yields the metrics of each call; ends when ``stop`` is set.

        Raises:
          RunFailed: too many updates in a row were not finite (of every agent, where there are several).
        """
        while not stop.is_set():
            count, begun = self._count(), time.monotonic()
            # Waited for: what fails on the device fails here.
            self._carry, metrics, seen = jax.block_until_ready(
                self._call(self._own, self._carry, np.int32(count))
            )
            self._batch_seconds = (time.monotonic() - begun) / count
            # Counts are those of one agent: where there are several, of the mean one. Rounded as a whole, so that they
            # do not depend on how many batches a call has.
            before = self._resets // len(self._variants)
            self._resets += int(np.sum(seen.resets, dtype=np.int64))
            self._book(count, self._resets // len(self._variants) - before)
            self._spoilt.hear(np.max(np.atleast_2d(seen.spoilt), axis=0))
            require_finite(
                self._carry.train.skipped_in_row,
                self._config.safety.max_skipped_updates,
                cause=self._spoilt.cause,
            )
            yield metrics

    def _look(self) -> None:
        # On the host, and copies: if the program fails, what it carried is gone with it, and a buffer that is looked at
        # cannot be donated.
        train = self._carry.train
        self.version = int(np.max(train.updates))
        self._skipped = np.array(train.skipped, ndmin=1)

    def _count(self) -> int:
        """Batches in the next call: about a second of them, and no more than the frame budget has left."""
        count = self._config.placement.batches_per_call
        if not self._config.deterministic:
            seconds = self._batch_seconds
            count = 1 if seconds is None else max(1, min(count, int(_CALL_SECONDS / seconds)))
        if self._config.stop.frames is None:
            return count
        frames_a_batch = self._steps_a_batch * self.frames_per_step
        left = -(
            -(self._config.stop.frames - self.books.agent_steps * self.frames_per_step) // frames_a_batch
        )
        return max(1, min(count, left))

    def _book(self, count: int, resets: int) -> None:
        steps = count * self._steps_a_batch
        self.books.ledger.decide(steps, resets)
        self.books.ledger.cut(steps)
        self.books.ledger.train(steps)
        self.books.policy_lag.add(np.arange(self._agent.data.updates_a_batch))
        self._look()
        last = jax.device_get(self._carry.last)
        if isinstance(self.books.episodes, EpisodesOfSeveral):
            for index, episodes in enumerate(self.books.episodes.each):
                _show(episodes, jax.tree.map(itemgetter(index), last))
            self.books.episodes.look()
        else:
            _show(self.books.episodes, last)

    @property
    def skipped(self) -> int:
        """Updates that were skipped; of the best agent, where there are several."""
        return int(
            self._skipped[
                self.books.episodes.best if isinstance(self.books.episodes, EpisodesOfSeveral) else 0
            ]
        )

    @property
    def train_state(self) -> TrainState:
        """Parameters, optimizer and counters; of the best agent, where there are several."""
        if not isinstance(self.books.episodes, EpisodesOfSeveral):
            return self._carry.train
        state: TrainState = jax.tree.map(itemgetter(self.books.episodes.best), self._carry.train)
        return state

    @property
    def frames_per_step(self) -> int:
        """Environment frames in one agent step."""
        return self._spec.frames_per_step

    def fail(self, error: BaseException) -> None:
        """Nothing stands beside the program that could fail."""
        raise error

    def close(self) -> None:
        """Nothing to stop."""

    def acting_alone(self) -> Callable[[], int]:
        """What acts for one batch at every call, learns nothing from it, and returns its steps; for timing."""
        act = jax.jit(self._act)

        def once() -> int:
            acting, *_ = jax.block_until_ready(act(self._own, self._carry))
            self._carry = self._carry._replace(acting=acting)
            return self._steps_a_batch

        return once

    # What hosts tell each other: nothing but the time, since one program runs on all of them.

    @property
    def instances(self) -> Mapping[str, Instances]:
        """There is this process alone."""
        return {}

    def rest(self, stand_down: Callable[[], None], stop: Callable[[], None]) -> bool:
        """Nobody learns but the run's own thread."""
        del stand_down, stop
        return False

    def report(self) -> dict[str, Any]:
        """How long a batch takes here."""
        return {"batch_seconds": self._batch_seconds}

    def merge(self, reports: Sequence[Mapping[str, Any]]) -> None:
        """The slowest host says how long a batch takes: all have to make calls of the same length."""
        self._batch_seconds = max(report["batch_seconds"] for report in reports)

    # What others read.

    def meters(self) -> dict[str, float]:
        """Metrics since the last call, by name."""
        return self.books.progress(self.version, self.frames_per_step)

    def variants(self) -> list[dict[str, Any]]:
        """The agents that are trained side by side: what each of them is, and how it does. Empty if there is one."""
        if not isinstance(self.books.episodes, EpisodesOfSeveral):
            return []
        return [
            {"agent": str(one), "skipped_updates": int(self._skipped[index]), **episodes.row()}
            for index, (one, episodes) in enumerate(
                zip(self._variants, self.books.episodes.each, strict=True)
            )
        ]

    # Checkpoints.

    def snapshot(self, *, alone: bool = False) -> Contents:
        """Everything that the next update depends on.

        ``alone``: without the environments, of which another host had its share; new ones begin from it.
        """
        meta = {
            **self.books.kept(self.version),
            "exact": not alone,
            "epoch": self._epoch,
            "worlds": self._worlds(),
            "resets": self._resets,
        }
        carry = (self._carry if alone else self._everywhere(self._carry))._asdict()
        if alone:
            del carry["acting"]
        if not self._several:
            return Contents(carry, meta)
        # Whoever plays with the agent finds the best of them where the only one would be.
        variants = {f"{_TREES_OF_VARIANTS}{name}": part for name, part in carry.items()}
        return Contents({"train": self.train_state, **variants}, meta)

    def _everywhere(self, carry: Carry) -> Carry:
        """The carry on the host; of several hosts, on each of them, with the environments of all."""
        if jax.process_count() > 1:
            whole = jax.jit(lambda acting: acting, out_shardings=self._update.whole)
            carry = carry._replace(acting=whole(carry.acting))
        on_host: Carry = jax.device_get(carry)
        return on_host

    def _worlds(self) -> dict[str, Any]:
        """What a resumed run has to have in common with the run before."""
        return {
            "environment": self._config.env,
            "options": list(self._config.env_options),
            "number of environments (--batch-size)": self._num_envs,
            "number of agents": len(self._variants),
            "agents": [str(variant) for variant in self._variants],
        }

    def _restore(self, checkpoint: Checkpoint) -> None:
        meta = checkpoint.meta
        for name, now in self._worlds().items():
            if meta["worlds"][name] != now:
                raise ConfigError(
                    f"the {name} was {meta['worlds'][name]} and is {now} now: a resumed run goes on in its worlds"
                )
        self.books.restore(meta, open_steps=True)
        self._resets = int(meta.get("resets", 0))  # 0.1 kept none
        self._epoch = meta["epoch"] + (not meta["exact"])
        # By its shapes alone: two of them might not fit into the devices' memory.
        like: Carry = jax.eval_shape(self._begin_all, self._own, self._all_seeds())
        prefix = _TREES_OF_VARIANTS if self._several else ""

        def kept(name: str) -> Tree:
            return _spread(checkpoint.tree(prefix + name, getattr(like, name)), getattr(self._places, name))

        acting = kept("acting") if meta["exact"] else self._begin_all(self._own, self._all_seeds()).acting
        self._carry = Carry(kept("train"), acting, kept("last"))


def _own(variant: Variant) -> Own:
    values = {name: np.float32(value) for name, value in variant.values.items()}
    learner, acting = (
        np.asarray(jax.random.key_data(key(variant.seed, name))) for name in ("learner", "acting")
    )
    return Own(learner, acting, values)


def _spread(tree: Tree, sharding: Any) -> Tree:
    """Arrays of which every host has the whole, on the devices of all hosts."""

    def put(leaf: Any) -> Any:
        return jax.make_array_from_callback(leaf.shape, sharding, lambda index: np.asarray(leaf[index]))

    return jax.tree.map(put, tree)


def _show(episodes: Episodes, last: LastEpisodes) -> None:
    # The count on the device begins anew at 2**32.
    ended = (int(last.count) - episodes.count) % 2**32
    episodes.show(last.returns, last.lengths, episodes.count + ended)


def _is_mean(leaf: Any) -> bool:
    """Whether a metric is a mean; what counts is a whole number."""
    return jnp.issubdtype(leaf.dtype, jnp.floating)


def build(setup: Setup) -> Anakin:
    """Compiles nothing yet: puts program and state together."""
    return Anakin(
        setup.config, setup.agent, setup.spec, agent_with=setup.agent_with, checkpoint=setup.checkpoint
    )


ANAKIN = Architecture(
    "anakin", AnakinSettings, build, head_alone, refuses=acts_and_queues, policy="program", always_exact=True
)
