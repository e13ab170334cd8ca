"""Native environments by name: ``gymnax:CartPole-v1``, ``pgx:connect_four``, or ``module:factory`` of one's own."""

from __future__ import annotations

import contextlib
import functools
import importlib
import io
import sys
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from seedbed.envs.on_device.games import make_game
from seedbed.envs.on_device.interface import NativeEnvironment, settled
from seedbed.envs.on_device.several import telling, together
from seedbed.envs.on_device.toys import TOYS
from seedbed.envs.options import Options, Parameter, Takes, arguments, taken_by, whole
from seedbed.envs.own import is_own
from seedbed.envs.policies import SHARED, without_policies
from seedbed.errors import ConfigError, SeedbedError, unknown_name
from seedbed.installation import extra_line
from seedbed.plugins import load
from seedbed.types import ArraySpec, EnvSpec

_UNLIMITED = 2**30
_BRAX_LIMIT = 1000
_CRAFTAX = (
    "Craftax-Symbolic-v1",
    "Craftax-Pixels-v1",
    "Craftax-Classic-Symbolic-v1",
    "Craftax-Classic-Pixels-v1",
)
_ON_HOSTS = ("toy", "envpool")


def make_native(env_id: str, options: Options = ()) -> NativeEnvironment:
    """Makes a native environment.

    One of a library is made once: its functions are pure, and what they compile serves everybody who has it.

    Raises:
      ConfigError: the environment is not native, its library is missing, or an option is wrong.
      SpecError: its observations differ from its spec.
    """
    options, policies = without_policies(options)
    known = env_id.partition(":")[0] in MAKERS or env_id in TOYS
    if not known or not all(isinstance(value, (bool, int, float, str)) for value in options.values()):
        return _make(env_id, options, policies)  # Its maker, or a value, may be another one at the next call.
    # 1, 1.0 and True are equal, and not the same option.
    given = tuple((name, type(value), value) for name, value in sorted(options.items()))
    with _making:
        return _made_once(env_id, given, policies, bool(jax.config.jax_enable_x64))


_making = threading.RLock()
"""Held while one is made: all threads of a run ask for the same."""


@functools.lru_cache(maxsize=16)
def _made_once(
    env_id: str, given: tuple[tuple[str, type, Any], ...], policies: str, x64: bool
) -> NativeEnvironment:
    del x64  # its arrays are of another dtype
    return _make(env_id, {name: value for name, _, value in given}, policies)


def _make(env_id: str, options: dict[str, Any], policies: str) -> NativeEnvironment:
    library = env_id.partition(":")[0]
    try:
        made: Any = None
        if library in MAKERS:
            made = MAKERS[library](env_id, options)
        elif env_id in TOYS:
            made = TOYS[env_id](env_id, **arguments(env_id, options, taken_by(TOYS[env_id], "env_id")))
        elif is_own(env_id) and library not in _ON_HOSTS:
            made = _own(env_id, options)
        if isinstance(made, NativeEnvironment):
            return settled(_for_one_policy(made) if policies == SHARED else telling(made, policies))
    except SeedbedError:
        raise
    except Exception as error:
        raise ConfigError(f"{env_id} cannot be made: {type(error).__name__}: {error}") from error
    raise ConfigError(
        f"{env_id} is no JAX-native environment, and this needs one: leave --arch out, or take an environment that is "
        f"({', '.join([*(f'{name}:…' for name in MAKERS), *TOYS])}, or module:factory that returns a "
        "NativeEnvironment)"
    )


def _for_one_policy(env: NativeEnvironment) -> NativeEnvironment:
    """Returns the environment; raises :class:`ConfigError` if its agents are of several kinds."""
    if env.differ:
        raise ConfigError(
            f"{env.spec.id}: {env.differ}, and one policy decides for all of them: give each agent its own by "
            "--policies own, or each kind one by --policies kind"
        )
    return env


def _own(env_id: str, options: Options) -> Any:
    """Returns the result of the user's factory."""
    factory = load(env_id)
    takes = taken_by(factory)
    settings = arguments(env_id, options, takes)
    return factory(**{"num_envs": 1, **settings} if "num_envs" in takes.parameters else settings)


