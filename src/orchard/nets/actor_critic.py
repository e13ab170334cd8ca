"""The network of an actor-critic: frame stack, torso, optional core, policy and value heads.

::

    newest frames ─ frame stack ─ torso ─┬─ [LSTM] ─┬─ policy parameters
    [previous action, previous reward] ──┘          └─ value

All of it but the LSTM works on time and batch folded into one axis, in one call.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from orchard.errors import ConfigError, cause_of
from orchard.nets import frames, recurrent
from orchard.nets.build import build_torso
from orchard.nets.heads import Head, outputs
from orchard.ops.batches import add_time
from orchard.ops.distributions import Distribution
from orchard.types import ActOutput, ArraySpec, EnvSpec, TimeStep, Tree, map_leaves


class _Network(nn.Module):
    """The part with weights; see the module's text."""

    torso: nn.Module
    num_params: int
    lstm: int

    @nn.compact
    def __call__(
        self, observation: Tree, extras: list[jax.Array], first: jax.Array, core: dict[str, jax.Array]
    ) -> tuple[jax.Array, jax.Array, dict[str, jax.Array]]:
        steps, batch = first.shape
        flat = map_leaves(lambda x: x.reshape(steps * batch, *x.shape[2:]), observation)
        features = self.torso(flat).reshape(steps, batch, -1)
        features = jnp.concatenate([features, *extras], axis=-1)
        if self.lstm:
            features, core = recurrent.LSTM(self.lstm)(features, first, core)
        # Nearly equal logits at the start: the first policy explores everything.
        policy_head = Head(self.num_params, nn.initializers.orthogonal(0.01), name="policy")
        value_head = Head(1, nn.initializers.orthogonal(1.0), name="value")
        size = features.shape[-1]
        policy, value = outputs(features, [policy_head(size), value_head(size)])
        return policy, value[..., 0], core


@dataclass(frozen=True)
class ActorCritic:
    """Policy parameters and values of every step of a piece of experience.

    The state ``[B, ...]`` is a dict with those of these entries that are needed (none for a plain MLP):
    ``action``, taken at the step before; ``frames``, of :mod:`orchard.nets.frames`; ``core``, of
    :mod:`orchard.nets.recurrent`.

    Attributes:
      spec: of the environment.
      num_params: P, of the action distribution.
      encode_action: ``[..., *action shape] -> float32 [..., E]``.
      network, hidden: see :func:`orchard.nets.build.build_torso`.
      lstm: size of the recurrent core; 0 for none.
      previous_action: whether the previous action is an input (zeros at the start of an episode).
      previous_reward: whether the previous reward, clipped to [-1, 1], is an input.
    """

    spec: EnvSpec
    num_params: int
    encode_action: Callable[[jax.Array], jax.Array]
    network: str = "auto"
    hidden: tuple[int, ...] = ()
    lstm: int = 0
    previous_action: bool = False
    previous_reward: bool = False

    def _module(self) -> _Network:
        seen = frames.stacked_spec(self.spec.observation, self.spec.frame_stack)
        return _Network(build_torso(self.network, seen, self.hidden), self.num_params, self.lstm)

    def check(self) -> None:
        """Tries the network on an observation, of which only the shapes are computed.

        Raises:
          ConfigError: it has an unknown name (see :func:`build_torso`), or does not fit the observation.
        """
        try:
            jax.eval_shape(self.init, jax.random.key(0))
        except ConfigError:
            raise
        except Exception as error:
            raise ConfigError(
                f"network {self.network!r} does not fit the observations of {self.spec.id}: {cause_of(error)}"
            ) from error

    def initial_state(self, batch: int) -> Tree:
        """The state before the first step of an episode."""
        state: dict[str, Tree] = {}
        if self.previous_action:
            action = self.spec.action
            state["action"] = jnp.zeros((batch, *action.shape), jax.dtypes.canonicalize_dtype(action.dtype))
        stack = frames.initial_frames(self.spec.observation, self.spec.frame_stack, batch)
        if stack:
            state["frames"] = stack
        if self.lstm:
            state["core"] = recurrent.initial_state(self.lstm, batch)
        return state

    def init(self, key: jax.Array) -> Tree:
        """Fresh parameters."""
        # Shapes are enough, and keep the compiler from evaluating the network on a constant.
        inputs = jax.eval_shape(lambda: self._inputs(_zeros_step(self.spec), None, self.initial_state(1))[0])
        return self._module().lazy_init(key, *inputs)

    def apply(
        self, params: Tree, timestep: TimeStep, actions: jax.Array | None, state: Tree
    ) -> tuple[jax.Array, jax.Array, Tree]:
        """Evaluates T steps.

        Args:
          params: of :meth:`init`.
          timestep: ``[T, B, ...]``.
          actions: ``[T - 1, B, *action shape]``, taken between the steps; None if T is 1.
          state: ``[B, ...]`` before step 0.

        Returns:
          Policy parameters float32 ``[T, B, P]``, values float32 ``[T, B]``, and the state after the last
          step, whose ``action`` is for the caller to set (:meth:`with_action`).
        """
        inputs, after = self._inputs(timestep, actions, state)
        outputs: Any = self._module().apply(params, *inputs)
        policy, value, core = outputs
        return policy, value, after | ({"core": core} if self.lstm else {})

    def with_action(self, state: Tree, action: jax.Array) -> Tree:
        """The state with the action ``[B, *action shape]`` that was chosen in it."""
        return state | ({"action": action} if self.previous_action else {})

    def _inputs(
        self, timestep: TimeStep, actions: jax.Array | None, state: Tree
    ) -> tuple[tuple[Tree, list[jax.Array], jax.Array, Tree], dict[str, Tree]]:
        """What the network reads, and the new state as far as no weights are needed for it."""
        first = timestep.first
        observation, stack = frames.stack_observation(
            state.get("frames", {}), timestep.observation, first, self.spec.frame_stack
        )
        extras = []
        if self.previous_action:
            previous = state["action"][None]
            if actions is not None:
                previous = jnp.concatenate([previous, actions.astype(previous.dtype)])
            extras.append(jnp.where(first[..., None], 0.0, self.encode_action(previous)))
        if self.previous_reward:
            reward = jnp.clip(timestep.reward, -1.0, 1.0)
            extras.append(jnp.where(first, 0.0, reward)[..., None])
        return (observation, extras, first, state.get("core", {})), ({"frames": stack} if stack else {})


