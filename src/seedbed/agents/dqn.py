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
from seedbed.agents.replay_based import Ahead, plan_of_transitions
from seedbed.agents.value_based import (
    ValueBasedSettings,
    acting,
    count_by_updates,
    epsilon_metric,
    initial_params,
    initial_state,
)
from seedbed.errors import ConfigError
from seedbed.nets.body import Inputs
from seedbed.nets.network import AUTO, Network
from seedbed.nets.q_network import QNetwork, one_of
from seedbed.ops.batches import average, over_batch, transitions
from seedbed.ops.optimizers import make_clip, make_optimizer, require
from seedbed.ops.q_values import of_actions, td_errors
from seedbed.types import Agent, EnvSpec, Tree, Unroll


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
    data = plan_of_transitions(settings, env_spec, target_period=settings.target_period)
    start = env_spec.frame_stack - 1
    anneals = settings.epsilon_steps > 0
    act, mode, explore = acting(settings, model, anneals=anneals)
    return Agent(
        name="dqn",
        init=lambda key: initial_params(settings, model, key),
        initial_state=lambda batch: initial_state(model, batch, anneals=anneals),
        act=act,
        loss=_make_loss(settings, model, start),
        optimizer=make_optimizer(settings, total_updates),
        clip=make_clip(settings),
        data=data,
        mode=mode,
        prepare=count_by_updates(settings),
        explore=explore,
        priorities=_make_priorities(settings, start) if settings.priority_exponent else None,
        own_begin=frozenset({"steps"}),
    )


def _make_loss(
    settings: DQNSettings, model: QNetwork, start: int
) -> Callable[..., tuple[jax.Array, tuple[dict[str, jax.Array], jax.Array]]]:
    """The loss of :class:`~seedbed.types.Agent`, of windows ``[start + n + 1, B, ...]``."""

    def loss(
        params: Tree, target_params: Tree, unroll: Unroll, key: jax.Array
    ) -> tuple[jax.Array, tuple[dict[str, jax.Array], jax.Array]]:
        del key
        ahead = Ahead.of(settings, unroll.timestep, start)
        inputs, _ = model.inputs(unroll.timestep, None, unroll.state)
        now, later = inputs.at(jnp.full_like(ahead.steps, start)), inputs.at(start + ahead.steps)

        def values(params: Tree, inputs: Inputs) -> jax.Array:
            return jnp.asarray(model.evaluate(params["network"], inputs)[0][0])

        q = values(params, now)
        target_q = values(target_params, later)
        choosing = values(jax.lax.stop_gradient(params), later) if settings.double else target_q
        bootstrap = of_actions(target_q, jnp.argmax(choosing, axis=-1))
        targets = ahead.targets(bootstrap)
        taken = of_actions(q, unroll.action[start])
        # A window is not sampled where its transition leads into a new episode.
        errors = jnp.where(ahead.valid[0], targets - taken, 0.0)
        sizes = optax.huber_loss(errors, delta=settings.huber) if settings.huber else 0.5 * jnp.square(errors)
        metrics = {
            "value": average(taken, ahead.valid[0]),
            "target": average(targets, ahead.valid[0]),
            "td_error": average(jnp.abs(errors), ahead.valid[0]),
            "importance": jnp.mean(unroll.weight),
            **epsilon_metric(settings, params),
        }
        priorities = jnp.abs(errors)
        return jnp.mean(unroll.weight * sizes), (
            jax.lax.stop_gradient(metrics),
            jax.lax.stop_gradient(priorities),
        )

    return loss


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
