"""A policy of its own for each agent of an environment, or for each kind of agents: one agent made of K.

The parameters of all K policies are one tree, whose leaves have a leading axis ``[K]``; observations say which agent a
row is (:data:`seedbed.types.AGENT_INDEX`), so that unrolls, replays and data sets bring it along. A decision is made by
all K policies for all rows, of which each row takes its own; policy k is trained on the whole batch, in which the rows
of the others' agents are absent (:attr:`seedbed.types.TimeStep.absent`). Both cost K times what one policy costs.

The loss is the sum of the policies' losses, each times the number of all agents over that of its own. Each of these is
a mean over all rows, absent ones as 0: so in a batch that has as many rows of each agent, the gradient of policy k is
that of training it alone on its rows. Clips, statistics and normalized advantages are each policy's own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from seedbed.errors import ConfigError
from seedbed.types import AGENT_INDEX, ActOutput, Agent, EnvSpec, TimeStep, Tree, Unroll


def make_own(make: Callable[[EnvSpec], Agent], spec: EnvSpec, owners: Sequence[int]) -> Agent:
    """Makes an agent that has several policies, each for one or some of the environment's agents.

    Args:
      make: maker of the agent whose policies they are, of the spec without the leaf :data:`~seedbed.types.AGENT_INDEX`.
      spec: spec of the environment, with that leaf.
      owners: the policy of each agent, every number from 0 on at least once.

    Raises:
      ConfigError: observations do not say which agent they are of.
    """
    if not spec.tells_agents:
        raise ConfigError(
            f"agents have policies of their own, and {spec.id} does not show which agent a row is: leave --policies out"
        )
    rest = {name: leaf for name, leaf in spec.observation.items() if name != AGENT_INDEX}
    return with_own_policies(make(replace(spec, observation=rest)), owners)


def with_own_policies(agent: Agent, owners: Sequence[int]) -> Agent:
    """Returns several agents of one make as one, whose observations have a leaf more; see the module's text.

    Args:
      agent: the agent that each of them is.
      owners: the policy of each agent of the environment, every number from 0 on at least once.
    """
    policies = _Policies(agent, owners)
    return replace(
        agent,
        init=policies.init,
        act=policies.act,
        mode=policies.mode,
        sample=policies.sample if agent.sample else None,
        loss=policies.loss,
        prepare=policies.prepare if agent.prepare else None,
        clip=policies.clip if agent.clip else None,
    )


class _Policies:
    """The functions of :func:`with_own_policies`."""

    def __init__(self, agent: Agent, owners: Sequence[int]) -> None:
        self._agent, self._owners = agent, np.array(owners, np.int32)
        agents = np.bincount(self._owners)
        self._count = len(agents)
        self._weights = (len(owners) / agents).astype(np.float32)

    def _owner(self, agents: Any) -> Any:
        """Returns the policies ``[...]`` of agents, int ``[...]``."""
        return jnp.asarray(self._owners)[agents]

    def _each(self, function: Callable[..., Tree], *stacked: Tree) -> Tree:
        """Stacks the results of ``function(k, *trees of policy k)``, ``[K, ...]``.

        One after the other: the extension's convolutions have no rule for images of all and kernels of one, and each
        policy is computed as it would be alone, bit for bit.
        """
        of_policies = [
            function(k, *(jax.tree.map(lambda leaf, k=k: leaf[k], tree) for tree in stacked))
            for k in range(self._count)
        ]
        return jax.tree.map(lambda *leaves: jnp.stack(leaves), *of_policies)

    def init(self, key: jax.Array) -> Tree:
        """See :class:`~seedbed.types.Agent`; policy 0 begins as the only one would."""
        return self._each(lambda k: self._agent.init(_key_of(key, k)))

    def act(self, params: Tree, key: jax.Array, timestep: TimeStep, state: Tree) -> tuple[ActOutput, Tree]:
        """See :class:`~seedbed.types.Agent`."""
        return self._decided(self._agent.act, params, key, timestep, state)

    def sample(self, params: Tree, key: jax.Array, timestep: TimeStep, state: Tree) -> tuple[ActOutput, Tree]:
        """See :class:`~seedbed.types.Agent`."""
        assert self._agent.sample is not None
        return self._decided(self._agent.sample, params, key, timestep, state)

    def _decided(
        self, decide: Callable[..., Any], params: Tree, key: jax.Array, timestep: TimeStep, state: Tree
    ) -> tuple[ActOutput, Tree]:
        agents, seen = _told(timestep)
        decided = self._each(lambda k, own: decide(own, key, seen, state), params)
        output, after = _of_owners(decided, self._owner(agents), 0)
        return output, after

    def mode(self, params: Tree, timestep: TimeStep, state: Tree) -> tuple[Any, Tree]:
        """See :class:`~seedbed.types.Agent`."""
        agents, seen = _told(timestep)
        decided = self._each(lambda k, own: self._agent.mode(own, seen, state), params)
        action, after = _of_owners(decided, self._owner(agents), 0)
        return action, after

    def prepare(self, params: Tree, unroll: Unroll, last: Tree | None = None) -> tuple[Tree, Unroll]:
        """See :class:`~seedbed.types.Agent`."""
        agents, seen = _told(unroll.timestep)
        owners = self._owner(agents[0])
        acted = () if last is None else (last,)

        def one(k: int, own: Tree) -> Any:
            alone = unroll._replace(timestep=_only(seen, owners == k))
            return self._agent.prepare(own, alone, *acted)  # type: ignore[misc]

        params, prepared = self._each(one, params)
        if self._agent.data.transitions:
            agents = agents[:-1].reshape(1, -1)
            owners = self._owner(agents[0])
        return params, _told_again(_unroll_of_owners(prepared, owners), agents)

    def loss(self, params: Tree, target_params: Tree, unroll: Unroll, key: jax.Array) -> Any:
        """See :class:`~seedbed.types.Agent`."""
        agents, seen = _told(unroll.timestep)
        owners = self._owner(agents[0])

        def one(k: int, own: Tree, target: Tree) -> Any:
            alone = _only(seen, owners == k)
            loss, (metrics, priorities) = self._agent.loss(
                own, target, unroll._replace(timestep=alone), _key_of(key, k)
            )
            return loss, metrics, priorities, jnp.sum(~alone.first[1:], dtype=jnp.float32)

        losses, metrics, priorities, trained = self._each(one, params, target_params)
        shares = trained / jnp.maximum(jnp.sum(trained), 1.0)
        metrics = {
            name: jnp.sum(
                values if name in self._agent.row_means else jnp.where(shares > 0, shares * values, 0.0)
            )
            for name, values in metrics.items()
        }
        return jnp.sum(self._weights * losses), (metrics, _of_owners(priorities, owners, 0))

    def clip(self, gradient: Tree) -> Tree:
        """See :class:`~seedbed.types.Agent`: no policy's gradient shortens another one's."""
        return self._each(lambda k, own: self._agent.clip(own), gradient)  # type: ignore[misc]


def _key_of(key: Any, k: int) -> Any:
    """Returns the key of policy ``k``: the first one's draws are those of a single policy."""
    return jax.random.fold_in(key, k) if k else key