def _make_gymnax(env_id: str, options: Options) -> NativeEnvironment:
    """Of gymnax. Its options are its parameters (``max_steps_in_episode`` is the time limit)."""
    try:
        with _imported_when_used("seaborn"):  # for pictures of its own; it takes a second to import
            import gymnax
    except ImportError as error:
        raise ConfigError(f"{env_id} needs gymnax ({error}): {extra_line('gymnax')}") from error
    name = _known(env_id, gymnax.registered_envs)
    env, params = gymnax.make(name)
    made = _with_parameters(env_id, env, params, options, limit="max_steps_in_episode")
    if not name.endswith("-MinAtar"):
        return made
    # Planes of yes and no, which gymnax shows as numbers: four times the bytes to keep and to move.
    planes = replace(made.spec, observation=ArraySpec(made.spec.observation.shape, "bool"))
    return replace(made, spec=planes)


@contextlib.contextmanager
def _imported_when_used(name: str) -> Iterator[None]:
    """Inside, ``import name`` imports nothing yet: the module is loaded when a name of it is first asked for."""
    if name in sys.modules:
        yield
        return
    stand_in = ModuleType(name)

    def give_way() -> None:
        if sys.modules.get(name) is stand_in:
            del sys.modules[name]

    def attribute_of(attribute: str) -> Any:
        give_way()
        return getattr(importlib.import_module(name), attribute)

    # A module's own __getattr__. (importlib's LazyLoader does not outlast an import statement.)
    vars(stand_in)["__getattr__"] = attribute_of
    sys.modules[name] = stand_in
    try:
        yield
    finally:
        give_way()


def _make_craftax(env_id: str, options: Options) -> NativeEnvironment:
    """Of Craftax. Its options are its parameters (``max_timesteps`` is the time limit)."""
    try:
        from craftax.craftax_env import make_craftax_env_from_name
    except ImportError as error:
        raise ConfigError(f"{env_id} needs craftax ({error}): {extra_line('craftax')}") from error
    env = make_craftax_env_from_name(_known(env_id, _CRAFTAX), auto_reset=False)
    # It keeps its key in the world, and no checkpoint could keep a typed one.
    return _with_parameters(
        env_id, env, env.default_params, options, limit="max_timesteps", key_of=jax.random.key_data
    )


def _make_brax(env_id: str, options: Options) -> NativeEnvironment:
    """Makes one of Brax. Options are the environment's (``backend``, …), and ``episode_length``, the time limit."""
    try:
        from brax import envs
    except ImportError as error:
        raise ConfigError(f"{env_id} needs brax ({error}): {extra_line('brax')}") from error
    name = _known(env_id, envs._envs)
    takes = taken_by(envs._envs[name])
    limits = {"episode_length": Parameter.of(_BRAX_LIMIT)}
    settings = arguments(env_id, options, Takes({**takes.parameters, **limits}, takes.any_name))
    limit = whole(env_id, "episode_length", settings.pop("episode_length", _BRAX_LIMIT), 1)
    env = envs.get_environment(name, **settings)
    shown = jax.eval_shape(env.reset, jax.random.key(0)).obs

    def reset(key: Any) -> tuple[Any, Any]:
        world = env.reset(key)
        return world, world.obs

    def step(world: Any, key: Any, action: Any) -> tuple[Any, Any, Any, Any]:
        del key  # What happens in it follows from where it stands.
        world = env.step(world, jnp.clip(action, -1.0, 1.0))
        return world, world.obs, world.reward, world.done > 0.5

    size = env.action_size
    action = ArraySpec((size,), "float32", low=(-1.0,) * size, high=(1.0,) * size)
    return NativeEnvironment(
        EnvSpec(env_id, ArraySpec(shown.shape, "float32"), action), reset, step, time_limit=limit
    )


