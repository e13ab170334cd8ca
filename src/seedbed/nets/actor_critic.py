"""The network of an actor-critic: policy and value heads on a body.

::

    body ─┬─ policy parameters            body ─── policy parameters
          └─ value                        body ─── value
          (shared)                        (each has its own)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import flax.linen as nn
import jax
import jax.numpy as jnp

from seedbed.nets.body import Body, Layers
from seedbed.nets.heads import Free, Head, outputs
from seedbed.ops.batches import add_time
from seedbed.ops.distributions import Distribution
from seedbed.ops.masks import masked
from seedbed.types import ActOutput, TimeStep, Tree


class Apart(nn.Module):
    """Policy and value with layers of their own."""

    policy: Layers
    value: Layers

    def __call__(
        self, observation: Tree, extras: list[jax.Array], first: jax.Array, core: Tree
    ) -> tuple[tuple[jax.Array, jax.Array], Tree]:
        """Policy parameters and values, and the states of both cores after the last step."""
        policy, of_policy = self.policy(observation, extras, first, core.get("policy", {}))
        value, of_value = self.value(observation, extras, first, core.get("value", {}))
        return (policy, value), {"policy": of_policy, "value": of_value}


@dataclass(frozen=True, kw_only=True)
class ActorCritic(Body):
    """Policy parameters and values of every step of a piece of experience.

    Attributes:
      num_params: P, of the action distribution.
      num_free: policy parameters, the last ones, that are the same in every state.
      own_value: whether the value has a body of its own.
    """

    num_params: int
    num_free: int = 0
    own_value: bool = False

    def module(self) -> nn.Module:
        """Returns one stack of layers, or two beside each other if the value has its own."""
        if not self.own_value:
            return self._layers(self.heads)
        return Apart(self._layers(self._policy), self._layers(self._value))

    def initial_core(self, batch: int) -> Tree:
        """Returns the state ``[B, ...]`` of the cores where an episode begins."""
        one = super().initial_core(batch)
        return {"policy": one, "value": one} if self.own_value else one

    def heads(self, features: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Returns the policy's parameters ``[T, B, P]`` and values ``[T, B]``, float32."""
        weights = [head(features.shape[-1]) for head in (self._policy_head(), self._value_head())]
        policy, value = outputs(features, weights)
        return self._with_free(policy), value[..., 0]

    def _policy(self, features: jax.Array) -> jax.Array:
        return self._with_free(outputs(features, [self._policy_head()(features.shape[-1])])[0])

    def _value(self, features: jax.Array) -> jax.Array:
        return outputs(features, [self._value_head()(features.shape[-1])])[0][..., 0]

    def masked(self, said: tuple[jax.Array, jax.Array], mask: jax.Array) -> tuple[jax.Array, jax.Array]:
        """See :class:`~seedbed.nets.body.Body`."""
        policy, value = said
        return masked(policy, mask, self.spec.action.num_values), value

    def _policy_head(self) -> Head:
        # Nearly equal logits at the start: the first policy explores everything.
        return Head(self.num_params - self.num_free, nn.initializers.orthogonal(0.01), name="policy")

    def _value_head(self) -> Head:
        return Head(1, nn.initializers.orthogonal(1.0), name="value")

    def _with_free(self, policy: jax.Array) -> jax.Array:
        if not self.num_free:
            return policy
        free = Free(self.num_free, name="free")()
        return jnp.concatenate([policy, jnp.broadcast_to(free, (*policy.shape[:-1], self.num_free))], axis=-1)

    def apply(
        self, params: Tree, timestep: TimeStep, actions: jax.Array | None, state: Tree
    ) -> tuple[jax.Array, jax.Array, Tree]:
        """Policy parameters float32 ``[T, B, P]``, values float32 ``[T, B]``, and the state: see :meth:`run`."""
        (policy, value), after = self.run(params, timestep, actions, state)
        return policy, value, after


def acting(
    model: ActorCritic,
    distribution: Distribution,
    read: Callable[[Tree, TimeStep], tuple[Tree, TimeStep]] = lambda params, timestep: (
        params["network"],
        timestep,
    ),
    tell_values: bool = False,
) -> tuple[Callable[..., tuple[ActOutput, Tree]], Callable[..., tuple[jax.Array, Tree]]]:
    """Makes ``act`` and ``mode`` of an :class:`~seedbed.types.Agent` whose policy is the model's.

    Args:
      model: the network.
      distribution: distribution of the actions.
      read: function of the agent's params and a step to the network's params and the step as the network sees it.
      tell_values: whether the record has the network's values too.
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
