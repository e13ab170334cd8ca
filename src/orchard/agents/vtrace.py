"""V-trace, the agent of IMPALA and SEED: an actor-critic with targets that correct for lag.

Espeholt et al. 2018, *IMPALA: Scalable Distributed Deep-RL with Importance Weighted Actor-Learner
Architectures*; as in SEED (Espeholt et al. 2020), losses are means over time and batch (IMPALA summed), and
the entropy may be held at a target.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import jax
import jax.numpy as jnp
import optax

from orchard.errors import ConfigError
from orchard.nets.actor_critic import ActorCritic
from orchard.ops import distributions, policy_losses
from orchard.ops.distributions import Distribution
from orchard.ops.returns import vtrace
from orchard.types import ActOutput, Agent, DataPlan, EnvSpec, TimeStep, Tree, Unroll, map_leaves


@dataclass(frozen=True)
class VTraceSettings:
    """What can be set of the V-trace agent.

    Losses are means over the T * B transitions of a batch. IMPALA's published settings are for sums: an
    epsilon inside the root of RMSProp is to be divided by (T * B)^2, one outside (Adam's) and a gradient clip
    by T * B.
    """

    learning_rate: float = 4.8e-4
    """Step size of the optimizer."""

    anneal_to_zero: bool = False
    """Lower the learning rate linearly to 0 over the whole run; needs a run of stated length."""

    optimizer: Literal["adam", "rmsprop"] = "adam"
    """Which optimizer."""

    adam_b1: float = 0.9
    """Adam: decay of the mean of gradients (SEED used 0 on DeepMind Lab)."""

    adam_b2: float = 0.999
    """Adam: decay of the mean of squared gradients."""

    adam_eps: float = 3.125e-7
    """Adam: added outside the root."""

    rmsprop_decay: float = 0.99
    """RMSProp: decay of the mean of squared gradients."""

    rmsprop_eps: float = 1e-5
    """RMSProp: added inside the root."""

    rmsprop_momentum: float = 0.0
    """RMSProp: momentum; 0 is off."""

    gradient_clip: float = 1.0
    """Largest global norm of the gradient; 0 is off."""

    discount: float = 0.99
    """How much a reward is worth one step later (gamma)."""

    trace_lambda: float = 1.0
    """Mixes short and long bootstraps; 1 is the longest."""

    clip_rho: float = 1.0
    """V-trace: clip of the importance ratios in the targets (rho-bar)."""

    clip_c: float = 1.0
    """V-trace: clip of the ratios that carry a correction back in time (c-bar)."""

    clip_pg_rho: float = 1.0
    """V-trace: clip of the importance ratios in the policy gradient."""

    entropy_cost: float = 0.01
    """Weight of the entropy bonus; with a target entropy, its first value."""

    target_entropy: float | None = None
    """Entropy in nats at which the policy is held by adapting the weight of the bonus; none: fixed."""

    entropy_adjustment_speed: float = 10.0
    """How fast the weight of the entropy bonus adapts."""

    baseline_cost: float = 0.5
    """Weight of the value loss, which is half the mean squared error."""

    reward_clip: float = 0.0
    """Clip rewards to plus or minus this before learning; 0 is off."""

    previous_action: bool = False
    """Feed the previous action to the core (IMPALA does so with an LSTM)."""

    previous_reward: bool = False
    """Feed the previous reward, clipped to [-1, 1], to the core."""

    unroll_length: int = 20
    """Transitions in an unroll (T)."""

    batch_size: int = 32
    """Unrolls in a batch (B), over all devices."""

    reuse: int = 1
    """How often each batch is trained on."""

    def __post_init__(self) -> None:
        positive = (
            "learning_rate",
            "unroll_length",
            "batch_size",
            "reuse",
            "clip_rho",
            "clip_c",
            "clip_pg_rho",
        )
        not_negative = (
            *("gradient_clip", "reward_clip", "entropy_cost", "baseline_cost"),
            *("adam_eps", "rmsprop_eps"),
        )
        decays = ("adam_b1", "adam_b2", "rmsprop_decay", "rmsprop_momentum")
        for name in positive:
            _require(getattr(self, name) > 0, name, getattr(self, name), "more than 0")
        for name in not_negative:
            _require(getattr(self, name) >= 0, name, getattr(self, name), "0 or more")
        for name in ("discount", "trace_lambda"):
            _require(0 <= getattr(self, name) <= 1, name, getattr(self, name), "from 0 to 1")
        for name in decays:
            _require(0 <= getattr(self, name) < 1, name, getattr(self, name), "from 0 to less than 1")
        if self.target_entropy is not None:
            _require(
                self.entropy_cost > 0, "entropy_cost", self.entropy_cost, "more than 0 with a target_entropy"
            )
            _require(
                self.entropy_adjustment_speed > 0,
                "entropy_adjustment_speed",
                self.entropy_adjustment_speed,
                "more than 0",
            )


Settings = VTraceSettings


def _require(holds: bool, name: str, given: object, needed: str) -> None:
    if not holds:
        raise ConfigError(f"{name} is {given}, and has to be {needed}")


def make_agent(
    settings: VTraceSettings,
    env_spec: EnvSpec,
    *,
    network: str = "auto",
    hidden: tuple[int, ...] = (),
    lstm: int = 0,
    total_updates: int | None = None,
) -> Agent:
    """The V-trace agent for one environment.

    Args:
      settings: see :class:`VTraceSettings`.
      env_spec: of the environment.
      network: see :func:`orchard.nets.build.build_torso`.
      hidden: sizes of the torso's dense layers; empty for the network's own.
      lstm: size of the recurrent core; 0 for none.
      total_updates: updates in the whole run, for a learning rate that is annealed over it.

    Returns:
      :class:`~orchard.types.Agent`. Its params are ``{"network": …}``, and ``{"entropy": float32 []}`` with a
      target entropy; its record is ``{"policy": float32 [B, P]}``, the parameters of the behaviour
      distribution.

    Raises:
      ConfigError: settings that do not go together, or an unknown network.
      SpecError: actions that no distribution fits.
    """
    distribution = distributions.from_spec(env_spec.action)
    model = ActorCritic(
        spec=env_spec,
        num_params=distribution.num_params,
        encode_action=distribution.encode,
        network=network,
        hidden=tuple(hidden),
        lstm=lstm,
        previous_action=settings.previous_action,
        previous_reward=settings.previous_reward,
    )
    model.check()

    def init(key: jax.Array) -> Tree:
        params = {"network": model.init(key)}
        if settings.target_entropy is not None:
            start = math.log(settings.entropy_cost) / settings.entropy_adjustment_speed
            params["entropy"] = jnp.asarray(start, jnp.float32)
        return params

    def evaluate_one(params: Tree, timestep: TimeStep, state: Tree) -> tuple[jax.Array, Tree]:
        policy, _, state = model.apply(params["network"], _add_time(timestep), None, state)
        return policy[0], state

    def act(params: Tree, key: jax.Array, timestep: TimeStep, state: Tree) -> tuple[ActOutput, Tree]:
        policy, state = evaluate_one(params, timestep, state)
        action = jax.vmap(distribution.sample)(policy, key)
        return ActOutput(action, {"policy": policy}), model.with_action(state, action)

    def mode(params: Tree, timestep: TimeStep, state: Tree) -> tuple[jax.Array, Tree]:
        policy, state = evaluate_one(params, timestep, state)
        action = distribution.mode(policy)
        return action, model.with_action(state, action)

    return Agent(
        name="vtrace",
        init=init,
        initial_state=model.initial_state,
        act=act,
        loss=_make_loss(settings, model, distribution),
        optimizer=_make_optimizer(settings, total_updates),
        data=DataPlan(settings.unroll_length, settings.batch_size, settings.reuse),
        mode=mode,
    )


def _add_time(timestep: TimeStep) -> TimeStep:
    """``[B, ...]`` to ``[1, B, ...]``."""
    return TimeStep(map_leaves(lambda x: x[None], timestep.observation), *(x[None] for x in timestep[1:]))


def _make_loss(
    settings: VTraceSettings, model: ActorCritic, distribution: Distribution
) -> Callable[..., tuple[jax.Array, tuple[dict[str, jax.Array], None]]]:
    """The loss of :class:`~orchard.types.Agent`."""

    def loss(
        params: Tree, target_params: Tree, unroll: Unroll, key: jax.Array
    ) -> tuple[jax.Array, tuple[dict[str, jax.Array], None]]:
        del target_params, key
        policy, values, _ = model.apply(params["network"], unroll.timestep, unroll.action, unroll.state)
        policy, behaviour = policy[:-1], unroll.record["policy"]
        valid, discounts, rewards = _transitions(settings, unroll.timestep)
        log_probs = distribution.log_prob(policy, unroll.action)
        log_rhos = jax.lax.stop_gradient(log_probs - distribution.log_prob(behaviour, unroll.action))
        entropies = distribution.entropy(policy)

        def returns(*trajectory: jax.Array) -> tuple[jax.Array, jax.Array]:
            return vtrace(
                *trajectory,
                lambda_=settings.trace_lambda,
                clip_rho=settings.clip_rho,
                clip_c=settings.clip_c,
                clip_pg_rho=settings.clip_pg_rho,
            )

        targets, advantages = _over_batch(returns, 1)(
            log_rhos, discounts, rewards, jax.lax.stop_gradient(values), valid
        )
        policy_loss = _mean(policy_losses.policy_gradient_loss, log_probs, advantages, valid)
        value_loss = _mean(policy_losses.value_loss, values[:-1], targets, valid)
        entropy_loss = _mean(policy_losses.entropy_loss, entropies, valid)
        coefficient, adjustment = _entropy_coefficient(settings, params, entropies, valid)
        total = policy_loss + settings.baseline_cost * value_loss + coefficient * entropy_loss + adjustment
        metrics = {
            "policy_loss": policy_loss,
            "value_loss": value_loss,
            "entropy_loss": entropy_loss,
            "entropy": _average(entropies, valid),
            "entropy_cost": coefficient,
            "kl": _average(distribution.kl(behaviour, policy), valid),
            "value": _average(values[:-1], valid),
            "target": _average(targets, valid),
            "advantage": _average(advantages, valid),
            "explained_variance": _explained_variance(values[:-1], targets, valid),
            "rho": _average(jnp.exp(jnp.minimum(log_rhos, 20.0)), valid),
            # The margin keeps rounding from counting as lag.
            "rho_clipped": _average(log_rhos > math.log(settings.clip_rho) + 1e-4, valid),
            "valid": jnp.mean(valid.astype(jnp.float32)),
        }
        return total, (jax.lax.stop_gradient(metrics), None)

    return loss


def _transitions(settings: VTraceSettings, timestep: TimeStep) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Validity, discounts and rewards ``[T, B]`` of the transitions between the steps ``[T + 1, B]``.

    A truncation keeps its discount: it bootstraps from the final observation, which is the step it leads to.
    """
    valid = ~timestep.first[1:]
    discounts = jnp.where(timestep.terminated[1:], 0.0, settings.discount)
    rewards = timestep.reward[1:]
    if settings.reward_clip > 0:
        rewards = jnp.clip(rewards, -settings.reward_clip, settings.reward_clip)
    return valid, discounts, rewards


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
    return coefficient, _mean(adjustment, entropies, valid)


def _over_batch(function: Callable[..., Tree], out_axes: int) -> Callable[..., Tree]:
    """A function of one trajectory ``[T]`` as one of ``[T, B]``."""
    return jax.vmap(function, in_axes=1, out_axes=out_axes)


def _mean(part: Callable[..., jax.Array], *arrays: jax.Array) -> jax.Array:
    """A part of the loss, averaged over the batch axis of ``arrays [T, B]``."""
    return jnp.mean(_over_batch(part, 0)(*arrays))


def _average(array: jax.Array, valid: jax.Array) -> jax.Array:
    """Mean over the valid entries, 0 if there are none."""
    return jnp.sum(jnp.where(valid, array, 0.0)) / jnp.maximum(jnp.sum(valid), 1)


def _explained_variance(values: jax.Array, targets: jax.Array, valid: jax.Array) -> jax.Array:
    """``1 - Var(target - value) / Var(target)``: 1 is perfect, 0 no better than a constant."""

    def variance(array: jax.Array) -> jax.Array:
        return _average(jnp.square(array - _average(array, valid)), valid)

    return 1.0 - variance(targets - values) / jnp.maximum(variance(targets), 1e-8)


def _make_optimizer(settings: VTraceSettings, total_updates: int | None) -> optax.GradientTransformation:
    """The optimizer over ``{"network", "entropy"}``; the gradient clip sees the network's gradient alone."""
    network = optax.chain(
        optax.clip_by_global_norm(settings.gradient_clip) if settings.gradient_clip > 0 else optax.identity(),
        _make_rule(settings, total_updates),
    )
    if settings.target_entropy is None:
        return network
    bound = policy_losses.ENTROPY_COEFFICIENT_RANGE / settings.entropy_adjustment_speed
    entropy = optax.chain(_make_rule(settings, total_updates), _keep_within(bound))
    return optax.partition(
        {"network": network, "entropy": entropy}, {"network": "network", "entropy": "entropy"}
    )


def _make_rule(settings: VTraceSettings, total_updates: int | None) -> optax.GradientTransformation:
    rate: float | optax.Schedule = settings.learning_rate
    if settings.anneal_to_zero:
        if total_updates is None:
            raise ConfigError(
                "anneal_to_zero needs a run of stated length: give --frames (--minutes is no number of updates), "
                "or leave the rate constant"
            )
        rate = optax.linear_schedule(settings.learning_rate, 0.0, total_updates)
    if settings.optimizer == "adam":
        return optax.adam(rate, settings.adam_b1, settings.adam_b2, settings.adam_eps)
    return optax.rmsprop(
        rate, settings.rmsprop_decay, settings.rmsprop_eps, momentum=settings.rmsprop_momentum or None
    )


def _keep_within(bound: float) -> optax.GradientTransformation:
    """Shortens updates so that parameters stay in ``[-bound, bound]``.

    A clip inside the loss would have no gradient outside the range, and a parameter that got there would
    stay.
    """

    def update(updates: Tree, params: Tree) -> Tree:
        return jax.tree.map(lambda u, p: jnp.clip(p + u, -bound, bound) - p, updates, params)

    return optax.stateless(update)
