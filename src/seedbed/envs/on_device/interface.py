"""A world as pure functions, and the stream of a batch of them.

The stream is the one of :class:`~seedbed.types.TimeStep`: after the final observation of an episode comes, as a step of
its own, the first one of the next. Anakin, inside its program, and hosts, by
:class:`~seedbed.envs.on_device.batch.NativeBatch`, step batches with the functions here, so that both see the same.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp

from seedbed.errors import SpecError
from seedbed.types import EnvSpec, TimeStep, Tree, leaves, map_leaves

_GENERATOR = "threefry2x32"


@dataclass(frozen=True)
class NativeEnvironment:
    """One environment as pure functions that JAX can trace; ``vmap`` makes a batch of it.

    Where it has several agents (``spec.agents``, N), observations, rewards and actions have a leading axis ``[N]``, and
    all agents begin and end together. Each is a row of the batch; those of one environment are next to one another.

    Attributes:
      spec: spec of the observations and actions of one agent.
      reset: ``key -> (world, observation)``, the beginning of an episode.
      step: ``(world, key, action) -> (world, observation, reward, terminated)``; ``terminated`` is an end by the
        environment's own rules. A world is any pytree of arrays; it need not know how to begin anew.
      time_limit: steps after which an episode is truncated; None for no limit.
      render: ``world -> picture``, uint8 ``[H, W, 3]``, on the host; None if it cannot be drawn.
      differ: description of the spaces in which agents differ, if they were made equal for policies of their own.
      spaces: the number of each agent's spaces, the same for agents that have the same; empty if all have.
    """

    spec: EnvSpec
    reset: Callable[[Any], tuple[Any, Tree]]
    step: Callable[[Any, Any, Any], tuple[Any, Tree, Any, Any]]
    time_limit: int | None = None
    render: Callable[[Any], Any] | None = None
    differ: str = ""
    spaces: tuple[int, ...] = ()
    _lock: threading.RLock = field(default_factory=threading.RLock, init=False, repr=False, compare=False)
    _steps: dict[tuple[int, bool], Any] = field(default_factory=dict, init=False, repr=False, compare=False)

    def compiled_begin(self, seeds: Any) -> tuple[EnvState, TimeStep]:
        """:func:`begin` of this environment, compiled once for each number of environments, for all threads."""
        with self._lock:
            return cast(tuple[EnvState, TimeStep], self._begin(seeds))

    @functools.cached_property
    def _begin(self) -> Any:
        return jax.jit(functools.partial(begin, self))

    def compiled_advance(self, stage: EnvState, action: Any) -> Any:
        """:func:`advance` of this environment, compiled likewise; the state that it is given is used up.

        Args:
          stage: state of the batch, or shapes and dtypes of one.
          action: shape ``[B, ...]`` and dtype of the batch's actions.
        """
        kind = len(stage.steps), bool(jax.config.jax_enable_x64)
        with self._lock:
            if kind not in self._steps:
                step = jax.jit(functools.partial(advance, self), donate_argnums=0)
                self._steps[kind] = step.lower(stage, action).compile()
            return self._steps[kind]


class EnvState(NamedTuple):
    """The state of a batch of E environments, which has as many rows ``[B]`` as they have agents together.

    Attributes:
      world: pytree of arrays ``[E, ...]``.
      key: raw keys uint32 ``[E, …]``, one an environment; each step folds its number into it.
      steps: int32 ``[E]``, steps of the stream so far, first observations too.
      time: int32 ``[E]``, steps of the episode so far.
      ended: bool ``[E]``, the newest step was the final one of its episode.
    """

    world: Any
    key: Any
    steps: Any
    time: Any
    ended: Any


def begin(env: NativeEnvironment, seeds: Any) -> tuple[EnvState, TimeStep]:
    """Starts a batch: environment ``i`` draws from ``seeds[i]`` alone, uint32 ``[E]``."""
    keys = jax.vmap(lambda seed: jax.random.key(seed, impl=_GENERATOR))(seeds)
    steps = jnp.zeros(seeds.shape, jnp.int32)
    world, observation = _reset(env, keys, steps)
    never = jnp.zeros(seeds.shape, bool)
    stage = EnvState(world, jax.random.key_data(keys), steps, steps, never)
    reward = jnp.zeros((*seeds.shape, *_agents(env.spec)), jnp.float32)
    return stage, _rows(env.spec, observation, reward, never, never, ~never)


def advance(env: NativeEnvironment, stage: EnvState, action: Any) -> tuple[EnvState, TimeStep]:
    """Makes one step of the stream of every environment; ended ones begin anew, with any action.

    Args:
      env: the environment.
      stage: state of the batch.
      action: ``[B, *action shape]``.
    """
    action = action.reshape(*stage.ended.shape, *_agents(env.spec), *env.spec.action.shape)
    keys = jax.random.wrap_key_data(stage.key, impl=_GENERATOR)
    steps = stage.steps + 1
    world, observation, reward, terminated = _step(env, stage.world, keys, steps, action)

    def select(ended: Any, new: Any, old: Any) -> Any:
        return jnp.where(ended.reshape(ended.shape + (1,) * (new.ndim - 1)), new, old)

    def begin_anew() -> tuple[Any, Tree]:
        fresh = _reset(env, keys, steps)
        return jax.tree.map(lambda new, old: select(stage.ended, new, old), fresh, (world, observation))

    # Some worlds take long to reset, and in most steps no episode begins.
    world, observation = jax.lax.cond(jnp.any(stage.ended), begin_anew, lambda: (world, observation))
    first = stage.ended
    time = jnp.where(first, 0, stage.time + 1)
    terminated = terminated & ~first
    late = jnp.zeros_like(first) if env.time_limit is None else time >= env.time_limit
    truncated = late & ~terminated & ~first
    stage = EnvState(world, stage.key, steps, time, terminated | truncated)
    reward = select(first, jnp.zeros_like(reward), reward)
    return stage, _rows(env.spec, observation, reward, terminated, truncated, first)


def _agents(spec: EnvSpec) -> tuple[int, ...]:
    """The axis of agents: none where there is one."""
    return (spec.rows,) if spec.agents else ()


def _rows(
    spec: EnvSpec, observation: Tree, reward: Any, terminated: Any, truncated: Any, first: Any
) -> TimeStep:
    """The step of environments as that of rows."""
    if not spec.agents:
        return TimeStep(observation, reward, terminated, truncated, first)

    def joined(array: Any) -> Any:
        return array.reshape(-1, *array.shape[2:])

    flags = (jnp.repeat(flag, spec.rows) for flag in (terminated, truncated, first))
    return TimeStep(jax.tree.map(joined, observation), joined(reward), *flags)


def _reset(env: NativeEnvironment, keys: Any, steps: Any) -> tuple[Any, Tree]:
    return jax.vmap(lambda key, step: env.reset(jax.random.fold_in(key, step)))(keys, steps)


def _step(
    env: NativeEnvironment, world: Any, keys: Any, steps: Any, action: Any
) -> tuple[Any, Tree, Any, Any]:
    def one(world: Any, key: Any, step: Any, action: Any) -> tuple[Any, Tree, Any, Any]:
        return env.step(world, jax.random.fold_in(key, step), action)

    return jax.vmap(one)(world, keys, steps, action)


def settled(env: NativeEnvironment) -> NativeEnvironment:
    """Returns the environment, checked: with the dtypes of its spec, and the same ones after a reset and a step.

    A reset may write a plain 0 where a step has an int32, and a compiled loop takes neither for the other.

    Raises:
      SpecError: its observations differ from its spec, its action mask is none of its actions, or a world changes its
        structure or a shape.
    """
    _ = env.spec.action_mask
    key = jax.random.key(0, impl=_GENERATOR)
    agents = _agents(env.spec)
    action = jnp.zeros((*agents, *env.spec.action.shape), env.spec.action.dtype)
    fresh, shown = jax.eval_shape(env.reset, key)
    stepped, shown_after, reward, terminated = jax.eval_shape(env.step, fresh, key, action)
    for moment, observation in (("reset", shown), ("step", shown_after)):
        _require_observation(env.spec, moment, observation)
    for name, value, needed in (("reward", reward, agents), ("terminated", terminated, ())):
        if value.shape != needed:
            raise SpecError(f"{env.spec.id}: step gives a {name} of shape {value.shape}, needed is {needed}")
    _require_same_world(env.spec.id, fresh, stepped)
    dtypes = jax.tree.map(lambda a, b: jnp.result_type(a.dtype, b.dtype), fresh, stepped)

    def reset(key: Any) -> tuple[Any, Tree]:
        world, observation = env.reset(key)
        return jax.tree.map(jnp.asarray, world, dtypes), seen(observation)

    def step(world: Any, key: Any, action: Any) -> tuple[Any, Tree, Any, Any]:
        world, observation, reward, terminated = env.step(world, key, action)
        world = jax.tree.map(jnp.asarray, world, dtypes)
        return world, seen(observation), jnp.asarray(reward, jnp.float32), jnp.asarray(terminated, bool)

    def seen(observation: Tree) -> Tree:
        return map_leaves(
            lambda leaf, array: jnp.asarray(array, leaf.dtype), env.spec.observation, observation
        )

    return replace(env, reset=reset, step=step)


def _require_observation(spec: EnvSpec, moment: str, observation: Tree) -> None:
    needed = {path: (*_agents(spec), *leaf.shape) for path, leaf in leaves(spec.observation)}
    given = {path: tuple(leaf.shape) for path, leaf in leaves(observation)}
    if given != needed:
        raise SpecError(f"{spec.id}: {moment} shows observations of shapes {given}, its spec says {needed}")


def _require_same_world(env_id: str, fresh: Any, stepped: Any) -> None:
    before, after = str(jax.tree.structure(fresh)), str(jax.tree.structure(stepped))
    if before != after:
        raise SpecError(f"{env_id}: the world after a step is {after}, and after a reset it is {before}")
    for old, new in zip(jax.tree.leaves(fresh), jax.tree.leaves(stepped), strict=True):
        if old.shape != new.shape:
            raise SpecError(
                f"{env_id}: an array of the world has shape {new.shape} after a step, and {old.shape} after a reset"
            )
        if jnp.issubdtype(old.dtype, jax.dtypes.extended):
            raise SpecError(
                f"{env_id}: the world holds {old.dtype}, which no checkpoint can keep: hold jax.random.key_data"
            )
