"""The common part of value-based agents, so that each agent's file holds the contents of its paper."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import jax
import jax.numpy as jnp

from seedbed.agents.replay_based import ReplaySettings
from seedbed.nets.q_network import QNetwork
from seedbed.ops.batches import add_time
from seedbed.ops.exploration import epsilon_greedy, epsilons_of
from seedbed.ops.optimizers import OptimizerSettings, require
from seedbed.types import ActOutput, Exploration, TimeStep, Tree


@dataclass(frozen=True)
class ExplorationSettings(OptimizerSettings):
    """Settings of agents that act by chance now and then."""

    explores: ClassVar[bool] = True
    """True if it explores by chance."""

    epsilon_base: float = 0.4
    """Share of actions by chance in the first environment (epsilon)."""

    epsilon_exponent: float = 7.0
    """The last environment acts by chance with epsilon_base to the power of 1 plus this."""

    epsilon_evaluation: float = 0.001
    """Share of actions by chance in environments that only evaluate."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.epsilon_exponent >= 0, "epsilon_exponent", self.epsilon_exponent, "0 or more")
        for name in ("epsilon_base", "epsilon_evaluation"):
            require(0 <= getattr(self, name) <= 1, name, getattr(self, name), "from 0 to 1")


@dataclass(frozen=True)
class ValueBasedSettings(ExplorationSettings, ReplaySettings):
    """Settings of value-based agents with a replay; an agent overrides the defaults and adds its own."""

    double: bool = True
    """Let the trained values choose the action whose value the target network tells (double Q-learning)."""

    dueling: bool = True
    """Tell the value of a state and the advantages of actions apart (dueling heads)."""

    head_size: int = 128
    """Size of the dense layer before each head; 0 for none."""

    target_period: int = 250
    """Updates after which the target network becomes the trained one."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.target_period > 0, "target_period", self.target_period, "1 or more")
        require(self.head_size >= 0, "head_size", self.head_size, "0 or more")


def acting(
    settings: ValueBasedSettings, model: QNetwork
) -> tuple[
    Callable[..., tuple[ActOutput, Tree]],
    Callable[..., tuple[jax.Array, Tree]],
    Callable[[Tree, Exploration], Tree],
]:
    """``act``, ``mode`` and ``explore`` of an :class:`~seedbed.types.Agent` that takes the best action by its q-values,
    or any by chance.

    Its state is the model's and ``{"epsilon": float32 [B]}``; its record is ``{"q": float32 [B, A]}``.
    """

    def evaluate(params: Tree, timestep: TimeStep, state: Tree) -> tuple[jax.Array, Tree]:
        q, after = model.apply(params["network"], add_time(timestep), None, state)
        return q[0], after | {"epsilon": state["epsilon"]}

    def act(params: Tree, key: jax.Array, timestep: TimeStep, state: Tree) -> tuple[ActOutput, Tree]:
        q, state = evaluate(params, timestep, state)
        action = jax.vmap(epsilon_greedy)(key, q, state["epsilon"]).astype(model.spec.action.dtype)
        return ActOutput(action, {"q": q}), model.with_action(state, action)

    def mode(params: Tree, timestep: TimeStep, state: Tree) -> tuple[jax.Array, Tree]:
        q, state = evaluate(params, timestep, state)
        action = q.argmax(-1).astype(model.spec.action.dtype)
        return action, model.with_action(state, action)

    def explore(state: Tree, exploration: Exploration) -> Tree:
        epsilons = epsilons_of(
            exploration,
            base=settings.epsilon_base,
            exponent=settings.epsilon_exponent,
            evaluation=settings.epsilon_evaluation,
        )
        return state | {"epsilon": epsilons}

    return act, mode, explore


def initial_state(model: QNetwork, batch: int) -> Tree:
    """The state ``[B, ...]`` of :func:`acting` before the first step of an episode; it does not explore."""
    return model.initial_state(batch) | {"epsilon": jnp.zeros(batch)}
