"""Q-values: their errors, double Q-learning, and values on a scale that needs no clipped rewards.

Every function takes one trajectory, time first, and the caller vmaps over the batch; ends of episodes are told by
``discounts`` and ``valid`` as in :mod:`seedbed.ops.returns`.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax

from seedbed.ops.checks import check_time_major
from seedbed.ops.returns import gae, n_step


def rescaled(values: jax.Array, epsilon: float) -> jax.Array:
    """``h(x) = sign(x) (sqrt(|x| + 1) - 1) + epsilon x`` (Pohlen et al. 2018, proposition A.2); an epsilon of 0 or
    less leaves values as they are. Any shape."""
    if epsilon <= 0:
        return values
    return jnp.sign(values) * (jnp.sqrt(jnp.abs(values) + 1.0) - 1.0) + epsilon * values


def in_rewards(values: jax.Array, epsilon: float) -> jax.Array:
    """The inverse of :func:`rescaled`: values in units of rewards.

    ::

        h^-1(x) = sign(x) (((sqrt(1 + 4 epsilon (|x| + 1 + epsilon)) - 1) / (2 epsilon))^2 - 1)

    The difference in it is taken as a quotient: in float32 it would lose all digits for a small epsilon.
    """
    if epsilon <= 0:
        return values
    size = jnp.abs(values)
    inside = 4.0 * epsilon * (size + 1.0 + epsilon)
    root = inside / (jnp.sqrt(1.0 + inside) + 1.0) / (2.0 * epsilon)
    return jnp.sign(values) * (jnp.square(root) - 1.0)


def of_actions(q: jax.Array, actions: jax.Array) -> jax.Array:
    """The values ``[...]`` that ``q [..., A]`` gives to the actions ``[...]``."""
    return jnp.take_along_axis(q, actions[..., None].astype(jnp.int32), axis=-1)[..., 0]


def td_errors(
    q: jax.Array,
    target_q: jax.Array,
    actions: jax.Array,
    discounts: jax.Array,
    rewards: jax.Array,
    valid: jax.Array,
    *,
    n: int,
    double: bool = True,
    rescale: float = 0.0,
) -> jax.Array:
    """Returns errors of values against their n-step targets (R2D2, Kapturowski et al. 2019, section 2.3)::

        target_t = h(r_t + ... + gamma^n h^-1(q_target(x_{t+n}, a*)))
        a*       = argmax_a q(x_{t+n}, a)         (double Q-learning, van Hasselt et al. 2016; else q_target's own)
        error_t  = target_t - q(x_t, a_t)

    Args:
      q: float ``[T + 1, A]``, on the scale of :func:`rescaled`; the last one only bootstraps.
      target_q: float ``[T + 1, A]``, values by the target parameters.
      actions: int ``[T]``, taken.
      discounts, rewards, valid: ``[T]``, see :func:`seedbed.ops.returns.n_step`.
      n: steps.
      double: whether ``q`` chooses the action whose value ``target_q`` tells.
      rescale: epsilon of h; 0: values are in units of rewards.

    Returns:
      float ``[T]``, 0 at invalid transitions; the gradient is that of ``-q(x_t, a_t)``.

    Raises:
      SpecError: shapes do not fit, when traced.
    """
    check_time_major(actions=actions, discounts=discounts, rewards=rewards, valid=valid)
    best = jnp.argmax(q if double else target_q, axis=-1)
    values = in_rewards(of_actions(target_q, best), rescale)
    targets = rescaled(n_step(discounts, rewards, values, valid, n=n), rescale)
    return jnp.where(valid, lax.stop_gradient(targets) - of_actions(q[:-1], actions), 0.0)


def q_lambda(
    q: jax.Array, discounts: jax.Array, rewards: jax.Array, valid: jax.Array, *, lambda_: float
) -> jax.Array:
    """Returns of Q(lambda), without correction for actions by chance (Peng and Williams 1996; Gallici et al. 2024).

    ::

        G_t = r_t + gamma_t ((1 - lambda) max_a q(x_{t+1}, a) + lambda G_{t+1}),    G_T = max_a q(x_T, a)

    ``lambda_`` 0 is the return of one step, 1 that of all steps that follow, bootstrapped at the end. At an invalid
    transition ``G_t = max_a q(x_t, a)``, which is the bootstrap of a truncated episode.

    Args:
      q: float ``[T + 1, A]``; the last one only bootstraps.
      discounts: float ``[T]``, 0 where the transition ended in a termination.
      rewards: float ``[T]``, of the transitions.
      valid: bool ``[T]``, False where the transition leads into a new episode.
      lambda_: mixes bootstraps of all lengths, in [0, 1].

    Returns:
      float ``[T]``; gradients are stopped.

    Raises:
      SpecError: shapes do not fit, when traced.
    """
    values = lax.stop_gradient(jnp.max(q, axis=-1))
    # In terms of errors against values it is the recursion of generalized advantages.
    return values[:-1] + gae(discounts, rewards, values, valid, lambda_=lambda_)
