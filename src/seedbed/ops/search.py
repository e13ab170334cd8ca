"""Search in a tree by a learned model, with DeepMind's mctx.

Every row has a random key and a tree of its own, so that a decision does not depend on the rest of the batch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from types import ModuleType
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp

from seedbed.errors import ConfigError
from seedbed.installation import extra_line
from seedbed.ops.masks import is_forbidden

_TINY = 1e-30


class Node(NamedTuple):
    """What a model tells of states.

    Attributes:
      logits: float32 ``[B, A]``, of the policy; :data:`~seedbed.ops.masks.FORBIDDEN` where an action is forbidden.
      value: float32 ``[B]``.
      state: float32 ``[B, S]``, the states.
    """

    logits: jax.Array
    value: jax.Array
    state: jax.Array


class Found(NamedTuple):
    """The results of searches.

    Attributes:
      action: int32 ``[B]``, the chosen actions.
      policy: float32 ``[B, A]``, probabilities by a better policy than the model's.
      value: float32 ``[B]``, value of that policy, by the values that the search found for the actions it tried.
    """

    action: jax.Array
    policy: jax.Array
    value: jax.Array


Model = Callable[[jax.Array, jax.Array], tuple[jax.Array, Node]]
"""``(action [N], state [N, S]) -> (reward [N], node [N])``: one step."""


@dataclass(frozen=True)
class Search:
    """A way to search.

    Attributes:
      kind: ``gumbel``: draws a few actions without replacement and halves their number again and again; its policy is
        better than the model's for any number of simulations (Danihelka et al. 2022, *Policy improvement by planning
        with Gumbel*, sections 3 and 4). ``puct``: follows an upper bound of values, with noise at the root; its policy
        are shares of visits (Schrittwieser et al. 2020, appendix B).
      simulations: steps of the model.
      discount: value of a reward one step later (gamma).
      considered: gumbel: actions that are drawn.
      value_scale: gumbel: scale of values against logits (c_scale).
      rescale_values: gumbel: whether values are brought to [0, 1] among the actions of a state before that.
      root_uniform: gumbel: share of the uniform policy in the one at the root, if it explores.
      noise: puct: share of the noise in the policy at the root.
      noise_alpha: puct: parameter of that noise's Dirichlet distribution.
    """

    kind: Literal["gumbel", "puct"]
    simulations: int
    discount: float
    considered: int = 16
    value_scale: float = 0.1
    rescale_values: bool = True
    root_uniform: float = 0.0
    noise: float = 0.25
    noise_alpha: float = 0.3

    def run(
        self, keys: jax.Array, root: Node, model: Model, *, greedy: bool = False, explores: bool = True
    ) -> Found:
        """Searches from each root.

        Args:
          keys: random keys ``[B]``.
          root: the roots.
          model: the model.
          greedy: leave out all noise, and take the best action instead of drawing one.
          explores: change the policy at the root: by noise (``puct``), or by a share of the uniform policy (``gumbel``,
            which draws actions by noise anyway).
        """
        mctx = library()
        if self.kind == "gumbel" and self.root_uniform and explores and not greedy:
            root = root._replace(logits=_with_uniform(root.logits, self.root_uniform))

        def step(_: Any, key: jax.Array, action: jax.Array, state: jax.Array) -> tuple[Any, jax.Array]:
            del key
            reward, node = model(action, state)
            output = mctx.RecurrentFnOutput(
                reward=reward,
                discount=jnp.full_like(reward, self.discount),
                prior_logits=node.logits,
                value=node.value,
            )
            return output, node.state

        def one(key: jax.Array, root: Node) -> Found:
            logits, value, state = (leaf[None] for leaf in root)
            given = {
                "params": (),
                "rng_key": key,
                "root": mctx.RootFnOutput(prior_logits=logits, value=value, embedding=state),
                "recurrent_fn": step,
                "num_simulations": self.simulations,
                "invalid_actions": is_forbidden(logits),
            }
            found = self._policy(mctx, greedy, explores)(**given)
            tree = found.search_tree.summary()
            # Values are only known of what was tried.
            weights = jnp.where(tree.visit_counts > 0, found.action_weights, 0.0)
            weights /= jnp.maximum(jnp.sum(weights), _TINY)
            value = jnp.sum(weights * tree.qvalues)
            return Found(found.action[0].astype(jnp.int32), found.action_weights[0], value)

        return jax.vmap(one)(keys, root)

    def _policy(self, mctx: ModuleType, greedy: bool, explores: bool) -> Callable[..., Any]:
        if self.kind == "gumbel":
            return partial(
                mctx.gumbel_muzero_policy,
                qtransform=partial(
                    mctx.qtransform_completed_by_mix_value,
                    value_scale=self.value_scale,
                    rescale_values=self.rescale_values,
                ),
                max_num_considered_actions=self.considered,
                gumbel_scale=0.0 if greedy else 1.0,
            )
        return partial(
            mctx.muzero_policy,
            dirichlet_fraction=self.noise if explores and not greedy else 0.0,
            dirichlet_alpha=self.noise_alpha,
            temperature=0.0 if greedy else 1.0,
        )


def _with_uniform(logits: jax.Array, share: float) -> jax.Array:
    """Mixes policies with the uniform one of the actions that are allowed; returns logits ``[B, A]``."""
    allowed = ~is_forbidden(logits)
    uniform = allowed / jnp.maximum(jnp.sum(allowed, axis=-1, keepdims=True), 1)
    mixed = (1 - share) * jax.nn.softmax(logits) + share * uniform
    return jnp.where(allowed, jnp.log(mixed + _TINY), logits)


def library() -> ModuleType:
    """Imports mctx; raises :class:`ConfigError` if it is not installed."""
    try:
        import mctx
    except ImportError as error:
        raise ConfigError(f"muzero searches with mctx ({error}): {extra_line('muzero')}") from error
    module: ModuleType = mctx
    return module
