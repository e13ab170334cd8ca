"""Behaviour cloning: a policy that repeats the actions of a data set, by maximum likelihood.

Pomerleau 1991, *Efficient Training of Artificial Neural Networks for Autonomous Navigation*; with Adagrad over replicas
and a parameter server it is Downpour SGD (Dean et al. 2012, *Large Scale Distributed Deep Networks*).

No environment is stepped and nothing is bootstrapped: rewards are at most an input. A data set keeps no state of any
network, so a policy's memory (frames of a stack, previous action, LSTM) is made anew by the transitions at the
beginning of each unroll, which are not trained on.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import jax
import jax.numpy as jnp

from seedbed.agents.actor_critic import PolicySettings, make_model
from seedbed.agents.interface import AgentDefinition
from seedbed.nets.actor_critic import ActorCritic, acting
from seedbed.nets.network import AUTO, Network
from seedbed.ops import policy_losses
from seedbed.ops.batches import average, mean_over_batch
from seedbed.ops.distributions import Distribution
from seedbed.ops.masks import is_forbidden
from seedbed.ops.optimizers import make_clip, make_optimizer, require
from seedbed.types import Agent, DataPlan, EnvSpec, TimeStep, Tree, Unroll, map_leaves


@dataclass(frozen=True)
class BCSettings(PolicySettings):
    """Settings of behaviour cloning."""

    memory: ClassVar[str] = "dataset"

    learning_rate: float = 1e-3
    """Step size of the optimizer."""

    entropy_cost: float = 0.0
    """Weight of the entropy bonus."""

    burn_in: int = 0
    """Transitions at an unroll's beginning that only fill memories (LSTM, frame stack, previous action)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("entropy_cost", "burn_in"):
            require(getattr(self, name) >= 0, name, getattr(self, name), "0 or more")

    @property
    def updates_a_transition(self) -> float:
        """Updates that are made for each transition that is trained on."""
        return 1 / (self.batch_size * self.unroll_length)


def make_agent(
    settings: BCSettings,
    env_spec: EnvSpec,
    network: Network = AUTO,
    *,
    total_updates: int | None = None,
) -> Agent:
    """Behaviour cloning for one environment; arguments and errors as for :func:`seedbed.agents.vtrace.make_agent`.

    Returns:
      :class:`~seedbed.types.Agent`. Its params are ``{"network": …}``, of which the value head is never trained; its
      record is ``{"policy": float32 [B, P]}``. Its unrolls have ``overlap + T`` transitions, and their record may be
      that of the policy that is cloned, or empty.
    """
    model, distribution = make_model(settings, env_spec, network)
    act, mode = acting(model, distribution)
    burn_in = max(settings.burn_in, env_spec.frame_stack - 1, int(settings.previous_action))
    return Agent(
        name="bc",
        init=lambda key: {"network": model.init(key)},
        initial_state=model.initial_state,
        act=act,
        loss=_make_loss(settings, model, distribution, burn_in),
        optimizer=make_optimizer(settings, total_updates),
        data=DataPlan(settings.unroll_length, settings.batch_size, overlap=burn_in, dataset=True),
        mode=mode,
        clip=make_clip(settings),
        row_means=frozenset({"likelihood_loss", "entropy_loss", "valid"}),
    )


def _make_loss(
    settings: BCSettings, model: ActorCritic, distribution: Distribution, burn_in: int
) -> Callable[..., tuple[jax.Array, tuple[dict[str, jax.Array], None]]]:
    """The loss of :class:`~seedbed.types.Agent`."""
    choices, masks = bool(model.spec.action.num_values), model.spec.action_mask is not None

    def loss(
        params: Tree, target_params: Tree, unroll: Unroll, key: jax.Array
    ) -> tuple[jax.Array, tuple[dict[str, jax.Array], None]]:
        del target_params, key
        policy = _policy(model, params, unroll, burn_in)
        action, decided = unroll.action[burn_in:], ~unroll.timestep.first[burn_in + 1 :]
        entropies = distribution.entropy(policy)
        log_probs = distribution.log_prob(policy, action)
        # No policy can take an action that the data set's own mask forbids.
        valid = decided & ~is_forbidden(log_probs) if masks else decided
        likelihood_loss = mean_over_batch(policy_losses.likelihood_loss, log_probs, valid)
        entropy_loss = mean_over_batch(policy_losses.entropy_loss, entropies, valid)
        metrics = {
            "likelihood_loss": likelihood_loss,
            "entropy_loss": entropy_loss,
            "entropy": average(entropies, valid),
            "valid": jnp.mean(valid.astype(jnp.float32)),
        }
        if masks:
            metrics["forbidden"] = average(is_forbidden(log_probs).astype(jnp.float32), decided)
        if choices:
            same = (distribution.mode(policy) == action).reshape(*valid.shape, -1).all(-1)
            metrics["accuracy"] = average(same.astype(jnp.float32), valid)
        if "policy" in unroll.record:
            metrics["kl"] = average(distribution.kl(unroll.record["policy"][burn_in:], policy), valid)
        total = likelihood_loss + settings.entropy_cost * entropy_loss
        return total, (jax.lax.stop_gradient(metrics), None)

    return loss


def _policy(model: ActorCritic, params: Tree, unroll: Unroll, burn_in: int) -> jax.Array:
    """Returns policy parameters ``[T, B, P]`` of the steps whose actions are trained on.

    The decision at the last step of an unroll is in the next one.
    """
    steps = unroll.timestep
    decided = TimeStep(map_leaves(lambda x: x[:-1], steps.observation), *(part[:-1] for part in steps[1:]))
    inputs, _ = model.inputs(decided, unroll.action[:-1], unroll.state)
    if not model.network.lstm:  # then each step is read by itself, and those before are in its stack
        inputs = jax.tree.map(lambda x: x[burn_in:], inputs)
    (policy, _), _ = model.evaluate(params["network"], inputs)
    return policy[burn_in - len(unroll.action) :]


BC = AgentDefinition("bc", BCSettings, make_agent)
