"""Ape-X DQN: dueling double DQN on prioritized transitions of several steps; DQN itself is a special case of it.

Horgan et al. 2018, *Distributed Prioritized Experience Replay*. The agent of Mnih et al. 2015, *Human-level control
through deep reinforcement learning*, is this one with ``double`` and ``dueling`` off, ``n_step`` 1, ``huber`` 1 and
``priority_exponent`` 0.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import optax

from seedbed.agents.interface import AgentDefinition
from seedbed.agents.value_based import ValueBasedSettings, acting, initial_state
from seedbed.errors import ConfigError
from seedbed.nets.body import Inputs
from seedbed.nets.network import AUTO, Network
from seedbed.nets.q_network import QNetwork, one_of
from seedbed.ops.batches import over_batch, transitions
from seedbed.ops.optimizers import make_clip, make_optimizer, require
from seedbed.ops.q_values import of_actions, td_errors
from seedbed.ops.returns import n_step
from seedbed.types import Agent, DataPlan, EnvSpec, ReplayPlan, Tree, Unroll


@dataclass(frozen=True)
class DQNSettings(ValueBasedSettings):
    """Settings of DQN."""

    learning_rate: float = 5e-4
    """Step size of the optimizer."""

    gradient_clip: float = 40.0
    """Largest global norm of the gradient; 0 is off."""

    huber: float = 0.0
    """Errors beyond this count linearly and not by their square; 0 is off (DQN had 1)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.huber >= 0, "huber", self.huber, "0 or more")

    @property
    def updates_a_transition(self) -> float:
        """Updates that are made for each transition that is acted."""
        return (self.replay_ratio or 0.0) / self.batch_size


def make_agent(
    settings: DQNSettings,
    env_spec: EnvSpec,
    network: Network = AUTO,
    *,
    total_updates: int | None = None,
) -> Agent:
    """Makes the DQN agent for one environment; arguments as for :func:`seedbed.agents.vtrace.make_agent`.

    Returns:
      :class:`~seedbed.types.Agent`. Its params are ``{"network": …}``; its record is ``{"q": float32 [B, A]}``. Its
      items are windows of ``start + n`` transitions, of which the one at ``start`` is trained on; earlier ones fill
      the frame stack.

    Raises:
      ConfigError: an LSTM, actions that are no choice among a few, or an unknown network.
    """
    if network.lstm:
        raise ConfigError(
            f"lstm is {network.lstm}, but dqn learns from single transitions: leave it out, or use --agent r2d2"
        )
    model = QNetwork(
        spec=env_spec,
        encode_action=lambda action: action,
        network=network,
        num_actions=one_of(env_spec),
        dueling=settings.dueling,
        head_size=settings.head_size,
    )
    model.check()
    start = env_spec.frame_stack - 1
    overlap = start + settings.n_step - 1
    if overlap > settings.unroll_length:
        raise ConfigError(
            f"unroll_length is {settings.unroll_length}, and has to be {overlap} or more: n_step is {settings.n_step}, "
            f"and frames are stacked by {env_spec.frame_stack}"
        )
    act, mode, explore = acting(settings, model)
    return Agent(
        name="dqn",
        init=lambda key: {"network": model.init(key)},
        initial_state=lambda batch: initial_state(model, batch),
        act=act,
        loss=_make_loss(settings, model, start),
        optimizer=make_optimizer(settings, total_updates),
        clip=make_clip(settings),
        data=DataPlan(
            settings.unroll_length,
            settings.batch_size,
            overlap=overlap,
            replay=ReplayPlan(
                capacity=settings.replay_size,
                min_size=settings.replay_min_size,
                ratio=settings.replay_ratio,
                window=start + settings.n_step,
                start=start,
                priority_exponent=settings.priority_exponent,
                importance_exponent=settings.importance_exponent,
            ),
            target_period=settings.target_period,
        ),
        mode=mode,
        explore=explore,
        priorities=_make_priorities(settings, start) if settings.priority_exponent else None,
    )


