"""PQN: Q-learning from unrolls as they come, without a replay and without a target network, on normalized layers.

Gallici et al. 2025, *Simplifying Deep Temporal Difference Learning*. Many environments at once stand for the replay,
and a LayerNorm before each activation for the target network. Targets are computed once, by the weights with which the
passes begin, as the returns of Q(lambda).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

import jax
import jax.numpy as jnp

from seedbed.agents.interface import AgentDefinition
from seedbed.agents.minibatches import ShuffledSettings, evaluate, in_transitions, of_transitions
from seedbed.agents.value_based import ExplorationSettings, acting, epsilon_metric, initial_state
from seedbed.nets.build import is_mlp
from seedbed.nets.network import AUTO, Network
from seedbed.nets.q_network import QNetwork, one_of
from seedbed.ops import distributions
from seedbed.ops.batches import average, explained_variance, mean_over_batch, over_batch, transitions
from seedbed.ops.optimizers import make_clip, make_optimizer, require
from seedbed.ops.policy_losses import value_loss
from seedbed.ops.q_values import of_actions, q_lambda
from seedbed.types import Agent, DataPlan, EnvSpec, TimeStep, Tree, Unroll


@dataclass(frozen=True)
class PQNSettings(ShuffledSettings, ExplorationSettings):
    """Settings of PQN."""

    learning_rate: float = 5e-4
    """Step size of the optimizer."""

    optimizer: Literal["adam", "radam", "rmsprop", "adagrad"] = "radam"
    """The optimizer; radam is Adam that begins with small steps."""

    adam_eps: float = 1e-8
    """Adam: added outside the root."""

    gradient_clip: float = 10.0
    """Largest global norm of the gradient; 0 is off."""

    discount: float = 0.99
    """Value of a reward one step later (gamma)."""

    trace_lambda: float = 0.65
    """Mixes short and long bootstraps of the targets; 1 is the longest."""

    reward_clip: float = 0.0
    """Clip rewards to plus or minus this before learning; 0 is off."""

    reward_scale: float = 1.0
    """Factor of rewards, after they are clipped."""

    epsilon_steps: int = 50_000
    """Steps, of all environments together, over which it sinks linearly to its last value; 0: none."""

    epsilon_base: float = 0.05
    """Last share of actions by chance in the first environment (epsilon)."""

    epsilon_exponent: float = 0.0
    """The last environment's last share is epsilon_base to the power of 1 plus this; 0: the same in all."""

    previous_action: bool = False
    """Feed the previous action to the core."""

    previous_reward: bool = False
    """Feed the previous reward, clipped to [-1, 1], to the core."""

    unroll_length: int = 32
    """Transitions in an unroll (T)."""

    reuse: int = 4
    """Passes over each batch (epochs)."""

    @property
    def own_lag(self) -> int | Literal["free"]:
        """The lag that the agent is made for."""
        return 0

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("discount", "trace_lambda"):
            require(0 <= getattr(self, name) <= 1, name, getattr(self, name), "from 0 to 1")
        require(self.reward_clip >= 0, "reward_clip", self.reward_clip, "0 or more")
        require(self.reward_scale > 0, "reward_scale", self.reward_scale, "more than 0")


