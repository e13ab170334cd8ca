"""R2D2: double Q-learning with a memory, from prioritized sequences that begin with a warm-up of the memory.

Kapturowski et al. 2019, *Recurrent Experience Replay in Distributed Reinforcement Learning*; ``--preset r2d2-atari``
has the settings of SEED (Espeholt et al. 2020). The state with which a sequence is stored is that of the actor at its
very first step (SEED's own code kept one that was ``burn_in`` steps late).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import jax
import jax.numpy as jnp

from seedbed.agents.interface import AgentDefinition
from seedbed.agents.value_based import (
    ValueBasedSettings,
    acting,
    count_by_updates,
    epsilon_metric,
    initial_params,
    initial_state,
)
from seedbed.errors import ConfigError
from seedbed.nets.network import AUTO, Network
from seedbed.nets.q_network import QNetwork, one_of
from seedbed.ops import distributions
from seedbed.ops.batches import average, over_batch, transitions
from seedbed.ops.optimizers import make_clip, make_optimizer, require
from seedbed.ops.priorities import sequence_priority
from seedbed.ops.q_values import in_rewards, of_actions, td_errors
from seedbed.types import Agent, DataPlan, EnvSpec, ReplayPlan, TimeStep, Tree, Unroll, map_leaves

_LSTM = 512
"""Size of the memory, unless another one is chosen."""


@dataclass(frozen=True)
class R2D2Settings(ValueBasedSettings):
    """Settings of R2D2.

    The loss is a sum over the T transitions of a sequence and a mean over the batch.
    """

    learning_rate: float = 5e-4
    """Step size of the optimizer."""

    adam_eps: float = 1e-4
    """Adam: added outside the root."""

    gradient_clip: float = 80.0
    """Largest global norm of the gradient; 0 is off."""

    discount: float = 0.997
    """Value of a reward one step later (gamma)."""

    n_step: int = 5
    """Rewards that a target adds up before it bootstraps (n)."""

    rescale: float = 1e-3
    """Learn h(x) = sign(x) (sqrt(|x| + 1) - 1) + rescale x of values instead of x; 0: x itself."""

    burn_in: int = 10
    """Steps before the trained ones, by which the memory is brought to the newest weights."""

    previous_action: bool = True
    """Feed the previous action to the memory."""

    previous_reward: bool = True
    """Feed the previous reward, unclipped, to the memory."""

    replay_ratio: float | None = 4.0
    """Mean number of times a transition is trained on; acting and learning wait for it; none: neither."""

    priority_exponent: float = 0.9
    """Power of priorities in sampling; 0 is uniformly."""

    priority_eta: float = field(default=0.9, metadata={"needs": "priority_exponent"})
    """Weight of a sequence's largest error in its priority; the rest is their mean."""

    importance_exponent: float = field(default=0.6, metadata={"needs": "priority_exponent"})
    """Power of the loss's correction for priorities; 1 is fully."""

    unroll_length: int = 20
    """Transitions of a sequence that are trained on (T)."""

    batch_size: int = 16
    """Sequences in a batch (B), over all devices."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.rescale >= 0, "rescale", self.rescale, "0 or more")
        require(0 <= self.priority_eta <= 1, "priority_eta", self.priority_eta, "from 0 to 1")
        most = self.unroll_length
        require(0 <= self.burn_in <= most, "burn_in", self.burn_in, f"from 0 to the unroll_length, {most}")

    @property
    def updates_a_transition(self) -> float:
        """Updates that are made for each transition that is acted."""
        return (self.replay_ratio or 0.0) / (self.batch_size * self.unroll_length)


def make_agent(
    settings: R2D2Settings,
    env_spec: EnvSpec,
    network: Network = AUTO,
    *,
    total_updates: int | None = None,
) -> Agent:
    """The R2D2 agent for one environment; arguments as for :func:`seedbed.agents.vtrace.make_agent`.

    Returns:
      :class:`~seedbed.types.Agent`. Its params are ``{"network": …}``; its record is ``{"q": float32 [B, A]}``, on the
      scale of ``rescale``. Its unrolls have ``burn_in + T`` transitions.

    Raises:
      ConfigError: no LSTM, actions that are no choice among a few, or an unknown network.
    """
    lstm = _LSTM if network.lstm is None else network.lstm
    if not lstm:
        raise ConfigError("lstm is 0, but r2d2 is an agent with a memory: use --lstm 512, or --agent dqn")
    model = QNetwork(
        spec=env_spec,
        encode_action=distributions.from_spec(env_spec.action).encode,
        network=replace(network, lstm=lstm),
        previous_action=settings.previous_action,
        previous_reward=settings.previous_reward,
        previous_reward_clip=0.0,
        num_actions=one_of(env_spec),
        dueling=settings.dueling,
        head_size=settings.head_size,
    )
    model.check()
    anneals = settings.epsilon_steps > 0
    act, mode, explore = acting(settings, model, anneals=anneals)
    window = settings.burn_in + settings.unroll_length
    return Agent(
        name="r2d2",
        init=lambda key: initial_params(settings, model, key),
        initial_state=lambda batch: initial_state(model, batch, anneals=anneals),
        act=act,
        loss=_make_loss(settings, model),
        optimizer=make_optimizer(settings, total_updates),
        clip=make_clip(settings),
        data=DataPlan(
            settings.unroll_length,
            settings.batch_size,
            overlap=settings.burn_in,
            replay=ReplayPlan(
                capacity=settings.replay_size,
                min_size=settings.replay_min_size,
                ratio=settings.replay_ratio,
                window=window,
                start=settings.burn_in,
                priority_exponent=settings.priority_exponent,
                importance_exponent=settings.importance_exponent,
                parts=settings.replay_parts,
            ),
            target_period=settings.target_period,
        ),
        mode=mode,
        prepare=count_by_updates(settings),
        explore=explore,
        priorities=_make_priorities(settings) if settings.priority_exponent else None,
        row_means=frozenset({"valid"}),
        own_begin=frozenset({"steps"}),
    )


def values_after_burn_in(model: QNetwork, params: Tree, unroll: Unroll, burn_in: int) -> jax.Array:
    """Q-values ``[T + 1, B, A]`` of the steps after the first ``burn_in``, through which no gradient goes.

    Args:
      model: the network.
      params: its parameters.
      unroll: ``[burn_in + T + 1, B, ...]``, with the state before its first step.
      burn_in: steps that only bring the memory to these parameters.
    """
    state = unroll.state
    if burn_in:
        before = _between(unroll.timestep, 0, burn_in)
        _, state = model.apply(params, before, unroll.action[: burn_in - 1], state)
        state = jax.lax.stop_gradient(model.with_action(state, unroll.action[burn_in - 1]))
    q, _ = model.apply(params, _between(unroll.timestep, burn_in, None), unroll.action[burn_in:], state)
    return q


def _between(timestep: TimeStep, start: int, stop: int | None) -> TimeStep:
    steps = slice(start, stop)
    return TimeStep(map_leaves(lambda x: x[steps], timestep.observation), *(x[steps] for x in timestep[1:]))


def _errors(
    settings: R2D2Settings, unroll: Unroll, q: jax.Array, target_q: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Errors and validity ``[T, B]``, and priorities ``[B]``, of the steps after the burn-in."""
    steps = _between(unroll.timestep, settings.burn_in, None)
    valid, discounts, rewards = transitions(
        steps, discount=settings.discount, reward_clip=settings.reward_clip
    )

    def errors(*trajectory: jax.Array) -> jax.Array:
        return td_errors(*trajectory, n=settings.n_step, double=settings.double, rescale=settings.rescale)

    def priority(*trajectory: jax.Array) -> jax.Array:
        return sequence_priority(*trajectory, eta=settings.priority_eta)

    found = over_batch(errors)(q, target_q, unroll.action[settings.burn_in :], discounts, rewards, valid)
    return found, valid, over_batch(priority, 0)(jax.lax.stop_gradient(found), valid)


