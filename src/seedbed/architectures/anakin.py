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

Nothing travels: environments are JAX functions, and each of them contributes one unroll to every batch, so the batch
size is the number of environments. Every update learns from steps of the newest weights (a lag of 0).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from operator import itemgetter
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from seedbed.acting.assignment import half_seeds, lanes_of
from seedbed.acting.example import example_unroll
from seedbed.acting.inference import initial_state, row_keys
from seedbed.architectures.checks import acts
from seedbed.architectures.devices import pick_everywhere
from seedbed.architectures.interface import Architecture, Setup
from seedbed.architectures.program import Acts, Environments, Program
from seedbed.architectures.roles import learner, training
from seedbed.config import resolve
from seedbed.config.placement import (
    FOR_REPLAYS,
    HostSettings,
    PopulationSettings,
    TrainingDeviceSettings,
    at_least,
)
from seedbed.config.settings import RunConfig
from seedbed.config.variants import VALUES_OF_BEST, Variant, variants
from seedbed.envs.make import require_whole
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
from seedbed.learning.memory import rounds
from seedbed.learning.population import Generation, next_generation
from seedbed.learning.sampling import ENVS, Sampling, Trained, transitions_dropped
from seedbed.learning.update import DEVICES, TrainState, Update, require_finite
from seedbed.metrics.meters import Episodes, EpisodesOfSeveral
from seedbed.replay.ring import Held, Ring
from seedbed.seeding import generator, key
from seedbed.types import ActOutput, Agent, EnvSpec, Exploration, TimeStep, Tree, Unroll

_WINDOW = 100
_CALL_SECONDS = 1.0
_TREES_OF_VARIANTS = "members_"
"""Prefix of the variants' trees in a checkpoint, unchanged since version 0.1."""


@dataclass(frozen=True)
class AnakinSettings(HostSettings, PopulationSettings, TrainingDeviceSettings):
    """Placement of Anakin's program."""

    batches_per_call: int = 8
    """Batches (with a replay: rounds) of acting and learning in one call of the compiled program."""
    envs: int | None = field(default=None, metadata=FOR_REPLAYS)
    """Environments, each with one unroll a round; None: as many as a batch has rows."""

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(self, 1, "batches_per_call", "envs")


class Acting(NamedTuple):
    """The state of acting; every leaf has a leading axis ``[B]`` of environments, or of agents where they have several.

    Attributes:
      slot: int32 ``[B]``, number of the row.
      stage: state of the environments, ``[E]``.
      timestep: newest time step, not acted on yet.
      memory: recurrent state of the agent.
      step: int32 ``[B]``, number of decisions so far.
      sums: return and length of the open episode.
      first: recurrent state before the open unroll, where unrolls overlap; else None.
    """

    slot: Any
    stage: EnvState
    timestep: TimeStep
    memory: Tree
    step: Any
    sums: OpenEpisodes
    first: Tree = None


class Steps(NamedTuple):
    """Some steps of acting, time-major ``[T, E, ...]``.

    Attributes:
      timestep: time steps that were acted on.
      action, record: decisions at them.
      version: int32, version of the weights that decided.
    """

    timestep: TimeStep
    action: Any
    record: Tree
    version: Any


class Kept(NamedTuple):
    """The experience that an agent with a replay keeps; every leaf has the environments as its second axis.

    Attributes:
      ring: contents of the replay.
      overlap: steps that the next unroll shares with the one before.
    """

    ring: Held
    overlap: Steps


class Carry(NamedTuple):
    """The state that the program carries from one batch to the next; it stays on the devices.

    Attributes:
      train: state of learning.
      acting: state of acting.
      last: returns and lengths of the last episodes.
      kept: experience of an agent with a replay; else None.
    """

    train: TrainState
    acting: Acting
    last: LastEpisodes
    kept: Kept | None = None


class Seen(NamedTuple):
    """The counts of some batches; of each variant, where there are several.

    Attributes:
      resets: number of transitions that only reset, uint32.
      spoilt: environments that gave bad numbers, int32 ``[fields]``; see
        :func:`~seedbed.envs.on_device.spoilt.spoilt_by`.
      learned: int32, number of batches (with a replay: of rounds) that were learned from.
      trained: counts of the updates with samples from a replay; None without one.
    """

    resets: Any
    spoilt: Any
    learned: Any
    trained: Trained | None = None

    def and_then(self, later: Seen) -> Seen:
        """Returns the counts of these batches and later ones."""
        trained = None
        if self.trained is not None and later.trained is not None:
            one, other = self.trained, later.trained
            updates = one.updates + other.updates
            trained = Trained(
                updates,
                one.fresh + other.fresh,
                (one.lag * one.updates + other.lag * other.updates) / jnp.maximum(updates, 1),
                jnp.maximum(one.most_lag, other.most_lag),
            )
        return Seen(
            self.resets + later.resets,
            jnp.maximum(self.spoilt, later.spoilt),
            self.learned + later.learned,
            trained,
        )