def make_agent(
    settings: PQNSettings,
    env_spec: EnvSpec,
    network: Network = AUTO,
    *,
    total_updates: int | None = None,
) -> Agent:
    """Makes the PQN agent for one environment; arguments as for :func:`seedbed.agents.vtrace.make_agent`.

    Returns:
      :class:`~seedbed.types.Agent`. Its params are ``{"network": …, "steps": float32 []}``, the transitions that were
      learned from; its record is ``{"q": float32 [B, A]}``, to which ``prepare`` adds ``target``, float32 ``[B]``.

    Raises:
      ConfigError: actions that are no choice among a few, an unknown network, or minibatches that do not fit.
    """
    model = _make_model(settings, env_spec, network)
    rows_are_transitions = of_transitions(settings, network)

    def init(key: jax.Array) -> Tree:
        return {"network": model.init(key), "steps": jnp.zeros(())}

    def prepare(params: Tree, unroll: Unroll, last: Tree | None = None) -> tuple[Tree, Unroll]:
        if last is None:
            q, _ = model.apply(params["network"], unroll.timestep, unroll.action, unroll.state)
        else:
            q = jnp.concatenate([unroll.record["q"], last["q"][None]])
        unroll = unroll._replace(record={"target": _targets(settings, unroll.timestep, q)})
        carried = jnp.sum(~unroll.timestep.first[1:], dtype=jnp.float32)
        params = {**params, "steps": params["steps"] + carried}
        return params, in_transitions(model, unroll) if rows_are_transitions else unroll

    act, mode, explore = acting(settings, model, anneals=True)
    return Agent(
        name="pqn",
        init=init,
        initial_state=lambda batch: initial_state(model, batch, anneals=True),
        act=act,
        loss=_make_loss(settings, model, rows_are_transitions),
        optimizer=make_optimizer(settings, total_updates),
        clip=make_clip(settings),
        data=DataPlan(
            settings.unroll_length,
            settings.batch_size,
            settings.reuse,
            settings.parts,
            rows_are_transitions,
        ),
        mode=mode,
        prepare=prepare,
        explore=explore,
        row_means=frozenset({"valid"}),
        own_begin=frozenset({"steps"}),
    )


def _make_model(settings: PQNSettings, env_spec: EnvSpec, network: Network) -> QNetwork:
    """Makes the network, with the paper's LayerNorm and rectifiers unless others are asked for."""
    num_actions = one_of(env_spec)
    if network.normalization == "auto":
        network = replace(network, normalization="layer")
    model = QNetwork(
        spec=env_spec,
        encode_action=distributions.from_spec(env_spec.action).encode,
        network=network,
        previous_action=settings.previous_action,
        previous_reward=settings.previous_reward,
        num_actions=num_actions,
        dueling=False,
        head_size=0,
    )
    if network.activation == "auto" and is_mlp(network, model.seen):
        model = replace(model, network=replace(network, activation="relu"))
    model.check()
    return model


def _targets(settings: PQNSettings, timestep: TimeStep, q: jax.Array) -> jax.Array:
    """Computes the targets ``[T, B]`` of the steps and their q-values ``[T + 1, B, A]``."""
    valid, discounts, rewards = transitions(
        timestep, discount=settings.discount, reward_clip=settings.reward_clip
    )

    def returns(*trajectory: jax.Array) -> jax.Array:
        return q_lambda(*trajectory, lambda_=settings.trace_lambda)

    targets: jax.Array = over_batch(returns)(q, discounts, settings.reward_scale * rewards, valid)
    return targets


def _make_loss(
    settings: PQNSettings, model: QNetwork, rows_are_transitions: bool
) -> Callable[..., tuple[jax.Array, tuple[dict[str, jax.Array], None]]]:
    """The loss of :class:`~seedbed.types.Agent`, of unrolls that were prepared."""

    def loss(
        params: Tree, target_params: Tree, unroll: Unroll, key: jax.Array
    ) -> tuple[jax.Array, tuple[dict[str, jax.Array], None]]:
        del target_params, key
        q = evaluate(model, params["network"], unroll, rows_are_transitions)
        taken, targets = of_actions(q, unroll.action), unroll.record["target"]
        valid = ~unroll.timestep.first[1:]
        metrics = {
            "value": average(taken, valid),
            "target": average(targets, valid),
            "td_error": average(jnp.abs(targets - taken), valid),
            "explained_variance": explained_variance(taken, targets, valid),
            **epsilon_metric(settings, params),
            "valid": jnp.mean(valid.astype(jnp.float32)),
        }
        return mean_over_batch(value_loss, taken, targets, valid), (jax.lax.stop_gradient(metrics), None)

    return loss


PQN = AgentDefinition("pqn", PQNSettings, make_agent)
