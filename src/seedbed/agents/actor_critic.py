"""What agents with a policy have in common, so that each agent's file holds what its paper says."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import jax

from seedbed.nets.actor_critic import ActorCritic
from seedbed.nets.network import AUTO, Network
from seedbed.ops import distributions
from seedbed.ops.batches import over_batch, transitions
from seedbed.ops.distributions import Distribution
from seedbed.ops.optimizers import OptimizerSettings, require
from seedbed.ops.returns import gae
from seedbed.types import EnvSpec, TimeStep


@dataclass(frozen=True)
class PolicySettings(OptimizerSettings):
    """Settings of whatever trains a policy; an agent overrides the defaults and adds its own.

    Losses are means over the T * B transitions of a batch.
    """

    memory: ClassVar[str] = "queue"
    """Where batches come from."""

    previous_action: bool = False
    """Feed the previous action to the core (IMPALA does so with an LSTM)."""

    previous_reward: bool = False
    """Feed the previous reward, clipped to [-1, 1], to the core."""

    unroll_length: int = 20
    """Transitions in an unroll (T)."""

    batch_size: int = 32
    """Unrolls in a batch (B), over all devices."""

    @property
    def transitions_before_learning(self) -> int:
        """Transitions that are acted before the first batch is learned from."""
        return 0

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("unroll_length", "batch_size"):
            require(getattr(self, name) > 0, name, getattr(self, name), "more than 0")


@dataclass(frozen=True)
class ActorCriticSettings(PolicySettings):
    """Settings of every actor-critic."""

    discount: float = 0.99
    """How much a reward is worth one step later (gamma)."""

    trace_lambda: float = 1.0
    """Mixes short and long bootstraps; 1 is the longest."""

    entropy_cost: float = 0.01
    """Weight of the entropy bonus."""

    baseline_cost: float = 0.5
    """Weight of the value loss, which is half the mean squared error."""

    reward_clip: float = 0.0
    """Clip rewards to plus or minus this before learning; 0 is off."""

    reuse: int = 1
    """How often each batch is trained on (epochs)."""

    minibatches: int = 1
    """Parts of a batch, of whole unrolls; each pass over it makes one update with each of them."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.reuse > 0, "reuse", self.reuse, "more than 0")
        require(
            0 < self.minibatches <= self.batch_size and self.batch_size % self.minibatches == 0,
            "minibatches",
            self.minibatches,
            f"a divisor of the batch size, {self.batch_size}",
        )
        for name in ("reward_clip", "entropy_cost", "baseline_cost"):
            require(getattr(self, name) >= 0, name, getattr(self, name), "0 or more")
        for name in ("discount", "trace_lambda"):
            require(0 <= getattr(self, name) <= 1, name, getattr(self, name), "from 0 to 1")

    @property
    def updates_a_transition(self) -> float:
        """Updates that are made for each transition that is acted."""
        return self.reuse * self.minibatches / (self.batch_size * self.unroll_length)


def make_model(
    settings: PolicySettings,
    env_spec: EnvSpec,
    network: Network = AUTO,
) -> tuple[ActorCritic, Distribution]:
    """The network and the distribution of the actions.

    Raises:
      ConfigError: an unknown network, or one that does not fit the observations.
      SpecError: actions that no distribution fits.
    """
    distribution = distributions.from_spec(env_spec.action)
    model = ActorCritic(
        spec=env_spec,
        num_params=distribution.num_params,
        encode_action=distribution.encode,
        network=network,
        previous_action=settings.previous_action,
        previous_reward=settings.previous_reward,
    )
    model.check()
    return model, distribution


def generalized_advantages(
    settings: ActorCriticSettings, timestep: TimeStep, values: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Validity, advantages and targets of the values, ``[T, B]``, of the steps and their values ``[T + 1, B]``."""
    valid, discounts, rewards = transitions(
        timestep, discount=settings.discount, reward_clip=settings.reward_clip
    )
    advantages = over_batch(lambda *arrays: gae(*arrays, lambda_=settings.trace_lambda))(
        discounts, rewards, values, valid
    )
    return valid, advantages, advantages + jax.lax.stop_gradient(values[:-1])
