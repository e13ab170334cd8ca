"""SAC: two critics of transitions from a replay, and a policy that is as random as it can afford to be.

Haarnoja et al. 2018, *Soft Actor-Critic Algorithms and Applications*: the pessimistic one of two critics, target
critics that follow by a small share of the way at every update, actions squashed into their bounds, and a weight of the
entropy (the temperature) that holds it at a target. The gradients of critics, policy and weight are taken at the same
parameters, in one update.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
import numpy as np

from seedbed.agents.interface import AgentDefinition
from seedbed.agents.replay_based import Ahead, ReplaySettings, plan_of_transitions
from seedbed.errors import ConfigError, SpecError
from seedbed.nets import normalizer
from seedbed.nets.body import Inputs
from seedbed.nets.build import is_mlp
from seedbed.nets.network import AUTO, Network
from seedbed.nets.soft_actor_critic import Critics, Policy
from seedbed.ops.batches import add_time, average, mean_over_batch, over_batch, transitions
from seedbed.ops.optimizers import make_clip, make_optimizer, require
from seedbed.ops.policy_losses import entropy_adjustment_loss, entropy_coefficient
from seedbed.ops.returns import n_step
from seedbed.ops.squashed_normal import SquashedNormal
from seedbed.types import ActOutput, Agent, EnvSpec, TimeStep, Tree, Unroll

_HIDDEN = (256, 256)
"""Dense layers of an MLP, unless other ones are chosen."""


@dataclass(frozen=True)
class SACSettings(ReplaySettings):
    """Settings of SAC.

    Losses are means over the batch; until the replay has ``replay_min_size`` transitions, actions are drawn uniformly.
    """

    learning_rate: float = 3e-4
    """Step size of the optimizer."""

    adam_eps: float = 1e-8
    """Adam: added outside the root."""

    gradient_clip: float = 0.0
    """Largest global norm of the gradients of policy and of critics, each; 0 is off."""

    n_step: int = 1
    """Rewards that a target adds up before it bootstraps (n)."""

    entropy_cost: float = 1.0
    """Weight of the entropy in nats (temperature, alpha); its first value where it is tuned."""

    tune_entropy_cost: bool = True
    """Let the weight of the entropy hold the entropy at its target."""

    target_entropy: float | None = None
    """Entropy in nats of actions in [-1, 1] that is held; None: minus the number of an action's elements."""

    target_rate: float = 0.005
    """Share of the way that the target critics go to the trained ones at a renewal (tau)."""

    target_period: int = 1
    """Updates after which the target critics are renewed."""

    normalize_observations: bool = False
    """Normalize floating-point observations to mean 0 and variance 1, by the ones learned from so far."""

    replay_size: int = 1_000_000
    """Transitions that the replay keeps."""

    replay_ratio: float | None = 256.0
    """Mean number of times a transition is trained on (updates a step times batch_size); none: any."""

    priority_exponent: float = 0.0
    """Power of priorities in sampling; 0 is uniformly."""

    unroll_length: int = 8
    """Transitions in an unroll (T)."""

    batch_size: int = 256
    """Transitions in a batch (B), over all devices."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.target_period > 0, "target_period", self.target_period, "1 or more")
        require(0 < self.target_rate <= 1, "target_rate", self.target_rate, "more than 0 and at most 1")
        require(self.entropy_cost >= 0, "entropy_cost", self.entropy_cost, "0 or more")
        if self.tune_entropy_cost:
            require(self.entropy_cost > 0, "entropy_cost", self.entropy_cost, "more than 0 where it is tuned")
        else:
            none = self.target_entropy is None
            require(none, "target_entropy", self.target_entropy, "none where entropy_cost is not tuned")


@dataclass(frozen=True)
class _Model:
    """The networks and the distribution of an agent.

    The agent's params are ``policy``, ``critics`` and ``begun``, float32 ``[]``: above 0 once it has learned. Where the
    entropy's weight is tuned they have its logarithm, ``entropy``, float32 ``[]``; where observations are normalized,
    their statistics, ``observations``.
    """

    settings: SACSettings
    env_spec: EnvSpec
    policy: Policy
    critics: Critics
    distribution: SquashedNormal

    @property
    def start(self) -> int:
        """Index of the transition that a window is trained on; earlier ones fill the frame stack."""
        return self.env_spec.frame_stack - 1

    @property
    def target_entropy(self) -> float:
        """Entropy that is held, in nats."""
        chosen = self.settings.target_entropy
        return -float(self.distribution.num_free) if chosen is None else chosen

    def init(self, key: jax.Array) -> Tree:
        """Returns fresh params."""
        of_policy, of_critics = jax.random.split(key)
        params = {
            "policy": self.policy.init(of_policy),
            "critics": self.critics.init(of_critics),
            "begun": jnp.zeros(()),
        }
        if self.settings.tune_entropy_cost:
            params["entropy"] = jnp.asarray(math.log(self.settings.entropy_cost), jnp.float32)
        if self.settings.normalize_observations:
            params["observations"] = normalizer.initial_statistics(self.env_spec.observation)
        return params

    def entropy_cost(self, params: Tree) -> jax.Array:
        """Returns the weight of the entropy, to which no gradient goes; ``[]``."""
        if not self.settings.tune_entropy_cost:
            return jnp.asarray(self.settings.entropy_cost)
        return entropy_coefficient(jax.lax.stop_gradient(params["entropy"]), speed=1.0)

    def read(self, params: Tree, timestep: TimeStep) -> TimeStep:
        """Returns the step as the networks see it."""
        if not self.settings.normalize_observations:
            return timestep
        seen = self.env_spec.observation
        shown = normalizer.normalized_observation(params["observations"], seen, timestep.observation)
        return timestep._replace(observation=shown)

    def draw(self, params: Tree, inputs: Inputs, noise: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Draws elements of the policy's actions, ``[T, B, E]``; returns them and their log-densities ``[T, B]``."""
        return self.distribution.draw(self.policy.evaluate(params["policy"], inputs)[0], noise)


