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
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from orchard.acting.inference import row_keys
from orchard.acting.ledger import Ledger
from orchard.acting.recipe import half_seeds, lanes_of
from orchard.architectures.devices import pick
from orchard.architectures.interface import progress
from orchard.config.resolve import env_options
from orchard.config.settings import RunConfig
from orchard.envs.native.episodes import LastEpisodes, OpenEpisodes, finish, go_on, no_episodes
from orchard.envs.native.interface import Stage, advance, begin
from orchard.envs.native.makers import make_native
from orchard.envs.seeds import environment_seeds
from orchard.errors import ConfigError
from orchard.learning.checkpoint import Checkpoint
from orchard.learning.update import DEVICES, TrainState, Update, require_finite
from orchard.metrics.meters import Episodes, Tally
from orchard.seeding import key
from orchard.types import Agent, EnvSpec, TimeStep, Tree, Unroll

_WINDOW = 100
_CALL_SECONDS = 1.0


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
    stage: Stage
    timestep: TimeStep
    memory: Tree
    step: Any
    sums: OpenEpisodes


class Carry(NamedTuple):
    """Everything that the program carries from one batch to the next; lives on the devices."""

    train: TrainState
    acting: Acting
    last: LastEpisodes


class Anakin:
    """One run of Anakin.

    Args:
      config: the run's settings.
      agent: what is computed.
      spec: of the environments.
      checkpoint: where to go on from; None to begin.

    Raises:
      ConfigError: the environment is not native, the devices do not exist or cannot share the batch, or the
        checkpoint is of other environments.
    """

    desk = None

    def __init__(
        self, config: RunConfig, agent: Agent, spec: EnvSpec, *, checkpoint: Checkpoint | None = None
    ) -> None:
        self._config = config
        self._agent = agent
        self._spec = spec
        self._num_envs = agent.data.batch_size
        self._env = make_native(config.env, env_options(config))
        self._update = Update(agent, pick("training", config.placement.training_devices))
        self._acting_key = key(config.seed, "acting")
        self._steps_a_batch = self._num_envs * agent.data.unroll_length
        # Environments that began together end together: fewer than all of them would be a biased sample.
        self._window = max(_WINDOW, self._num_envs)
        self.ledger = Ledger()
        self.episodes = Episodes(self._window)
        self.lag = Tally()
        self._batch_seconds: float | None = None
        across, whole, over_time = PartitionSpec(DEVICES), PartitionSpec(), PartitionSpec(None, DEVICES)
        self._act = jax.shard_map(
            self._unroll,
            mesh=self._update.mesh,
            in_specs=(whole, whole, across),
            out_specs=(across, self._update.specs, over_time),
            check_vma=False,
        )
        whole_of, share_of = self._update.whole, NamedSharding(self._update.mesh, across)
        places: Any = (whole_of, share_of, whole_of)
        self._places = Carry(*places)
        self._call: Any = jax.jit(
            self._batches, donate_argnums=0, out_shardings=(self._places, self._update.whole)
        )
        begin_all = jax.jit(self._begin, out_shardings=self._places)
        if checkpoint is None:
            self._carry: Carry = begin_all(self._seeds())
        else:
            # By its shapes alone: two of them might not fit into the devices' memory.
            self._restore(checkpoint, jax.eval_shape(begin_all, self._seeds()))
        # On the host: if the program fails, what it carried is gone with it.
        self.version = int(self._carry.train.updates)

    # The program.

    def _seeds(self) -> np.ndarray[Any, Any]:
        """Those of one actor with all the environments, so that SEED with one actor has the same worlds."""
        lanes, rows = (1, self._num_envs) if self._num_envs % 2 else lanes_of(self._num_envs)
        halves = half_seeds(self._config.seed, 0, 0, lanes)
        return np.concatenate([environment_seeds(seed, rows) for seed in halves]).astype(np.uint32)

    def _begin(self, seeds: Any) -> Carry:
        stage, timestep = begin(self._env, seeds)
        sums, last = no_episodes(self._num_envs, self._window)
        slots = jnp.arange(self._num_envs, dtype=jnp.int32)
        memory = self._agent.initial_state(self._num_envs)
        acting = Acting(slots, stage, timestep, memory, jnp.zeros_like(slots), sums)
        return Carry(self._update.begin(key(self._config.seed, "learner")), acting, last)

    def _unroll(
        self, params: Tree, version: Any, before: Acting
    ) -> tuple[Acting, Unroll, tuple[OpenEpisodes, Any]]:
        """T steps of the environments of one device; also their sums and ends, ``[T, B]``."""

        def step(acting: Acting, _: None) -> tuple[Acting, Any]:
            keys = row_keys(self._acting_key, acting.slot, jnp.zeros_like(acting.slot), acting.step)
            output, memory = self._agent.act(params, keys, acting.timestep, acting.memory)
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
        return after, Unroll(timesteps, actions, records, before.memory, versions), episodes

    def _batch(self, carry: Carry) -> tuple[Carry, Tree]:
        """Acts for one batch and learns from it."""
        acting, unroll, (sums, ended) = self._act(carry.train.params, carry.train.updates, carry.acting)
        train, metrics = self._update.passes(carry.train, unroll)
        return Carry(train, acting, finish(carry.last, sums, ended)), metrics

    def _batches(self, carry: Carry, count: Any) -> tuple[Carry, Tree]:
        """``count`` batches (no constant, so that it is compiled for any); the metrics of the last update."""
        shape = jax.eval_shape(self._batch, carry)[1]
        metrics = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shape)
        return jax.lax.fori_loop(0, count, lambda _, now: self._batch(now[0]), (carry, metrics))

    # Life.

    def open(self, addresses: list[str]) -> list[str]:
        """Compiles."""
        del addresses
        self._call = self._call.lower(self._carry, np.int32(1)).compile()
        return []

    def updates(self, stop: threading.Event) -> Iterator[Mapping[str, Any] | None]:
        """Learns: yields the metrics of the last update of each call; ends when ``stop`` is set.

        Raises:
          RunFailed: too many updates in a row were not finite.
        """
        while not stop.is_set():
            count, begun = self._count(), time.monotonic()
            # Waited for: what fails on the device fails here.
            self._carry, metrics = jax.block_until_ready(self._call(self._carry, np.int32(count)))
            self._batch_seconds = (time.monotonic() - begun) / count
            self._book(count)
            require_finite(self.train_state, self._config.safety.max_skipped_updates)
            yield metrics

    def _count(self) -> int:
        """Batches in the next call: about a second of them, and no more than the frame budget has left."""
        count = self._config.placement.batches_per_call
        if not self._config.deterministic:
            seconds = self._batch_seconds
            count = 1 if seconds is None else max(1, min(count, int(_CALL_SECONDS / seconds)))
        if self._config.stop.frames is None:
            return count
        frames_a_batch = self._steps_a_batch * self.frames_per_step
        left = -(-(self._config.stop.frames - self.env_frames) // frames_a_batch)
        return max(1, min(count, left))

    def _book(self, count: int) -> None:
        steps = count * self._steps_a_batch
        self.ledger.decide(steps)
        self.ledger.cut(steps)
        self.ledger.train(steps)
        self.lag.add(np.arange(self._agent.data.updates_a_batch))
        self.version = int(self._carry.train.updates)
        last = jax.device_get(self._carry.last)
        # The count on the device begins anew at 2**32.
        ended = (int(last.count) - self.episodes.count) % 2**32
        self.episodes.show(last.returns, last.lengths, self.episodes.count + ended)

    @property
    def train_state(self) -> TrainState:
        """Parameters, optimizer and counters."""
        return self._carry.train

    @property
    def frames_per_step(self) -> int:
        """Environment frames in one agent step."""
        return self._spec.frames_per_step

    @property
    def env_frames(self) -> int:
        """Environment frames so far."""
        return self.ledger.counts()["received"] * self.frames_per_step

    def fail(self, error: BaseException) -> None:
        """Nothing stands beside the program that could fail."""
        raise error

    def close(self) -> None:
        """Nothing to stop."""

    # What others read.

    def meters(self) -> dict[str, float]:
        """Metrics since the last call, by name."""
        return progress(self)

    # Checkpoints.

    def snapshot(self) -> tuple[dict[str, Any], dict[str, list[Any]], dict[str, Any]]:
        """``(trees, blobs, meta)`` of everything that the next update depends on."""
        carry = jax.device_get(self._carry)
        meta = {
            "version": self.version,
            "ledger": self.ledger.counts(),
            "episodes": self.episodes.to_json(),
            "lag": self.lag.to_json(),
            "exact": True,
            "worlds": self._worlds(),
        }
        return carry._asdict(), {}, meta

    def _worlds(self) -> dict[str, Any]:
        """What a resumed run has to have in common with the run before."""
        return {
            "environment": self._config.env,
            "options": list(self._config.env_options),
            "number of environments (--batch-size)": self._num_envs,
        }

    def _restore(self, checkpoint: Checkpoint, like: Carry) -> None:
        meta = checkpoint.meta
        for name, now in self._worlds().items():
            if meta["worlds"][name] != now:
                raise ConfigError(
                    f"the {name} was {meta['worlds'][name]} and is {now} now: a resumed run goes on in its worlds"
                )
        trees = [checkpoint.tree(name, part) for name, part in like._asdict().items()]
        self._carry = jax.device_put(Carry(*trees), self._places)
        self.ledger.restore(meta["ledger"])
        self.episodes.restore(meta["episodes"])
        self.lag.restore(meta["lag"])
