"""The common part of agents with a policy, so that each agent's file holds the contents of its paper."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import jax
import jax.numpy as jnp

from seedbed.agents.minibatches import MinibatchSettings, QueueSettings
from seedbed.nets import normalizer
from seedbed.nets.actor_critic import ActorCritic
from seedbed.nets.build import is_mlp
from seedbed.nets.network import AUTO, Network
from seedbed.ops import distributions
from seedbed.ops.batches import over_batch, transitions
from seedbed.ops.distributions import Distribution
from seedbed.ops.optimizers import require
from seedbed.ops.returns import forward_sum, gae
from seedbed.types import ActOutput, Agent, EnvSpec, TimeStep, Tree, Unroll


@dataclass(frozen=True)
class PolicySettings(QueueSettings):
    """Settings of agents that train a policy; an agent overrides the defaults and adds its own.

    Losses are means over the T * B transitions of a batch.
    """

    previous_action: bool = False
    """Feed the previous action to the core (IMPALA does so with an LSTM)."""

    previous_reward: bool = False
    """Feed the previous reward, clipped to [-1, 1], to the core."""

    deviation: Literal["free", "state"] = "free"
    """Deviation of continuous actions: free (the same in every state), or a function of the state."""

    deviation_start: float = 1.0
    """First deviation of continuous actions, in halves of their range."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.deviation_start > 0, "deviation_start", self.deviation_start, "more than 0")


@dataclass(frozen=True)
class ActorCriticSettings(MinibatchSettings, PolicySettings):
    """Settings of every actor-critic."""

    discount: float = 0.99
    """Value of a reward one step later (gamma)."""

    trace_lambda: float = 1.0
    """Mixes short and long bootstraps; 1 is the longest."""

    entropy_cost: float = 0.01
    """Weight of the entropy bonus."""

    baseline_cost: float = 0.5
    """Weight of the value loss, which is half the mean squared error."""

    value_network: Literal["auto", "shared", "own"] = "auto"
    """Layers of the value: shared with the policy or its own; auto: its own if all are dense and no LSTM."""

    reward_clip: float = 0.0
    """Clip rewards to plus or minus this before learning; 0 is off."""

    scale_rewards: bool = False
    """Divide rewards by the deviation of discounted returns seen so far, and clip them to [-10, 10]."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("reward_clip", "entropy_cost", "baseline_cost"):
            require(getattr(self, name) >= 0, name, getattr(self, name), "0 or more")
        for name in ("discount", "trace_lambda"):
            require(0 <= getattr(self, name) <= 1, name, getattr(self, name), "from 0 to 1")
        if self.scale_rewards:
            for name in ("reward_clip", "previous_reward"):
                require(
                    not getattr(self, name),
                    name,
                    getattr(self, name),
                    "off where rewards are scaled: give --no-scale-rewards",
                )


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
    distribution = distributions.from_spec(env_spec.action, settings.deviation_start)
    model = ActorCritic(
        spec=env_spec,
        num_params=distribution.num_params,
        num_free=distribution.num_deviations if settings.deviation == "free" else 0,
        encode_action=distribution.encode,
        network=network,
        previous_action=settings.previous_action,
        previous_reward=settings.previous_reward,
    )
    model = replace(model, own_value=_own_value(settings, model))
    model.check()
    return model, distribution


def _own_value(settings: PolicySettings, model: ActorCritic) -> bool:
    """Returns whether the value has layers of its own; an agent that trains no value has none to spare."""
    chosen = settings.value_network if isinstance(settings, ActorCriticSettings) else "shared"
    if chosen != "auto":
        return chosen == "own"
    return not model.network.lstm and is_mlp(model.network, model.seen)


_RETURNS = "returns"
"""Their moments among an agent's params, and an environment's running one in the agent's state."""
_LARGEST_REWARD = 10.0


def with_scaled_rewards(settings: ActorCriticSettings, agent: Agent) -> Agent:
    """The agent on rewards that are divided by the deviation of discounted returns, if the settings say so.

    ::

        R_t = gamma R_{t-1} + r_t  (0 at the first step of an episode),    r_t / sqrt(Var[R])  is learned from

    (OpenAI Baselines, VecNormalize; Engstrom et al. 2020, section 3.) Each environment's sum is part of the agent's
    state, so that it goes on from unroll to unroll; moments are of all that was learned from, and part of the params.
    """
    if not settings.scale_rewards:
        return agent

    def following(state: Tree, timestep: TimeStep) -> jax.Array:
        return jnp.where(timestep.first, 0.0, settings.discount * state[_RETURNS] + timestep.reward)

    def init(key: jax.Array) -> Tree:
        return {**agent.init(key), _RETURNS: normalizer.initial_moments()}

    def initial_state(batch: int) -> Tree:
        return {**agent.initial_state(batch), _RETURNS: jnp.zeros(batch)}

    def act(params: Tree, key: jax.Array, timestep: TimeStep, state: Tree) -> tuple[ActOutput, Tree]:
        output, after = agent.act(params, key, timestep, state)
        return output, {**after, _RETURNS: following(state, timestep)}

    assert agent.sample is None, "no agent that searches scales its rewards"

    def mode(params: Tree, timestep: TimeStep, state: Tree) -> tuple[jax.Array, Tree]:
        action, after = agent.mode(params, timestep, state)
        return action, {**after, _RETURNS: following(state, timestep)}

    def prepare(params: Tree, unroll: Unroll, last: Tree | None = None) -> tuple[Tree, Unroll]:
        step = unroll.timestep
        decays = jnp.where(step.first, 0.0, settings.discount)
        sums = jax.vmap(forward_sum, in_axes=(1, 1, 0), out_axes=1)(
            jnp.where(step.first, 0.0, step.reward), decays, unroll.state[_RETURNS]
        )
        # The first step of an unroll was the last one of the unroll before.
        moments = normalizer.add_rows(params[_RETURNS], sums[1:].reshape(-1), ~step.first[1:].reshape(-1))
        _, deviation = normalizer.mean_and_deviation(moments)
        reward = jnp.clip(step.reward / deviation, -_LARGEST_REWARD, _LARGEST_REWARD)
        params, unroll = {**params, _RETURNS: moments}, unroll._replace(timestep=step._replace(reward=reward))
        if agent.prepare is None:
            return params, unroll
        return agent.prepare(params, unroll, *(() if last is None else (last,)))

    return replace(agent, init=init, initial_state=initial_state, act=act, mode=mode, prepare=prepare)


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
