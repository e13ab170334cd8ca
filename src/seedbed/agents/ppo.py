"""PPO: several passes over each batch, and no gain from leaving the policy that acted by more than a little.

Schulman et al. 2017, *Proximal Policy Optimization Algorithms*, with the details of OpenAI's Baselines that Engstrom et
al. 2020 and Huang et al. 2022 found to matter. Advantages and targets are computed once, by the weights with which the
passes begin (Baselines used the ones that acted: with a lag of 0 they are the same, and under Anakin their values are
not computed again), and advantages are normalized over the whole batch, so that minibatches and devices do not change
the targets.

With ``correction`` "vtrace" it is APPO, for data of older policies: the target policy of Luo et al. 2020, *IMPACT:
Importance Weighted Asynchronous Architectures with Clipped Target Networks*, is the one with which the passes begin.
Targets are V-trace's, and the passes gain nothing by leaving the target policy, instead of the one that acted.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
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
from seedbed.agents.minibatches import ShuffledSettings, evaluate, in_transitions, of_transitions
from seedbed.nets import normalizer
from seedbed.nets.actor_critic import ActorCritic, acting
from seedbed.nets.network import AUTO, Network
from seedbed.ops import policy_losses
from seedbed.ops.batches import average, explained_variance, mean_over_batch, over_batch, transitions
from seedbed.ops.distributions import Distribution
from seedbed.ops.optimizers import make_clip, make_optimizer, require
from seedbed.ops.returns import vtrace
from seedbed.types import Agent, DataPlan, EnvSpec, TimeStep, Tree, Unroll


@dataclass(frozen=True)
class PPOSettings(ShuffledSettings, ActorCriticSettings):
    """Settings of PPO."""

    learning_rate: float = 3e-4
    """Step size of the optimizer."""

    adam_eps: float = 1e-5
    """Adam: added outside the root."""

    gradient_clip: float = 0.5
    """Largest global norm of the gradient; 0 is off."""

    trace_lambda: float = 0.95
    """Mixes short and long bootstraps of the advantages (GAE's lambda); 1 is the longest."""

    unroll_length: int = 64
    """Transitions in an unroll (T)."""

    reuse: int = 10
    """Passes over each batch (epochs)."""

    clip: float = 0.2
    """Distance from 1 of the ratio of new to old probabilities that still gains (epsilon)."""

    value_clip: float = 0.0
    """Distance from the old value that is free of loss; 0 is off."""

    normalize_advantages: bool = True
    """Bring the advantages of each batch to mean 0 and variance 1."""

    normalize_observations: bool = False
    """Normalize floating-point observations to mean 0 and variance 1, by the ones seen so far."""

    normalize_values: bool = False
    """Normalize the values that the network predicts to mean 0 and variance 1, by their targets so far."""

    target_kl: float | None = None
    """KL divergence from the acting policy; above 1.5 times it the passes over a batch end; none: never."""

    correction: Literal["none", "vtrace"] = "none"
    """Correction for lag: none, or targets of V-trace and a clip around the newest policy (APPO)."""

    @property
    def own_lag(self) -> int | Literal["free"]:
        """The lag that the agent is made for."""
        return 0 if self.correction == "none" else "free"

    def __post_init__(self) -> None:
        super().__post_init__()
        require(0 < self.clip < 1, "clip", self.clip, "between 0 and 1")
        require(self.value_clip >= 0, "value_clip", self.value_clip, "0 or more")
        require(self.target_kl is None or self.target_kl > 0, "target_kl", self.target_kl, "more than 0")


def make_agent(
    settings: PPOSettings,
    env_spec: EnvSpec,
    network: Network = AUTO,
    *,
    total_updates: int | None = None,
) -> Agent:
    """The PPO agent for one environment; arguments and errors as for :func:`seedbed.agents.vtrace.make_agent`.

    Returns:
      :class:`~seedbed.types.Agent`. Its params are ``{"network": …}``, and the statistics ``"observations"`` and
      ``"values"`` where they are normalized; its record is ``{"policy": float32 [B, P], "value": float32 [B]}``, the
      parameters of the behaviour distribution and the value as the network says it, to which ``prepare`` adds
      ``advantage`` and ``target``, float32 ``[B]``. With a correction, ``prepare`` puts the target policy in the place
      of the behaviour's and adds ``rho``, float32 ``[B]``, the ratio of their probabilities.
    """
    seen = env_spec.observation
    read_by_network = normalizer.normalized_spec(seen) if settings.normalize_observations else seen
    model, distribution = make_model(
        settings,
        replace(env_spec, observation=read_by_network),
        network,
    )

    rows_are_transitions = of_transitions(settings, network)

    def init(key: jax.Array) -> Tree:
        params: dict[str, Tree] = {"network": model.init(key)}
        if settings.normalize_observations:
            params["observations"] = normalizer.initial_statistics(seen)
        if settings.normalize_values:
            params["values"] = normalizer.initial_moments()
        return params

    def read(params: Tree, timestep: TimeStep) -> tuple[Tree, TimeStep]:
        if settings.normalize_observations:
            observation = normalizer.normalized_observation(
                params["observations"], seen, timestep.observation
            )
            timestep = timestep._replace(observation=observation)
        return params["network"], timestep

    def prepare(params: Tree, unroll: Unroll, last: Tree | None = None) -> tuple[Tree, Unroll]:
        network, timestep = read(params, unroll.timestep)
        if last is None:
            policy, values, _ = model.apply(network, timestep, unroll.action, unroll.state)
        else:
            policy = jnp.concatenate([unroll.record["policy"], last["policy"][None]])
            values = jnp.concatenate([unroll.record["value"], last["value"][None]])
        told = _in_rewards(params, values)
        if settings.correction == "none":
            found = generalized_advantages(settings, timestep, told)
            corrected = {}
        else:
            log_rhos = distribution.log_prob(policy[:-1], unroll.action) - distribution.log_prob(
                unroll.record["policy"], unroll.action
            )
            found = _corrected_advantages(settings, timestep, told, log_rhos)
            rhos = jnp.exp(jnp.minimum(log_rhos, _LARGEST_LOG_RHO))
            corrected = {"policy": policy[:-1], "rho": rhos}
        prepared = _normalized_advantages(settings, *found)
        # The batch keeps the observations as they were when it was acted on; what comes sees the new statistics.
        if settings.normalize_observations:
            statistics = normalizer.add_observations(
                params["observations"], seen, unroll.timestep.observation, ~timestep.absent
            )
            params = {**params, "observations": statistics}
        if settings.normalize_values:
            moments = normalizer.add_rows(
                params["values"], prepared["target"].reshape(-1), ~timestep.first[1:].reshape(-1)
            )
            params = {**params, "values": moments}
            prepared["target"] = normalizer.normalized(moments, prepared["target"])
        record = {**unroll.record, "value": values[:-1], **prepared, **corrected}
        unroll = unroll._replace(timestep=timestep, record=record)
        return params, in_transitions(model, unroll) if rows_are_transitions else unroll

    act, mode = acting(model, distribution, read, tell_values=True)
    agent = Agent(
        name="ppo",
        init=init,
        initial_state=model.initial_state,
        act=act,
        loss=_make_loss(settings, model, distribution, rows_are_transitions),
        optimizer=make_optimizer(settings, total_updates),
        clip=make_clip(settings),
        data=DataPlan(
            settings.unroll_length,
            settings.batch_size,
            settings.reuse,
            settings.parts,
            rows_are_transitions,
            most_kl=None if settings.target_kl is None else 1.5 * settings.target_kl,
        ),
        mode=mode,
        prepare=prepare,
        row_means=frozenset({"policy_loss", "value_loss", "entropy_loss", "kl", "valid"}),
    )
    return with_scaled_rewards(settings, agent)


_LARGEST_LOG_RHO = 20.0
"""For the metric: the exponential of 89 is infinite in float32."""


def _corrected_advantages(
    settings: PPOSettings, timestep: TimeStep, values: jax.Array, log_rhos: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Computes validity, advantages and V-trace's targets ``[T, B]``, as :func:`generalized_advantages` has them.

    ::

        A_t = v_t - V(x_t) = min(1, rho_t) (delta_t + gamma_t lambda A_{t+1})

    Without lag (``rho`` 1) these are the generalized advantages.

    Args:
      settings: the agent's settings.
      timestep: the steps ``[T + 1, B]``.
      values: values of the newest weights ``[T + 1, B]``, in units of rewards.
      log_rhos: logarithms of the ratios of the target policy to the one that acted ``[T, B]``.
    """
    valid, discounts, rewards = transitions(
        timestep, discount=settings.discount, reward_clip=settings.reward_clip
    )

    def returns(*trajectory: jax.Array) -> jax.Array:
        return vtrace(*trajectory, lambda_=settings.trace_lambda).targets

    targets = over_batch(returns)(log_rhos, discounts, rewards, values, valid)
    return valid, targets - values[:-1], targets


def _normalized_advantages(
    settings: PPOSettings, valid: jax.Array, advantages: jax.Array, targets: jax.Array
) -> dict[str, jax.Array]:
    """Makes advantages and targets ``[T, B]`` of the record."""
    if settings.normalize_advantages:
        centred = advantages - average(advantages, valid)
        deviation = jnp.sqrt(average(jnp.square(centred), valid))
        advantages = jnp.where(valid, centred / (deviation + 1e-8), 0.0)
    return {"advantage": advantages, "target": targets}


def _in_rewards(params: Tree, values: jax.Array) -> jax.Array:
    """Returns the network's values in units of rewards."""
    if "values" not in params:
        return values
    mean, deviation = normalizer.mean_and_deviation(params["values"])
    return mean + deviation * values


def _make_loss(
    settings: PPOSettings, model: ActorCritic, distribution: Distribution, rows_are_transitions: bool
) -> Callable[..., tuple[jax.Array, tuple[dict[str, jax.Array], None]]]:
    """The loss of :class:`~seedbed.types.Agent`, of unrolls that were prepared."""

    def loss(
        params: Tree, target_params: Tree, unroll: Unroll, key: jax.Array
    ) -> tuple[jax.Array, tuple[dict[str, jax.Array], None]]:
        del target_params, key
        policy, values = evaluate(model, params["network"], unroll, rows_are_transitions)
        record = unroll.record
        valid = ~unroll.timestep.first[1:]
        behaviour, targets = record["policy"], record["target"]
        log_ratios = distribution.log_prob(policy, unroll.action) - distribution.log_prob(
            behaviour, unroll.action
        )
        entropies = distribution.entropy(policy)

        def surrogate(*arrays: jax.Array) -> jax.Array:
            return policy_losses.clipped_surrogate_loss(*arrays, clip=settings.clip)

        policy_loss = mean_over_batch(surrogate, log_ratios, record["advantage"], valid)
        value_loss = _value_loss(settings, values, record["value"], targets, valid)
        entropy_loss = mean_over_batch(policy_losses.entropy_loss, entropies, valid)
        total = policy_loss + settings.baseline_cost * value_loss + settings.entropy_cost * entropy_loss
        metrics = {
            "policy_loss": policy_loss,
            "value_loss": value_loss,
            "entropy_loss": entropy_loss,
            "entropy": average(entropies, valid),
            # Of equal parts of a batch its mean is that of the whole, so that devices do not decide when to stop.
            "kl": mean_over_batch(policy_losses.divergence_loss, distribution.kl(behaviour, policy), valid),
            "clipped": average(jnp.abs(jnp.expm1(log_ratios)) > settings.clip, valid),
            "value": average(_in_rewards(params, values), valid),
            "target": average(_in_rewards(params, targets), valid),
            "explained_variance": explained_variance(values, targets, valid),
            "valid": jnp.mean(valid.astype(jnp.float32)),
        }
        if "rho" in record:
            metrics["rho"] = average(record["rho"], valid)
        return total, (jax.lax.stop_gradient(metrics), None)

    return loss


def _value_loss(
    settings: PPOSettings, values: jax.Array, old: jax.Array, targets: jax.Array, valid: jax.Array
) -> jax.Array:
    if not settings.value_clip:
        return mean_over_batch(policy_losses.value_loss, values, targets, valid)

    def clipped(*arrays: jax.Array) -> jax.Array:
        return policy_losses.clipped_value_loss(*arrays, clip=settings.value_clip)

    return mean_over_batch(clipped, values, old, targets, valid)


PPO = AgentDefinition("ppo", PPOSettings, make_agent)