def acting(
    model: ActorCritic,
    distribution: Distribution,
    read: Callable[[Tree, TimeStep], tuple[Tree, TimeStep]] = lambda params, timestep: (
        params["network"],
        timestep,
    ),
    tell_values: bool = False,
) -> tuple[Callable[..., tuple[ActOutput, Tree]], Callable[..., tuple[jax.Array, Tree]]]:
    """``act`` and ``mode`` of an :class:`~orchard.types.Agent` whose policy is the model's.

    Args:
      model: the network.
      distribution: of the actions.
      read: from the agent's params and a step to the network's params and the step as the network sees it.
      tell_values: whether the record has the values too, as the network says them.
    """

    def evaluate(params: Tree, timestep: TimeStep, state: Tree) -> tuple[jax.Array, jax.Array, Tree]:
        network, timestep = read(params, timestep)
        policy, value, state = model.apply(network, add_time(timestep), None, state)
        return policy[0], value[0], state

    def act(params: Tree, key: jax.Array, timestep: TimeStep, state: Tree) -> tuple[ActOutput, Tree]:
        policy, value, state = evaluate(params, timestep, state)
        action = jax.vmap(distribution.sample)(policy, key)
        record = {"policy": policy, "value": value} if tell_values else {"policy": policy}
        return ActOutput(action, record), model.with_action(state, action)

    def mode(params: Tree, timestep: TimeStep, state: Tree) -> tuple[jax.Array, Tree]:
        policy, _, state = evaluate(params, timestep, state)
        action = distribution.mode(policy)
        return action, model.with_action(state, action)

    return act, mode


def _zeros_step(spec: EnvSpec) -> TimeStep:
    """A step ``[1, 1, ...]`` of zeros, to make parameters with."""

    def zeros(leaf: ArraySpec) -> jax.Array:
        return jnp.zeros((1, 1, *leaf.shape), jax.dtypes.canonicalize_dtype(leaf.dtype))

    never = jnp.zeros((1, 1), bool)
    return TimeStep(map_leaves(zeros, spec.observation), jnp.zeros((1, 1)), never, never, ~never)