def make_agent(
    settings: SACSettings,
    env_spec: EnvSpec,
    network: Network = AUTO,
    *,
    total_updates: int | None = None,
) -> Agent:
    """Makes the SAC agent for one environment; arguments as for :func:`seedbed.agents.vtrace.make_agent`.

    Returns:
      :class:`~seedbed.types.Agent`. Its record is empty, or where there are priorities ``{"q", "value"}``, float32
      ``[B]``: the value of the action, and that of the observation with the entropy. Its items are windows, see
      :func:`~seedbed.agents.replay_based.plan_of_transitions`.

    Raises:
      ConfigError: an LSTM, actions that are a choice or have no bounds, or an unknown network.
    """
    if network.lstm:
        raise ConfigError(
            f"lstm is {network.lstm}, but sac learns from single transitions: leave it out, or use --agent ppo"
        )
    model = _make_model(settings, env_spec, network)
    act, mode = _acting(model)
    clip = make_clip(settings)
    return Agent(
        name="sac",
        init=model.init,
        initial_state=model.policy.initial_state,
        act=act,
        loss=_make_loss(model),
        optimizer=make_optimizer(settings, total_updates),
        clip=clip and (lambda gradient: {name: clip(part) for name, part in gradient.items()}),
        data=plan_of_transitions(
            settings,
            env_spec,
            target_period=settings.target_period,
            target_rate=settings.target_rate,
        ),
        mode=mode,
        prepare=_make_prepare(model),
        priorities=_make_priorities(model) if settings.priority_exponent else None,
        row_means=frozenset({"value_loss", "policy_loss", "td_error"}),
        own_begin=frozenset({"entropy"}),
    )


