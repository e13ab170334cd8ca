"""A model of the environment in states of its own: a representation, dynamics, and predictions.

::

    observation ── body ── dense ── state_0                                       (representation)
    state_k, action ── dense ─┬─ state_{k+1}                                      (dynamics)
                              └─ reward
    state_k ── dense ─┬─ policy                                                   (prediction)
                      └─ value

A state is a vector in [0, 1]. Convolutions are in the representation alone: the dynamics run inside of loops, in which
XLA's CPU backend would take tens of times as long for them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from seedbed.nets.body import Body, Inputs
from seedbed.nets.heads import Head, outputs
from seedbed.nets.initializers import RELU_INIT
from seedbed.nets.torsos import MLP, relu
from seedbed.ops.masks import masked
from seedbed.types import Tree

_SMALL_INIT = nn.initializers.orthogonal(0.1)
"""Small at first: policies are nearly uniform, values and rewards nearly 0."""


def unit(states: jax.Array) -> jax.Array:
    """Scales each state ``[..., S]`` to [0, 1] (Schrittwieser et al. 2020, appendix G); equal numbers become 0."""
    least = jnp.min(states, axis=-1, keepdims=True)
    return (states - least) / (jnp.max(states, axis=-1, keepdims=True) - least + 1e-5)


@dataclass(frozen=True, kw_only=True)
class Representation(Body):
    """States of observations.

    Attributes:
      size: S, numbers of a state.
    """

    size: int

    def heads(self, features: jax.Array) -> jax.Array:
        """Returns latent states float32 ``[T, B, size]``."""
        head = Head(self.size, RELU_INIT, name="state")(features.shape[-1])
        return unit(outputs(features, [head])[0])

    def masked(self, said: jax.Array, mask: jax.Array) -> jax.Array:
        """Returns the states as they are: a mask is for the policy at the root of a search alone."""
        del mask
        return said


class _Dynamics(nn.Module):
    """The next state ``[N, S]`` and the reward's logits ``[N, bins]`` of states and one-hot actions ``[N, A]``."""

    hidden: int
    bins: int

    @nn.compact
    def __call__(self, states: jax.Array, actions: jax.Array) -> tuple[jax.Array, jax.Array]:
        features = MLP((self.hidden,), relu)(jnp.concatenate([states, actions], axis=-1))
        change = Head(states.shape[-1], RELU_INIT, name="state")(self.hidden)
        reward = Head(self.bins, _SMALL_INIT, name="reward")(self.hidden)
        changes, rewards = outputs(features, [change, reward])
        return unit(states + changes), rewards


class _Prediction(nn.Module):
    """Logits of the policy ``[N, A]`` and of the value ``[N, bins]`` of states ``[N, S]``."""

    hidden: int
    num_actions: int
    bins: int

    @nn.compact
    def __call__(self, states: jax.Array) -> tuple[jax.Array, jax.Array]:
        features = MLP((self.hidden,), relu)(states)
        policy = Head(self.num_actions, _SMALL_INIT, name="policy")(self.hidden)
        value = Head(self.bins, _SMALL_INIT, name="value")(self.hidden)
        logits, values = outputs(features, [policy, value])
        return logits, values


class Predicted(NamedTuple):
    """Predictions of states.

    Attributes:
      policy: float32 ``[..., A]``, logits.
      value: float32 ``[..., bins]``, logits.
    """

    policy: jax.Array
    value: jax.Array


@dataclass(frozen=True)
class LatentModel:
    """The three networks; params are ``representation``, ``dynamics`` and ``prediction``.

    Attributes:
      representation: the network that reads observations.
      num_actions: A.
      hidden: size of the dense layer in dynamics and prediction, each.
      bins: points of the distributions of rewards and values.
    """

    representation: Representation
    num_actions: int
    hidden: int
    bins: int

    @property
    def _dynamics(self) -> _Dynamics:
        return _Dynamics(self.hidden, self.bins)

    @property
    def _prediction(self) -> _Prediction:
        return _Prediction(self.hidden, self.num_actions, self.bins)

    def init(self, key: jax.Array) -> Tree:
        """Returns fresh parameters."""
        keys = jax.random.split(key, 3)
        states, actions = jnp.zeros((1, self.representation.size)), jnp.zeros((1, self.num_actions))
        return {
            "representation": self.representation.init(keys[0]),
            "dynamics": self._dynamics.init(keys[1], states, actions),
            "prediction": self._prediction.init(keys[2], states),
        }

    def represent(self, params: Tree, inputs: Inputs) -> jax.Array:
        """Computes the states ``[T, B, S]`` of inputs ``[T, B, ...]``."""
        return jnp.asarray(self.representation.evaluate(params["representation"], inputs)[0])

    def allowed(self, inputs: Inputs, logits: jax.Array) -> jax.Array:
        """Returns the policy's logits ``[T, B, A]`` of observed states, under the inputs' action mask."""
        return logits if inputs.mask is None else masked(logits, inputs.mask, (self.num_actions,))

    def step(self, params: Tree, states: jax.Array, actions: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Computes the next states ``[N, S]`` and the rewards' logits ``[N, bins]`` of actions, int ``[N]``."""
        hots = jax.nn.one_hot(actions, self.num_actions)
        states, rewards = self._dynamics.apply(params["dynamics"], states, hots)
        return jnp.asarray(states), jnp.asarray(rewards)

    def predict(self, params: Tree, states: jax.Array) -> Predicted:
        """Predicts policies and values of states ``[..., S]``."""
        flat = states.reshape(-1, states.shape[-1])
        found: tuple[jax.Array, ...] = self._prediction.apply(params["prediction"], flat)  # type: ignore[assignment]
        return Predicted(*(each.reshape(*states.shape[:-1], each.shape[-1]) for each in found))


def scale_gradient(array: jax.Array, share: float) -> jax.Array:
    """Returns the array; a share of its gradient goes through."""
    return share * array + (1 - share) * jax.lax.stop_gradient(array)
