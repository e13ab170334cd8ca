"""The common part of all networks before their heads: frame stack, torso, optional core.

::

    newest frames ─ frame stack ─ torso ─┬─ [LSTM] ─ heads ─┬─ logits or q-values
    [previous action, previous reward] ──┘   [action mask] ──┘

All of it but the LSTM works on time and batch folded into one axis, in one call.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from seedbed.errors import ConfigError, cause_of
from seedbed.nets import frame_stack, recurrent
from seedbed.nets.build import build_torso
from seedbed.nets.network import AUTO, Network
from seedbed.nets.observations import as_read, read_part, spec_as_read
from seedbed.types import ACTION_MASK, ArraySpec, EnvSpec, TimeStep, Tree, leaves, map_leaves


class Inputs(NamedTuple):
    """The inputs of a network for T steps.

    Attributes:
      observation: tree of ``[T, B, ...]``, frames stacked.
      extras: previous action and reward, float32 ``[T, B, E]`` each, as far as they are inputs.
      first: bool ``[T, B]``.
      core: state of the core before the first step; empty if there is none.
      mask: action mask ``[T, B, P]``, which the layers do not see; None if there is none.
    """

    observation: Tree
    extras: list[jax.Array]
    first: jax.Array
    core: Tree
    mask: jax.Array | None

    def at(self, steps: jax.Array) -> Inputs:
        """Returns the inputs ``[1, B, ...]`` of one step for each row, int ``[B]``; there is no core."""

        def take(array: jax.Array) -> jax.Array:
            index = steps.reshape(1, -1, *(1,) * (array.ndim - 2))
            return jnp.take_along_axis(array, index, axis=0)

        return jax.tree.map(take, self._replace(core={}))._replace(core=self.core)


class Layers(nn.Module):
    """The part with weights; see the module's text."""

    torso: nn.Module
    heads: Callable[[jax.Array], Any]
    lstm: int

    @nn.compact
    def __call__(
        self, observation: Tree, extras: list[jax.Array], first: jax.Array, core: dict[str, jax.Array]
    ) -> tuple[Any, dict[str, jax.Array]]:
        """Returns the heads' outputs, and the state of the core after the last step; see :class:`Inputs`."""
        steps, batch = first.shape
        flat = map_leaves(lambda x: x.reshape(steps * batch, *x.shape[2:]), observation)
        features = self.torso(flat).reshape(steps, batch, -1)
        features = jnp.concatenate([features, *extras], axis=-1)
        if self.lstm:
            features, core = recurrent.LSTM(self.lstm)(features, first, core)
        return self.heads(features), core


