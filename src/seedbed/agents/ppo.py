"""PPO: several passes over each batch, and no gain from leaving the policy that acted by more than a little.

Schulman et al. 2017, *Proximal Policy Optimization Algorithms*, with the details of OpenAI's Baselines that Engstrom et
al. 2020 and Huang et al. 2022 found to matter. Advantages and targets are computed once, by the weights with which the
passes begin (Baselines used the ones that acted: with a lag of 0 they are the same, and under Anakin their values are
not computed again), and advantages are normalized over the whole batch, so that minibatches and devices do not change
the targets.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import jax
import jax.numpy as jnp

from seedbed.agents.actor_critic import (
    ActorCriticSettings,
    generalized_advantages,
    make_model,
    require_parts,
    with_scaled_rewards,
)
from seedbed.agents.interface import AgentDefinition
from seedbed.errors import ConfigError
from seedbed.nets import normalizer
from seedbed.nets.actor_critic import ActorCritic, acting
from seedbed.nets.body import Inputs
from seedbed.nets.network import AUTO, Network
from seedbed.ops import policy_losses
from seedbed.ops.batches import average, explained_variance, mean_over_batch
from seedbed.ops.distributions import Distribution
from seedbed.ops.optimizers import make_clip, make_optimizer, require
from seedbed.types import Agent, DataPlan, EnvSpec, TimeStep, Tree, Unroll


@dataclass(frozen=True)
class PPOSettings(ActorCriticSettings):
    """Settings of PPO."""

    own_lag: ClassVar[int | Literal["free"]] = 0

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

    batch_size: int = 32
    """Unrolls in a batch (B), over all devices; as many as environments, or some are trained on late."""

    reuse: int = 10
    """Passes over each batch (epochs)."""

    minibatches: int | None = None
    """Parts of a batch, with an update for each in a pass; None: of 64 transitions or more, dividing B."""

    shuffle: Literal["auto", "transitions", "unrolls"] = "auto"
    """Rows of minibatches: single transitions or whole unrolls; auto: unrolls if there is an LSTM."""

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

    @property
    def minibatch_rows(self) -> tuple[int, str]:
        """Most rows that minibatches can be drawn of, and their noun."""
        if self.shuffle == "unrolls":
            return super().minibatch_rows
        return self.batch_size * self.unroll_length, "the transitions of a batch"

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
      ``advantage`` and ``target``, float32 ``[B]``.
    """
    seen = env_spec.observation
    read_by_network = normalizer.normalized_spec(seen) if settings.normalize_observations else seen
    model, distribution = make_model(
        settings,
        replace(env_spec, observation=read_by_network),
        network,
    )

    transitions = _of_transitions(settings, network)

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
            _, values, _ = model.apply(network, timestep, unroll.action, unroll.state)
        else:
            values = jnp.concatenate([unroll.record["value"], last["value"][None]])
        prepared = _advantages(settings, timestep, _in_rewards(params, values))
        # The batch keeps the observations as they were when it was acted on; what comes sees the new statistics.
        if settings.normalize_observations:
            statistics = normalizer.add_observations(
                params["observations"], seen, unroll.timestep.observation
            )
            params = {**params, "observations": statistics}
        if settings.normalize_values:
            moments = normalizer.add_rows(
                params["values"], prepared["target"].reshape(-1), ~timestep.first[1:].reshape(-1)
            )
            params = {**params, "values": moments}
            prepared["target"] = normalizer.normalized(moments, prepared["target"])
        record = {**unroll.record, "value": values[:-1], **prepared}
        unroll = unroll._replace(timestep=timestep, record=record)
        return params, _in_transitions(model, unroll) if transitions else unroll

    act, mode = acting(model, distribution, read, tell_values=True)
    agent = Agent(
        name="ppo",
        init=init,
        initial_state=model.initial_state,
        act=act,
        loss=_make_loss(settings, model, distribution, transitions),
        optimizer=make_optimizer(settings, total_updates),
        clip=make_clip(settings),
        data=DataPlan(
            settings.unroll_length,
            settings.batch_size,
            settings.reuse,
            settings.parts,
            transitions,
            most_kl=None if settings.target_kl is None else 1.5 * settings.target_kl,
        ),
        mode=mode,
        prepare=prepare,
    )
    return with_scaled_rewards(settings, agent)


def _advantages(settings: PPOSettings, timestep: TimeStep, values: jax.Array) -> dict[str, jax.Array]:
    """Advantages and targets ``[T, B]`` of the steps and their values ``[T + 1, B]``."""
    valid, advantages, targets = generalized_advantages(settings, timestep, values)
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


def _of_transitions(settings: PPOSettings, network: Network) -> bool:
    """Returns whether minibatches are of single transitions."""
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


def _in_transitions(model: ActorCritic, unroll: Unroll) -> Unroll:
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


def _evaluate(
    model: ActorCritic, params: Tree, unroll: Unroll, transitions: bool
) -> tuple[jax.Array, jax.Array]:
    """Policy parameters and values of the steps that were acted on, ``[T, B, ...]``, of a prepared batch."""
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
        said, _ = model.evaluate(params, inputs)
        return said
    policy, values, _ = model.apply(params, step, unroll.action, unroll.state)
    return policy[:-1], values[:-1]


def _make_loss(
    settings: PPOSettings, model: ActorCritic, distribution: Distribution, transitions: bool
) -> Callable[..., tuple[jax.Array, tuple[dict[str, jax.Array], None]]]:
    """The loss of :class:`~seedbed.types.Agent`, of unrolls that were prepared."""

    def loss(
        params: Tree, target_params: Tree, unroll: Unroll, key: jax.Array
    ) -> tuple[jax.Array, tuple[dict[str, jax.Array], None]]:
        del target_params, key
        policy, values = _evaluate(model, params["network"], unroll, transitions)
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
