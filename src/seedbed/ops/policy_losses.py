"""The parts of an actor-critic loss, each over one trajectory ``[T]``.

Each is a mean over all T steps, the invalid ones included as zeros: with a constant denominator the average
over equal shards of a batch is exactly the loss of the whole batch, with any masks.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax

from seedbed.ops.checks import check_time_major


def policy_gradient_loss(log_probs: jax.Array, advantages: jax.Array, valid: jax.Array) -> jax.Array:
    """``-mean_t A_t log pi(a_t|x_t)``, with the gradient of IMPALA's section 4.2 (Espeholt et al. 2018).

    Args:
      log_probs: float ``[T]``, of the actions taken under the policy that is trained.
      advantages: float ``[T]``, importance weights included; treated as constants.
      valid: bool ``[T]``, steps to learn from.

    Returns:
      float ``[]``.
    """
    check_time_major(log_probs=log_probs, advantages=advantages, valid=valid)
    return -jnp.mean(jnp.where(valid, lax.stop_gradient(advantages) * log_probs, 0.0))


def likelihood_loss(log_probs: jax.Array, valid: jax.Array) -> jax.Array:
    """``-mean_t log pi(a_t|x_t)``, of the actions that somebody else took (Pomerleau 1991, for choices); ``[]``."""
    check_time_major(log_probs=log_probs, valid=valid)
    return -jnp.mean(jnp.where(valid, log_probs, 0.0))


def value_loss(values: jax.Array, targets: jax.Array, valid: jax.Array) -> jax.Array:
    """``mean_t (v_t - V(x_t))^2 / 2``; ``targets`` are treated as constants. All ``[T]``, returns ``[]``."""
    check_time_major(values=values, targets=targets, valid=valid)
    return 0.5 * jnp.mean(jnp.where(valid, jnp.square(lax.stop_gradient(targets) - values), 0.0))


def entropy_loss(entropies: jax.Array, valid: jax.Array) -> jax.Array:
    """``-mean_t H(pi(.|x_t))``, a reward for staying undecided (Williams and Peng 1991); ``[]``."""
    check_time_major(entropies=entropies, valid=valid)
    return -jnp.mean(jnp.where(valid, entropies, 0.0))


def divergence_loss(divergences: jax.Array, valid: jax.Array) -> jax.Array:
    """``mean_t KL(mu(.|x_t) || pi(.|x_t))``, the price of leaving the policy that acted (Schulman et al. 2017,
    equation 8, with a fixed coefficient); ``[]``."""
    check_time_major(divergences=divergences, valid=valid)
    return jnp.mean(jnp.where(valid, divergences, 0.0))


ENTROPY_COEFFICIENT_RANGE = 20.0
"""The adaptive coefficient stays in ``[exp(-20), exp(20)]``, as in SEED RL."""


def entropy_coefficient(parameter: jax.Array, speed: float) -> jax.Array:
    """``exp(speed * parameter)``, ``[]``: positive; ``speed`` says how fast it follows its parameter."""
    return jnp.exp(speed * parameter)


def entropy_adjustment_loss(
    parameter: jax.Array, entropies: jax.Array, valid: jax.Array, *, target: float, speed: float
) -> jax.Array:
    """The dual loss of the constraint ``mean entropy >= target``, in ``parameter`` alone.

    ::

        exp(speed * parameter) * mean_t (H_t - target)

    Gradient descent raises the coefficient while the entropy is below its target and lowers it above
    (Haarnoja et al. 2018, Soft Actor-Critic Algorithms and Applications, equation 18; exponential as in SEED
    RL).

    Args:
      parameter: float ``[]``, the Lagrange parameter.
      entropies: float ``[T]``, treated as constants.
      valid: bool ``[T]``, steps that count.
      target: the entropy wanted, in nats; 0 is a target like any other.
      speed: see :func:`entropy_coefficient`.

    Returns:
      float ``[]``.
    """
    check_time_major(entropies=entropies, valid=valid)
    excess = jnp.mean(jnp.where(valid, lax.stop_gradient(entropies) - target, 0.0))
    return entropy_coefficient(parameter, speed) * excess


_LARGEST_LOG_RATIO = 20.0
"""The exponential of 89 is infinite in float32, and one such step would leave out the whole update."""


def clipped_surrogate_loss(
    log_ratios: jax.Array, advantages: jax.Array, valid: jax.Array, *, clip: float
) -> jax.Array:
    """PPO's objective, negated (Schulman et al. 2017, equation 7).

    ::

        -mean_t min(r_t A_t, clip(r_t, 1 - eps, 1 + eps) A_t),    r_t = pi(a_t|x_t) / mu(a_t|x_t)

    A step whose ratio has left ``[1 - eps, 1 + eps]`` to its own advantage has no gradient any more.

    Args:
      log_ratios: float ``[T]``, ``log r``.
      advantages: float ``[T]``, treated as constants.
      valid: bool ``[T]``, steps to learn from.
      clip: ``eps``, in (0, 1).

    Returns:
      float ``[]``.
    """
    check_time_major(log_ratios=log_ratios, advantages=advantages, valid=valid)
    # Before the exponential: an infinite ratio times a zero mask would be NaN, and one alone an infinite loss.
    ratios = jnp.exp(jnp.minimum(jnp.where(valid, log_ratios, 0.0), _LARGEST_LOG_RATIO))
    advantages = lax.stop_gradient(advantages)
    surrogates = jnp.minimum(ratios * advantages, jnp.clip(ratios, 1 - clip, 1 + clip) * advantages)
    return -jnp.mean(jnp.where(valid, surrogates, 0.0))


def clipped_value_loss(
    values: jax.Array, old_values: jax.Array, targets: jax.Array, valid: jax.Array, *, clip: float
) -> jax.Array:
    """The value loss of PPO's first implementation: it pays for leaving the old value by more than ``clip``.

    ::

        mean_t max((v_t - V_t)^2, (v_t - (Vold_t + clip(V_t - Vold_t, -eps, eps)))^2) / 2

    (OpenAI Baselines, ppo2; Engstrom et al. 2020, section 3.) ``targets`` and ``old_values`` are treated as
    constants. All ``[T]``, returns ``[]``.
    """
    check_time_major(values=values, old_values=old_values, targets=targets, valid=valid)
    targets, old_values = lax.stop_gradient(targets), lax.stop_gradient(old_values)
    near = old_values + jnp.clip(values - old_values, -clip, clip)
    worse = jnp.maximum(jnp.square(targets - values), jnp.square(targets - near))
    return 0.5 * jnp.mean(jnp.where(valid, worse, 0.0))