def _make_loss(
    settings: DQNSettings, model: QNetwork, start: int
) -> Callable[..., tuple[jax.Array, tuple[dict[str, jax.Array], jax.Array]]]:
    """The loss of :class:`~seedbed.types.Agent`, of windows ``[start + n + 1, B, ...]``."""

    def loss(
        params: Tree, target_params: Tree, unroll: Unroll, key: jax.Array
    ) -> tuple[jax.Array, tuple[dict[str, jax.Array], jax.Array]]:
        del key
        valid, discounts, rewards = (
            array[start:]
            for array in transitions(
                unroll.timestep, discount=settings.discount, reward_clip=settings.reward_clip
            )
        )
        # Where the episode ends within the n steps, its final observation is bootstrapped from.
        steps = jnp.sum(jnp.cumprod(valid, axis=0), axis=0)
        inputs, _ = model.inputs(unroll.timestep, None, unroll.state)
        now, later = _at(inputs, jnp.full_like(steps, start)), _at(inputs, start + steps)

        def values(params: Tree, inputs: Inputs) -> jax.Array:
            return jnp.asarray(model.evaluate(params["network"], inputs)[0][0])

        q = values(params, now)
        target_q = values(target_params, later)
        choosing = values(jax.lax.stop_gradient(params), later) if settings.double else target_q
        bootstrap = of_actions(target_q, jnp.argmax(choosing, axis=-1))
        everywhere = jnp.broadcast_to(bootstrap, (len(valid) + 1, *bootstrap.shape))

        def returns(*trajectory: jax.Array) -> jax.Array:
            return n_step(*trajectory, n=settings.n_step)

        targets = over_batch(returns)(discounts, rewards, everywhere, valid)[0]
        taken = of_actions(q, unroll.action[start])
        # A window is not sampled where its transition leads into a new episode.
        errors = jnp.where(valid[0], targets - taken, 0.0)
        sizes = optax.huber_loss(errors, delta=settings.huber) if settings.huber else 0.5 * jnp.square(errors)
        metrics = {
            "value": jnp.mean(taken),
            "target": jnp.mean(targets),
            "td_error": jnp.mean(jnp.abs(errors)),
            "importance": jnp.mean(unroll.weight),
        }
        priorities = jnp.abs(errors)
        return jnp.mean(unroll.weight * sizes), (
            jax.lax.stop_gradient(metrics),
            jax.lax.stop_gradient(priorities),
        )

    return loss


def _at(inputs: Inputs, steps: jax.Array) -> Inputs:
    """The inputs ``[1, B, ...]`` of one step for each row, int ``[B]``."""

    def take(array: jax.Array) -> jax.Array:
        index = steps.reshape(1, -1, *(1,) * (array.ndim - 2))
        return jnp.take_along_axis(array, index, axis=0)

    observation, mask = jax.tree.map(take, (inputs.observation, inputs.mask))
    return Inputs(observation, [], take(inputs.first), inputs.core, mask)


def _make_priorities(settings: DQNSettings, start: int) -> Callable[[Unroll], jax.Array]:
    """Sizes of the errors at the actor's own values, float32 ``[unroll_length, B]``."""

    def priorities(unroll: Unroll) -> jax.Array:
        q = unroll.record["q"]
        # The policy has not seen the last step yet: its values are taken to be those of the step before.
        q = jnp.concatenate([q, q[-1:]])
        valid, discounts, rewards = transitions(
            unroll.timestep, discount=settings.discount, reward_clip=settings.reward_clip
        )

        def errors(*trajectory: jax.Array) -> jax.Array:
            return td_errors(*trajectory, n=settings.n_step, double=False)

        sizes = jnp.abs(over_batch(errors)(q, q, unroll.action, discounts, rewards, valid))
        return sizes[start : start + settings.unroll_length]

    return priorities


DQN = AgentDefinition("dqn", DQNSettings, make_agent)
