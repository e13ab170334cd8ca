"""One batch in, new parameters out: the arithmetic of learning, the same on one device and on many.

Everything here can be traced by JAX: :class:`~seedbed.learning.learner.Learner` compiles the parts and loops over
passes and minibatches in Python; Anakin compiles the whole, together with acting, into one program.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from seedbed.errors import ConfigError, RunFailed
from seedbed.ops.optimizers import apply_gradient, passed_over, where
from seedbed.types import Agent, TimeStep, Tree, Unroll

DEVICES = "devices"
"""Name of the mesh axis over which batches are divided."""


class TrainState(NamedTuple):
    """The state of training: all that the next update depends on, except its batch.

    Attributes:
      params: the parameters.
      opt_state: the optimizer's state.
      key: uint32, raw data of the random key from which each update's key is folded.
      updates: int32, number of updates so far, skipped ones included; the version of the weights.
      skipped: int32, number of updates so far that were not finite and changed only the counters.
      skipped_in_row: int32, number of skipped updates since the last one that was not.
      target: the target parameters; None if the agent has none.
    """

    params: Tree
    opt_state: Tree
    key: Any
    updates: Any
    skipped: Any
    skipped_in_row: Any
    target: Tree = None


class Gradient(NamedTuple):
    """The gradient of the loss on one batch, with the loss's other results.

    Attributes:
      gradient: clipped gradient, in the structure of the parameters.
      finite: bool, whether loss and gradient are finite.
      metrics: scalars by name.
      priorities: float32 ``[B]``, priorities of the batch's items, or None.
      carried: float32, share of the batch's transitions that environments carried out (resets are not).
    """

    gradient: Tree
    finite: Any
    metrics: Tree
    priorities: Any
    carried: Any = 1.0


class Update:
    """The updates of one agent over a mesh of devices; holds no state.

    Each device takes an equal share of the batch's environments. A loss is a mean over the batch, so the
    average of the devices' gradients is the gradient of the whole batch: one device and k devices give the
    same update for the same batch, unless the loss draws random numbers.

    Args:
      agent: the agent whose loss and optimizer are used.
      devices: the JAX devices that train.

    Raises:
      ConfigError: the batch or its minibatches cannot be shared equally by the devices.
    """

    def __init__(self, agent: Agent, devices: Sequence[Any]) -> None:
        _require_equal_shares(agent, len(devices))
        self._agent = agent
        self.mesh = Mesh(list(devices), (DEVICES,))
        time_major, batch_major = PartitionSpec(None, DEVICES), PartitionSpec(DEVICES)
        weight = batch_major if agent.data.replay else None
        specs = Unroll(TimeStep(*[time_major] * 5), time_major, time_major, batch_major, time_major, weight)
        self.specs = specs
        """The partition spec of each part of a batch: the axis along which devices divide it."""
        self.whole = NamedSharding(self.mesh, PartitionSpec())
        self.shares = jax.tree.map(lambda spec: NamedSharding(self.mesh, spec), specs)
        """The sharding of each part of a batch: every device has its share of B."""
        self._averaged = jax.shard_map(
            self._gradients,
            mesh=self.mesh,
            in_specs=(PartitionSpec(), PartitionSpec(), specs, PartitionSpec()),
            out_specs=(PartitionSpec(), batch_major),
            check_vma=False,
        )

    def begin(self, key: Any) -> TrainState:
        """Initializes parameters and optimizer: the state before the first update."""
        init_key, update_key = jax.random.split(key)
        params = self._agent.init(init_key)
        zero = jnp.zeros((), jnp.int32)
        opt_state = self._agent.optimizer.init(params)
        target = params if self._agent.data.target_period else None
        return TrainState(params, opt_state, jax.random.key_data(update_key), zero, zero, zero, target)

    def prepare(self, params: Tree, batch: Unroll, last: Tree | None = None) -> tuple[Tree, Unroll]:
        """Applies the agent's ``prepare``, if it has one, to a whole batch, once before the batch is trained on.

        ``last`` is passed on to it, see :class:`Agent`. Returns the parameters and the batch.
        """
        if self._agent.prepare is None:
            return params, batch
        return self._agent.prepare(params, batch, *(() if last is None else (last,)))

    def order(self, key: Any, updates: Any) -> Any:
        """Draws the rows of each minibatch, int32 ``[minibatches, rows / minibatches]``, anew for each ``updates``."""
        plan = self._agent.data
        # Folded once more, so that it is not the key of the same update's loss.
        key = jax.random.fold_in(jax.random.fold_in(jax.random.wrap_key_data(key), updates), 1)
        return jax.random.permutation(key, plan.rows).reshape(plan.minibatches, -1)

    def minibatch(self, batch: Unroll, rows: Any) -> Unroll:
        """Takes the ``rows``, int32 ``[n]``, of a prepared batch."""

        def take(tree: Tree, rows: Any) -> Tree:
            # No row is out of bounds, and checking for it takes longer than copying the small arrays.
            return jax.tree.map(lambda array: jnp.take(array, rows, axis=0, mode="clip"), tree)

        def take_steps(tree: Tree) -> Tree:
            # Takes steps, not whole unrolls: an unroll taken whole is batch-major, and its transposition takes longer
            # than the rest.
            def of(array: Any) -> Any:
                length, size = array.shape[:2]
                steps = jnp.arange(length)[:, None] * size + rows
                return take(array.reshape(length * size, *array.shape[2:]), steps)

            return jax.tree.map(of, tree)

        return Unroll(
            take_steps(batch.timestep),
            take_steps(batch.action),
            take_steps(batch.record),
            take(batch.state, rows),
            take_steps(batch.version),
            take(batch.weight, rows),
        )

    def step(self, state: TrainState, batch: Unroll, carried: Any = None) -> tuple[TrainState, Tree, Any]:
        """Makes one update with a prepared minibatch; one that is not finite changes only the counters.

        A renewal of the target parameters that is due is made nevertheless.

        Args:
          state: state before the update.
          batch: the minibatch.
          carried: float32, the share of transitions that environments carried out, or one for each device, of which
            the mean counts: those that a batch from a replay stands for. None: the batch's own.

        Returns the state, the metrics, and the loss's priorities ``[B]`` of the items, or None.
        """
        found = self.gradient(state.params, state.target, state.key, state.updates, batch)
        params, opt_state, finite = apply_gradient(
            self._agent.optimizer,
            state.params,
            state.opt_state,
            found.gradient,
            found.finite,
            carried=found.carried if carried is None else jnp.mean(carried),
        )
        skip = 1 - finite.astype(jnp.int32)
        updates = state.updates + 1
        target = self._target(state.target, params, updates)
        return (
            TrainState(
                params,
                opt_state,
                state.key,
                updates,
                state.skipped + skip,
                (state.skipped_in_row + skip) * skip,
                target,
            ),
            {**found.metrics, "skipped_updates": state.skipped + skip},
            found.priorities,
        )

    def _target(self, target: Tree, params: Tree, updates: Any) -> Tree:
        """Returns the target parameters after so many updates, renewed if it is time."""
        plan = self._agent.data
        if not plan.target_period:
            return target
        renewed = params
        if plan.target_rate < 1:
            renewed = optax.incremental_update(params, target, plan.target_rate)
        return where(updates % plan.target_period == 0, renewed, target)

    def gradient(self, params: Tree, target: Tree, key: Any, updates: Any, batch: Unroll) -> Gradient:
        """Computes the gradient of the loss on a prepared minibatch, averaged over the devices.

        This update's random key is folded from ``key`` (raw data, uint32) and ``updates``.
        """
        key = jax.random.fold_in(jax.random.wrap_key_data(key), updates)
        if self._agent.data.replay is not None:
            # Of the whole batch, of which each part of a replay has sampled its share.
            batch = batch._replace(weight=batch.weight / jnp.max(batch.weight))
        (loss, metrics, gradient), priorities = self._averaged(params, target, batch, key)
        norm = optax.tree.norm(gradient)
        metrics = {
            **{f"loss/{name}": value for name, value in metrics.items()},
            "loss/total": loss,
            "loss/gradient_norm": norm,
        }
        clip = self._agent.clip
        return Gradient(
            clip(gradient) if clip else gradient,
            jnp.isfinite(loss) & jnp.isfinite(norm),
            metrics,
            priorities,
            self._carried(batch),
        )

    def _carried(self, batch: Unroll) -> Any:
        """Computes the share of the trained transitions that do not lead into a new episode.

        1 for a replay, from whose batches that cannot be seen.
        """
        plan = self._agent.data
        if plan.replay is not None:
            return jnp.float32(1.0)
        trained = 1 if plan.transitions else plan.unroll_length
        return 1.0 - jnp.mean(batch.timestep.first[-trained:], dtype=jnp.float32)

    def passes(self, state: TrainState, batch: Unroll, last: Tree | None = None) -> tuple[TrainState, Tree]:
        """Makes all updates with one batch, as one traceable function; returns the metrics of the last update.

        The updates equal those of :meth:`seedbed.learning.learner.Learner.updates`, which makes them one by one.
        ``last`` is passed to :meth:`prepare`.
        """
        plan = self._agent.data
        params, batch = self.prepare(state.params, batch, last)
        state = state._replace(params=params)
        if plan.reuse == 1:
            return self._one_pass(state, batch)
        one_pass = jax.jit(self._one_pass)  # so that its shape and its use are traced once
        metrics = jax.tree.map(jnp.zeros_like, jax.eval_shape(one_pass, state, batch)[1])

        def one_more(
            carry: tuple[TrainState, Tree, Any], _: None
        ) -> tuple[tuple[TrainState, Tree, Any], None]:
            state, metrics, over = carry
            left_out = self.left_out(state, batch)
            state, metrics = jax.lax.cond(over, lambda: (left_out, metrics), lambda: one_pass(state, batch))
            over = over if plan.most_kl is None else over | too_far(metrics, plan.most_kl)
            return (state, metrics, over), None

        carry = (state, metrics, jnp.zeros((), bool))
        (state, metrics, _), _ = jax.lax.scan(one_more, carry, None, plan.reuse)
        return state, metrics

    def left_out(self, state: TrainState, batch: Unroll) -> TrainState:
        """Returns the state after a pass that is left out: the counts of updates move on as if it were made."""
        count = self._agent.data.minibatches
        passed = passed_over(state.opt_state, count * self._carried(batch))
        return state._replace(updates=state.updates + count, opt_state=passed)

    def _one_pass(self, state: TrainState, batch: Unroll) -> tuple[TrainState, Tree]:
        if self._agent.data.minibatches == 1:
            return self.step(state, batch)[:2]

        @jax.jit  # so that its shape and its use are traced once
        def one(state: TrainState, rows: Any) -> tuple[TrainState, Tree]:
            part = jax.lax.with_sharding_constraint(self.minibatch(batch, rows), self.shares)
            return self.step(state, part)[:2]

        order = self.order(state.key, state.updates)
        # Only the last metrics are needed: to stack all of them takes two operations a metric.
        carry = (state, jax.tree.map(jnp.zeros_like, jax.eval_shape(one, state, order[0])[1]))
        return jax.lax.scan(lambda carry, rows: (one(carry[0], rows), None), carry, order)[0]

    def _gradients(
        self, params: Tree, target: Tree, batch: Unroll, key: Any
    ) -> tuple[tuple[Any, Tree, Tree], Any]:
        key = jax.random.fold_in(key, jax.lax.axis_index(DEVICES))
        (loss, (metrics, priorities)), gradients = jax.value_and_grad(self._agent.loss, has_aux=True)(
            params, target, batch, key
        )
        return jax.lax.pmean((loss, metrics, gradients), DEVICES), priorities


def _require_equal_shares(agent: Agent, devices: int) -> None:
    batch, rows, parts = agent.data.batch_size, agent.data.rows, agent.data.minibatches
    if batch % devices:
        raise ConfigError(
            f"a batch of {batch} unrolls cannot be shared equally by {devices} training devices: "
            f"give batches of a multiple of {devices}"
        )
    if rows // parts % devices:
        noun = "transitions" if agent.data.transitions else "unrolls"
        raise ConfigError(
            f"{parts} minibatches of {rows // parts} {noun} cannot be shared equally by {devices} training "
            f"devices: give batches of a multiple of {parts * devices}"
        )


def too_far(metrics: Mapping[str, Any], most_kl: float) -> Any:
    """Returns whether the KL divergence of an update is above ``most_kl``, as the mean of what was trained on.

    The metric is a mean over all places of the batch, since that of equal parts is that of the whole.
    """
    return metrics["loss/kl"] > most_kl * metrics.get("loss/valid", 1.0)


def require_finite(skipped_in_row: Any, most_skipped: int, *, cause: str | None = None) -> None:
    """Raises :class:`RunFailed` if the last ``most_skipped`` updates were all skipped (of every agent, if several).

    Args:
      skipped_in_row: number of updates that were skipped one after the other, of each agent.
      most_skipped: number from which on the run fails.
      cause: fault of the environments that has spoilt them; None if there is none.
    """
    skipped = int(np.asarray(skipped_in_row).min())  # on the host
    if skipped >= most_skipped:
        remedy = "Try a lower --learning-rate" if cause is None else f"{cause}: mend the environment"
        raise RunFailed(
            f"learner: {skipped} updates in a row had a loss or gradient that is not finite and were skipped; "
            f"the last good weights are in the newest checkpoint. {remedy}."
        )
