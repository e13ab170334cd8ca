"""The networks of a soft actor-critic: a policy, and critics that read actions too.

::

    body ─── policy parameters              observation, action ─ MLP ─── value            (dense layers alone)

                                            body ─┬─ dense, dense ─── value                (an image)
                                         action ──┘
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from seedbed.nets.body import Body, Inputs, Layers
from seedbed.nets.build import build_torso, is_mlp
from seedbed.nets.heads import Head, outputs
from seedbed.nets.initializers import RELU_INIT
from seedbed.types import ArraySpec, Tree

_BEHIND_AN_IMAGE = (256, 256)
"""Sizes of the dense layers that read the features of an image and the action."""


@dataclass(frozen=True, kw_only=True)
class Policy(Body):
    """Parameters of a distribution of actions.

    Attributes:
      num_params: P, of the distribution.
    """

    num_params: int

    def heads(self, features: jax.Array) -> jax.Array:
        """Returns the policy's parameters, float32 ``[T, B, P]``."""
        # Nearly 0 at the start: the first policy explores everything.
        head = Head(self.num_params, nn.initializers.orthogonal(0.01), name="policy")
        return outputs(features, [head(features.shape[-1])])[0]


class _SideBySide(nn.Module):
    """Several critics of the same inputs."""

    critics: tuple[Layers, ...]

    def __call__(
        self, observation: Tree, extras: list[jax.Array], first: jax.Array, core: dict[str, jax.Array]
    ) -> jax.Array:
        """Computes their values, float32 ``[critics, T, B]``."""
        return jnp.stack([critic(observation, extras, first, core)[0] for critic in self.critics])


@dataclass(frozen=True)
class Critics:
    """Values of observations and actions by several critics, each with layers of its own.

    Attributes:
      body: network whose observations and torso the critics have too.
      size: E, elements of an action.
      count: number of critics.
    """

    body: Body
    size: int
    count: int = 2

    @property
    def _reads_both_at_once(self) -> bool:
        return is_mlp(self.body.network, self.body.seen)

    def _module(self) -> nn.Module:
        seen = self.body.seen
        if self._reads_both_at_once:
            seen = {"action": ArraySpec((self.size,), "float32"), "observation": seen}
        network, head = self.body.network, self._value
        return _SideBySide(tuple(Layers(build_torso(network, seen), head, 0) for _ in range(self.count)))

    def _value(self, features: jax.Array) -> jax.Array:
        for index, size in enumerate(() if self._reads_both_at_once else _BEHIND_AN_IMAGE):
            dense = Head(size, RELU_INIT, name=f"hidden_{index}")
            features = nn.relu(outputs(features, [dense(features.shape[-1])])[0])
        # Small at first: what is bootstrapped from is nearly 0, whatever the rewards.
        head = Head(1, nn.initializers.orthogonal(0.1), name="value")
        return outputs(features, [head(features.shape[-1])])[0][..., 0]

    def _with(self, inputs: Inputs, elements: Any) -> Inputs:
        if self._reads_both_at_once:
            return inputs._replace(observation={"action": elements, "observation": inputs.observation})
        return inputs._replace(extras=[elements])

    def init(self, key: jax.Array) -> Tree:
        """Returns fresh parameters, other ones for each critic."""
        elements = jax.eval_shape(lambda: jnp.zeros((1, 1, self.size)))
        return self._module().lazy_init(key, *self._with(self.body.example(), elements)[:-1])

    def evaluate(self, params: Tree, inputs: Inputs, elements: jax.Array) -> jax.Array:
        """Computes the values ``[critics, T, B]`` of inputs ``[T, B, ...]`` and elements of actions ``[T, B, E]``."""
        return jnp.asarray(self._module().apply(params, *self._with(inputs, elements)[:-1]))

    def least(self, params: Tree, inputs: Inputs, elements: jax.Array) -> jax.Array:
        """Computes the smallest value of any critic, ``[T, B]``; see :meth:`evaluate`."""
        return jnp.min(self.evaluate(params, inputs, elements), axis=0)
