"""Arithmetic of reinforcement learning: pure functions over one trajectory ``[T]``; the caller vmaps."""

from seedbed.ops.batches import (
    add_time,
    average,
    explained_variance,
    mean_over_batch,
    over_batch,
    transitions,
)
from seedbed.ops.checks import check_time_major
from seedbed.ops.distributions import Categorical, ClippedNormal, Distribution, from_spec
from seedbed.ops.exploration import epsilon_greedy, epsilons_of
from seedbed.ops.masks import FORBIDDEN, is_forbidden, masked
from seedbed.ops.optimizers import OptimizerSettings, apply_gradient, make_clip, make_optimizer, require
from seedbed.ops.policy_losses import (
    clipped_surrogate_loss,
    clipped_value_loss,
    divergence_loss,
    entropy_adjustment_loss,
    entropy_coefficient,
    entropy_loss,
    likelihood_loss,
    policy_gradient_loss,
    value_loss,
)
from seedbed.ops.priorities import sequence_priority
from seedbed.ops.q_values import in_rewards, of_actions, rescaled, td_errors
from seedbed.ops.returns import VTraceReturns, backward_sum, gae, n_step, vtrace

__all__ = [
    "FORBIDDEN",
    "Categorical",
    "ClippedNormal",
    "Distribution",
    "OptimizerSettings",
    "VTraceReturns",
    "add_time",
    "apply_gradient",
    "average",
    "backward_sum",
    "check_time_major",
    "clipped_surrogate_loss",
    "clipped_value_loss",
    "divergence_loss",
    "entropy_adjustment_loss",
    "entropy_coefficient",
    "entropy_loss",
    "epsilon_greedy",
    "epsilons_of",
    "explained_variance",
    "from_spec",
    "gae",
    "in_rewards",
    "is_forbidden",
    "likelihood_loss",
    "make_clip",
    "make_optimizer",
    "masked",
    "mean_over_batch",
    "n_step",
    "of_actions",
    "over_batch",
    "policy_gradient_loss",
    "require",
    "rescaled",
    "sequence_priority",
    "td_errors",
    "transitions",
    "value_loss",
    "vtrace",
]
