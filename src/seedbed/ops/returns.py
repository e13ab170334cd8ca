"""Returns: targets for the values of a trajectory, computed after the fact.

Every function takes one trajectory, time first, and the caller vmaps over the batch. ``values`` has one entry
more than there are transitions: ``values[t]`` and ``values[t + 1]`` are the ends of transition ``t``.

An episode can end inside a trajectory (see :class:`seedbed.types.TimeStep`). Two arrays say how:

* ``discounts[t]`` is 0 where step ``t + 1`` is terminated: nothing follows, so nothing is bootstrapped. At a
  truncation it keeps its value: the episode would have gone on from the final observation ``values[t + 1]``.
* ``valid[t]`` is False where step ``t + 1`` is the first of a new episode: that "transition" was not made by
  the environment's dynamics. Nothing is learned from it, and nothing flows back over it.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from seedbed.ops.checks import check_time_major


class VTraceReturns(NamedTuple):
    """Results of V-trace for one trajectory; constants as far as gradients are concerned.

    Attributes:
      targets: float32 ``[T]``, ``v_s``, targets of the values.
      advantages: float32 ``[T]``, ``rho_s (r_s + gamma v_{s+1} - V(x_s))``, weights of the policy gradient.
    """

    targets: jax.Array
    advantages: jax.Array


def backward_sum(increments: jax.Array, decays: jax.Array) -> jax.Array:
    """Solves ``y[t] = increments[t] + decays[t] * y[t + 1]`` with ``y[T] = 0``, all ``[T]``.

    It is a composition of affine maps, which is associative: log T steps instead of T on an accelerator.
    """

    def compose(
        later: tuple[jax.Array, jax.Array], earlier: tuple[jax.Array, jax.Array]
    ) -> tuple[jax.Array, jax.Array]:
        return earlier[0] * later[0], earlier[0] * later[1] + earlier[1]

    _, sums = lax.associative_scan(compose, (decays, increments), reverse=True)
    return jnp.asarray(sums)


def forward_sum(increments: jax.Array, decays: jax.Array, start: jax.Array) -> jax.Array:
    """Solves ``y[t] = increments[t] + decays[t] * y[t - 1]`` with ``y[-1] = start``, arrays ``[T]`` and ``[]``."""
    increments = increments.at[0].add(decays[0] * start)
    return jnp.flip(backward_sum(jnp.flip(increments), jnp.flip(decays)))


def vtrace(
    log_rhos: jax.Array,
    discounts: jax.Array,
    rewards: jax.Array,
    values: jax.Array,
    valid: jax.Array,
    *,
    lambda_: float = 1.0,
    clip_rho: float = 1.0,
    clip_c: float = 1.0,
    clip_pg_rho: float = 1.0,
) -> VTraceReturns:
    """V-trace targets and advantages (IMPALA, Espeholt et al. 2018, section 4.1, equation 1).

    ::

        v_s     = V(x_s) + sum_{t=s}^{T-1} (prod_{i=s}^{t-1} gamma_i c_i) delta_t
        delta_t = rho_t (r_t + gamma_t V(x_{t+1}) - V(x_t))
        rho_t   = min(rho_bar, pi(a_t|x_t) / mu(a_t|x_t))
        c_i     = lambda min(c_bar, pi(a_i|x_i) / mu(a_i|x_i))
        adv_s   = min(rho_pg, pi/mu) (r_s + gamma_s v_{s+1} - V(x_s))                        (section 4.2)

    ``lambda`` is that of remark 2. At an invalid transition ``rho = c = adv = 0``, hence ``v_s = V(x_s)``.

    Args:
      log_rhos: float ``[T]``, ``log pi(a|x) - log mu(a|x)`` of the target over the behaviour policy.
      discounts: float ``[T]``, 0 where the transition ended in a termination.
      rewards: float ``[T]``, of the transitions.
      values: float ``[T + 1]``, the last one bootstraps.
      valid: bool ``[T]``, False where the transition leads into a new episode.
      lambda_: mixes bootstraps of all lengths, in [0, 1].
      clip_rho: rho-bar, decides which policy's values are the fixed point.
      clip_c: c-bar, decides only how fast it is reached.
      clip_pg_rho: the clip of the weight in the policy gradient.

    Returns:
      :class:`VTraceReturns`; gradients are stopped.

    Raises:
      SpecError: shapes do not fit, when traced.
    """
    check_time_major(log_rhos=log_rhos, discounts=discounts, rewards=rewards, valid=valid)
    check_time_major(length=log_rhos.shape[0] + 1, values=values)
    # Before the exponential: an infinite ratio times a zero mask would be NaN.
    ratios = jnp.where(valid, jnp.exp(jnp.where(valid, log_rhos, 0.0)), 0.0)
    rhos = jnp.minimum(clip_rho, ratios)
    cs = lambda_ * jnp.minimum(clip_c, ratios)
    deltas = rhos * (rewards + discounts * values[1:] - values[:-1])
    targets = values[:-1] + backward_sum(deltas, discounts * cs)
    next_targets = jnp.concatenate([targets[1:], values[-1:]])
    advantages = jnp.minimum(clip_pg_rho, ratios) * (rewards + discounts * next_targets - values[:-1])
    return VTraceReturns(lax.stop_gradient(targets), lax.stop_gradient(advantages))


def gae(
    discounts: jax.Array, rewards: jax.Array, values: jax.Array, valid: jax.Array, *, lambda_: float
) -> jax.Array:
    """Generalized advantage estimates (Schulman et al. 2016, equation 16).

    ::

        A_t     = delta_t + gamma_t lambda A_{t+1},    A_T = 0
        delta_t = r_t + gamma_t V(x_{t+1}) - V(x_t)

    ``lambda_`` 1 is the return of all steps that follow, bootstrapped at the end (A3C's n-step advantage); 0 that of
    one step. At an invalid transition ``A = 0``, and nothing flows back over it. ``A_t + V(x_t)`` is the target of
    the value.

    Args:
      discounts: float ``[T]``, 0 where the transition ended in a termination.
      rewards: float ``[T]``, of the transitions.
      values: float ``[T + 1]``, the last one bootstraps.
      valid: bool ``[T]``, False where the transition leads into a new episode.
      lambda_: mixes bootstraps of all lengths, in [0, 1].

    Returns:
      float ``[T]``; gradients are stopped.

    Raises:
      SpecError: shapes do not fit, when traced.
    """
    check_time_major(discounts=discounts, rewards=rewards, valid=valid)
    check_time_major(length=discounts.shape[0] + 1, values=values)
    deltas = jnp.where(valid, rewards + discounts * values[1:] - values[:-1], 0.0)
    decays = jnp.where(valid, lambda_ * discounts, 0.0)
    return lax.stop_gradient(backward_sum(deltas, decays))


def n_step(
    discounts: jax.Array, rewards: jax.Array, values: jax.Array, valid: jax.Array, *, n: int
) -> jax.Array:
    """Returns of ``n`` steps, bootstrapped (Sutton 1988; Mnih et al. 2016, section 4.1).

    ::

        G_t = r_t + gamma_t r_{t+1} + ... + (gamma_t ... gamma_{t+n-1}) V(x_{t+n})

    The sum ends earlier where the trajectory does, or the episode: at its final observation, whose value counts if
    the episode was truncated (and has a discount of 0 if it was terminated). Returns of invalid transitions
    mean nothing.

    Args:
      discounts: float ``[T]``, 0 where the transition ended in a termination.
      rewards: float ``[T]``, rewards of the transitions.
      values: float ``[T + 1]``, values to bootstrap from.
      valid: bool ``[T]``, False where the transition leads into a new episode.
      n: steps, 1 or more.

    Returns:
      float ``[T]``; gradients are stopped.

    Raises:
      SpecError: shapes do not fit, when traced.
    """
    check_time_major(discounts=discounts, rewards=rewards, valid=valid)
    check_time_major(length=discounts.shape[0] + 1, values=values)
    returns = values
    for _ in range(n):
        longer = jnp.where(valid, rewards + discounts * returns[1:], values[:-1])
        returns = jnp.concatenate([longer, values[-1:]])
    return lax.stop_gradient(returns[:-1])