@dataclass(frozen=True)
class Body(ABC):
    """A network of an agent; its subclasses define the outputs of the heads.

    The state ``[B, ...]`` is a dict with the needed ones of these entries (none for a plain MLP):
    ``action``, taken at the step before; ``frames``, of :mod:`seedbed.nets.frame_stack`; ``core``, of
    :mod:`seedbed.nets.recurrent`.

    Attributes:
      spec: spec of the environment.
      encode_action: ``[..., *action shape] -> float32 [..., E]``.
      network: torso and recurrent core.
      previous_action: whether the previous action is an input (zeros at the start of an episode).
      previous_reward: whether the previous reward is an input.
      previous_reward_clip: bound of its absolute value; 0 is off.
    """

    spec: EnvSpec
    encode_action: Callable[[jax.Array], jax.Array]
    network: Network = AUTO
    previous_action: bool = False
    previous_reward: bool = False
    previous_reward_clip: float = 1.0

    @abstractmethod
    def heads(self, features: jax.Array) -> Any:
        """Computes the outputs from features float32 ``[T, B, D]``; called where modules with weights can be made."""

    def masked(self, said: Any, mask: jax.Array) -> Any:
        """The outputs of the heads under an action mask ``[T, B, P]``, by :func:`seedbed.ops.masks.masked`."""
        raise ConfigError(
            f"{type(self).__name__} knows no action masks, and {self.spec.id} shows some: define its masked, by "
            "seedbed.ops.masked, or leave action_mask out of the observations"
        )

    @property
    def _shown(self) -> Tree:
        """Spec of the part of observations that is the network's to read."""
        return read_part(self.spec, self.spec.observation, self.network)

    @property
    def seen(self) -> Tree:
        """Spec of the observations as the torso reads them, frames stacked."""
        return frame_stack.stacked_spec(
            spec_as_read(self._shown, self.network.observations), self.spec.frame_stack
        )

    def _layers(self, heads: Callable[[jax.Array], Any]) -> Layers:
        return Layers(build_torso(self.network, self.seen), heads, self.network.lstm or 0)

    def module(self) -> nn.Module:
        """Returns the module with all weights, which is called as :class:`Layers` are."""
        return self._layers(self.heads)

    def initial_core(self, batch: int) -> Tree:
        """Returns the state ``[B, ...]`` of the core where an episode begins; empty if there is none."""
        return recurrent.initial_state(self.network.lstm or 0, batch)

    def check(self) -> None:
        """Tries the network on an observation, of which only the shapes are computed.

        Raises:
          ConfigError: it has an unknown name (see :func:`build_torso`), or does not fit the observation.
          SpecError: the action mask is none of these actions.
        """
        if not leaves(self._shown):
            raise ConfigError(
                f"{self.spec.id} shows an action mask and nothing else, and a network needs something to read: "
                "--mask-as-input lets it read the mask"
            )
        try:
            jax.eval_shape(self.init, jax.random.key(0))
        except ConfigError:
            raise
        except Exception as error:
            raise ConfigError(
                f"network {self.network.network!r} does not fit the observations of {self.spec.id}: {cause_of(error)}"
            ) from error

    def initial_state(self, batch: int) -> Tree:
        """The state before the first step of an episode."""
        state: dict[str, Tree] = {}
        if self.previous_action:
            action = self.spec.action
            state["action"] = jnp.zeros((batch, *action.shape), jax.dtypes.canonicalize_dtype(action.dtype))
        stack = frame_stack.initial_frames(self._shown, self.spec.frame_stack, batch)
        if stack:
            state["frames"] = stack
        if self.network.lstm:
            state["core"] = self.initial_core(batch)
        return state

    def init(self, key: jax.Array) -> Tree:
        """Fresh parameters."""
        return self.module().lazy_init(key, *self.example()[:-1])

    def example(self) -> Inputs:
        """Returns the shapes of the inputs of one step of one environment, ``[1, 1, ...]``.

        They are enough to make parameters, and keep the compiler from evaluating the network on a constant.
        """

        def inputs() -> Inputs:
            return self.inputs(_zeros_step(self.spec), None, self.initial_state(1))[0]

        shapes: Inputs = jax.eval_shape(inputs)
        return shapes

    def evaluate(self, params: Tree, inputs: Inputs) -> tuple[Any, Tree]:
        """Returns the heads' outputs for inputs ``[T, B, ...]``, and the state of the core after the last one.

        Logits and q-values of what the inputs' mask forbids are :data:`seedbed.ops.masks.FORBIDDEN`.
        """
        *read, mask = inputs
        said, core = self.module().apply(params, *read)
        return (said if mask is None else self.masked(said, mask)), core

    def run(
        self, params: Tree, timestep: TimeStep, actions: jax.Array | None, state: Tree
    ) -> tuple[Any, Tree]:
        """Evaluates T steps.

        Args:
          params: parameters as from :meth:`init`.
          timestep: ``[T, B, ...]``.
          actions: ``[T - 1, B, *action shape]``, taken between the steps; None if T is 1.
          state: ``[B, ...]`` before step 0.

        Returns:
          The heads' outputs for every step, and the state after the last one, whose ``action`` is for the caller to set
          (:meth:`with_action`).
        """
        inputs, after = self.inputs(timestep, actions, state)
        said, core = self.evaluate(params, inputs)
        return said, after | ({"core": core} if self.network.lstm else {})

    def with_action(self, state: Tree, action: jax.Array) -> Tree:
        """The state with the action ``[B, *action shape]`` that was chosen in it."""
        return state | ({"action": action} if self.previous_action else {})

    def inputs(
        self, timestep: TimeStep, actions: jax.Array | None, state: Tree
    ) -> tuple[Inputs, dict[str, Tree]]:
        """Returns the network's inputs, and the new state as far as it needs no weights; as for :meth:`run`."""
        first = timestep.first
        shown = read_part(self.spec, timestep.observation, self.network)
        observation, stack = frame_stack.stack_observation(
            state.get("frames", {}), shown, first, self.spec.frame_stack
        )
        observation = as_read(self._shown, observation, self.network.observations)
        mask = None if self.spec.action_mask is None else timestep.observation[ACTION_MASK]
        extras = []
        if self.previous_action:
            previous = state["action"][None]
            if actions is not None:
                previous = jnp.concatenate([previous, actions.astype(previous.dtype)])
            extras.append(jnp.where(first[..., None], 0.0, self.encode_action(previous)))
        if self.previous_reward:
            most = self.previous_reward_clip
            reward = jnp.clip(timestep.reward, -most, most) if most else timestep.reward
            extras.append(jnp.where(first, 0.0, reward)[..., None])
        inputs = Inputs(observation, extras, first, state.get("core", {}), mask)
        return inputs, ({"frames": stack} if stack else {})


def _zeros_step(spec: EnvSpec) -> TimeStep:
    """A step ``[1, 1, ...]`` of zeros, to make parameters with."""

    def zeros(leaf: ArraySpec) -> jax.Array:
        return jnp.zeros((1, 1, *leaf.shape), jax.dtypes.canonicalize_dtype(leaf.dtype))

    never = jnp.zeros((1, 1), bool)
    return TimeStep(map_leaves(zeros, spec.observation), jnp.zeros((1, 1)), never, never, ~never)
