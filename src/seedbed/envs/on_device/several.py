"""Agents of one native environment: rows of one shape, also where their spaces differ, and the leaf that names them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax.numpy as jnp

from seedbed.envs.on_device.interface import NativeEnvironment
from seedbed.envs.policies import KIND, kind_of, name_taken, unequal_kind
from seedbed.errors import ConfigError, listed
from seedbed.types import ACTION_MASK, AGENT_INDEX, ArraySpec, Tree


@dataclass(frozen=True)
class Together:
    """The spaces of all agents as one.

    Attributes:
      board: observation of each agent, without its mask: vectors that are too short get zeros at their end.
      action: action of each agent, the largest choice.
      choices: values of each agent's own choice; empty for actions that are none.
      masked: whether the environment says which actions are allowed.
      differ: description of the spaces in which agents differ; empty if they are equal.
      spaces: the number of each agent's spaces, the same for agents that have the same.
    """

    board: ArraySpec
    action: ArraySpec
    choices: tuple[int, ...]
    masked: bool
    differ: str
    spaces: tuple[int, ...]

    @property
    def _has_mask(self) -> bool:
        return self.masked or len(set(self.choices)) > 1

    @property
    def observation(self) -> Tree:
        """The observation of each agent."""
        if not self._has_mask:
            return self.board
        return {"observation": self.board, ACTION_MASK: ArraySpec((max(self.choices),), "bool")}

    def rows(self, observations: Sequence[Any], allowed: Sequence[Any] | None) -> Tree:
        """Returns the agents' observations as rows ``[N, ...]``, with masks of their actions if any is forbidden."""
        if len(self.board.shape) == 1:
            observations = [_longer(each, self.board.shape[0]) for each in observations]
        stacked = jnp.stack(observations)
        if not self._has_mask:
            return stacked
        masks = [jnp.ones(n, bool) for n in self.choices] if allowed is None else allowed
        most = max(self.choices)
        return {
            "observation": stacked,
            ACTION_MASK: jnp.stack([_longer(jnp.asarray(mask, bool), most) for mask in masks]),
        }

    def own_actions(self, actions: Any) -> list[Any]:
        """Returns each agent's own action, of rows ``[N, ...]``; of an agent that has ended it may be any."""
        if not self.choices:
            return list(actions)
        return [jnp.minimum(action, n - 1) for action, n in zip(actions, self.choices, strict=True)]


def _longer(vector: Any, size: int) -> Any:
    return jnp.pad(vector, (0, size - vector.shape[0]))


def together(
    env_id: str,
    observations: Sequence[ArraySpec],
    actions: Sequence[ArraySpec],
    agents: Sequence[str],
    *,
    masked: bool,
) -> Together:
    """Returns the spaces of all agents as one.

    Args:
      env_id: name of the environment, for messages.
      observations: of each agent.
      actions: of each agent.
      agents: names.
      masked: whether the environment says which of several choices are allowed.

    Raises:
      ConfigError: observations that are no vectors of reals differ, or actions that are no choices.
    """
    told = [
        f"{what} of its agents differ ({_kinds(specs, agents)})"
        for what, specs in (("observations", observations), ("actions", actions))
        if len(set(specs)) > 1
    ]
    vectors = all(len(spec.shape) == 1 and spec.dtype == "float32" for spec in observations)
    chosen = all(spec.num_values and spec.shape == () for spec in actions)
    if (len(set(observations)) > 1 and not vectors) or (len(set(actions)) > 1 and not chosen):
        raise ConfigError(
            f"{env_id}: {' and '.join(told)}; only vectors of reals and single choices of different length are taken"
        )
    spaces = [*zip(observations, actions, strict=True)]
    return Together(
        max(observations, key=lambda spec: spec.shape),
        max(actions, key=lambda spec: spec.num_values),
        tuple(spec.num_values[0] for spec in actions) if chosen else (),
        masked and chosen,
        " and ".join(told),
        tuple(map(spaces.index, spaces)),
    )


def _kinds(specs: Sequence[ArraySpec], agents: Sequence[str]) -> str:
    by_kind: dict[ArraySpec, list[str]] = {}
    for agent, spec in zip(agents, specs, strict=True):
        by_kind.setdefault(spec, []).append(agent)
    return "; ".join(
        f"{listed(names)}: {spec.dtype}{list(spec.num_values or spec.shape)}"
        for spec, names in by_kind.items()
    )


def telling(env: NativeEnvironment, policies: str) -> NativeEnvironment:
    """Returns the environment with a leaf in its observations that says which agent a row is.

    Args:
      env: the environment.
      policies: ``own``, or ``kind``, for which the spaces of a kind have to be equal.

    Raises:
      ConfigError: it has one agent, the name of the leaf is taken, or agents of one kind differ.
    """
    spec, count = env.spec, len(env.spec.agents)
    if not count:
        raise ConfigError(f"{spec.id} has one agent, with one policy: leave --policies out")
    if policies == KIND:
        found: dict[str, int] = {}
        for agent, space in zip(spec.agents, env.spaces or (0,) * count, strict=True):
            if found.setdefault(kind_of(agent), space) != space:
                raise unequal_kind(spec.id, kind_of(agent), env.differ)
    named = spec.observation if isinstance(spec.observation, dict) else {"observation": spec.observation}
    if AGENT_INDEX in named:
        raise name_taken(spec.id)

    def told(shown: Tree) -> Tree:
        parts = shown if isinstance(shown, dict) else {"observation": shown}
        return {**parts, AGENT_INDEX: jnp.arange(count, dtype=jnp.int32)}

    def reset(key: Any) -> tuple[Any, Tree]:
        world, shown = env.reset(key)
        return world, told(shown)

    def step(world: Any, key: Any, action: Any) -> tuple[Any, Tree, Any, Any]:
        world, shown, reward, terminated = env.step(world, key, action)
        return world, told(shown), reward, terminated

    observation = {**named, AGENT_INDEX: ArraySpec((), "int32", (count,))}
    return replace(env, spec=replace(spec, observation=observation), reset=reset, step=step)
