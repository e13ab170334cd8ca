"""MuZero: search in a learned model, and learning of what the search has found.

Schrittwieser et al. 2020, *Mastering Atari, Go, Chess and Shogi by Planning with a Learned Model*; ``reanalyse`` is the
fraction of *Online and Offline Reinforcement Learning by Planning with a Learned Model* (Schrittwieser et al. 2021,
MuZero Unplugged); the search is by default that of *Policy improvement by planning with Gumbel* (Danihelka et al.
2022). The search itself is DeepMind's mctx.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Literal

import jax
import jax.numpy as jnp

from seedbed.agents.interface import AgentDefinition
from seedbed.agents.replay_based import ReplaySettings, plan_of_transitions
from seedbed.errors import ConfigError
from seedbed.nets.body import Inputs
from seedbed.nets.latent_model import LatentModel, Predicted, Representation, scale_gradient
from seedbed.nets.network import AUTO, Network
from seedbed.nets.q_network import one_of
from seedbed.ops.batches import add_time, average, over_batch, transitions
from seedbed.ops.model_targets import ModelTargets, model_targets
from seedbed.ops.optimizers import make_clip, make_optimizer, require
from seedbed.ops.returns import n_step
from seedbed.ops.search import Found, Node, Search, library
from seedbed.ops.two_hot import Support, cross_entropy
from seedbed.types import ActOutput, Agent, EnvSpec, TimeStep, Tree, Unroll


@dataclass(frozen=True)
class MuZeroSettings(ReplaySettings):
    """Settings of MuZero.

    The loss is a mean over the batch, and over each item a sum over the step itself and a mean over the unrolled ones.
    """

    learning_rate: float = 1e-3
    """Step size of the optimizer."""

    gradient_clip: float = 5.0
    """Largest global norm of the gradient; 0 is off."""

    n_step: int = 5
    """Rewards that a target adds up before it bootstraps (n)."""

    unroll_steps: int = 5
    """Steps that the model is unrolled in training (K)."""

    search: Literal["gumbel", "puct"] = "gumbel"
    """The search: gumbel, which a few simulations suffice for, or puct, as published first."""

    simulations: int = 16
    """Steps of the model in each search."""

    considered_actions: int = field(default=16, metadata={"search": "gumbel"})
    """Gumbel: actions that are drawn at the root."""

    value_scale: float = field(default=0.1, metadata={"search": "gumbel"})
    """Gumbel: scale of values against the policy's logits (c_scale)."""

    rescale_values: bool = field(default=True, metadata={"search": "gumbel"})
    """Gumbel: bring values to [0, 1] among the actions of a state first; else value_scale is of rewards."""

    root_uniform: float = field(default=0.0, metadata={"search": "gumbel"})
    """Gumbel: share of the uniform policy at the root in training, which keeps every action being tried."""

    noise: float = field(default=0.25, metadata={"search": "puct"})
    """PUCT: share of Dirichlet noise in the policy at the root."""

    noise_alpha: float = field(default=0.3, metadata={"search": "puct"})
    """PUCT: parameter of that noise's distribution."""

    reanalyse: float = 0.0
    """Share of each batch that is searched again, with the target parameters (MuZero Unplugged)."""

    value_cost: float = 0.25
    """Weight of the values' loss."""

    state_size: int = 64
    """Numbers of a state of the model."""

    model_size: int = 128
    """Size of the dense layer in dynamics and in predictions."""

    support: int = 30
    """Greatest rescaled value or reward; distributions are over the whole numbers from minus this to this."""

    rescale: float = 1e-3
    """Learn h(x) = sign(x) (sqrt(|x| + 1) - 1) + rescale x of values and rewards, not x; 0: x itself."""

    target_period: int = 100
    """Updates after which the target parameters, which search again, become the trained ones."""

    batch_size: int = 64
    """Items in a batch (B), over all devices."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in (
            "unroll_steps",
            "simulations",
            "considered_actions",
            "state_size",
            "model_size",
            "support",
            "target_period",
        ):
            require(getattr(self, name) > 0, name, getattr(self, name), "1 or more")
        for name in ("rescale", "value_cost"):
            require(getattr(self, name) >= 0, name, getattr(self, name), "0 or more")
        for name in ("reanalyse", "noise", "root_uniform"):
            require(0 <= getattr(self, name) <= 1, name, getattr(self, name), "from 0 to 1")
        for name in ("discount", "noise_alpha", "value_scale"):
            require(getattr(self, name) > 0, name, getattr(self, name), "more than 0")


Act = Callable[..., tuple[ActOutput, Tree]]
"""The type of ``act``, see :class:`~seedbed.types.Agent`."""


@dataclass(frozen=True)
class _Model:
    """The networks, the scale of their numbers, and the search in them."""

    settings: MuZeroSettings
    networks: LatentModel
    support: Support
    search: Search

    @property
    def start(self) -> int:
        """Index of the step that a window's model begins at; earlier ones fill the frame stack."""
        return self.networks.representation.spec.frame_stack - 1

    @property
    def steps(self) -> slice:
        """Steps of a window whose records are learned from."""
        return slice(self.start, self.start + self.settings.unroll_steps + self.settings.n_step + 1)

    def init(self, key: jax.Array) -> Tree:
        """Returns fresh params; raises :class:`ConfigError` where the search's library is missing."""
        library()
        return self.networks.init(key)

    def inputs(self, timestep: TimeStep, state: Tree) -> tuple[Inputs, Tree]:
        """Returns what the representation reads of ``[T, B, ...]``, and the state after it."""
        return self.networks.representation.inputs(timestep, None, state)

    def value(self, params: Tree, inputs: Inputs) -> jax.Array:
        """Computes the values ``[T, B]`` of inputs, without a search."""
        states = self.networks.represent(params, inputs)
        return self.support.decode(self.networks.predict(params, states).value)

    def searched(
        self, params: Tree, keys: jax.Array, inputs: Inputs, *, greedy: bool = False, explores: bool = True
    ) -> Found:
        """Searches from each of the inputs ``[T, B, ...]`` with a key ``[T, B]`` of its own; leaves ``[T, B, ...]``."""
        networks, shape = self.networks, keys.shape
        states = networks.represent(params, inputs)
        said = networks.predict(params, states)
        root = Node(networks.allowed(inputs, said.policy), self.support.decode(said.value), states)

        def step(action: jax.Array, states: jax.Array) -> tuple[jax.Array, Node]:
            after, reward = networks.step(params, states, action)
            said = networks.predict(params, after)
            return self.support.decode(reward), Node(said.policy, self.support.decode(said.value), after)

        flat = Node(*(leaf.reshape(-1, *leaf.shape[2:]) for leaf in root))
        found = self.search.run(keys.reshape(-1), flat, step, greedy=greedy, explores=explores)
        return Found(*(leaf.reshape(*shape, *leaf.shape[1:]) for leaf in found))


