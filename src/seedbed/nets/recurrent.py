"""Recurrent cores, the memory of networks. Time-major, reset where an episode begins."""

from __future__ import annotations

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import lax

from seedbed.nets.initializers import fan_in_normal


def _forget_bias(size: int) -> nn.initializers.Initializer:
    """Makes zeros, and 1 for the forget gate: a fresh memory keeps its contents (Jozefowicz et al. 2015)."""

    def init(key: jax.Array, shape: tuple[int, ...], dtype: jnp.dtype = jnp.float32) -> jax.Array:  # type: ignore[assignment]
        return jnp.zeros(shape, dtype).at[size : 2 * size].set(1.0)

    return init


class LSTM(nn.Module):
    """A long short-term memory (Hochreiter and Schmidhuber 1997, with forget gates).

    The input's share of the gates is one matrix product over all of time; the loop over time holds the
    recurrent product alone, and never a convolution, which XLA's CPU backend runs tens of times slower inside
    a loop.

    Attributes:
      size: H, of the hidden state and of the cell.
    """

    size: int

    @nn.compact
    def __call__(
        self, inputs: jax.Array, first: jax.Array, state: dict[str, jax.Array]
    ) -> tuple[jax.Array, dict[str, jax.Array]]:
        """Runs over time.

        Args:
          inputs: float32 ``[T, B, D]``.
          first: bool ``[T, B]``; where True, the state is zeroed *before* the step.
          state: ``{"cell", "hidden"}``, float32 ``[B, H]``, before the first step.

        Returns:
          Outputs float32 ``[T, B, H]`` and the state after the last step.
        """
        width = 4 * self.size
        gates = nn.Dense(width, kernel_init=fan_in_normal, bias_init=_forget_bias(self.size))(inputs)
        recurrent = self.param("recurrent", nn.initializers.orthogonal(), (self.size, width))

        def step(
            carry: tuple[jax.Array, jax.Array], at: tuple[jax.Array, jax.Array]
        ) -> tuple[tuple[jax.Array, jax.Array], jax.Array]:
            gate, fresh = at
            cell, hidden = (jnp.where(fresh[:, None], 0.0, array) for array in carry)
            enter, forget, new, leave = jnp.split(gate + hidden @ recurrent, 4, axis=-1)
            cell = nn.sigmoid(forget) * cell + nn.sigmoid(enter) * nn.tanh(new)
            hidden = nn.sigmoid(leave) * nn.tanh(cell)
            return (cell, hidden), hidden

        (cell, hidden), outputs = lax.scan(step, (state["cell"], state["hidden"]), (gates, first))
        return outputs, {"cell": cell, "hidden": hidden}


def initial_state(size: int, batch: int) -> dict[str, jax.Array]:
    """The state of an :class:`LSTM` at the start of an episode: zeros ``[batch, size]``."""
    return {"cell": jnp.zeros((batch, size)), "hidden": jnp.zeros((batch, size))}
