"""The gradient step: one batch in, new parameters out, the same on one device and on many."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from orchard.errors import ConfigError
from orchard.types import Agent, TimeStep, Tree, Unroll

_DEVICES = "devices"


class TrainState(NamedTuple):
    """Everything that the next update depends on, beside the batch.

    Attributes:
      params: the parameters.
      opt_state: the optimizer's state.
      key: raw data of the key from which each update's key is folded, uint32.
      updates: int32, updates so far, skipped ones too; it is the weights' version.
      skipped: int32, updates so far that were not finite and changed nothing but the counters.
      skipped_in_row: int32, how many of the latest ones were skipped.
    """

    params: Tree
    opt_state: Tree
    key: Any
    updates: Any
    skipped: Any
    skipped_in_row: Any


class Learner:
    """Updates parameters with gradients averaged over its devices.

    Each device takes an equal share of the batch's environments. A loss is a mean over the batch, so the
    average of the devices' gradients is the gradient of the whole batch: one device and k devices give the
    same update for the same batch, unless the loss draws random numbers.

    Args:
      agent: loss and optimizer.
      devices: the JAX devices that train.
      key: for initialization and for losses that draw.
    """

    def __init__(self, agent: Agent, devices: Sequence[Any], key: Any) -> None:
        batch = agent.data.batch_size
        if batch % len(devices):
            raise ConfigError(
                f"a batch of {batch} unrolls cannot be shared equally by {len(devices)} training devices: "
                f"use --batch-size {-(-batch // len(devices)) * len(devices)}"
            )
        parts = agent.data.minibatches
        if batch // parts % len(devices):
            raise ConfigError(
                f"{parts} minibatches of {batch // parts} unrolls cannot be shared equally by {len(devices)} training "
                f"devices: use --batch-size {parts * len(devices)} or a multiple of it"
            )
        self._agent = agent
        self._mesh = Mesh(list(devices), (_DEVICES,))
        self._whole = NamedSharding(self._mesh, PartitionSpec())
        init_key, update_key = jax.random.split(key)
        params = agent.init(init_key)
        zero = jnp.zeros((), jnp.int32)
        self.state = self._replicate(
            TrainState(
                params, agent.optimizer.init(params), jax.random.key_data(update_key), zero, zero, zero
            )
        )
        self._step = self._compile()
        self._prepare = jax.jit(agent.prepare) if agent.prepare else lambda params, unroll: (params, unroll)
        self._order = jax.jit(partial(_order, batch, parts))
        self._take = jax.jit(_take, out_shardings=self._shardings())

    def _replicate(self, tree: Tree) -> Tree:
        return jax.device_put(tree, self._whole)

    def put(self, unroll: Unroll) -> Unroll:
        """Moves a batch ``[T+1, B, ...]`` to the training devices, each its share of B."""

        whole = self._shardings()
        return Unroll(
            TimeStep(
                *(jax.device_put(part, s) for part, s in zip(unroll.timestep, whole.timestep, strict=True))
            ),
            *(jax.device_put(part, s) for part, s in zip(unroll[1:], whole[1:], strict=True)),
        )

    def _shardings(self) -> Unroll:
        """Where the parts of a batch stand: each device has its share of B."""
        time_major = NamedSharding(self._mesh, PartitionSpec(None, _DEVICES))
        batch_major = NamedSharding(self._mesh, PartitionSpec(_DEVICES))
        return Unroll(TimeStep(*[time_major] * 5), time_major, time_major, batch_major, time_major)

    def warm_up(self, example: Unroll) -> None:
        """Compiles everything for batches like ``example`` (on the host); changes nothing."""
        _, batch = self._prepare(self.state.params, self.put(example))
        part = next(iter(self._parts(batch)))
        jax.block_until_ready(self._step(self.state, part))

    def updates(self, batch: Unroll) -> Iterator[tuple[dict[str, Any], bool]]:
        """All updates with one batch: as many passes as the agent wants, each over all of its minibatches.

        Yields ``(metrics, last)`` after each: metrics as device scalars, and whether it was the last. The version also
        counts the updates that an early end left out, as it counts those that were skipped.
        """
        plan = self._agent.data
        params, batch = self._prepare(self.state.params, batch)
        self.state = self.state._replace(params=params)
        for remaining in reversed(range(plan.reuse)):
            parts = self._parts(batch)
            for count, part in enumerate(parts, 1):
                metrics = self.update(part)
                last = count == plan.minibatches and (not remaining or self._too_far(metrics))
                if last and remaining:
                    left_out = remaining * plan.minibatches
                    self.state = self.state._replace(updates=self.state.updates + left_out)
                yield metrics, last
                if last:
                    return

    def _too_far(self, metrics: dict[str, Any]) -> bool:
        most = self._agent.data.most_kl
        return most is not None and float(metrics["loss/kl"]) > most

    def _parts(self, batch: Unroll) -> Iterator[Unroll]:
        """The minibatches of one pass, of whole unrolls in an order of their own."""
        if self._agent.data.minibatches == 1:
            yield batch
            return
        for rows in self._order(self.state.key, self.state.updates):
            yield self._take(batch, rows)

    def update(self, batch: Unroll) -> dict[str, Any]:
        """One update with a prepared minibatch, waited for; returns metrics as device scalars."""
        # Params are not donated: whoever acts may still read them.
        state, metrics = self._step(self.state, batch)
        # What fails on the device fails here: then the state is the one from before, which can be saved.
        self.state = jax.block_until_ready(state)
        return metrics

    def _compile(self) -> Any:
        time_major, batch_major = PartitionSpec(None, _DEVICES), PartitionSpec(_DEVICES)
        batch_specs = Unroll(TimeStep(*[time_major] * 5), time_major, time_major, batch_major, time_major)
        gradients = jax.shard_map(
            self._gradients,
            mesh=self._mesh,
            in_specs=(PartitionSpec(), batch_specs, PartitionSpec()),
            out_specs=PartitionSpec(),
            check_vma=False,
        )
        return jax.jit(partial(self._update, gradients))

    def _gradients(self, params: Tree, batch: Unroll, key: Any) -> tuple[Any, Tree, Tree]:
        key = jax.random.fold_in(key, jax.lax.axis_index(_DEVICES))
        (loss, (metrics, _)), gradients = jax.value_and_grad(self._agent.loss, has_aux=True)(
            params, None, batch, key
        )
        return jax.lax.pmean((loss, metrics, gradients), _DEVICES)

    def _update(self, gradients: Any, state: TrainState, batch: Unroll) -> tuple[TrainState, Tree]:
        key = jax.random.fold_in(jax.random.wrap_key_data(state.key), state.updates)
        loss, metrics, grads = gradients(state.params, batch, key)
        norm = optax.tree.norm(grads)
        changes, opt_state = self._agent.optimizer.update(grads, state.opt_state, state.params)
        # The changes too: an optimizer without an epsilon divides 0 by 0.
        finite = jnp.isfinite(loss) & jnp.isfinite(norm) & jnp.isfinite(optax.tree.norm(changes))
        params = optax.apply_updates(state.params, changes)

        def keep(new: Tree, old: Tree) -> Tree:
            return jax.tree.map(lambda a, b: jnp.where(finite, a, b), new, old)

        skip = 1 - finite.astype(jnp.int32)
        return TrainState(
            keep(params, state.params),
            keep(opt_state, state.opt_state),
            state.key,
            state.updates + 1,
            state.skipped + skip,
            (state.skipped_in_row + skip) * skip,
        ), {
            **{f"loss/{name}": value for name, value in metrics.items()},
            "loss/total": loss,
            "loss/gradient_norm": norm,
            "skipped_updates": state.skipped + skip,
        }

    def restore(self, state: TrainState) -> None:
        """Takes over a state with the structure of ``self.state``."""
        self.state = self._replicate(state)


def _order(batch: int, parts: int, key: Any, updates: Any) -> Any:
    """Which rows of a batch are in which minibatch, int32 ``[parts, batch / parts]``; other ones at every pass."""
    # Not the key of the loss of the same update.
    key = jax.random.fold_in(jax.random.fold_in(jax.random.wrap_key_data(key), updates), 1)
    return jax.random.permutation(key, batch).reshape(parts, batch // parts)


def _take(batch: Unroll, rows: Any) -> Unroll:
    def take(tree: Tree, axis: int) -> Tree:
        return jax.tree.map(lambda array: jnp.take(array, rows, axis), tree)

    return Unroll(
        take(batch.timestep, 1),
        take(batch.action, 1),
        take(batch.record, 1),
        take(batch.state, 0),
        take(batch.version, 1),
    )