def make_agent(
    settings: MuZeroSettings,
    env_spec: EnvSpec,
    network: Network = AUTO,
    *,
    total_updates: int | None = None,
) -> Agent:
    """Makes the MuZero agent for one environment; arguments as for :func:`seedbed.agents.vtrace.make_agent`.

    Returns:
      :class:`~seedbed.types.Agent`. Its params are ``representation``, ``dynamics`` and ``prediction``; its record is
      ``{"policy": float32 [B, A], "value": float32 [B]}``, as the search found them. Its items are windows, see
      :func:`~seedbed.agents.replay_based.plan_of_transitions`, of ``unroll_steps + n_step + 1`` transitions from the
      trained one on: the last target bootstraps from the last of them, which needs a record.

    Raises:
      ConfigError: an LSTM, actions that are no choice among a few, or an unknown network.
    """
    if network.lstm:
        raise ConfigError(
            f"lstm is {network.lstm}, but muzero has no memory besides the model's state: leave it out, or use "
            "--agent r2d2"
        )
    model = _make_model(settings, env_spec, network)
    act, sample, mode = _acting(model)
    return Agent(
        name="muzero",
        init=model.init,
        initial_state=model.networks.representation.initial_state,
        act=act,
        loss=_make_loss(model),
        optimizer=make_optimizer(settings, total_updates),
        clip=make_clip(settings),
        data=plan_of_transitions(
            settings,
            env_spec,
            target_period=settings.target_period,
            ahead=settings.unroll_steps + settings.n_step + 1,
        ),
        mode=mode,
        sample=sample,
        priorities=_make_priorities(model) if settings.priority_exponent else None,
        row_means=frozenset({"td_error"}),
    )


