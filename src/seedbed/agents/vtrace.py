"""V-trace, the agent of IMPALA and SEED: an actor-critic with targets that correct for lag.

Espeholt et al. 2018, *IMPALA: Scalable Distributed Deep-RL with Importance Weighted Actor-Learner
Architectures*; as in SEED (Espeholt et al. 2020), losses are means over time and batch (IMPALA summed), and
the entropy may be held at a target.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import jax
import jax.numpy as jnp
import optax

from seedbed.agents.actor_critic import ActorCriticSettings, make_model, with_scaled_rewards
from seedbed.agents.interface import AgentDefinition
from seedbed.nets.actor_critic import ActorCritic, acting
from seedbed.nets.network import AUTO, Network
from seedbed.ops import policy_losses
from seedbed.ops.batches import average, explained_variance, mean_over_batch, over_batch, transitions
from seedbed.ops.distributions import Distribution
from seedbed.ops.optimizers import make_clip, make_optimizer, require
from seedbed.ops.returns import vtrace
from seedbed.types import Agent, DataPlan, EnvSpec, Tree, Unroll


@dataclass(frozen=True)
class VTraceSettings(ActorCriticSettings):
    """Settings of the V-trace agent.

    Losses are means over the T * B transitions of a batch. IMPALA's published settings are for sums: an
    epsilon inside the root of RMSProp is to be divided by (T * B)^2, one outside (Adam's) and a gradient clip
    by T * B.
    """

    clip_rho: float = 1.0
    """V-trace: clip of the importance ratios in the targets (rho-bar)."""

    clip_c: float = 1.0
    """V-trace: clip of the ratios that carry a correction back in time (c-bar)."""

    clip_pg_rho: float = 1.0
    """V-trace: clip of the importance ratios in the policy gradient."""

    kl_cost: float = 0.0
    """Weight of the KL divergence of the policy from the one that acted; 0 is off."""

    target_entropy: float | None = None
    """Entropy in nats at which the policy is held by adapting the weight of the bonus; none: fixed."""

    entropy_adjustment_speed: float = field(default=10.0, metadata={"needs": "target_entropy"})
    """Speed at which the weight of the entropy bonus adapts."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("clip_rho", "clip_c", "clip_pg_rho"):
            require(getattr(self, name) > 0, name, getattr(self, name), "more than 0")
        require(self.kl_cost >= 0, "kl_cost", self.kl_cost, "0 or more")
        if self.target_entropy is not None:
            for name in ("entropy_cost", "entropy_adjustment_speed"):
                require(
                    getattr(self, name) > 0, name, getattr(self, name), "more than 0 with a target_entropy"
                )


def make_agent(
    settings: VTraceSettings,
    env_spec: EnvSpec,
    network: Network = AUTO,
    *,
    total_updates: int | None = None,
) -> Agent:
    """Makes the V-trace agent for one environment.

    Args:
      settings: see :class:`VTraceSettings`.
      env_spec: spec of the environment.
      network: torso and recurrent core.
      total_updates: updates in the whole run, for a learning rate that is annealed over it.

    Returns:
      :class:`~seedbed.types.Agent`. Its params are ``{"network": …}``, and ``{"entropy": float32 []}`` with a
      target entropy; its record is ``{"policy": float32 [B, P]}``, the parameters of the behaviour
      distribution.

    Raises:
      ConfigError: settings that do not go together, or an unknown network.
      SpecError: actions that no distribution fits.
    """
    model, distribution = make_model(settings, env_spec, network)

    def init(key: jax.Array) -> Tree:
        params = {"network": model.init(key)}
        if settings.target_entropy is not None:
            start = math.log(settings.entropy_cost) / settings.entropy_adjustment_speed
            params["entropy"] = jnp.asarray(start, jnp.float32)
        return params

    act, mode = acting(model, distribution)
    agent = Agent(
        name="vtrace",
        init=init,
        initial_state=model.initial_state,
        act=act,
        loss=_make_loss(settings, model, distribution),
        optimizer=_make_optimizer(settings, total_updates),
        clip=_make_clip(settings),
        data=DataPlan(settings.unroll_length, settings.batch_size, settings.reuse, settings.parts),
        mode=mode,
        row_means=frozenset({"policy_loss", "value_loss", "entropy_loss", "valid"}),
        own_begin=frozenset({"entropy"}),
    )
    return with_scaled_rewards(settings, agent)


def _make_loss(
    settings: VTraceSettings, model: ActorCritic, distribution: Distribution
) -> Callable[..., tuple[jax.Array, tuple[dict[str, jax.Array], None]]]:
    """The loss of :class:`~seedbed.types.Agent`."""

    def loss(
        params: Tree, target_params: Tree, unroll: Unroll, key: jax.Array
    ) -> tuple[jax.Array, tuple[dict[str, jax.Array], None]]:
        del target_params, key
        policy, values, _ = model.apply(params["network"], unroll.timestep, unroll.action, unroll.state)
        policy, behaviour = policy[:-1], unroll.record["policy"]
        valid, discounts, rewards = transitions(
            unroll.timestep, discount=settings.discount, reward_clip=settings.reward_clip
        )
        log_probs = distribution.log_prob(policy, unroll.action)
        log_rhos = jax.lax.stop_gradient(log_probs - distribution.log_prob(behaviour, unroll.action))
        entropies = distribution.entropy(policy)
        divergences = distribution.kl(behaviour, policy)

        def returns(*trajectory: jax.Array) -> tuple[jax.Array, jax.Array]:
            return vtrace(
                *trajectory,
                lambda_=settings.trace_lambda,
                clip_rho=settings.clip_rho,
                clip_c=settings.clip_c,
                clip_pg_rho=settings.clip_pg_rho,
            )

        targets, advantages = over_batch(returns)(
            log_rhos, discounts, rewards, jax.lax.stop_gradient(values), valid
        )
        policy_loss = mean_over_batch(policy_losses.policy_gradient_loss, log_probs, advantages, valid)
        value_loss = mean_over_batch(policy_losses.value_loss, values[:-1], targets, valid)
        entropy_loss = mean_over_batch(policy_losses.entropy_loss, entropies, valid)
        coefficient, adjustment = _entropy_coefficient(settings, params, entropies, valid)
        total = policy_loss + settings.baseline_cost * value_loss + coefficient * entropy_loss + adjustment
        if settings.kl_cost:
            total += settings.kl_cost * mean_over_batch(policy_losses.divergence_loss, divergences, valid)
        metrics = {
            "policy_loss": policy_loss,
            "value_loss": value_loss,
            "entropy_loss": entropy_loss,
            "entropy": average(entropies, valid),
            "entropy_cost": coefficient,
            "kl": average(divergences, valid),
            "value": average(values[:-1], valid),
            "target": average(targets, valid),
            "advantage": average(advantages, valid),
            "explained_variance": explained_variance(values[:-1], targets, valid),
            "rho": average(jnp.exp(jnp.minimum(log_rhos, 20.0)), valid),
            # The margin keeps rounding from counting as lag.
            "rho_clipped": average(log_rhos > math.log(settings.clip_rho) + 1e-4, valid),
            "valid": jnp.mean(valid.astype(jnp.float32)),
        }
        return total, (jax.lax.stop_gradient(metrics), None)

    return loss


def _entropy_coefficient(
    settings: VTraceSettings, params: Tree, entropies: jax.Array, valid: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """The weight of the entropy bonus, constant to the rest of the loss, and its own parameter's loss."""
    # "is None", since 0 is a target like any other.
    if settings.target_entropy is None:
        return jnp.asarray(settings.entropy_cost), jnp.asarray(0.0)
    parameter, speed, target = params["entropy"], settings.entropy_adjustment_speed, settings.target_entropy

    def adjustment(entropies: jax.Array, valid: jax.Array) -> jax.Array:
        return policy_losses.entropy_adjustment_loss(parameter, entropies, valid, target=target, speed=speed)

    coefficient = policy_losses.entropy_coefficient(jax.lax.stop_gradient(parameter), speed)
    return coefficient, mean_over_batch(adjustment, entropies, valid)


def _make_clip(settings: VTraceSettings) -> Callable[[Tree], Tree] | None:
    """The clip of the network's gradient; that of the entropy cost is of another kind."""
    clip = make_clip(settings)
    return clip and (lambda gradient: gradient | {"network": clip(gradient["network"])})


def _make_optimizer(settings: VTraceSettings, total_updates: int | None) -> optax.GradientTransformation:
    """The optimizer over ``{"network", "entropy"}``."""
    network = make_optimizer(settings, total_updates)
    if settings.target_entropy is None:
        return network
    bound = policy_losses.ENTROPY_COEFFICIENT_RANGE / settings.entropy_adjustment_speed
    entropy = optax.chain(make_optimizer(settings, total_updates), _keep_within(bound))
    return optax.partition(
        {"network": network, "entropy": entropy},
        lambda params: {name: "entropy" if name == "entropy" else "network" for name in params},
    )


def _keep_within(bound: float) -> optax.GradientTransformation:
    """Shortens updates so that parameters stay in ``[-bound, bound]``.

    A clip inside the loss would have no gradient outside the range, and a parameter that got there would
    stay.
    """

    def update(updates: Tree, params: Tree) -> Tree:
        return jax.tree.map(lambda u, p: jnp.clip(p + u, -bound, bound) - p, updates, params)

    return optax.stateless(update)


VTRACE = AgentDefinition("vtrace", VTraceSettings, make_agent)
