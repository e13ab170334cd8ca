"""The common part of agents that learn from a replay, so that each agent's file holds the contents of its paper."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp

from seedbed.errors import ConfigError
from seedbed.ops.batches import over_batch, transitions
from seedbed.ops.optimizers import OptimizerSettings, require
from seedbed.ops.returns import n_step
from seedbed.types import DataPlan, EnvSpec, ReplayPlan, TimeStep


@dataclass(frozen=True)
class ReplaySettings(OptimizerSettings):
    """Settings of every agent that learns from a replay; an agent overrides the defaults and adds its own."""

    memory: ClassVar[str] = "replay"
    """The source of batches."""

    discount: float = 0.99
    """Value of a reward one step later (gamma)."""

    reward_clip: float = 0.0
    """Clip rewards to plus or minus this before learning; 0 is off."""

    n_step: int = 3
    """Rewards that a target adds up before it bootstraps (n)."""

    replay_size: int = 100_000
    """Transitions that the replay keeps."""

    replay_min_size: int = 1_000
    """Transitions in the replay before learning begins."""

    replay_ratio: float | None = 4.0
    """Mean number of times a transition is trained on; acting and learning wait for it; none: neither."""

    replay_parts: int | None = None
    """Parts of the replay over all hosts, sampled equally; None: one a host."""

    priority_exponent: float = 0.6
    """Power of priorities in sampling; 0 is uniformly."""

    importance_exponent: float = field(default=0.4, metadata={"needs": "priority_exponent"})
    """Power of the loss's correction for priorities; 1 is fully."""

    unroll_length: int = 20
    """Transitions in an unroll (T)."""

    batch_size: int = 32
    """Items in a batch (B), over all devices."""

    @property
    def transitions_before_learning(self) -> int:
        """Transitions that are acted before the first batch is learned from."""
        return self.replay_min_size

    @property
    def updates_a_transition(self) -> float:
        """Updates that are made for each transition that is acted."""
        return (self.replay_ratio or 0.0) / self.batch_size

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("n_step", "replay_size", "unroll_length", "batch_size"):
            require(getattr(self, name) > 0, name, getattr(self, name), "1 or more")
        for name in ("reward_clip", "replay_min_size", "priority_exponent"):
            require(getattr(self, name) >= 0, name, getattr(self, name), "0 or more")
        for name in ("discount", "importance_exponent"):
            require(0 <= getattr(self, name) <= 1, name, getattr(self, name), "from 0 to 1")
        parts = self.replay_parts
        require(parts is None or parts > 0, "replay_parts", parts, "1 or more, or none")
        ratio = self.replay_ratio
        require(ratio is None or ratio > 0, "replay_ratio", ratio, "more than 0, or none")
        annealed = ratio is None and self.anneal_to_zero
        require(not annealed, "replay_ratio", ratio, "a number: annealing needs the number of updates")


def plan_of_transitions(
    settings: ReplaySettings,
    env_spec: EnvSpec,
    *,
    target_period: int,
    target_rate: float = 1.0,
    ahead: int | None = None,
) -> DataPlan:
    """Returns the plan of an agent that is trained on single transitions, or on a few from each of them on.

    Its items are windows of ``start + ahead`` transitions, of which the one at ``start`` is trained on; earlier ones
    fill the frame stack.

    Args:
      settings: the agent's settings.
      env_spec: spec of the environments.
      target_period, target_rate: see :class:`~seedbed.types.DataPlan`.
      ahead: transitions that are needed from the trained one on; None: ``n_step``.

    Raises:
      ConfigError: unrolls are too short for such windows.
    """
    start = env_spec.frame_stack - 1
    ahead = settings.n_step if ahead is None else ahead
    overlap = start + ahead - 1
    if overlap > settings.unroll_length:
        raise ConfigError(
            f"unroll_length is {settings.unroll_length}, and has to be {overlap} or more: each item has {ahead} "
            f"transitions from the trained one on, and frames are stacked by {env_spec.frame_stack}"
        )
    return DataPlan(
        settings.unroll_length,
        settings.batch_size,
        overlap=overlap,
        replay=ReplayPlan(
            capacity=settings.replay_size,
            min_size=settings.replay_min_size,
            ratio=settings.replay_ratio,
            window=start + ahead,
            start=start,
            priority_exponent=settings.priority_exponent,
            importance_exponent=settings.importance_exponent,
            parts=settings.replay_parts,
        ),
        target_period=target_period,
        target_rate=target_rate,
    )


class Ahead(NamedTuple):
    """The n transitions from the one that a window is trained on.

    Attributes:
      valid: bool ``[n, B]``.
      discounts, rewards: float32 ``[n, B]``.
      steps: int32 ``[B]``, steps to the observation that is bootstrapped from: where the episode ends within the n
        steps, it is its final one.
    """

    valid: jax.Array
    discounts: jax.Array
    rewards: jax.Array
    steps: jax.Array

    @staticmethod
    def of(settings: ReplaySettings, timestep: TimeStep, start: int) -> Ahead:
        """Looks ahead from step ``start`` of windows ``[start + n + 1, B, ...]``."""
        valid, discounts, rewards = (
            array[start:]
            for array in transitions(timestep, discount=settings.discount, reward_clip=settings.reward_clip)
        )
        return Ahead(valid, discounts, rewards, jnp.sum(jnp.cumprod(valid, axis=0), axis=0))

    def targets(self, bootstrap: jax.Array) -> jax.Array:
        """Computes n-step returns ``[B]`` with the values ``[B]`` of the observations that are bootstrapped from."""
        n = len(self.valid)
        everywhere = jnp.broadcast_to(bootstrap, (n + 1, *bootstrap.shape))

        def returns(*trajectory: jax.Array) -> jax.Array:
            return n_step(*trajectory, n=n)

        found: jax.Array = over_batch(returns)(self.discounts, self.rewards, everywhere, self.valid)[0]
        return found
