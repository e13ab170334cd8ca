"""Dense layers against Flax's."""

import flax.linen as nn
import jax
import numpy as np
import pytest

from seedbed.nets.dense import Dense


@pytest.mark.parametrize("inputs, size", [(7, 3), (3, 7), (64, 64), (80, 72)], ids=str)
def test_weights_outputs_and_gradients_are_those_of_flax(inputs: int, size: int) -> None:
    """Narrow layers, whose gradient is taken the other way round, and others."""
    rows = jax.random.normal(jax.random.key(0), (11, inputs))
    init = nn.initializers.orthogonal(1.5)
    ours, flax = Dense(size, init), nn.Dense(size, kernel_init=init)
    weights = flax.init(jax.random.key(1), rows)
    jax.tree.map(np.testing.assert_array_equal, weights, ours.init(jax.random.key(1), rows))
    weights = jax.tree.map(lambda leaf: leaf + 0.1, weights)

    def total(module: nn.Module, weights: object, rows: jax.Array) -> jax.Array:
        return jax.numpy.sum(jax.numpy.sin(module.apply(weights, rows)))

    for argument in (1, 2):
        got, needed = (
            jax.jit(jax.value_and_grad(total, argument), static_argnums=0)(module, weights, rows)
            for module in (ours, flax)
        )
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-5, atol=1e-5), got, needed)
