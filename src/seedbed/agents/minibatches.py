"""The common part of agents that go over a batch of unrolls several times, in minibatches."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import jax
import jax.numpy as jnp

from seedbed.errors import ConfigError
from seedbed.nets.body import Body, Inputs
from seedbed.nets.network import Network
from seedbed.ops.optimizers import OptimizerSettings, require
from seedbed.types import TimeStep, Tree, Unroll

_TRANSITIONS_A_PART = 64


def require_parts(minibatches: int, rows: int, noun: str) -> None:
    """Raises :class:`ConfigError` unless a batch has so many equal parts; the noun names its rows."""
    if 0 < minibatches <= rows and rows % minibatches == 0:
        return
    divisors = [parts for parts in range(1, rows + 1) if rows % parts == 0]
    nearest = min(divisors, key=lambda parts: abs(parts - minibatches))
    require(False, "minibatches", minibatches, f"a divisor of {noun}, {rows}, such as {nearest}")


@dataclass(frozen=True)
class QueueSettings(OptimizerSettings):
    """Settings of agents that learn from unrolls as they come."""

    memory: ClassVar[str] = "queue"
    """The source of batches."""

    unroll_length: int = 20
    """Transitions in an unroll (T)."""

    batch_size: int = 32
    """Unrolls in a batch (B), over all devices."""

    @property
    def own_lag(self) -> int | Literal["free"]:
        """The lag that the agent is made for."""
        return "free"

    @property
    def transitions_before_learning(self) -> int:
        """Transitions that are acted before the first batch is learned from."""
        return 0

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("unroll_length", "batch_size"):
            require(getattr(self, name) > 0, name, getattr(self, name), "more than 0")


@dataclass(frozen=True)
class MinibatchSettings(QueueSettings):
    """Settings of agents that learn from each batch in several updates."""

    reuse: int = 1
    """Passes over each batch (epochs)."""

    minibatches: int | None = 1
    """Parts of a batch, with an update for each in a pass; None: of 64 transitions or more, dividing B."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.reuse > 0, "reuse", self.reuse, "more than 0")
        require_parts(self.parts, *self.minibatch_rows)

    @property
    def parts(self) -> int:
        """Minibatches of a batch; of either kind of rows, if none are asked for."""
        if self.minibatches is not None:
            return self.minibatches
        most = self.batch_size * self.unroll_length // _TRANSITIONS_A_PART
        fitting = (n for n in range(1, self.batch_size + 1) if self.batch_size % n == 0 and n <= most)
        return max(fitting, default=1)

    @property
    def minibatch_rows(self) -> tuple[int, str]:
        """Most rows that minibatches can be drawn of, and their noun."""
        return self.batch_size, "the batch size"

    @property
    def updates_a_transition(self) -> float:
        """Updates that are made for each transition that is acted."""
        return self.reuse * self.parts / (self.batch_size * self.unroll_length)


@dataclass(frozen=True)
class ShuffledSettings(MinibatchSettings):
    """Settings of agents whose targets are the same in all passes, so that rows may be single transitions."""

    batch_size: int = 32
    """Unrolls in a batch (B), over all devices; as many as environments, or some are trained on late."""

    minibatches: int | None = None
    """Parts of a batch, with an update for each in a pass; None: of 64 transitions or more, dividing B."""

    shuffle: Literal["auto", "transitions", "unrolls"] = "auto"
    """Rows of minibatches: single transitions or whole unrolls; auto: unrolls if there is an LSTM."""

    @property
    def minibatch_rows(self) -> tuple[int, str]:
        """Most rows that minibatches can be drawn of, and their noun."""
        if self.shuffle == "unrolls":
            return super().minibatch_rows
        return self.batch_size * self.unroll_length, "the transitions of a batch"


def of_transitions(settings: ShuffledSettings, network: Network) -> bool:
    """Returns whether minibatches are of single transitions.

    Raises:
      ConfigError: transitions are asked for with an LSTM, or the batch has not so many whole unrolls.
    """
    if network.lstm and settings.shuffle == "transitions":
        raise ConfigError(
            f"shuffle is transitions, but an LSTM of {network.lstm} is trained on whole unrolls: leave one of them out"
        )
    transitions = not network.lstm and settings.shuffle != "unrolls" and settings.parts > 1
    if not transitions:
        require_parts(settings.parts, settings.batch_size, "the batch size (of whole unrolls)")
    return transitions


_EXTRAS = ("first", "second")
"""Names of a network's inputs beside the observation, in its order and in the alphabet's."""


def in_transitions(model: Body, unroll: Unroll) -> Unroll:
    """Returns the T * B transitions of a prepared batch, ``[1, T * B]``, for a network without memory.

    Frames are stacked here, since the unroll has their order: the observation is as the network reads it.
    """
    inputs, _ = model.inputs(unroll.timestep, unroll.action, unroll.state)

    def in_one_row(array: jax.Array) -> jax.Array:
        return array.reshape(1, -1, *array.shape[2:])

    def ends(array: jax.Array) -> jax.Array:
        return jnp.concatenate([in_one_row(array[:-1]), in_one_row(array[1:])])

    read = {"shown": inputs.observation, "extras": dict(zip(_EXTRAS, inputs.extras, strict=False))}
    if inputs.mask is not None:
        read["mask"] = inputs.mask
    observation = jax.tree.map(lambda array: in_one_row(array[:-1]), read)
    return Unroll(
        TimeStep(observation, *map(ends, unroll.timestep[1:])),
        in_one_row(unroll.action),
        jax.tree.map(in_one_row, unroll.record),
        {},
        in_one_row(unroll.version),
    )


def evaluate(model: Body, params: Tree, unroll: Unroll, transitions: bool) -> Any:
    """Computes the heads' outputs for the steps that were acted on, ``[T, B, ...]``, of a prepared batch.

    Args:
      model: the network.
      params: parameters of the network.
      unroll: the batch, or a part of it.
      transitions: whether it was made by :func:`in_transitions`.
    """
    step = unroll.timestep
    if transitions:
        extras = step.observation["extras"]
        inputs = Inputs(
            step.observation["shown"],
            [extras[name] for name in sorted(extras)],
            step.first[:-1],
            {},
            step.observation.get("mask"),
        )
        return model.evaluate(params, inputs)[0]
    said, _ = model.run(params, step, unroll.action, unroll.state)
    return jax.tree.map(lambda array: array[:-1], said)
