"""The network of a value-based agent: a value for each action, on a body.

::

    body ─┬─ dense ─ value ──────────┐
          └─ dense ─ advantages ─────┴─ q = value + advantages - their mean      (dueling)

    body ─── dense ─ q                                                           (not)
"""

from __future__ import annotations

from dataclasses import dataclass

import flax.linen as nn
import jax
import jax.numpy as jnp

from seedbed.errors import ConfigError
from seedbed.nets.body import Body
from seedbed.nets.heads import Head, outputs
from seedbed.nets.initializers import RELU_INIT
from seedbed.ops.masks import masked
from seedbed.types import ArraySpec, EnvSpec, TimeStep, Tree


@dataclass(frozen=True, kw_only=True)
class QNetwork(Body):
    """Q-values of every step of a piece of experience.

    Attributes:
      num_actions: A.
      dueling: whether value and advantages are told apart (Wang et al. 2016, equation 9).
      head_size: size of the dense layer before each head; 0: none, as where the torso ends with one.
    """

    num_actions: int
    dueling: bool = True
    head_size: int = 512

    def heads(self, features: jax.Array) -> jax.Array:
        """Returns the value of each action, float32 ``[T, B, A]``."""
        if not self.dueling:
            return self._head("q", self.num_actions, self._stream("q", features))
        value = self._head("value", 1, self._stream("value", features))
        # Its bias would be lost with the mean.
        advantages = self._head("advantage", self.num_actions, self._stream("advantage", features))
        return value + advantages - jnp.mean(advantages, axis=-1, keepdims=True)

    def masked(self, said: jax.Array, mask: jax.Array) -> jax.Array:
        """See :class:`~seedbed.nets.body.Body`."""
        return masked(said, mask, self.spec.action.num_values)

    def _stream(self, name: str, features: jax.Array) -> jax.Array:
        if not self.head_size:
            return features
        weights = Head(self.head_size, RELU_INIT, name=f"{name}_hidden")(features.shape[-1])
        return nn.relu(outputs(features, [weights])[0])

    def _head(self, name: str, size: int, features: jax.Array) -> jax.Array:
        # Small at first: what is bootstrapped from is nearly 0, whatever the rewards.
        weights = Head(size, nn.initializers.orthogonal(0.1), name=name)(features.shape[-1])
        return outputs(features, [weights])[0]

    def apply(
        self, params: Tree, timestep: TimeStep, actions: jax.Array | None, state: Tree
    ) -> tuple[jax.Array, Tree]:
        """Q-values float32 ``[T, B, A]``, and the state: see :meth:`run`."""
        q, after = self.run(params, timestep, actions, state)
        return q, after


def one_of(spec: EnvSpec, subject: str = "q-values are") -> int:
    """Returns the number of actions to choose one from; raises :class:`ConfigError` for other actions.

    Args:
      spec: spec of the environment.
      subject: the part that needs such a choice, for the error.
    """
    action: ArraySpec = spec.action
    if action.shape or len(action.num_values) != 1:
        raise ConfigError(
            f"actions of {spec.id} are {action.dtype}{list(action.shape)}, and {subject} for one choice among a "
            "few: use --agent ppo or vtrace"
        )
    return action.num_values[0]