def _make_model(settings: SACSettings, env_spec: EnvSpec, network: Network) -> _Model:
    distribution = _squashed(env_spec)
    seen = env_spec.observation
    shown = normalizer.normalized_spec(seen) if settings.normalize_observations else seen
    policy = Policy(
        spec=replace(env_spec, observation=shown),
        encode_action=distribution.elements,
        network=network,
        num_params=distribution.num_params,
    )
    if is_mlp(network, policy.seen):
        activation = "relu" if network.activation == "auto" else network.activation
        layers = replace(network, hidden=network.hidden or _HIDDEN, activation=activation)
        policy = replace(policy, network=layers)
    policy.check()
    return _Model(settings, env_spec, policy, Critics(policy, distribution.size), distribution)


def _squashed(env_spec: EnvSpec) -> SquashedNormal:
    """Returns the distribution of actions; raises :class:`ConfigError` unless they are continuous and bounded."""
    action = env_spec.action
    told = f"actions of {env_spec.id} are {action.dtype}{list(action.shape)}"
    if action.num_values or not np.issubdtype(np.dtype(action.dtype), np.floating):
        raise ConfigError(
            f"{told}, and sac is for continuous ones with bounds: use --agent ppo or vtrace, or dqn for one choice "
            "among a few"
        )
    try:
        return SquashedNormal.from_spec(action)
    except SpecError as error:
        raise ConfigError(
            f"{told} with {error}; sac squashes actions into their bounds: give the environment's action space finite "
            "ones, or use --agent ppo or vtrace"
        ) from error


def _acting(
    model: _Model,
) -> tuple[Callable[..., tuple[ActOutput, Tree]], Callable[..., tuple[jax.Array, Tree]]]:
    """Makes ``act`` and ``mode`` of :class:`~seedbed.types.Agent`."""
    distribution, policy = model.distribution, model.policy

    def inputs_of(params: Tree, timestep: TimeStep, state: Tree) -> tuple[Inputs, Tree]:
        return policy.inputs(add_time(model.read(params, timestep)), None, state)

    def act(params: Tree, key: jax.Array, timestep: TimeStep, state: Tree) -> tuple[ActOutput, Tree]:
        inputs, state = inputs_of(params, timestep, state)
        keys = jax.vmap(jax.random.split)(key)
        noise = jax.vmap(lambda key: jax.random.normal(key, (distribution.size,)))(keys[:, 0])
        drawn, log_probs = model.draw(params, inputs, noise[None])
        anything = jax.vmap(distribution.anything)(keys[:, 1])
        elements = jnp.where(params["begun"] > 0, drawn, anything)
        record = {}
        if model.settings.priority_exponent:
            q = model.critics.least(params["critics"], inputs, elements)
            record = {"q": q[0], "value": (q - model.entropy_cost(params) * log_probs)[0]}
        return ActOutput(distribution.action(elements[0]), record), state

    def mode(params: Tree, timestep: TimeStep, state: Tree) -> tuple[jax.Array, Tree]:
        inputs, state = inputs_of(params, timestep, state)
        said, _ = policy.evaluate(params["policy"], inputs)
        return distribution.action(distribution.middle(said[0])), state

    return act, mode


def _make_prepare(model: _Model) -> Callable[..., tuple[Tree, Unroll]]:
    """Makes ``prepare`` of :class:`~seedbed.types.Agent`, which ends random actions and normalizes observations."""

    def prepare(params: Tree, unroll: Unroll, last: Tree | None = None) -> tuple[Tree, Unroll]:
        del last
        begun = {**params, "begun": jnp.ones(())}
        if not model.settings.normalize_observations:
            return begun, unroll
        seen, observation = model.env_spec.observation, unroll.timestep.observation
        # Of each window the observation that is trained on.
        trained = jax.tree.map(lambda array: array[model.start], observation)
        there = ~unroll.timestep.absent[model.start]
        statistics = normalizer.add_observations(params["observations"], seen, trained, there)
        shown = model.read(params, unroll.timestep)
        return {**begun, "observations": statistics}, unroll._replace(timestep=shown)

    return prepare


