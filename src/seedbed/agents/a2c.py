"""A2C: the policy gradient of A3C, with the data of all environments in one synchronous update.

Mnih et al. 2016, *Asynchronous Methods for Deep Reinforcement Learning*, algorithm S3; the synchronous form is that of
OpenAI's Baselines (2017). There is no correction for lag: the weights that act have to be the newest.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import jax
import jax.numpy as jnp

from seedbed.agents.actor_critic import (
    ActorCriticSettings,
    generalized_advantages,
    make_model,
    with_scaled_rewards,
)
from seedbed.agents.interface import AgentDefinition
from seedbed.nets.actor_critic import ActorCritic, acting
from seedbed.nets.network import AUTO, Network
from seedbed.ops import policy_losses
from seedbed.ops.batches import average, explained_variance, mean_over_batch
from seedbed.ops.distributions import Distribution
from seedbed.ops.optimizers import make_clip, make_optimizer, require
from seedbed.types import Agent, DataPlan, EnvSpec, Tree, Unroll


@dataclass(frozen=True)
class A2CSettings(ActorCriticSettings):
    """Settings of A2C; step size, optimizer, clip and unroll are from Baselines."""

    learning_rate: float = 7e-4
    """Step size of the optimizer."""

    optimizer: Literal["adam", "radam", "rmsprop", "adagrad"] = "rmsprop"
    """The optimizer; radam is Adam that begins with small steps."""

    gradient_clip: float = 0.5
    """Largest global norm of the gradient; 0 is off."""

    unroll_length: int = 5
    """Transitions in an unroll (T), n of the n-step return."""

    @property
    def own_lag(self) -> int | Literal["free"]:
        """The lag that the agent is made for."""
        return 0

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("reuse", "minibatches"):
            require(
                getattr(self, name) == 1,
                name,
                getattr(self, name),
                "1: after an update the data are off-policy, which A2C ignores",
            )


def make_agent(
    settings: A2CSettings,
    env_spec: EnvSpec,
    network: Network = AUTO,
    *,
    total_updates: int | None = None,
) -> Agent:
    """The A2C agent for one environment; arguments and errors as for :func:`seedbed.agents.vtrace.make_agent`.

    Returns:
      :class:`~seedbed.types.Agent`. Its params are ``{"network": …}``; its record is ``{"policy": float32 [B, P]}``.
    """
    model, distribution = make_model(settings, env_spec, network)
    act, mode = acting(model, distribution)
    agent = Agent(
        name="a2c",
        init=lambda key: {"network": model.init(key)},
        initial_state=model.initial_state,
        act=act,
        loss=_make_loss(settings, model, distribution),
        optimizer=make_optimizer(settings, total_updates),
        clip=make_clip(settings),
        data=DataPlan(settings.unroll_length, settings.batch_size, on_policy=True),
        mode=mode,
        row_means=frozenset({"policy_loss", "value_loss", "entropy_loss", "valid"}),
    )
    return with_scaled_rewards(settings, agent)


def _make_loss(
    settings: A2CSettings, model: ActorCritic, distribution: Distribution
) -> Callable[..., tuple[jax.Array, tuple[dict[str, jax.Array], None]]]:
    """The loss of :class:`~seedbed.types.Agent`."""

    def loss(
        params: Tree, target_params: Tree, unroll: Unroll, key: jax.Array
    ) -> tuple[jax.Array, tuple[dict[str, jax.Array], None]]:
        del target_params, key
        policy, values, _ = model.apply(params["network"], unroll.timestep, unroll.action, unroll.state)
        valid, advantages, targets = generalized_advantages(settings, unroll.timestep, values)
        policy, values = policy[:-1], values[:-1]
        entropies = distribution.entropy(policy)
        log_probs = distribution.log_prob(policy, unroll.action)
        policy_loss = mean_over_batch(policy_losses.policy_gradient_loss, log_probs, advantages, valid)
        value_loss = mean_over_batch(policy_losses.value_loss, values, targets, valid)
        entropy_loss = mean_over_batch(policy_losses.entropy_loss, entropies, valid)
        total = policy_loss + settings.baseline_cost * value_loss + settings.entropy_cost * entropy_loss
        metrics = {
            "policy_loss": policy_loss,
            "value_loss": value_loss,
            "entropy_loss": entropy_loss,
            "entropy": average(entropies, valid),
            "kl": average(distribution.kl(unroll.record["policy"], policy), valid),
            "value": average(values, valid),
            "target": average(targets, valid),
            "advantage": average(advantages, valid),
            "explained_variance": explained_variance(values, targets, valid),
            "valid": jnp.mean(valid.astype(jnp.float32)),
        }
        return total, (jax.lax.stop_gradient(metrics), None)

    return loss


A2C = AgentDefinition("a2c", A2CSettings, make_agent)
