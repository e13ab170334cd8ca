"""Gymnasium: any registered id, batched, and any vector environment that is made elsewhere.

Of Gymnasium's autoreset modes only ``NEXT_STEP`` keeps the final observation as a step of its own; the other
modes are not used, and a vector environment that has one of them is refused. Ids with a vector entry point
(CartPole) are stepped by it, many times as fast; the others one after the other in this process, since an
actor is itself one of many processes.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any

import numpy as np

from seedbed.envs.atari import atari_ids, is_atari
from seedbed.envs.options import option_names, refuse_unknown
from seedbed.envs.seeds import environment_seeds
from seedbed.envs.spaces import action_codec, observation_codec, taken
from seedbed.envs.stream import Stream
from seedbed.errors import ConfigError, EnvironmentFault, unknown_name
from seedbed.types import EnvSpec, TimeStep

if TYPE_CHECKING:
    from gymnasium.envs.registration import EnvSpec as Registration
    from gymnasium.vector import VectorEnv

    Batch = VectorEnv[Any, Any, Any]


class GymnasiumBatch:
    """A Gymnasium vector environment behind our interface.

    Environments that were batched one by one are seeded one by one. A vector environment with a random
    generator of its own takes one seed: there, what environment ``i`` draws depends on its batch.
    """

    def __init__(self, env_id: str, env: Batch) -> None:
        """Takes over ``env``; raises :class:`ConfigError` if its spaces or its autoreset mode do not fit."""
        require_next_step(env_id, env)
        observation, self._decode = observation_codec(env.single_observation_space, env_id)
        action, self._encode = action_codec(env.single_action_space, env_id)
        self.spec = EnvSpec(env_id, observation, action)
        self.num_envs = env.num_envs
        self._env = env
        self._stream = Stream(env.num_envs)
        self._action: Any = None
        self._closed = False

    def reset(self, seed: int) -> TimeStep:
        """Starts every environment anew."""
        seeds: Any = [int(s) for s in environment_seeds(seed, self.num_envs)]
        observation, _ = self._env.reset(seed=seeds if _has_members(self._env) else seeds[0])
        return self._stream.start(taken(self._decode, observation, "reset"))

    def send(self, action: Any) -> None:
        """Keeps the actions until :meth:`receive`."""
        self._action = self._encode(action)

    def receive(self) -> TimeStep:
        """Steps the environments."""
        observation, reward, terminated, truncated, _ = self._env.step(self._action)
        return self._stream.step(taken(self._decode, observation, "step"), reward, terminated, truncated)

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
            self._env.close()


def make_standard(env_id: str, num_envs: int, options: Mapping[str, Any], *, render: bool) -> GymnasiumBatch:
    """Makes ``num_envs`` environments of a Gymnasium id; ``options`` go to their constructor.

    Raises:
      ConfigError: the id or an option does not exist, or a space is not supported.
    """
    import gymnasium

    # Here, since it imports Gymnasium, which other environments do not need.
    from seedbed.envs.members import Member

    registration = _find(env_id)
    refuse_unknown(env_id, options, _known_options(registration))
    arguments = {**options, **({"render_mode": "rgb_array"} if render else {})}
    # Pictures are taken from single environments: the vector ones draw the whole batch for each.
    if registration.vector_entry_point is not None and not render:
        env: Batch = gymnasium.make_vec(env_id, num_envs, "vector_entry_point", **arguments)
        if _autoreset(env) == "NextStep":
            return GymnasiumBatch(env_id, env)
        env.close()
    # The checker looks at every step of every environment; `check_environment` does so once.
    made = gymnasium.make_vec(
        env_id,
        num_envs,
        "sync",
        wrappers=[lambda single: Member(single, env_id)],
        disable_env_checker=True,
        **arguments,
    )
    return GymnasiumBatch(env_id, made)


def require_next_step(env_id: str, env: Batch) -> None:
    """Raises :class:`ConfigError` unless ``env`` says that its autoreset mode is ``NEXT_STEP``."""
    mode = _autoreset(env)
    if mode != "NextStep":
        raise ConfigError(
            f"{env_id} has the autoreset mode {mode}; Seedbed needs NextStep, in which the final observation "
            "of an episode is a step: set metadata['autoreset_mode'] = AutoresetMode.NEXT_STEP and step so"
        )


def _autoreset(env: Batch) -> str:
    """Name of the autoreset mode that ``env`` declares."""
    mode = (env.metadata or {}).get("autoreset_mode")
    return str(getattr(mode, "value", mode))


def _has_members(env: Batch) -> bool:
    """Whether ``env`` is a batch of single environments, which take one seed each."""
    from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv

    return isinstance(env.unwrapped, SyncVectorEnv | AsyncVectorEnv)


def _find(env_id: str) -> Registration:
    """The registration of ``env_id``; imports the module of a ``module:Id``."""
    import gymnasium

    module, _, name = env_id.rpartition(":")
    try:
        if module:
            import_module(module)
        registration: Registration = gymnasium.spec(name)
    except ModuleNotFoundError as error:
        raise ConfigError(f"{env_id}: module {module!r} cannot be imported: {error}") from error
    except gymnasium.error.UnregisteredEnv as error:
        raise ConfigError(_unknown_id(env_id)) from error
    if _is_raw_atari(registration):
        raise ConfigError(_unknown_id(env_id))
    return registration


def _is_raw_atari(registration: Registration) -> bool:
    """Whether an id is ALE's without being one that :mod:`seedbed.envs.atari` takes (``Pong-v4``)."""
    return str(registration.entry_point).startswith("ale_py") and not is_atari(registration.id)


def _unknown_id(env_id: str) -> str:
    import gymnasium

    atari = atari_ids()  # Registers them, too.
    others = [name for name, registration in gymnasium.registry.items() if not _is_raw_atari(registration)]
    line = unknown_name("environment", env_id, {*others, *atari})
    return f"{line} (an id that a package registers is written package:{env_id.rpartition(':')[2]})"


def _known_options(registration: Registration) -> list[str] | None:
    """Names that the constructor of the environment takes, and those that Gymnasium adds."""
    from gymnasium.envs.registration import load_env_creator

    entry = registration.entry_point
    if entry is None:
        return None
    names = option_names(load_env_creator(entry) if isinstance(entry, str) else entry)
    return None if names is None else [*(n for n in names if n != "render_mode"), "max_episode_steps"]