class Own(NamedTuple):
    """The inputs of one variant, one of the agents that are trained side by side; constant over the run.

    They are arguments of the program and not compiled into it: runs with other seeds share one program.

    Attributes:
      learner: random key for parameters and updates, as raw data, uint32.
      acting: random key for actions, as raw data, uint32.
      replay: random key for samples, as raw data, uint32.
      values: swept settings of the agent, by name; float32 scalars.
    """

    learner: Any
    acting: Any
    replay: Any
    values: dict[str, Any]


class Anakin:
    """One run of Anakin.

    Args:
      config: settings of the run.
      agent: the agent.
      spec: spec of the environments.
      agent_with: function that makes the agent with other values of some settings, which are traced.
      checkpoint: checkpoint to go on from; None to begin.

    Raises:
      ConfigError: the environment is not native, the devices do not exist or cannot share the batch, the share of one
        is no whole number of environments, a setting cannot be swept, or the checkpoint is of other environments.
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
        self._samples = agent.data.replay is not None
        self._num_envs = envs_of(config, agent)
        self._env = make_native(config.env, config.making)
        self._spoilt = Spoilt(spec)
        self._devices = pick_everywhere("training", config.placement.training_devices)
        self._update = Update(agent, self._devices)
        require_whole(spec, self._num_envs // len(self._devices))
        self._steps_a_batch = self._num_envs * agent.data.unroll_length
        # Environments that began together end together: a window below their number would be a biased sample.
        self._window = max(_WINDOW, self._num_envs)
        self._variants = variants(config)
        self._several = len(self._variants) > 1
        each = [Episodes(self._window) for _ in self._variants]
        # One instance for all hosts, since they run one program.
        self.books = Books(episodes=EpisodesOfSeveral(each) if self._several else each[0])
        self._batch_seconds: float | None = None
        self._rounds = _Rounds(config, self._variants, self._steps_a_batch * spec.frames_per_step)
        self._resets = self._fresh = self._dropped = 0  # of all agents together
        self._epoch = 0
        self._compile_parts()
        if checkpoint is None:
            self._carry: Carry = self._begin_all(self._own, self._all_seeds())
            self._unbooked = self._agent.data.overlap * self._num_envs
        else:
            self._restore(checkpoint)
        self._look()

    def _compile_parts(self) -> None:
        """Makes the functions of the program, not compiled yet."""
        own = [_own(variant) for variant in self._variants]
        if self._several:
            self._own: Own = jax.tree.map(lambda *leaves: np.stack(leaves), *own)
            self._require_sweepable()
            begin, self._one_batch = jax.vmap(self._begin), jax.vmap(self._batch)
            share, of_kept = PartitionSpec(None, DEVICES), PartitionSpec(None, *ENVS)
        else:
            self._own = own[0]
            begin, self._one_batch = self._begin, self._batch
            share, of_kept = PartitionSpec(DEVICES), ENVS
        whole, mesh = self._update.whole, self._update.mesh
        kept = NamedSharding(mesh, of_kept) if self._samples else None
        places: Any = (whole, NamedSharding(mesh, share), whole, kept)
        self._places = Carry(*places)
        # On several hosts a call may fail because another host is lost; its input has to be kept for a checkpoint.
        donated = 1 if jax.process_count() == 1 else ()
        self._call: Any = jax.jit(
            self._batches, donate_argnums=donated, out_shardings=(self._places, whole, whole)
        )
        self._begin_all: Any = jax.jit(begin, out_shardings=self._places)
        self._exploit: Any = jax.jit(_exploited, donate_argnums=0, out_shardings=whole)
        explored = jax.vmap(self._explored) if self._several else self._explored
        self._explore: Any = jax.jit(explored, donate_argnums=1, out_shardings=places[1])

    def _require_sweepable(self) -> None:
        """Raises :class:`ConfigError` if a swept setting changes the computation itself, and cannot be traced."""
        for name, values in self._own.values.items():
            one = self._own._replace(values={name: values})
            seeds = np.zeros((len(self._variants), self._num_envs), np.uint32)
            try:
                carry = jax.eval_shape(jax.vmap(self._begin), one, seeds)
                jax.eval_shape(jax.vmap(self._batch), one, carry)
            except jax.errors.ConcretizationTypeError:
                raise ConfigError(
                    f"{name} decides what {self._agent.name} computes, and one program computes one thing: "
                    f"start a run for each of its values, by hand or by seedbed sweep ENV --over {name}=…"
                ) from None

    # The program.

    def _all_seeds(self) -> np.ndarray[Any, Any]:
        """Returns the seeds of the environments, uint32 ``[B]``, or ``[variants, B]`` for several agents."""
        seeds = [self._seeds(variant.seed) for variant in self._variants]
        return np.stack(seeds) if self._several else seeds[0]

    def _seeds(self, seed: int) -> np.ndarray[Any, Any]:
        """Returns the seeds of one actor with all the environments: SEED with one actor has the same seeds."""
        count = self._num_envs // self._spec.rows
        lanes, envs = (1, count) if count % 2 else lanes_of(count)
        halves = half_seeds(seed, 0, self._epoch, lanes)
        return np.concatenate([environment_seeds(half, envs) for half in halves]).astype(np.uint32)

    def _exploration(self) -> Exploration:
        """Makes the exploration of all environments, as of one actor that has them; none of them only evaluates."""
        ranks = np.arange(self._num_envs) / max(self._num_envs - 1, 1)
        return Exploration(ranks.astype(np.float32), np.zeros(self._num_envs, np.bool_))

    def _agent_of(self, values: Mapping[str, Any]) -> Agent:
        """Returns the agent with these values of swept settings, which are traced."""
        return self._agent_with(values) if values else self._agent

    def _learner_of(self, own: Own) -> tuple[Agent, Update]:
        if not own.values:
            return self._agent, self._update
        agent = self._agent_of(own.values)
        return agent, Update(agent, self._devices)

    def _sampling(self, agent: Agent, update: Update) -> Sampling:
        """Makes the functions of the agent's replay."""
        data, envs = agent.data, self._num_envs
        example = example_unroll(agent, self._spec, data.overlap + data.unroll_length, 1)
        filling, batches = rounds(data, envs, data.batch_size)
        ring = Ring.of(data, example._replace(weight=None), envs, agent.priorities)
        return Sampling(update, ring, batches, filling, data.batch_size)

    def _begin(self, own: Own, seeds: Any) -> Carry:
        agent, update = self._learner_of(own)
        stage, timestep = begin(self._env, seeds)
        sums, last = no_episodes(self._num_envs, self._window)
        slots = jnp.arange(self._num_envs, dtype=jnp.int32)
        memory = initial_state(agent, self._exploration())
        train = update.begin(jax.random.wrap_key_data(own.learner))
        acting = Acting(slots, stage, timestep, memory, jnp.zeros_like(slots), sums)
        if not self._samples:
            return Carry(train, acting, last)
        # The first unroll of all begins with an overlap that no other has.
        key, count = jax.random.wrap_key_data(own.acting), agent.data.overlap
        after, steps, (sums, ended) = self._steps(agent, key, train.params, train.updates, acting, count)
        kept = Kept(self._sampling(agent, update).ring.empty(self._num_envs), steps)
        if not count:
            return Carry(train, acting, last, kept)
        return Carry(train, after._replace(first=memory), finish(last, sums, ended), kept)

    def _explored(self, own: Own, acting: Acting) -> Acting:
        """Returns the state of acting whose environments explore by the values of now."""
        explore = self._agent_of(own.values).explore
        if explore is None:
            return acting
        return acting._replace(
            memory=explore(acting.memory, Exploration(*map(jnp.asarray, self._exploration())))
        )

    def _decide(self, agent: Agent, key: Any, params: Tree, acting: Acting) -> tuple[ActOutput, Tree]:
        keys = row_keys(key, acting.slot, jnp.full_like(acting.slot, self._epoch), acting.step)
        return agent.act(params, keys, acting.timestep, acting.memory)

    def _steps(
        self, agent: Agent, key: Any, params: Tree, version: Any, before: Acting, count: int
    ) -> tuple[Acting, Steps, tuple[OpenEpisodes, Any]]:
        """Steps the environments of one device.

        Args:
          agent: the agent, with the variant's values of swept settings.
          key: key for actions.
          params: parameters of the policy.
          version: int32, version of the parameters.
          before: state of acting before the steps.
          count: number of steps, T.

        Returns:
          The state of acting after the steps; the steps; and sums and ends of the episodes, ``[T, B]``.
        """

        def step(acting: Acting, _: None) -> tuple[Acting, Any]:
            output, memory = self._decide(agent, key, params, acting)
            stage, timestep = advance(self._env, acting.stage, output.action)
            sums = go_on(acting.sums, timestep)
            after = acting._replace(
                stage=stage, timestep=timestep, memory=memory, step=acting.step + 1, sums=sums
            )
            ended = timestep.terminated | timestep.truncated
            return after, (acting.timestep, output.action, output.record, (sums, ended))

        after, (timesteps, actions, records, episodes) = jax.lax.scan(step, before, None, count)
        versions = jnp.full(actions.shape[:2], version, jnp.int32)
        return after, Steps(timesteps, actions, records, versions), episodes

    def _unroll(
        self, agent: Agent, key: Any, params: Tree, version: Any, before: Acting
    ) -> tuple[Acting, Unroll, Tree, tuple[OpenEpisodes, Any]]:
        """Steps the environments of one device T times; arguments as for :meth:`_steps`.

        Returns:
          The state of acting after the steps; the unroll, ``[T + 1, B]`` time steps and ``[T, B]`` actions; the agent's
          record of the last time step, if the agent prepares batches, else None; and sums and ends of the episodes,
          ``[T, B]``.
        """
        after, steps, episodes = self._steps(agent, key, params, version, before, agent.data.unroll_length)
        # The preparation of batches needs the outputs of the weights that have acted.
        last = self._decide(agent, key, params, after)[0].record if agent.prepare else None
        return after, _unroll_of(steps, after.timestep, before.memory), last, episodes

    def _overlapping(
        self, agent: Agent, key: Any, params: Tree, version: Any, before: Acting, shared: Steps
    ) -> tuple[Acting, Steps, Unroll, tuple[OpenEpisodes, Any]]:
        """Steps the environments of one device T times, for unrolls that overlap; arguments as for :meth:`_steps`.

        Returns:
          The state of acting after the steps; the overlap of the next unroll; this one, ``[overlap + T + 1, B]``; and
          sums and ends of the episodes, ``[T, B]``.
        """
        data = agent.data
        if not data.overlap:
            after, steps, episodes = self._steps(agent, key, params, version, before, data.unroll_length)
            return after, shared, _unroll_of(steps, after.timestep, before.memory), episodes
        early_steps = data.unroll_length - data.overlap
        middle, early, sums = self._steps(agent, key, params, version, before, early_steps)
        after, late, more = self._steps(agent, key, params, version, middle, data.overlap)
        unroll = _unroll_of(_joined(shared, early, late), after.timestep, before.first)
        return after._replace(first=middle.memory), late, unroll, _joined(sums, more)

    def _act(self, own: Own, carry: Carry) -> tuple[Acting, Unroll, Tree, tuple[OpenEpisodes, Any]]:
        """Runs :meth:`_unroll` on every device, with its share of the environments."""
        _, update = self._learner_of(own)
        across, whole, over_time = PartitionSpec(DEVICES), PartitionSpec(), PartitionSpec(None, DEVICES)

        def unroll(values: Mapping[str, Any], *given: Any) -> tuple[Acting, Unroll, Tree, Any]:
            return self._unroll(self._agent_of(values), *given)

        act = jax.shard_map(
            unroll,
            mesh=update.mesh,
            in_specs=(whole, whole, whole, whole, across),
            out_specs=(across, update.specs, across, over_time),
            check_vma=False,
        )
        acted: tuple[Acting, Unroll, Tree, tuple[OpenEpisodes, Any]] = act(
            own.values,
            jax.random.wrap_key_data(own.acting),
            carry.train.params,
            carry.train.updates,
            carry.acting,
        )
        return acted

    def _batch(self, own: Own, carry: Carry) -> tuple[Carry, Tree, Seen]:
        """Acts for one batch and learns from it; returns its metrics and the counts of its environments, too."""
        if self._samples:
            return self._round(own, carry)
        _, update = self._learner_of(own)
        acting, unroll, last, (sums, ended) = self._act(own, carry)
        train, metrics = update.passes(carry.train, unroll, last)
        resets = unroll.timestep.first[1:].sum(dtype=jnp.uint32)
        seen = Seen(resets, spoilt_by(unroll.timestep), jnp.int32(1))
        return Carry(train, acting, finish(carry.last, sums, ended)), metrics, seen

    def _act_on(self, own: Own, carry: Carry) -> tuple[Acting, Steps, Unroll, tuple[OpenEpisodes, Any]]:
        """Runs :meth:`_overlapping` on every device, with its share of the environments."""
        _, update = self._learner_of(own)
        across, whole = PartitionSpec(DEVICES), PartitionSpec()

        def unroll(values: Mapping[str, Any], *given: Any) -> tuple[Acting, Steps, Unroll, Any]:
            return self._overlapping(self._agent_of(values), *given)

        act = jax.shard_map(
            unroll,
            mesh=update.mesh,
            in_specs=(whole, whole, whole, whole, across, ENVS),
            out_specs=(across, ENVS, update.specs._replace(weight=None), ENVS),
            check_vma=False,
        )
        assert carry.kept is not None
        acted: tuple[Acting, Steps, Unroll, tuple[OpenEpisodes, Any]] = act(
            own.values,
            jax.random.wrap_key_data(own.acting),
            carry.train.params,
            carry.train.updates,
            carry.acting,
            carry.kept.overlap,
        )
        return acted

    def _round(self, own: Own, carry: Carry) -> tuple[Carry, Tree, Seen]:
        """Acts for a round of unrolls, inserts it, and makes the updates that it has earned; see :meth:`_batch`."""
        assert carry.kept is not None
        sampling = self._sampling(*self._learner_of(own))
        acting, overlap, unroll, (sums, ended) = self._act_on(own, carry)
        ring = sampling.insert(carry.kept.ring, unroll)
        key = jax.random.wrap_key_data(own.replay)
        new = unroll.timestep.first[-self._agent.data.unroll_length :]
        train, ring, metrics, trained = sampling.learn(
            key, carry.train, ring, 1.0 - new.mean(dtype=jnp.float32)
        )
        first = unroll.timestep.first[1:]
        before = jnp.where(carry.kept.ring.chunks[0, 0] == 0, 0, first[: self._agent.data.overlap].sum())
        resets = (first.sum() - before).astype(jnp.uint32)
        learned = (trained.updates > 0).astype(jnp.int32)
        seen = Seen(resets, spoilt_by(unroll.timestep), learned, trained)
        return Carry(train, acting, finish(carry.last, sums, ended), Kept(ring, overlap)), metrics, seen

    def _batches(self, own: Own, carry: Carry, count: Any) -> tuple[Carry, Tree, Seen]:
        """Acts for and learns from ``count`` batches; ``count`` is traced, so that one program serves all numbers.

        Returns:
          The state after them; their metrics, means over the batches or newest counts, averaged over the variants; and
          the counts of the environments, of each variant.
        """
        one_batch = jax.jit(self._one_batch)  # so that its shape and its call are traced once
        shape = jax.eval_shape(one_batch, own, carry)[1:]
        nothing = jax.tree.map(jnp.zeros_like, shape)

        def one_more(_: Any, now: tuple[Carry, Tree, Seen]) -> tuple[Carry, Tree, Seen]:
            carry, metrics, seen = one_batch(own, now[0])
            metrics = jax.tree.map(lambda old, new: old + new if _is_mean(new) else new, now[1], metrics)
            return carry, metrics, now[2].and_then(seen)

        carry, metrics, seen = jax.lax.fori_loop(0, count, one_more, (carry, *nothing))
        learned = jnp.maximum(seen.learned, 1)

        def mean(leaf: Any) -> Any:
            of_each = learned.reshape(-1, *[1] * (leaf.ndim - 1)) if self._several else learned
            return leaf / of_each if _is_mean(leaf) else leaf

        metrics = jax.tree.map(mean, metrics)
        # A variant that has diverged must not hide the metrics of the others.
        return (
            carry,
            jax.tree.map(partial(jnp.nanmean, axis=0), metrics) if self._several else metrics,
            seen,
        )

    # The methods of a run.

    def open(self, addresses: list[str], dialled: Mapping[str, list[str]] = NOBODY) -> list[str]:
        """Returns no addresses: nothing listens."""
        del addresses, dialled
        return []

    def begin(self) -> None:
        """Compiles the program."""
        self._call = self._call.lower(self._own, self._carry, np.int32(1)).compile()

    def updates(self, stop: threading.Event) -> Iterator[Mapping[str, Any] | None]:
        """Learns: yields the metrics of each call; ends when ``stop`` is set.

        Raises:
          RunFailed: too many updates in a row were not finite (for several agents: of all of them).
        """
        while not stop.is_set():
            count, begun = self._count(), time.monotonic()
            # Waited for, so that an error of the device is raised here.
            self._carry, metrics, seen = jax.block_until_ready(
                self._call(self._own, self._carry, np.int32(count))
            )
            self._batch_seconds = (time.monotonic() - begun) / count
            # Counts are those of one agent; of several agents, their mean. The total is rounded, not each call, so that
            # counts do not depend on the number of batches in a call.
            before = self._resets // len(self._variants)
            self._resets += int(np.asarray(seen.resets).sum(dtype=np.int64))
            self._book(count, self._resets // len(self._variants) - before, seen.trained)
            self._spoilt.hear(np.max(np.atleast_2d(seen.spoilt), axis=0))
            require_finite(
                self._carry.train.skipped_in_row,
                self._config.safety.max_skipped_updates,
                cause=self._spoilt.cause,
            )
            self._replace_the_worst(count)
            yield metrics

    def _replace_the_worst(self, count: int) -> None:
        """Lets ``count`` batches pass, and has a round of population-based training if one is due."""
        if not self._rounds.pass_by(count):
            return
        assert isinstance(self.books.episodes, EpisodesOfSeveral)
        generation = self._rounds.next([one.mean_return for one in self.books.episodes.each])
        if generation.replaced.size:
            self._own = self._own._replace(values=generation.values)
            self._carry = self._carry._replace(
                train=self._exploit(self._carry.train, generation.source),
                acting=self._explore(self._own, self._carry.acting),
            )
            self._look()

    def _look(self) -> None:
        # Copies on the host: if the program fails its state is lost, and a buffer that is referenced cannot be donated.
        train = self._carry.train
        # (NumPy's functions would have XLA compute on a device's arrays, a call for each.)
        self.version = int(np.asarray(train.updates).max())
        self._skipped = np.array(train.skipped, ndmin=1)

    def _count(self) -> int:
        """Returns the number of batches in the next call: about a second of them, within the remaining frame budget."""
        count = self._rounds.within(self._config.placement.batches_per_call)
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

    def _book(self, count: int, resets: int, trained: Trained | None) -> None:
        steps = count * self._steps_a_batch + self._unbooked
        self._unbooked = 0
        self.books.ledger.decide(steps, resets)
        self.books.ledger.cut(steps)
        if trained is None:
            self.books.ledger.train(steps)
            self.books.policy_lag.add(np.arange(self._agent.data.updates_a_batch))
            self.books.batch_lag.add(0)
        else:
            self._book_samples(trained)
        self._look()
        last = jax.device_get(self._carry.last)
        if isinstance(self.books.episodes, EpisodesOfSeveral):
            for index, episodes in enumerate(self.books.episodes.each):
                _show(episodes, jax.tree.map(itemgetter(index), last))
            self.books.episodes.look()
        else:
            _show(self.books.episodes, last)

    def _book_samples(self, trained: Trained) -> None:
        """Books transitions that were sampled for the first time, or lost before; of several agents, the mean."""
        assert self._carry.kept is not None
        agents = len(self._variants)
        fresh = self._fresh + int(np.asarray(trained.fresh).sum(dtype=np.int64))
        dropped = transitions_dropped(self._carry.kept.ring)
        self.books.ledger.train(fresh // agents - self._fresh // agents)
        self.books.ledger.drop(queued_steps=dropped // agents - self._dropped // agents)
        self._fresh, self._dropped = fresh, dropped
        updates = int(np.sum(trained.updates))
        if updates:
            lags = float(np.sum(np.multiply(trained.lag, trained.updates, dtype=np.float64)))
            for tally in (self.books.policy_lag, self.books.batch_lag):  # a batch of a replay has one update
                tally.add_many(updates // agents, lags / agents, float(np.asarray(trained.most_lag).max()))

    @property
    def skipped(self) -> int:
        """Number of skipped updates; of several agents, the best one's."""
        return int(
            self._skipped[
                self.books.episodes.best if isinstance(self.books.episodes, EpisodesOfSeveral) else 0
            ]
        )

    @property
    def train_state(self) -> TrainState:
        """Parameters, optimizer state and counters; of several agents, the best one's."""
        if not isinstance(self.books.episodes, EpisodesOfSeveral):
            return self._carry.train
        state: TrainState = jax.tree.map(itemgetter(self.books.episodes.best), self._carry.train)
        return state

    @property
    def frames_per_step(self) -> int:
        """Number of environment frames in one agent step."""
        return self._spec.frames_per_step

    def fail(self, error: BaseException) -> None:
        """Raises the error: no other thread or process has a part in the run."""
        raise error

    def close(self) -> None:
        """Does nothing: there are no threads or processes to stop."""

    def acting_alone(self) -> Callable[[], int]:
        """Returns a function that acts for one batch, without learning, and returns its number of steps; for timing."""
        act = jax.jit(self._act_on if self._samples else self._act)

        def once() -> int:
            acting, *_ = jax.block_until_ready(act(self._own, self._carry))
            self._carry = self._carry._replace(acting=acting)
            return self._steps_a_batch

        return once

    # Hosts exchange only the time of a batch, since one program runs on all of them.

    @property
    def instances(self) -> Mapping[str, Instances]:
        """No instances: the run is this process alone."""
        return {}

    def rest(self, stand_down: Callable[[], None], stop: Callable[[], None]) -> bool:
        """Returns False: only the run's own thread learns."""
        del stand_down, stop
        return False

    def report(self) -> dict[str, Any]:
        """Returns the seconds of a batch on this host."""
        return {"batch_seconds": self._batch_seconds}

    def merge(self, reports: Sequence[Mapping[str, Any]]) -> None:
        """Takes the slowest host's seconds of a batch: all hosts have to make calls of the same length."""
        self._batch_seconds = max(report["batch_seconds"] for report in reports)

    # Read by the session.

    def meters(self) -> dict[str, float]:
        """Returns the metrics since the last call, by name."""
        return {**self.books.progress(self.version, self.frames_per_step), **self._rounds.meters()}

    def variants(self) -> list[dict[str, Any]]:
        """Returns the name, skipped updates and episodes of each agent trained side by side; empty for a single one."""
        if not isinstance(self.books.episodes, EpisodesOfSeveral):
            return []
        return [
            {
                "agent": str(one),
                "skipped_updates": int(self._skipped[index]),
                **episodes.row(),
                **self._rounds.values_of(index),
            }
            for index, (one, episodes) in enumerate(
                zip(self._variants, self.books.episodes.each, strict=True)
            )
        ]

    # Checkpoints.

    def snapshot(self, *, alone: bool = False) -> Contents:
        """Returns everything that the next update depends on.

        Args:
          alone: whether another host is lost, with its share of the environments: the contents then leave out all
            environments, and a resumed run begins new ones.
        """
        meta = {
            **self.books.kept(self.version),
            "exact": not alone,
            "epoch": self._epoch,
            "worlds": self._worlds(),
            "resets": self._resets,
            "fresh": self._fresh,
            **self._rounds.kept(),
        }
        carry = (self._carry if alone else self._everywhere(self._carry))._asdict()
        if alone:
            del carry["acting"]
        if alone or not self._samples:
            del carry["kept"]
        if not self._several:
            return Contents(carry, meta)
        # Programs that play with the agent read the tree "train", which holds the best one, and its values.
        variants = {f"{_TREES_OF_VARIANTS}{name}": part for name, part in carry.items()}
        assert isinstance(self.books.episodes, EpisodesOfSeveral)
        best = self.books.episodes.best
        of_best = {name: float(each[best]) for name, each in self._rounds.values.items()}
        return Contents({"train": self.train_state, **variants}, {**meta, VALUES_OF_BEST: of_best})

    def _everywhere(self, carry: Carry) -> Carry:
        """Returns the carry as host arrays; on every one of several hosts, with the environments of all."""
        if jax.process_count() > 1:
            whole = jax.jit(lambda acting, kept: (acting, kept), out_shardings=self._update.whole)
            acting, kept = whole(carry.acting, carry.kept)
            carry = carry._replace(acting=acting, kept=kept)
        on_host: Carry = jax.device_get(carry)
        return on_host

    def _worlds(self) -> dict[str, Any]:
        """Returns the settings in which a resumed run has to agree with its checkpoint."""
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
        # With the environments, the experience of an agent with a replay is lost.
        self.books.restore(meta, open_steps=True, queued=0 if self._samples and not meta["exact"] else None)
        self._resets = int(meta.get("resets", 0))  # 0.1 kept none
        self._fresh = int(meta.get("fresh", 0))
        self._epoch = meta["epoch"] + (not meta["exact"])
        if self._rounds.restore(meta):
            self._own = self._own._replace(values=self._rounds.values)
        # Only shapes: two carries might not fit into the devices' memory.
        like: Carry = jax.eval_shape(self._begin_all, self._own, self._all_seeds())
        prefix = _TREES_OF_VARIANTS if self._several else ""

        def kept(name: str) -> Tree:
            return _spread(checkpoint.tree(prefix + name, getattr(like, name)), getattr(self._places, name))

        self._unbooked = 0
        if meta["exact"]:
            acting, experience = kept("acting"), kept("kept") if self._samples else None
            if experience is not None:
                self._dropped = transitions_dropped(experience.ring)
        else:
            anew = self._begin_all(self._own, self._all_seeds())
            acting, experience = anew.acting, anew.kept
            self._unbooked = self._agent.data.overlap * self._num_envs
        self._carry = Carry(kept("train"), acting, kept("last"), experience)


class _Rounds:
    """The rounds of population-based training of a run; none are ever due without ``pbt_frames``.

    Args:
      config: settings of the run.
      variants: the agents.
      frames: environment frames of each agent in a batch.
    """

    def __init__(self, config: RunConfig, variants: Sequence[Variant], frames: int) -> None:
        asked = config.population.pbt_frames
        if asked is not None and len(variants) < 2:
            raise ConfigError(
                "population-based training of one agent: give --seeds, --draws, or several values to --sweep, for two "
                "or more"
            )
        self._config = config
        self._batches = None if asked is None else max(1, round(asked / frames))
        self._passed = self._done = self._replaced = 0
        self.values = {
            name: np.array([variant.values[name] for variant in variants], np.float32)
            for name in variants[0].values
        }

    def within(self, count: int) -> int:
        """Returns at most ``count`` batches, and no more than there are until the next round."""
        return count if self._batches is None else min(count, self._batches - self._passed % self._batches)

    def pass_by(self, count: int) -> bool:
        """Lets ``count`` batches pass; returns whether a round is due."""
        self._passed += count
        return self._batches is not None and self._passed % self._batches == 0

    def next(self, scores: Sequence[float | None]) -> Generation:
        """Has a round, by the scores of the agents."""
        self._done += 1
        chance = generator(self._config.seed, "population", self._done)
        generation = next_generation(scores, self.values, self._allows, chance)
        self.values = generation.values
        self._replaced += generation.replaced.size
        return generation

    def _allows(self, name: str, value: float) -> bool:
        try:
            resolve.replace(self._config, **{name: value})
        except ConfigError:
            return False
        return True

    def meters(self) -> dict[str, float]:
        """Returns the metrics, by name."""
        if self._batches is None:
            return {}
        return {"pbt_rounds": self._done, "pbt_replaced": self._replaced}

    def values_of(self, index: int) -> dict[str, Any]:
        """Returns the present values of an agent, for the summary; nothing where they stay as they were."""
        if self._batches is None:
            return {}
        return {"values": {name: float(each[index]) for name, each in self.values.items()}}

    def kept(self) -> dict[str, Any]:
        """Returns everything that a checkpoint must keep."""
        if self._batches is None:
            return {}
        values = {name: each.tolist() for name, each in self.values.items()}
        counts = {"passed": self._passed, "done": self._done, "replaced": self._replaced}
        return {"population": {**counts, "values": values}}

    def restore(self, meta: Mapping[str, Any]) -> bool:
        """Takes over what a checkpoint has kept; returns whether there was anything."""
        if (kept := meta.get("population")) is None:
            return False
        self._passed, self._done, self._replaced = kept["passed"], kept["done"], kept["replaced"]
        self.values = {name: np.array(each, np.float32) for name, each in kept["values"].items()}
        return True


def _exploited(train: TrainState, source: Any) -> TrainState:
    """Returns the state ``[agents, ...]`` in which each agent goes on from ``source``, with its own key and count."""
    taken: TrainState = jax.tree.map(itemgetter(source), train)
    return taken._replace(key=train.key, skipped=train.skipped)


def _own(variant: Variant) -> Own:
    values = {name: np.float32(value) for name, value in variant.values.items()}
    learner, acting, replay = (
        np.asarray(jax.random.key_data(key(variant.seed, name))) for name in ("learner", "acting", "replay")
    )
    return Own(learner, acting, replay, values)


def _joined(*parts: Any) -> Any:
    """Joins trees of steps ``[T, B, ...]`` in the order of time."""
    return jax.tree.map(lambda *arrays: jnp.concatenate(arrays), *parts)


def _unroll_of(steps: Steps, last: TimeStep, state: Tree) -> Unroll:
    """Makes the unroll of some steps, the time step behind them and the agent's state before them."""
    timesteps = jax.tree.map(lambda array, end: jnp.concatenate([array, end[None]]), steps.timestep, last)
    return Unroll(timesteps, steps.action, steps.record, state, steps.version)


def program(config: RunConfig, agent: Agent, spec: EnvSpec) -> Program:
    """Returns the roles of a run: one process, whose devices do everything by turns."""
    del spec
    envs, devices = envs_of(config, agent) // config.cluster.hosts, config.placement.training_devices
    head = learner(
        config,
        agent,
        steps=Environments(envs, compiled=True),
        acts=Acts(envs, devices=devices),
        trains=replace(training(config, agent), lag=0),
    )
    return Program((head,), hosts=config.cluster.hosts)


def envs_of(config: RunConfig, agent: Agent) -> int:
    """Returns the number of environments."""
    given: int | None = config.placement.envs
    return agent.data.batch_size if given is None else given


def _spread(tree: Tree, sharding: Any) -> Tree:
    """Returns arrays that every host holds whole as arrays sharded over the devices of all hosts."""

    def put(leaf: Any) -> Any:
        return jax.make_array_from_callback(leaf.shape, sharding, lambda index: np.asarray(leaf[index]))

    return jax.tree.map(put, tree)


def _show(episodes: Episodes, last: LastEpisodes) -> None:
    # The count on the device wraps round at 2**32.
    ended = (int(last.count) - episodes.count) % 2**32
    episodes.show(last.returns, last.lengths, episodes.count + ended)


def _is_mean(leaf: Any) -> bool:
    """Returns whether a metric is a mean, by its dtype: counts are integers."""
    return jnp.issubdtype(leaf.dtype, jnp.floating)


def build(setup: Setup) -> Anakin:
    """Builds the program and its state; compiles nothing yet."""
    return Anakin(
        setup.config, setup.agent, setup.spec, agent_with=setup.agent_with, checkpoint=setup.checkpoint
    )


def check(config: RunConfig, agent: Agent) -> str | None:
    """Returns the reason why settings do not go together; None if they do."""
    if agent.data.replay is None:
        return None
    envs, devices = envs_of(config, agent), len(config.placement.training_devices) * config.cluster.hosts
    if envs % devices:
        return (
            f"{envs} environments cannot be shared equally by {devices} training devices: use --envs "
            f"{-(-envs // devices) * devices}"
        )
    try:
        rounds(agent.data, envs, agent.data.batch_size)
    except ConfigError as error:
        return str(error)
    return None


ANAKIN = Architecture(
    "anakin",
    AnakinSettings,
    build,
    program,
    refuses=acts,
    check=check,
    policy="program",
    always_exact=True,
)
