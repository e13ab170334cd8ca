"""Gymnasium: any registered id, batched, and any vector environment that is made elsewhere.

Of Gymnasium's autoreset modes only ``NEXT_STEP`` keeps the final observation as a step of its own; the other
modes are not used, and a vector environment that has one of them is refused. Ids with a vector entry point
(CartPole) are stepped by it, many times as fast; the others one after the other in this process, since an
actor is itself one of many processes.
"""

from __future__ import annotations

import contextlib
import numbers
import re
from collections.abc import Callable, Mapping, Set
from typing import TYPE_CHECKING, Any

import numpy as np

from seedbed.envs import contract
from seedbed.envs.atari import is_raw_atari
from seedbed.envs.claims import claim, release
from seedbed.envs.final_infos import final_infos
from seedbed.envs.options import Options, Parameter, Takes, arguments, taken_by
from seedbed.envs.seeds import environment_seeds
from seedbed.envs.spaces import action_codec, observation_codec, taken
from seedbed.envs.stream import Stream
from seedbed.envs.unknown import unknown_id
from seedbed.errors import ConfigError, EnvironmentFault
from seedbed.metrics.final_info import FinalInfo
from seedbed.plugins import import_from_here
from seedbed.types import EnvSpec, TimeStep

if TYPE_CHECKING:
    import gymnasium
    from gymnasium.envs.registration import EnvSpec as Registration
    from gymnasium.vector import VectorEnv

    Batch = VectorEnv[Any, Any, Any]


_LIMIT = "max_episode_steps"
_NO_LIMIT = -1
_NEVER = 2**31 - 1
"""Time limit of a vector environment that has to have none: -1 would end each episode at once. Steps fit int32."""


class GymnasiumBatch:
    """A Gymnasium vector environment behind our interface.

    Environments that were batched one by one are seeded one by one. A vector environment with a random
    generator of its own takes one seed: there, the draws of environment ``i`` depend on its batch.

    Attributes:
      told: numbers in the ``info`` of episodes' ends.
      render_fps: pictures a second at which the environment is to be shown, as its metadata say it.
    """

    def __init__(self, env_id: str, env: Batch) -> None:
        """Takes over ``env``; raises :class:`ConfigError` if its spaces or its autoreset mode do not fit."""
        require_next_step(env_id, env)
        # Of a batch that was made one by one, its members.
        self._parts = [one.unwrapped for one in getattr(env.unwrapped, "envs", [env])]
        claim(env_id, self._parts)
        observation, self._decode = observation_codec(env.single_observation_space, env_id)
        action, self._encode = action_codec(env.single_action_space, env_id)
        self.spec = EnvSpec(env_id, observation, action)
        self.num_envs = env.num_envs
        self._env = env
        self._stream = Stream(env.num_envs)
        self.told = FinalInfo()
        self.render_fps = (env.metadata or {}).get("render_fps")
        self._action: Any = None
        self._closed = False

    def reset(self, seed: int) -> TimeStep:
        """Starts every environment anew."""
        seeds: Any = [int(s) for s in environment_seeds(seed, self.num_envs)]
        given = seeds if _has_members(self._env) else seeds[0]
        observation, _ = contract.reset(self.spec.id, self._env.reset, self._env.unwrapped.reset, seed=given)
        return self._stream.start(taken(self._decode, observation, "reset"))

    def send(self, action: Any) -> None:
        """Keeps the actions until :meth:`receive`."""
        self._action = self._encode(action)

    def receive(self) -> TimeStep:
        """Steps the environments."""
        result = contract.steps(self.spec.id, self._env.step(self._action), self.num_envs)
        observation, reward, terminated, truncated, info = result
        step = self._stream.step(taken(self._decode, observation, "step"), reward, terminated, truncated)
        self.told.add(*final_infos(info, self._stream.ended))
        return step

    def render(self) -> Any:
        """The picture of environment 0, uint8 ``[H, W, 3]``."""
        if self._env.render_mode != "rgb_array":
            raise EnvironmentFault(
                f"{self.spec.id} gives no picture: it was not made with render_mode='rgb_array'"
            )
        frames: Any = self._env.render()
        return np.asarray(frames[0], np.uint8)

    def close(self) -> None:
        """Closes the environments."""
        if not self._closed:
            self._closed = True
            release(self._parts)
            self._env.close()


def make_standard(env_id: str, num_envs: int, options: Options, *, render: bool) -> GymnasiumBatch:
    """Makes ``num_envs`` environments of a Gymnasium id; ``options`` go to their constructor.

    One of them, ``max_episode_steps``, takes the place of the id's time limit; -1 and None are no limit.

    Raises:
      ConfigError: the id or an option does not exist, or a space is not supported.
    """
    import gymnasium

    registration = _find(env_id)
    settings = arguments(env_id, options, _takes(registration))
    if _LIMIT in settings:
        settings[_LIMIT] = _limit(env_id, settings[_LIMIT])
    if render:
        settings["render_mode"] = "rgb_array"
    # Pictures are taken from single environments: the vector ones draw the whole batch for each.
    if _steps_batches(registration, settings) and not render:
        endless = {_LIMIT: _NEVER} if settings.get(_LIMIT) == _NO_LIMIT else {}
        env: Batch = gymnasium.make_vec(
            registration.id, num_envs, "vector_entry_point", **{**settings, **endless}
        )
        if _autoreset(env) == "NextStep":
            return GymnasiumBatch(env_id, env)
        env.close()
    # The checker looks at every step of every environment; `check_environment` does so once.
    return batch_of(
        env_id, num_envs, lambda: gymnasium.make(registration.id, disable_env_checker=True, **settings)
    )


