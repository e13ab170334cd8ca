"""The optimizers that agents choose from: optax's, under the settings that people know them by."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

import jax
import jax.numpy as jnp
import optax

from seedbed.errors import ConfigError
from seedbed.types import Tree


def require(holds: bool, name: str, given: object, needed: str) -> None:
    """Raises :class:`ConfigError`, with the given and the needed value of setting ``name``, unless ``holds``."""
    if not holds:
        raise ConfigError(f"{name} is {given}, and has to be {needed}")


_ADAMS = ("adam", "radam")
"""Kingma and Ba 2015, and with a warm-up of the variance's estimate (Liu et al. 2020, algorithm 2)."""


@dataclass(frozen=True)
class OptimizerSettings:
    """Settings of the optimizer. Epsilons and clips are for gradients of a *mean* over a batch.

    The settings of one optimizer mean nothing for another: metadata says whose they are.
    """

    learning_rate: float = 4.8e-4
    """Step size of the optimizer."""

    anneal_to_zero: bool = False
    """Lower the learning rate linearly to 0 over the whole run, which needs a stated length."""

    optimizer: Literal["adam", "radam", "rmsprop", "adagrad"] = "adam"
    """The optimizer; radam is Adam that begins with small steps."""

    adam_b1: float = field(default=0.9, metadata={"optimizer": _ADAMS})
    """Adam: decay of the mean of gradients (SEED used 0 on DeepMind Lab)."""

    adam_b2: float = field(default=0.999, metadata={"optimizer": _ADAMS})
    """Adam: decay of the mean of squared gradients."""

    adam_eps: float = field(default=3.125e-7, metadata={"optimizer": _ADAMS})
    """Adam: added outside the root."""

    rmsprop_decay: float = field(default=0.99, metadata={"optimizer": "rmsprop"})
    """RMSProp: decay of the mean of squared gradients."""

    rmsprop_eps: float = field(default=1e-5, metadata={"optimizer": "rmsprop"})
    """RMSProp: added inside the root."""

    rmsprop_start: float = field(default=1.0, metadata={"optimizer": "rmsprop"})
    """RMSProp: first mean of squared gradients (1 in TensorFlow, Baselines, A3C and IMPALA; 0 in DQN)."""

    rmsprop_momentum: float = field(default=0.0, metadata={"optimizer": "rmsprop"})
    """RMSProp: momentum; 0 is off."""

    rmsprop_centered: bool = field(default=False, metadata={"optimizer": "rmsprop"})
    """RMSProp: divide by the deviation of gradients instead of their size (DQN and Ape-X did)."""

    adagrad_start: float = field(default=0.1, metadata={"optimizer": "adagrad"})
    """Adagrad: start of the sum of squared gradients (0 in Dean et al. 2012)."""

    adagrad_eps: float = field(default=1e-7, metadata={"optimizer": "adagrad"})
    """Adagrad: added inside the root."""

    gradient_clip: float = 1.0
    """Largest global norm of the gradient; 0 is off."""

    def __post_init__(self) -> None:
        require(self.learning_rate > 0, "learning_rate", self.learning_rate, "more than 0")
        for name in (
            "adam_eps",
            "rmsprop_eps",
            "rmsprop_start",
            "adagrad_start",
            "adagrad_eps",
            "gradient_clip",
        ):
            require(getattr(self, name) >= 0, name, getattr(self, name), "0 or more")
        for name in ("adam_b1", "adam_b2", "rmsprop_decay", "rmsprop_momentum"):
            require(0 <= getattr(self, name) < 1, name, getattr(self, name), "from 0 to less than 1")


def make_clip(settings: OptimizerSettings) -> Callable[[Tree], Tree] | None:
    """The clip of the gradient's global norm, see :attr:`seedbed.types.Agent.clip`; None if it is off."""
    if settings.gradient_clip == 0:
        return None
    transformation = optax.clip_by_global_norm(settings.gradient_clip)
    return lambda gradient: transformation.update(gradient, optax.EmptyState())[0]