def _make_jaxmarl(env_id: str, options: Options) -> NativeEnvironment:
    """Makes one of JaxMARL, in which each agent is a row; options are arguments of its constructor.

    All agents begin and end together: one that has ended before the others stays, and may do what the environment lets
    it do. Its time limit, if it has one, truncates.
    """
    try:
        with _streams_kept():
            import jaxmarl
        from jaxmarl.environments.multi_agent_env import MultiAgentEnv
        from jaxmarl.registration import registered_envs
    except ImportError as error:
        raise ConfigError(f"{env_id} needs jaxmarl ({error}): {extra_line('jaxmarl')}") from error
    name = _known(env_id, registered_envs)
    settings = arguments(env_id, options, _taken_by_all(type(jaxmarl.make(name))))
    env, unlimited, limit = _without_limit(functools.partial(jaxmarl.make, name, **settings))
    agents = tuple(env.agents)
    acts = [_gymnax_action(env_id, env.action_space(agent)) for agent in agents]
    shown = jax.eval_shape(lambda key: env.reset(key)[0], jax.random.key_data(jax.random.key(0)))
    common = together(
        env_id,
        [ArraySpec(shown[agent].shape, _dtype_of(shown[agent])) for agent in agents],
        [spec for spec, _ in acts],
        agents,
        masked=type(env).get_avail_actions is not MultiAgentEnv.get_avail_actions,
    )

    def seen(observations: Any, world: Any) -> Any:
        allowed = env.get_avail_actions(world) if common.masked else None
        return common.rows(
            [observations[agent] for agent in agents],
            None if allowed is None else [allowed[agent] for agent in agents],
        )

    def reset(key: Any) -> tuple[Any, Any]:
        observations, world = env.reset(jax.random.key_data(key))
        return world, seen(observations, world)

    def step(world: Any, key: Any, action: Any) -> tuple[Any, Any, Any, Any]:
        raw, own = jax.random.key_data(key), common.own_actions(action)
        actions = {agent: encode(each) for agent, (_, encode), each in zip(agents, acts, own, strict=True)}
        observations, after, rewards, ends, _ = unlimited.step_env(raw, world, actions)
        if env is not unlimited:
            observations, *_ = env.step_env(raw, world, actions)
        return (
            after,
            seen(observations, after),
            jnp.stack([rewards[agent] for agent in agents]),
            ends["__all__"],
        )

    spec = EnvSpec(env_id, common.observation, common.action, agents=agents)
    return NativeEnvironment(spec, reset, step, time_limit=limit, differ=common.differ, spaces=common.spaces)