def _make_loss(
    settings: R2D2Settings, model: QNetwork
) -> Callable[..., tuple[jax.Array, tuple[dict[str, jax.Array], jax.Array]]]:
    """The loss of :class:`~seedbed.types.Agent`."""

    def loss(
        params: Tree, target_params: Tree, unroll: Unroll, key: jax.Array
    ) -> tuple[jax.Array, tuple[dict[str, jax.Array], jax.Array]]:
        del key
        q = values_after_burn_in(model, params["network"], unroll, settings.burn_in)
        target_q = values_after_burn_in(model, target_params["network"], unroll, settings.burn_in)
        errors, valid, priorities = _errors(settings, unroll, q, jax.lax.stop_gradient(target_q))
        taken = of_actions(q[:-1], unroll.action[settings.burn_in :])
        metrics = {
            "value": average(in_rewards(taken, settings.rescale), valid),
            "td_error": average(jnp.abs(errors), valid),
            "importance": jnp.mean(unroll.weight),
            **epsilon_metric(settings, params),
            "valid": jnp.mean(valid.astype(jnp.float32)),
        }
        total = jnp.mean(unroll.weight * 0.5 * jnp.sum(jnp.square(errors), axis=0))
        return total, (jax.lax.stop_gradient(metrics), priorities)

    return loss


def _make_priorities(settings: R2D2Settings) -> Callable[[Unroll], jax.Array]:
    """The sequence's priority at the actor's own values, float32 ``[1, B]``."""

    def priorities(unroll: Unroll) -> jax.Array:
        q = unroll.record["q"][settings.burn_in :]
        # The policy has not seen the last step yet: its values are taken to be those of the step before.
        q = jnp.concatenate([q, q[-1:]])
        return _errors(settings, unroll, q, q)[2][None]

    return priorities


R2D2 = AgentDefinition("r2d2", R2D2Settings, make_agent)
