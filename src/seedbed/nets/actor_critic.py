"""The network of an actor-critic: policy and value heads on a body.

::

    body ─┬─ policy parameters
          └─ value
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import flax.linen as nn
import jax

from seedbed.nets.body import Body
from seedbed.nets.heads import Head, outputs
from seedbed.ops.batches import add_time
from seedbed.ops.distributions import Distribution
from seedbed.types import ActOutput, TimeStep, Tree


@dataclass(frozen=True, kw_only=True)
class ActorCritic(Body):
    """Policy parameters and values of every step of a piece of experience.

    Attributes:
      num_params: P, of the action distribution.
    """

    num_params: int

    def _heads(self, features: jax.Array) -> tuple[jax.Array, jax.Array]:
        # Nearly equal logits at the start: the first policy explores everything.
        policy_head = Head(self.num_params, nn.initializers.orthogonal(0.01), name="policy")
        value_head = Head(1, nn.initializers.orthogonal(1.0), name="value")
        size = features.shape[-1]
        policy, value = outputs(features, [policy_head(size), value_head(size)])
        return policy, value[..., 0]

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
    """``act`` and ``mode`` of an :class:`~seedbed.types.Agent` whose policy is the model's.

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