def _told(timestep: TimeStep) -> tuple[Any, TimeStep]:
    """Returns the agents, int ``[..., B]``, of the rows, and the steps without them."""
    seen = {name: leaf for name, leaf in timestep.observation.items() if name != AGENT_INDEX}
    return timestep.observation[AGENT_INDEX], timestep._replace(observation=seen)


def _told_again(unroll: Unroll, agents: Any) -> Unroll:
    """Returns the unroll with the agents ``[T, B]`` of its rows among the observations."""
    step = unroll.timestep
    return unroll._replace(timestep=step._replace(observation={**step.observation, AGENT_INDEX: agents}))


def _only(timestep: TimeStep, own: Any) -> TimeStep:
    """Returns steps ``[T, B, ...]`` in which all rows are absent but the ``own`` ones, bool ``[B]``."""
    return timestep._replace(first=timestep.first | ~own, terminated=timestep.terminated | ~own)


def _unroll_of_owners(stacked: Unroll, owners: Any) -> Unroll:
    """Returns of unrolls ``[K, T, B, ...]`` each row as its policy, int ``[B]``, has it."""
    timed: Unroll = _of_owners(stacked._replace(state=None, weight=None), owners, 1)
    state, weight = _of_owners((stacked.state, stacked.weight), owners, 0)
    return timed._replace(state=state, weight=weight)


def _of_owners(stacked: Tree, owners: Any, axis: int) -> Tree:
    """Returns of arrays ``[K, ...]`` each row, along ``axis``, as its policy, int ``[B]``, has it."""

    def of(array: Any) -> Any:
        shape = [1] * (array.ndim - 1)
        shape[axis] = -1
        chosen = array[0]
        for k in range(1, len(array)):
            chosen = jnp.where((owners == k).reshape(shape), array[k], chosen)
        return chosen

    return jax.tree.map(of, stacked)
