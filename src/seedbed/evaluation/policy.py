"""The trained policy of a run, asked for actions without an environment and without a learner.

::

    policy = seedbed.load("runs/CartPole-v1-…")
    action, state = policy.act(observation)                         # the first step of an episode
    action, state = policy.act(observation, state, reward=reward)   # the steps after it
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from seedbed.acting.inference import row_keys
from seedbed.acting.unrolls import step_arrays, timestep_of
from seedbed.config.settings import RunConfig
from seedbed.config.variants import VALUES_OF_BEST, with_values
from seedbed.errors import SpecError
from seedbed.evaluation.observations import batch_of, step_of
from seedbed.launch.build import build_spec, make_agent
from seedbed.launch.folder import RunFolder
from seedbed.launch.surroundings import held
from seedbed.learning.checkpoint import Checkpoint
from seedbed.seeding import key
from seedbed.types import ActOutput, Agent, ArraySpec, EnvSpec, Tree

Array = NDArray[Any]


class PolicyState(NamedTuple):
    """The memory of a policy between two steps.

    Attributes:
      agent: tree of arrays ``[B, ...]``, the agent's state (of a recurrent network, the stack of frames).
      step: number of steps so far.
    """

    agent: Tree
    step: int


class Policy:
    """A trained agent and its parameters, for environments of one spec.

    Args:
      config: settings of the run.
      spec: spec of its environments.
      checkpoint: the checkpoint that has the parameters.
      greedy: whether to take the policy's most likely action instead of drawing from it.
      seed: root of the randomness of :meth:`act`.

    Attributes:
      agent: the agent.
      params: its parameters.
      spec: spec of the environments.
      version: number of updates that the parameters have seen.
      sees_rewards: whether it is shown the reward of its last action.
      root: key of all draws of :meth:`act`.
      decider: the agent as it decides here; see :func:`deciding`.
      decide: ``(keys [B], arrays of a step, state) -> (ActOutput, state)``, compiled.

    Raises:
      ConfigError: the settings do not fit the spec.
      CheckpointError: the parameters are of another agent or network.
    """

    def __init__(
        self, config: RunConfig, spec: EnvSpec, checkpoint: Checkpoint, *, greedy: bool = False, seed: int = 0
    ) -> None:
        self.spec = spec
        self.agent = _agent_of(config, spec, checkpoint.meta.get(VALUES_OF_BEST, {}))
        like = jax.eval_shape(self.agent.init, key(0, "template"))
        self.params: Tree = checkpoint.subtree("train", "params", like)
        self.version = int(checkpoint.meta["version"])
        self.decider = deciding(self.agent, greedy=greedy)
        self.decide = _compiled(self.decider, spec, self.params)
        self.root = key(seed, "policy")
        self._decisions = itertools.count()
        self._keys = jax.jit(lambda rows, step: _keys(self.root, rows, step), static_argnums=0)
        self.sees_rewards = bool(getattr(config.settings, "previous_reward", False))

    @property
    def observation_spec(self) -> Tree:
        """Tree of :class:`~seedbed.types.ArraySpec`: one observation, without a batch axis."""
        return self.spec.observation

    @property
    def action_spec(self) -> ArraySpec:
        """Shape, dtype and bounds of one action; choices begin at 0."""
        return self.spec.action

    def within(self, action: Any, numpy: Any = np) -> Any:
        """Clips continuous actions ``[..., *action shape]`` to their bounds, as an environment does.

        Args:
          action: actions.
          numpy: module of the functions on arrays, NumPy or ``jax.numpy``.
        """
        if self.spec.action.num_values:
            return action
        low, high = (bound.astype(self.spec.action.dtype) for bound in self.spec.action.bounds)
        return numpy.clip(action, low, high)

    def act(
        self, observation: Tree, state: PolicyState | None = None, *, reward: Any = None, first: Any = None
    ) -> tuple[Array, PolicyState]:
        """Decides for one environment or a batch of them; where actions are drawn, every call draws anew.

        Args:
          observation: tree of arrays ``[*shape]`` or ``[B, *shape]``, as :attr:`observation_spec` says, or with the
            channels of images first where the environment shows them so; a tuple stands for a dict with the keys "0",
            "1", ….
          state: result of the step before; None at the first step of an episode.
          reward: reward of the step that led here, a number or ``[B]``; needed after the first step by a policy that
            was trained with ``--previous-reward``, and not used by others.
          first: bool ``[B]``, environments in which an episode begins with this observation; None: with no state all
            of them, with a state none.

        Returns:
          The action ``[*action shape]`` or ``[B, *action shape]``, within the bounds, and the state for the next step.

        Raises:
          SpecError: an observation does not fit the spec, the batch is another one than the state's, or the reward is
            missing.
        """
        arrays, batch = batch_of(observation, self.spec.observation)
        rows = 1 if batch is None else batch
        if state is not None and (before := _rows(state.agent, rows)) != rows:
            raise SpecError(
                f"the observation is of {rows} environments, and the state of {before}: give as many"
            )
        if state is not None and reward is None and self.sees_rewards:
            raise SpecError("this policy sees the reward of its last action: give act(..., reward=...)")
        timestep = step_of(self.spec, arrays, reward, state is None if first is None else first)
        state = state or PolicyState(self.agent.initial_state(rows), 0)
        keys = self._keys(rows, next(self._decisions))
        output, memory = self.decide(keys, step_arrays(timestep), state.agent)
        action = self.within(np.asarray(output.action, self.spec.action.dtype))
        return action[0] if batch is None else action, PolicyState(memory, state.step + 1)


@held()
def load(
    path: str | Path, *, greedy: bool = False, seed: int = 0, trust: Collection[str] | None = ()
) -> Policy:
    """Loads the policy of a run, with the weights of its newest intact checkpoint.

    No environment is made, unless the run is of a version before 0.2, which kept no spec: its environment is then made
    once.

    Args:
      path: the run folder.
      greedy: whether to take the policy's most likely action instead of drawing from it.
      seed: root of the randomness.
      trust: names ``module:name`` that the run may have imported, if this user did not begin it here; None for any.

    Raises:
      ConfigError: there is no such run, or it names a module that is not trusted.
      CheckpointError: none of its checkpoints is intact.
    """
    folder = RunFolder.open(path)
    config, checkpoint = folder.config(trust), folder.newest()
    return Policy(config, folder.spec() or build_spec(config), checkpoint, greedy=greedy, seed=seed)


def _agent_of(config: RunConfig, spec: EnvSpec, values: Mapping[str, float]) -> Agent:
    """The agent, of several the best one, without the annealing of its optimizer, for which a learner is needed."""
    return make_agent(config, with_values(config.settings, values), spec, 1)


def deciding(agent: Agent, *, greedy: bool) -> Agent:
    """Returns the agent whose ``act`` is the decision outside of training: it explores by its policy alone.

    What only training adds to that policy, for exploration, is left out.

    Args:
      agent: the agent.
      greedy: whether its ``act`` takes the most likely action, and records nothing.
    """
    if not greedy:
        return replace(agent, act=agent.sample or agent.act, explore=None)

    def act(params: Tree, keys: Any, timestep: Any, state: Tree) -> tuple[ActOutput, Tree]:
        del keys
        action, state = agent.mode(params, timestep, state)
        return ActOutput(action, {}), state

    return replace(agent, act=act, explore=None)


def _compiled(agent: Agent, spec: EnvSpec, params: Tree) -> Callable[..., Any]:
    @jax.jit
    def decide(keys: Any, arrays: list[Any], state: Tree) -> tuple[ActOutput, Tree]:
        return agent.act(params, keys, timestep_of(spec, [jnp.asarray(array) for array in arrays]), state)

    return decide


def _keys(root: Any, rows: int, step: Any) -> Any:
    """Returns keys ``[B]``, as a served policy derives them for its first client."""
    return row_keys(root, jnp.arange(rows), jnp.zeros(rows, jnp.int32), jnp.full(rows, step, jnp.int32))


def _rows(state: Tree, otherwise: int) -> int:
    """The batch of an agent's state; ``otherwise`` where it has no array."""
    arrays = jax.tree.leaves(state)
    return len(arrays[0]) if arrays else otherwise