def _make_model(settings: MuZeroSettings, env_spec: EnvSpec, network: Network) -> _Model:
    support = Support(settings.support, settings.rescale)
    representation = Representation(
        spec=env_spec,
        encode_action=lambda action: action,
        network=network,
        size=settings.state_size,
    )
    representation.check()
    return _Model(
        settings,
        LatentModel(representation, one_of(env_spec, "the search is"), settings.model_size, support.size),
        support,
        Search(
            settings.search,
            settings.simulations,
            settings.discount,
            considered=settings.considered_actions,
            value_scale=settings.value_scale,
            rescale_values=settings.rescale_values,
            root_uniform=settings.root_uniform,
            noise=settings.noise,
            noise_alpha=settings.noise_alpha,
        ),
    )


def _acting(model: _Model) -> tuple[Act, Act, Callable[..., tuple[jax.Array, Tree]]]:
    """Makes ``act``, ``sample`` and ``mode`` of :class:`~seedbed.types.Agent`."""
    dtype = model.networks.representation.spec.action.dtype

    def act(
        params: Tree, key: jax.Array, timestep: TimeStep, state: Tree, *, explores: bool = True
    ) -> tuple[ActOutput, Tree]:
        inputs, state = model.inputs(add_time(timestep), state)
        found = model.searched(params, key[None], inputs, explores=explores)
        action, policy, value = (leaf[0] for leaf in found)
        return ActOutput(action.astype(dtype), {"policy": policy, "value": value}), state

    def mode(params: Tree, timestep: TimeStep, state: Tree) -> tuple[jax.Array, Tree]:
        inputs, state = model.inputs(add_time(timestep), state)
        # Nothing is drawn, but ties of equal bounds are broken.
        keys = jax.random.split(jax.random.key(0), inputs.first.shape)
        return model.searched(params, keys, inputs, greedy=True).action[0].astype(dtype), state

    return act, partial(act, explores=False), mode


def _make_loss(
    model: _Model,
) -> Callable[..., tuple[jax.Array, tuple[dict[str, jax.Array], jax.Array]]]:
    """Makes the loss of :class:`~seedbed.types.Agent`, of windows ``[start + K + n + 2, B, ...]``."""
    settings, start, last = model.settings, model.start, model.start + model.settings.unroll_steps

    def loss(
        params: Tree, target_params: Tree, unroll: Unroll, key: jax.Array
    ) -> tuple[jax.Array, tuple[dict[str, jax.Array], jax.Array]]:
        search_key, action_key = jax.random.split(key)
        inputs, _ = model.inputs(unroll.timestep, unroll.state)
        policies, values = _records(model, target_params, search_key, inputs, unroll)
        targets = _targets(model, target_params, inputs, unroll.timestep, values)
        # From a terminated episode's end no action leads anywhere, and the one that was taken there was not meant.
        taken = unroll.action[start:last]
        anything = jax.random.randint(action_key, taken.shape, 0, model.networks.num_actions, taken.dtype)
        states = model.networks.represent(params, jax.tree.map(lambda x: x[start : start + 1], inputs))[0]
        said, rewards = _unrolled(model, params, states, jnp.where(targets.is_over, anything, taken))

        policy_loss = cross_entropy(policies[: settings.unroll_steps + 1], said.policy) * targets.has_policy
        value_loss = cross_entropy(model.support.encode(targets.values), said.value) * targets.has_value
        reward_loss = cross_entropy(model.support.encode(targets.rewards), rewards) * targets.has_reward
        at_steps = policy_loss + settings.value_cost * value_loss
        losses = at_steps[0] + jnp.mean(at_steps[1:] + reward_loss, axis=0)
        value = model.support.decode(said.value[0])
        # A window is not sampled where its transition leads into a new episode.
        errors = jnp.where(targets.has_policy[0], jnp.abs(targets.values[0] - value), 0.0)
        metrics = {
            "policy_loss": average(policy_loss, targets.has_policy),
            "value_loss": average(value_loss, targets.has_value),
            "reward_loss": average(reward_loss, targets.has_reward),
            "search_entropy": average(
                -jnp.sum(jax.scipy.special.xlogy(policies[0], policies[0]), axis=-1), targets.has_policy[0]
            ),
            "value": average(value, targets.has_policy[0]),
            "target": average(targets.values[0], targets.has_policy[0]),
            "td_error": jnp.mean(errors),
            "values_cut": average(model.support.cuts(targets.values), targets.has_value),
            "importance": jnp.mean(unroll.weight),
        }
        return jnp.mean(unroll.weight * losses), (
            jax.lax.stop_gradient(metrics),
            jax.lax.stop_gradient(errors),
        )

    return loss