def _without_limit(make: Callable[..., Any]) -> tuple[Any, Any, int | None]:
    """Makes an environment of JaxMARL with a time limit that would pass for a termination put out of reach.

    Args:
      make: function that makes it, of further arguments of its constructor.

    Returns:
      The environment whose observations are shown, the one that steps (both may be one), and the limit in steps, if
      there is one.
    """
    env = make()
    if hasattr(env, "max_steps"):
        # What it shows may depend on the limit, and is as it was.
        unlimited = holder = make()
        while "max_steps" not in vars(holder) and hasattr(holder, "_env"):
            holder = holder._env  # SMAX with an enemy of its own passes on names of another one
        holder.max_steps = _UNLIMITED
        return env, unlimited, int(env.max_steps)
    if hasattr(env, "episode_length"):
        # Of Brax, which counts physical steps, and shows a fresh world in place of the last one if it resets it.
        limit = -(-int(env.episode_length) // int(getattr(env, "action_repeat", 1)))
        endless = make(episode_length=_UNLIMITED, auto_reset=False)
        return endless, endless, limit
    return env, env, None


@contextlib.contextmanager
def _streams_kept() -> Iterator[None]:
    """Inside, nothing is printed; afterwards the streams are as before.

    JaxMARL prints about a part that it has not, and has set ``sys.stdout`` and ``sys.stderr`` to the process's own.
    """
    kept = {name: getattr(sys, name) for name in ("stdout", "stderr", "__stdout__", "__stderr__")}
    sys.stdout = sys.__stdout__ = io.StringIO()  # type: ignore[misc, assignment]
    try:
        yield
    finally:
        for name, stream in kept.items():
            setattr(sys, name, stream)


def _taken_by_all(kind: type) -> Takes:
    """Returns the arguments of a class and of its bases, to which it passes on any names: others would mean nothing."""
    takes = [
        taken_by(vars(each)["__init__"], "self") for each in kind.__mro__[:-1] if "__init__" in vars(each)
    ]
    return Takes({name: given for each in reversed(takes) for name, given in each.parameters.items()})


def _known(env_id: str, names: Iterable[str]) -> str:
    library, _, name = env_id.partition(":")
    if name not in names:
        raise ConfigError(unknown_name(f"{library} environment", name, names))
    return name


def _with_parameters(
    env_id: str,
    env: Any,
    params: Any,
    options: Options,
    *,
    limit: str,
    key_of: Callable[[Any], Any] = lambda key: key,
) -> NativeEnvironment:
    """Makes one with gymnax's interface, whose parameters have a time limit of that name.

    ``key_of`` converts a key to the environment's kind of keys.
    """
    takes = Takes({name: Parameter.of(default) for name, default in vars(params).items()})
    settings = arguments(env_id, options, takes)
    steps = whole(env_id, limit, settings.pop(limit, int(getattr(params, limit))), 1)
    params = params.replace(**settings, **{limit: steps})
    # Its own limit would pass for a termination: ours marks the truncation, and its own is put out of reach. What it
    # shows may depend on the limit, and is as it was; what both calls have in common is compiled once.
    unlimited = params.replace(**{limit: _UNLIMITED})
    reset_env, step_env = _quiet(env.reset_env), _quiet(env.step_env)
    shown, _ = jax.eval_shape(reset_env, key_of(jax.random.key(0)), params)
    action, encode = _gymnax_action(env_id, env.action_space(params))

    def reset(key: Any) -> tuple[Any, Any]:
        observation, world = reset_env(key_of(key), params)
        return world, observation

    def step(world: Any, key: Any, action: Any) -> tuple[Any, Any, Any, Any]:
        observation, *_ = step_env(key_of(key), world, encode(action), params)
        _, world, reward, done, _ = step_env(key_of(key), world, encode(action), unlimited)
        return world, observation, reward, done

    return NativeEnvironment(
        EnvSpec(env_id, ArraySpec(shown.shape, _dtype_of(shown)), action),
        reset,
        step,
        time_limit=steps,
    )


_filtering = threading.RLock()
"""Held while warnings are filtered: all threads share filters, and A3C's make their environments at once."""


def _quiet(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function without JAX's warnings about how MinAtar is written, which only gymnax's authors could change."""

    def quietly(*arguments: Any) -> Any:
        with _filtering, warnings.catch_warnings():
            warnings.filterwarnings("ignore", "scatter inputs have incompatible types", FutureWarning)
            return function(*arguments)

    return quietly


def _gymnax_action(env_id: str, space: Any) -> tuple[ArraySpec, Callable[[Any], Any]]:
    """Returns the spec of an action, and the function from a policy's action to the environment's."""
    if hasattr(space, "n"):
        return ArraySpec((), "int32", (int(space.n),)), lambda action: action
    if np.ndim(space.low) == 0 or np.shape(space.low) == tuple(space.shape):
        low, high = (np.broadcast_to(np.asarray(b, np.float32), space.shape) for b in (space.low, space.high))
        spec = ArraySpec(
            tuple(space.shape),
            "float32",
            low=tuple(map(float, low.ravel())),
            high=tuple(map(float, high.ravel())),
        )
        return spec, lambda action: jnp.clip(action, low, high)
    raise ConfigError(f"{env_id}: actions of {type(space).__name__} are not supported")


def _dtype_of(shown: Any) -> str:
    """Of an observation as it travels."""
    if shown.dtype == bool:
        return "bool"
    return "float32" if np.issubdtype(shown.dtype, np.floating) else "int32"


MAKERS: dict[str, Callable[[str, Options], NativeEnvironment]] = {
    "gymnax": _make_gymnax,
    "brax": _make_brax,
    "craftax": _make_craftax,
    "pgx": make_game,
    "jaxmarl": _make_jaxmarl,
}
"""Libraries of native environments, by the prefix of their ids."""
