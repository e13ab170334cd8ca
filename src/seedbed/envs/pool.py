"""EnvPool: Atari, VizDoom, Google Research Football, MuJoCo, Procgen and more, stepped by its C++ threads.

An optional extra. EnvPool resets one step after an end, as the stream
wants it, and gives the rows in order as long as every environment is waited for, as here.
"""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from seedbed.envs.final_infos import final_infos
from seedbed.envs.options import Options, Parameter, Takes, arguments, whole
from seedbed.envs.seeds import environment_seeds
from seedbed.envs.spaces import action_codec, observation_codec, taken
from seedbed.envs.stream import Stream
from seedbed.errors import ConfigError, EnvironmentFault, unknown_name
from seedbed.installation import extra_line
from seedbed.metrics.final_info import FinalInfo
from seedbed.types import ACTION_MASK, EnvSpec, TimeStep, map_leaves

PREFIX = "envpool:"

_OURS = {
    "num_envs",
    "batch_size",
    "seed",
    "env_seed",
    "gym_reset_return_info",
    "max_num_players",
    "stack_num",
}
"""Settings of EnvPool that the adapter makes itself."""

_RESETS_ITSELF = "-AutoReset"
"""Part of the names of Craftax's tasks that do."""

_NO_STATISTICS = ("env_id", "players", "reward", "terminated")
"""What EnvPool's info has beside statistics of the episode: numbers of environments, and the last step again."""

_FOOTBALLS_VARIABLES = (
    "GFOOTBALL_DATA_DIR",
    "GFOOTBALL_FONT",
    "MESA_GL_VERSION_OVERRIDE",
    "MESA_GLSL_VERSION_OVERRIDE",
)
"""Variables that Google Research Football sets in the process as it is made."""


class Pool:
    """A batch of one EnvPool task; ``send`` returns at once.

    The options are EnvPool's own for the task (``max_episode_steps``, ``frame_skip``, …), and
    ``frame_stack``: how many pictures the network sees, by default as many as EnvPool would stack. Pictures
    come one at a time and channel last. Where a task offers both raw buttons and combined actions (VizDoom),
    actions are the combined ones.

    Attributes:
      told: numbers in the ``info`` of episodes' ends.
    """

    def __init__(self, env_id: str, num_envs: int, options: Options, *, render: bool) -> None:
        """Reads the task's spec; the environments are made by :meth:`reset`, since EnvPool seeds at birth.

        Raises:
          ConfigError: EnvPool is missing, or the task, an option or a space is not supported.
        """
        self._library = _import(env_id)
        self._task = env_id.removeprefix(PREFIX)
        defaults = _defaults(self._library, env_id, self._task)
        own = {name: default for name, default in defaults.items() if name not in _OURS}
        own["frame_stack"] = defaults.get("stack_num", 1)
        takes = Takes({name: Parameter.of(default) for name, default in own.items()})
        settings = arguments(env_id, options, takes)
        if settings.get("reward_clip"):
            raise ConfigError(
                f"{env_id}: with reward_clip of EnvPool's own all returns would be sums of clipped rewards: give "
                "--reward-clip 1, which clips in the loss alone"
            )
        if defaults.get("max_num_players", 1) > 1:
            raise ConfigError(f"{env_id} has several players; Seedbed takes tasks of one")
        if _RESETS_ITSELF in self._task:
            alone = env_id.replace(_RESETS_ITSELF, "")
            raise ConfigError(
                f"{env_id} begins its next episode by itself, so that the last observation of one is never seen: "
                f"give {alone}"
            )
        self._settings = _settings(defaults, settings, render)
        seen, done, self._shown, self._acted = _quietly(self._spaces)
        observation, self._decode = observation_codec(seen, env_id)
        action, self._encode = action_codec(done, env_id)
        stack = settings.get("frame_stack", own["frame_stack"])
        self.spec = EnvSpec(
            env_id,
            # Version 0.1 turned EnvPool's pictures too, and no others.
            map_leaves(lambda leaf: replace(leaf, channels_first=False), observation),
            action,
            frames_per_step=int(self._settings.get("frame_skip", defaults.get("frame_skip", 1))),
            frame_stack=whole(env_id, "frame_stack", stack, 1),
        )
        self.num_envs = num_envs
        self._stream = Stream(num_envs)
        self.told = FinalInfo()
        self._env: Any = None
        self._render = render

    def reset(self, seed: int) -> TimeStep:
        """Makes every environment anew, seeded from ``(seed, i)``."""
        self.close()
        if self._task.startswith("gfootball/"):
            _make_room_for_footballs_variables()
        seeds = [int(s) for s in environment_seeds(seed, self.num_envs)]
        self._env = self._library.make(
            self._task, env_type="gymnasium", num_envs=self.num_envs, seed=seeds, **self._settings
        )
        observation, _ = _quietly(self._env.reset)
        return self._stream.start(taken(self._decode, self._shown(observation), "reset"))

    def _spaces(self) -> tuple[Any, Any, _Same, _Same]:
        """Gymnasium's spaces of an observation and an action, and functions to and from them, of batches."""
        spec = self._library.make_spec(self._task, **self._settings)
        return _with_choices(spec.gymnasium_observation_space, spec.gymnasium_action_space)

    def send(self, action: Any) -> None:
        """Starts the step and returns."""
        self._env.send(self._acted(self._encode(action)))

    def receive(self) -> TimeStep:
        """Waits for the step that is under way."""
        observation, reward, terminated, truncated, info = self._env.recv()
        seen = taken(self._decode, self._shown(observation), "step")
        step = self._stream.step(seen, reward, terminated, truncated)
        self.told.add(*final_infos(info, self._stream.ended, _NO_STATISTICS))
        return step

    def render(self) -> Any:
        """The picture of environment 0, uint8 ``[H, W, 3]``."""
        if not self._render or self._env is None:
            raise EnvironmentFault(
                f"{self.spec.id} gives no picture: make it with render=True and reset it first"
            )
        return np.asarray(self._env.render(env_ids=0)[0], np.uint8)

    def close(self) -> None:
        """Ends the environments and their threads."""
        if self._env is not None:
            self._env.close()
            self._env = None