def _limit(env_id: str, value: Any) -> int:
    """Returns a time limit as :func:`gymnasium.make` takes it: steps, or -1 for none.

    Raises:
      ConfigError: it is no whole number of at least 1, nor -1, nor None.
    """
    if value is None or value == _NO_LIMIT:
        return _NO_LIMIT
    if isinstance(value, bool) or not isinstance(value, numbers.Integral) or value < 1:
        raise ConfigError(
            f"{env_id}: {_LIMIT} is {value!r}; it must be a whole number of at least 1, or -1 or none for no limit"
        )
    return int(value)


def _steps_batches(registration: Registration, settings: Mapping[str, Any]) -> bool:
    """Returns whether the vector entry point makes what ``settings`` ask for.

    It is told of a time limit by an argument that it need not have where the id is registered without a limit.
    """
    if registration.vector_entry_point is None:
        return False
    limited = registration.max_episode_steps is not None or _LIMIT not in settings
    return limited or registration.entry_point is None


def batch_of(env_id: str, num_envs: int, make_one: Callable[[], gymnasium.Env[Any, Any]]) -> GymnasiumBatch:
    """Returns ``num_envs`` environments that are made one by one; if one cannot be, the others are closed."""
    # Here, since they import Gymnasium, which other environments do not need.
    from seedbed.envs.as_declared import AsDeclared
    from seedbed.envs.singles import Singles

    made: list[gymnasium.Env[Any, Any]] = []
    try:
        for _ in range(num_envs):
            made.append(make_one())
            if len(made) == 1:
                # Before they are batched, which says what is wrong with a space in other words.
                observation_codec(made[0].observation_space, env_id)
                action_codec(made[0].action_space, env_id)
        return GymnasiumBatch(env_id, Singles([AsDeclared(env, env_id) for env in made]))
    except BaseException:
        for env in made:
            with contextlib.suppress(Exception):  # what is told is why there is no batch
                env.close()
        raise


def require_next_step(env_id: str, env: Batch) -> None:
    """Raises :class:`ConfigError` unless ``env`` says that its autoreset mode is ``NEXT_STEP``."""
    mode = _autoreset(env)
    if mode != "NextStep":
        raise ConfigError(
            f"{env_id} has the autoreset mode {mode}; Seedbed needs NextStep, in which the final observation of an "
            "episode is a step and the next one resets: give SyncVectorEnv or AsyncVectorEnv "
            "autoreset_mode='NextStep', or gymnasium.make_vec vector_kwargs={'autoreset_mode': 'NextStep'}; a vector "
            "environment of your own has to step so and to say so in metadata['autoreset_mode']"
        )


def _autoreset(env: Batch) -> str:
    """Name of the autoreset mode that ``env`` declares."""
    mode = (env.metadata or {}).get("autoreset_mode")
    return str(getattr(mode, "value", mode))


def _has_members(env: Batch) -> bool:
    """Returns whether ``env`` is a batch of single environments, which take one seed each."""
    from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv

    from seedbed.envs.singles import Singles

    return isinstance(env.unwrapped, Singles | SyncVectorEnv | AsyncVectorEnv)


def _find(env_id: str) -> Registration:
    """The registration of ``env_id``, of its newest version if it has none; imports the module of a ``module:Id``."""
    import gymnasium

    module, _, name = env_id.rpartition(":")
    before = set(gymnasium.registry)
    if module:
        import_from_here(env_id, module)
    registration = gymnasium.registry.get(name) or _newest(name)
    if registration is None or is_raw_atari(registration):
        raise ConfigError(
            unknown_id(env_id, [one for one in gymnasium.registry if _is_of(module, one, before)])
        )
    return registration


def _newest(name: str) -> Registration | None:
    """The newest version of an id that is written without one."""
    import gymnasium

    versions = [one for one in gymnasium.registry.values() if one.id.rpartition("-v")[0] == name]
    return max(versions, key=lambda one: one.version or 0, default=None)


def _is_of(module: str, env_id: str, before: Set[str]) -> bool:
    """Returns whether the module has registered the id: in this import, or in one before it."""
    import gymnasium

    entry = gymnasium.registry[env_id].entry_point
    origin = entry if isinstance(entry, str) else getattr(entry, "__module__", "")
    return env_id not in before or (bool(module) and re.split("[.:]", origin)[0] == module.partition(".")[0])


def _takes(registration: Registration) -> Takes:
    """Returns the constructor's arguments, with the registered defaults over its own, and Gymnasium's."""
    from gymnasium.envs.registration import load_env_creator

    limit = {_LIMIT: Parameter.of(registration.max_episode_steps, int | None)}
    entry = registration.entry_point
    if entry is None:
        return Takes(limit, any_name=True)
    own = taken_by(load_env_creator(entry) if isinstance(entry, str) else entry, "render_mode")
    registered = {
        name: own.parameters.get(name, Parameter()).with_default(default)
        for name, default in registration.kwargs.items()
    }
    return Takes({**own.parameters, **registered, **limit}, own.any_name)