def _unrolled(
    model: _Model, params: Tree, states: jax.Array, actions: jax.Array
) -> tuple[Predicted, jax.Array]:
    """Unrolls the model from states ``[B, S]`` by actions ``[K, B]``.

    Returns:
      Predictions of the states before and after each action, ``[K + 1, B, ...]``, and the rewards' logits
      ``[K, B, bins]``.
    """

    def one(states: jax.Array, actions: jax.Array) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
        # Half of the gradient, so that all steps together have no more than one (appendix G).
        after, reward = model.networks.step(params, scale_gradient(states, 0.5), actions)
        return after, (after, reward)

    _, (after, rewards) = jax.lax.scan(one, states, actions)
    return model.networks.predict(params, jnp.concatenate([states[None], after])), rewards


def _records(
    model: _Model, target_params: Tree, key: jax.Array, inputs: Inputs, unroll: Unroll
) -> tuple[jax.Array, jax.Array]:
    """Returns policies ``[K + n + 1, B, A]`` and values ``[K + n + 1, B]`` of the search, from step ``start`` on.

    They are those of acting, but in the first rows of the batch, of which the target parameters search again.
    """
    policies, values = (unroll.record[name][model.steps] for name in ("policy", "value"))
    anew = math.ceil(model.settings.reanalyse * values.shape[1])
    if not anew:
        return policies, values
    rows = jax.tree.map(lambda x: x[model.steps, :anew], inputs)
    found = model.searched(target_params, jax.random.split(key, rows.first.shape), rows)
    return (
        jnp.concatenate([found.policy, policies[:, anew:]], axis=1),
        jnp.concatenate([found.value, values[:, anew:]], axis=1),
    )


def _targets(
    model: _Model, target_params: Tree, inputs: Inputs, timestep: TimeStep, values: jax.Array
) -> ModelTargets:
    """Computes targets ``[K + 1, B]`` with the values ``[K + n + 1, B]`` that searches found.

    The value of a truncated episode's final observation, at which nothing was decided, is that of the target network.
    """
    settings, start = model.settings, model.start
    truncated = timestep.truncated[model.steps]
    end = jnp.argmax(truncated, axis=0)
    final = model.value(target_params, inputs.at(start + end))
    values = jnp.where(truncated, final, values)
    valid, discounts, rewards = (
        array[start : start + settings.unroll_steps + settings.n_step]
        for array in transitions(timestep, discount=settings.discount, reward_clip=settings.reward_clip)
    )

    def targets(*trajectory: jax.Array) -> ModelTargets:
        return model_targets(*trajectory, n=settings.n_step)

    found: ModelTargets = over_batch(targets)(discounts, rewards, values, valid)
    return found


def _make_priorities(model: _Model) -> Callable[[Unroll], jax.Array]:
    """Makes the function for sizes of errors at the values that acting found, float32 ``[unroll_length, B]``."""
    settings, start = model.settings, model.start

    def priorities(unroll: Unroll) -> jax.Array:
        # The last one is of no target: windows are longer than that.
        values = jnp.concatenate([unroll.record["value"], unroll.record["value"][-1:]])
        valid, discounts, rewards = transitions(
            unroll.timestep, discount=settings.discount, reward_clip=settings.reward_clip
        )

        def returns(*trajectory: jax.Array) -> jax.Array:
            return n_step(*trajectory, n=settings.n_step)

        targets = over_batch(returns)(discounts, rewards, values, valid)
        sizes = jnp.where(valid, jnp.abs(targets - values[:-1]), 0.0)
        return sizes[start : start + settings.unroll_length]

    return priorities


MUZERO = AgentDefinition("muzero", MuZeroSettings, make_agent)