def _same(batch: Any) -> Any:
    return batch


_Same = Callable[[Any], Any]


def _with_choices(seen: Any, done: Any) -> tuple[Any, Any, _Same, _Same]:
    """Makes choices of actions that are a box of whole numbers, as Jumanji's are, with one mask of one axis.

    A mask of such actions either has an entry for each value of each choice, or one for each combination of values:
    then the combinations are the choices.

    Args:
      seen, done: EnvPool's spaces of an observation and an action.

    Returns:
      The spaces of both; the function from EnvPool's observations to the first one's, and that from actions of the
      second one to EnvPool's.
    """
    from gymnasium import spaces

    if not isinstance(done, spaces.Box) or not np.issubdtype(done.dtype, np.integer):
        return seen, done, _same, _same
    low, high = (bound.astype(np.int64) for bound in (done.low, done.high))
    counts = high - low + 1
    choices = spaces.MultiDiscrete(counts, dtype=done.dtype.type, start=low)
    mask = seen.spaces.get(ACTION_MASK) if isinstance(seen, spaces.Dict) else None
    if mask is None:
        return seen, choices, _same, _same
    flat = spaces.Dict({**seen.spaces, ACTION_MASK: spaces.MultiBinary(int(np.prod(mask.shape or ())))})

    def shown(observation: Any) -> Any:
        rows = observation[ACTION_MASK]
        return {**observation, ACTION_MASK: rows.reshape(len(rows), -1)}

    if mask.shape != tuple(counts):
        return flat, choices, shown, _same

    def combined(number: Any) -> Any:
        return (np.stack(np.unravel_index(number, counts), axis=-1) + low).astype(done.dtype)

    return flat, spaces.Discrete(int(np.prod(counts))), shown, combined


def _make_room_for_footballs_variables() -> None:
    """Football's environments are made side by side by EnvPool's threads, and each sets these variables of the process.

    One that exists is only replaced; a new one moves the whole table, under the feet of a thread that reads it: a
    process that died in ``getenv`` was seen once, on a busy machine.
    """
    for name in _FOOTBALLS_VARIABLES:
        os.environ.setdefault(name, "")


def _import(env_id: str) -> Any:
    try:
        import envpool
    except ImportError as error:
        remedy = extra_line("envpool")
        if ".so" in str(error):
            remedy = "install that library of the system (libEGL.so.1 is in Debian's package libegl1)"
        raise ConfigError(f"{env_id} needs EnvPool, which cannot be imported ({error}): {remedy}") from error
    return envpool


def _defaults(library: Any, env_id: str, task: str) -> dict[str, Any]:
    """EnvPool's settings of ``task`` with their defaults."""
    known = library.list_all_envs()
    if task not in known:
        raise ConfigError(unknown_name("EnvPool task", task, known))
    try:
        return dict(library.make_spec(task).config._asdict())
    except ImportError as error:
        raise ConfigError(f"{env_id} needs a package that is not installed: {error}") from error


def _settings(defaults: Mapping[str, Any], options: Mapping[str, Any], render: bool) -> dict[str, Any]:
    """Returns EnvPool's settings: the options, and the adapter's own."""
    settings: dict[str, Any] = {"num_threads": 1}
    if "use_combined_action" in defaults:
        # The raw buttons are a Box with bounds of 1e±308, which no policy can act in.
        settings["use_combined_action"] = True
    settings |= {
        name: _changed(name, defaults[name], value)
        for name, value in options.items()
        if name != "frame_stack"
    }
    if "stack_num" in defaults:
        settings["stack_num"] = 1
    if render:
        settings["render_mode"] = "rgb_array"
    return settings


def _changed(name: str, default: Any, value: Any) -> Any:
    """The option as EnvPool wants it. One that is a table is given in part, with text for keys, as in JSON."""
    if not isinstance(default, dict):
        return tuple(value) if isinstance(value, list) else value
    if not isinstance(value, dict):
        raise ConfigError(
            f"{name} is {value!r}: it must be a table, for instance {json.dumps(default)[:60]}…"
        )
    names = {str(key): key for key in default}
    for key in value:
        if str(key) not in names:
            raise ConfigError(unknown_name(f"entry of {name}", str(key), names))
    return default | {
        names[str(key)]: _changed(f"{name}.{key}", default[names[str(key)]], entry)
        for key, entry in value.items()
    }


def _quietly(function: Callable[[], Any]) -> Any:
    """Calls ``function`` without Gymnasium's warnings about the precision of EnvPool's bounds."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return function()