def _make_loss(
    model: _Model,
) -> Callable[..., tuple[jax.Array, tuple[dict[str, jax.Array], jax.Array]]]:
    """Makes the loss of :class:`~seedbed.types.Agent`, of windows ``[start + n + 1, B, ...]`` that were prepared."""
    settings, start = model.settings, model.start

    def loss(
        params: Tree, target_params: Tree, unroll: Unroll, key: jax.Array
    ) -> tuple[jax.Array, tuple[dict[str, jax.Array], jax.Array]]:
        ahead = Ahead.of(settings, unroll.timestep, start)
        inputs, _ = model.policy.inputs(unroll.timestep, None, unroll.state)
        now, later = inputs.at(jnp.full_like(ahead.steps, start)), inputs.at(start + ahead.steps)
        # A window is not sampled where its transition leads into a new episode.
        valid = ahead.valid[0]
        noise = jax.random.normal(key, (2, 1, len(valid), model.distribution.size))
        fixed, cost = jax.lax.stop_gradient(params), model.entropy_cost(params)

        after, log_probs_after = model.draw(fixed, later, noise[0])
        values_after = model.critics.least(target_params["critics"], later, after) - cost * log_probs_after
        targets = ahead.targets(values_after[0])
        taken = model.distribution.elements(unroll.action[start])[None]
        errors = jnp.where(valid, targets - model.critics.evaluate(params["critics"], now, taken)[:, 0], 0.0)
        value_loss = jnp.mean(unroll.weight * 0.5 * jnp.sum(jnp.square(errors), axis=0))

        drawn, log_probs = model.draw(params, now, noise[1])
        values = model.critics.least(fixed["critics"], now, drawn)
        policy_loss = jnp.mean(jnp.where(valid, cost * log_probs - values, 0.0))
        adjustment = _adjustment(model, params, -log_probs, valid[None])

        metrics = {
            "value_loss": value_loss,
            "policy_loss": policy_loss,
            "entropy": average(-log_probs, valid),
            "entropy_cost": cost,
            "value": average(values, valid),
            "target": average(targets, valid),
            "td_error": jnp.mean(jnp.abs(errors)),
            "importance": jnp.mean(unroll.weight),
        }
        return value_loss + policy_loss + adjustment, (
            jax.lax.stop_gradient(metrics),
            jax.lax.stop_gradient(jnp.mean(jnp.abs(errors), axis=0)),
        )

    return loss


def _adjustment(model: _Model, params: Tree, entropies: jax.Array, valid: jax.Array) -> jax.Array:
    """Computes the loss of the entropy's weight, with one estimate of the entropy for each row, ``[1, B]``."""
    if not model.settings.tune_entropy_cost:
        return jnp.zeros(())

    def adjustment(entropies: jax.Array, valid: jax.Array) -> jax.Array:
        return entropy_adjustment_loss(
            params["entropy"], entropies, valid, target=model.target_entropy, speed=1.0
        )

    return mean_over_batch(adjustment, entropies, valid)


def _make_priorities(model: _Model) -> Callable[[Unroll], jax.Array]:
    """Makes the function for sizes of errors at the actor's own values, float32 ``[unroll_length, B]``."""
    settings = model.settings

    def priorities(unroll: Unroll) -> jax.Array:
        q, values = unroll.record["q"], unroll.record["value"]
        # The policy has not seen the last step yet: its value is taken to be that of the step before.
        values = jnp.concatenate([values, values[-1:]])
        valid, discounts, rewards = transitions(
            unroll.timestep, discount=settings.discount, reward_clip=settings.reward_clip
        )

        def returns(*trajectory: jax.Array) -> jax.Array:
            return n_step(*trajectory, n=settings.n_step)

        targets = over_batch(returns)(discounts, rewards, values, valid)
        sizes = jnp.where(valid, jnp.abs(targets - q), 0.0)
        return sizes[model.start : model.start + settings.unroll_length]

    return priorities


SAC = AgentDefinition("sac", SACSettings, make_agent)
