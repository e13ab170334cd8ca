"""The common part of value-based agents, so that each agent's file holds the contents of its paper."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import ClassVar

import jax
import jax.numpy as jnp

from seedbed.agents.replay_based import ReplaySettings
from seedbed.nets.q_network import QNetwork
from seedbed.ops.batches import add_time
from seedbed.ops.exploration import epsilon_greedy, epsilons_of
from seedbed.ops.optimizers import OptimizerSettings, require
from seedbed.types import ActOutput, Exploration, TimeStep, Tree, Unroll


@dataclass(frozen=True)
class ExplorationSettings(OptimizerSettings):
    """Settings of agents that act by chance now and then."""

    explores: ClassVar[bool] = True
    """True if it explores by chance."""

    epsilon_start: float = field(default=1.0, metadata={"needs": "epsilon_steps"})
    """Share of actions by chance at the beginning, in every environment."""

    epsilon_steps: int = 0
    """Steps, of all environments together, over which it sinks linearly to its last value; 0: none."""

    epsilon_base: float = 0.4
    """Last share of actions by chance in the first environment (epsilon)."""

    epsilon_exponent: float = 7.0
    """The last environment's last share is epsilon_base to the power of 1 plus this; 0: the same in all."""

    epsilon_evaluation: float = 0.001
    """Share of actions by chance in environments that only evaluate."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("epsilon_steps", "epsilon_exponent"):
            require(getattr(self, name) >= 0, name, getattr(self, name), "0 or more")
        for name in ("epsilon_start", "epsilon_base", "epsilon_evaluation"):
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
        unknown = self.replay_ratio is None and self.epsilon_steps
        require(not unknown, "replay_ratio", None, "a number: epsilon_steps are counted by the updates")


_EXPLORATION = ("epsilon", "epsilon_start")
"""Entries of an agent's state that only :attr:`~seedbed.types.Agent.explore` sets."""


def acting(
    settings: ExplorationSettings, model: QNetwork, *, anneals: bool
) -> tuple[
    Callable[..., tuple[ActOutput, Tree]],
    Callable[..., tuple[jax.Array, Tree]],
    Callable[[Tree, Exploration], Tree],
]:
    """``act``, ``mode`` and ``explore`` of an :class:`~seedbed.types.Agent` that takes the best action by its q-values,
    or any by chance.

    Its params are ``{"network": …}``, its state is :func:`initial_state`'s, its record is ``{"q": float32 [B, A]}``.

    Args:
      settings: the agent's settings.
      model: the network.
      anneals: whether the share of actions by chance sinks with ``params["steps"]``, float32 ``[]``.
    """

    def evaluate(params: Tree, timestep: TimeStep, state: Tree) -> tuple[jax.Array, Tree]:
        q, after = model.apply(params["network"], add_time(timestep), None, state)
        return q[0], after | {name: state[name] for name in _EXPLORATION if name in state}

    def act(params: Tree, key: jax.Array, timestep: TimeStep, state: Tree) -> tuple[ActOutput, Tree]:
        q, state = evaluate(params, timestep, state)
        epsilons = state["epsilon"]
        if anneals:
            epsilons = _annealed(settings, params, state["epsilon_start"], epsilons)
        action = jax.vmap(epsilon_greedy)(key, q, epsilons).astype(model.spec.action.dtype)
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
        state = state | {"epsilon": epsilons}
        if not anneals:
            return state
        start = jnp.where(exploration.evaluates, settings.epsilon_evaluation, settings.epsilon_start)
        return state | {"epsilon_start": start.astype(jnp.float32)}

    return act, mode, explore


def initial_state(model: QNetwork, batch: int, *, anneals: bool) -> Tree:
    """The state ``[B, ...]`` of :func:`acting` before the first step of an episode; it does not explore."""
    names = _EXPLORATION if anneals else _EXPLORATION[:1]
    return model.initial_state(batch) | {name: jnp.zeros(batch) for name in names}


def count_by_updates(settings: ValueBasedSettings) -> Callable[..., tuple[Tree, Unroll]] | None:
    """Returns ``prepare`` of an agent with a replay, which counts steps in ``params["steps"]``; None if it need not.

    Counted are the steps that filled the replay and those that each update stands for, by the replay ratio.
    """
    if not settings.epsilon_steps:
        return None

    def prepare(params: Tree, unroll: Unroll, last: Tree | None = None) -> tuple[Tree, Unroll]:
        del last
        before = jnp.maximum(params["steps"], settings.transitions_before_learning)
        return {**params, "steps": before + 1.0 / settings.updates_a_transition}, unroll

    return prepare


def initial_params(settings: ExplorationSettings, model: QNetwork, key: jax.Array) -> Tree:
    """The parameters before the first update: the network's and, if epsilon sinks by them, no steps yet."""
    return {"network": model.init(key)} | ({"steps": jnp.zeros(())} if settings.epsilon_steps else {})


def epsilon_metric(settings: ExplorationSettings, params: Tree) -> dict[str, jax.Array]:
    """The metric ``epsilon``: the first environment's share of actions by chance, if it sinks."""
    if "steps" not in params:
        return {}
    return {"epsilon": _annealed(settings, params, settings.epsilon_start, settings.epsilon_base)}


def _annealed(
    settings: ExplorationSettings, params: Tree, start: jax.Array | float, end: jax.Array | float
) -> jax.Array:
    """Returns the number on the way from ``start`` to ``end`` at which so many steps are."""
    way = jnp.clip(params["steps"] / settings.epsilon_steps, 0.0, 1.0) if settings.epsilon_steps else 1.0
    return jnp.asarray(start + way * (end - start))
