"""Heads against dense layers of their own."""

from functools import partial
from operator import itemgetter

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from seedbed.nets.heads import Head, outputs


class Several(nn.Module):
    @nn.compact
    def __call__(self, features: jax.Array) -> list[jax.Array]:
        size = features.shape[-1]
        first = Head(3, nn.initializers.orthogonal(0.5), name="first")(size)
        second = Head(1, nn.initializers.orthogonal(2.0), name="second")(size)
        third = Head(2, nn.initializers.orthogonal(1.0), name="third")(size)
        return outputs(features, [first, second, third])


class Dense(nn.Module):
    @nn.compact
    def __call__(self, features: jax.Array) -> list[jax.Array]:
        first = nn.Dense(3, kernel_init=nn.initializers.orthogonal(0.5), name="first")(features)
        second = nn.Dense(1, kernel_init=nn.initializers.orthogonal(2.0), name="second")(features)
        third = nn.Dense(2, kernel_init=nn.initializers.orthogonal(1.0), name="third")(features)
        return [first, second, third]


def test_weights_outputs_and_gradients_are_those_of_dense_layers() -> None:
    features = jax.random.normal(jax.random.key(0), (5, 4, 7))
    weights = Dense().init(jax.random.key(1), features)
    same = jax.tree.map(np.testing.assert_array_equal, weights, Several().init(jax.random.key(1), features))
    assert len(jax.tree.leaves(same, is_leaf=lambda leaf: leaf is None)) == 6
    # No bias and no output may be taken for another's.
    weights = jax.tree.map(lambda leaf: leaf + jnp.arange(leaf.size).reshape(leaf.shape) / 10, weights)

    def total(module: nn.Module, weights: object, features: jax.Array) -> tuple[jax.Array, list[jax.Array]]:
        found = module.apply(weights, features)
        return sum((i + 1) * jnp.sum(jnp.sin(part)) for i, part in enumerate(found)), found

    for module in (Several(), Dense()):
        assert [part.shape for part in module.apply(weights, features)] == [(5, 4, 3), (5, 4, 1), (5, 4, 2)]
    got, needed = (
        jax.jit(jax.value_and_grad(total, argnums=(1, 2), has_aux=True), static_argnums=0)(
            module, weights, features
        )
        for module in (Several(), Dense())
    )
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-5, atol=1e-5), got, needed)


def test_many_agents_at_once() -> None:
    """``vmap`` over weights and features, as for agents side by side."""
    features = jax.random.normal(jax.random.key(0), (2, 5, 7))
    weights = jax.vmap(Several().init)(jax.random.split(jax.random.key(1), 2), features)

    def gradient(weights: object, features: jax.Array) -> object:
        return jax.grad(lambda w: sum(jnp.sum(jnp.square(part)) for part in Several().apply(w, features)))(
            weights
        )

    together = jax.vmap(gradient)(weights, features)
    alone = [gradient(jax.tree.map(itemgetter(i), weights), features[i]) for i in range(2)]
    stacked = jax.tree.map(lambda *rows: jnp.stack(rows), *alone)
    jax.tree.map(partial(np.testing.assert_allclose, rtol=2e-5, atol=1e-5), together, stacked)