def make_optimizer(settings: OptimizerSettings, total_updates: int | None) -> optax.GradientTransformation:
    """Makes the optimizer, see :attr:`seedbed.types.Agent.optimizer`.

    Args:
      settings: the optimizer's settings.
      total_updates: updates in the whole run, for a rate that is annealed over it; None if that is not known.

    Raises:
      ConfigError: the rate is to be annealed over a run whose length is not known.
    """
    rate: float | optax.Schedule = settings.learning_rate
    if settings.anneal_to_zero:
        if total_updates is None:
            raise ConfigError(
                "anneal_to_zero needs a run of stated length: give --frames (--minutes is no number of updates), "
                "or leave the rate constant"
            )
        rate = optax.linear_schedule(settings.learning_rate, 0.0, total_updates)
        return _counting_what_was_carried_out(_optimizer(settings, rate))
    return _optimizer(settings, rate)


def _optimizer(settings: OptimizerSettings, rate: float | optax.Schedule) -> optax.GradientTransformation:
    if settings.optimizer in _ADAMS:
        rule = optax.radam if settings.optimizer == "radam" else optax.adam
        return rule(rate, settings.adam_b1, settings.adam_b2, settings.adam_eps)
    if settings.optimizer == "adagrad":
        return optax.adagrad(rate, settings.adagrad_start, settings.adagrad_eps)
    return optax.rmsprop(
        rate,
        settings.rmsprop_decay,
        settings.rmsprop_eps,
        initial_scale=settings.rmsprop_start,
        centered=settings.rmsprop_centered,
        momentum=settings.rmsprop_momentum or None,
    )


def _counting_what_was_carried_out(
    optimizer: optax.GradientTransformation,
) -> optax.GradientTransformationExtraArgs:
    """The optimizer with a schedule that an update moves on by its argument ``carried`` instead of by 1.

    The count is a float32. From 2**20 updates on it takes a share to the nearest eighth, from 2**22 on to the nearest
    half. So in a longer run, with many resets in its batches, the rate comes to 0 somewhat early or late.
    """

    def init(params: Tree) -> Tree:
        return _with_counts(optimizer.init(params), lambda count: count.astype(jnp.float32))

    def update(
        gradient: Tree, state: Tree, params: Tree = None, *, carried: Any = 1.0, **_: Any
    ) -> tuple[Tree, Tree]:
        changes, after = optimizer.update(gradient, state, params)
        return changes, _with_counts(after, lambda count: count - 1 + carried)

    return optax.GradientTransformationExtraArgs(init, update)


def _with_counts(state: Tree, change: Callable[[Any], Any]) -> Tree:
    """Changes the count of every schedule in an optimizer's state."""

    def one(part: Any) -> Any:
        scheduled = isinstance(part, optax.ScaleByScheduleState)
        return part._replace(count=change(part.count)) if scheduled else part

    return jax.tree.map(one, state, is_leaf=lambda part: isinstance(part, optax.ScaleByScheduleState))


def passed_over(state: Tree, updates: Any) -> Tree:
    """Returns an optimizer's state after updates that were left out: an annealed rate moves on as if they were made.

    A schedule that counts in whole numbers, as Optax's own do, takes a part of an update for a whole one.
    """

    def on(count: Any) -> Any:
        whole = jnp.issubdtype(count.dtype, jnp.integer)
        return count + (jnp.ceil(updates).astype(count.dtype) if whole else updates)

    return _with_counts(state, on)


def apply_gradient(
    optimizer: optax.GradientTransformation,
    params: Tree,
    opt_state: Tree,
    gradient: Tree,
    finite: Any = True,
    weight: Any = 1.0,
    carried: Any = 1.0,
) -> tuple[Tree, Tree, Any]:
    """The parameters and the optimizer's state after one update, and whether there was one.

    A gradient that is not ``finite`` changes nothing but an annealed rate, nor does one whose changes are not: an
    optimizer without an epsilon divides 0 by 0. The parameters go ``weight`` of the way that the optimizer would have
    them go.

    ``carried`` is the share of the batch's transitions that environments carried out: an annealed rate counts these.
    """
    update = optax.with_extra_args_support(optimizer).update
    changes, after = update(gradient, opt_state, params, carried=carried)
    finite &= jnp.isfinite(optax.tree.norm(changes))
    changes = jax.tree.map(lambda change: change * weight, changes)
    return (
        where(finite, optax.apply_updates(params, changes), params),
        where(finite, after, passed_over(opt_state, carried)),
        finite,
    )


def where(condition: Any, new: Tree, old: Tree) -> Tree:
    """The one tree or the other."""
    return jax.tree.map(lambda a, b: jnp.where(condition, a, b), new, old)
