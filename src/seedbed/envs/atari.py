"""Atari through ALE's own vector environment: emulation and preprocessing in C++ threads.

Standard preprocessing: grey 84 × 84 pictures, each the maximum of the last two frames of a step, and random
no-ops at the start. Only the newest picture leaves the environment; the stack is rebuilt where the network
reads it.

Behaviour of ALE, as found by trying it (tests/envs/test_atari.py holds it to that):

- its life-loss option that ends episodes (``episodic_life``) restarts the whole game at every lost life, so
  that nothing after the first life would ever be seen. Here the other option (``life_loss_info``) reports the
  loss, and the stream starts a new episode in the same game, as in the published DQN set-up;
- ``fire_reset`` presses FIRE once at the start of a game, in every game that has the button;
- the limit counts emulator frames from the first observation (no-ops excluded), not agent steps;
- with a frame skip of 1 the maximum over two frames is over one: pictures change at every step.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from seedbed.envs.final_infos import final_infos
from seedbed.envs.options import Options, arguments, taken_by, whole
from seedbed.envs.seeds import environment_seeds
from seedbed.envs.stream import Stream
from seedbed.errors import ConfigError, unknown_name
from seedbed.metrics.final_info import FinalInfo
from seedbed.types import ArraySpec, EnvSpec, TimeStep

if TYPE_CHECKING:
    from gymnasium.envs.registration import EnvSpec as Registration

_SIDE = 84
_NO_STATISTICS = ("env_id",)
"""What ALE's info has beside statistics of the episode: the number of the environment."""
_SCREEN: dict[str, Any] = {"img_height": 210, "img_width": 160, "grayscale": False}


class _Untold(NamedTuple):
    """Ends of first steps: the environments (``over`` ``[num_envs]``), their pictures, and the kind of end."""

    over: Any
    shown: Any
    terminated: Any
    truncated: Any

    def tell(self, shown: Any, terminated: Any, truncated: Any) -> tuple[Any, Any, Any]:
        """Returns the next step, in which these episodes end as they were."""
        return (
            np.where(self.over[:, None, None, None], self.shown, shown),
            np.where(self.over, self.terminated, terminated),
            np.where(self.over, self.truncated, truncated),
        )


class Atari:
    """A batch of one Atari game; ``send`` returns at once, the emulators run while the caller works.

    Attributes:
      told: numbers in the ``info`` of episodes' ends.
    """

    def __init__(
        self,
        env_id: str,
        num_envs: int,
        *,
        frame_skip: int = 4,
        sticky_actions: float | None = None,
        episodic_life: bool = False,
        full_action_space: bool = False,
        noop_max: int = 30,
        fire_reset: bool = True,
        frame_stack: int = 4,
        max_episode_frames: int = 108_000,
        num_threads: int = 1,
        render: bool = False,
    ) -> None:
        """Makes the batch.

        Args:
          env_id: ``"ALE/Pong-v5"``, ``"PongNoFrameskip-v4"`` and the like.
          num_envs: number of environments.
          frame_skip: emulator frames in one agent step, all with the same action.
          sticky_actions: probability that a frame repeats the previous action; None is the id's own:
            0.25 for ``-v5`` and ``-v0``, 0 for ``-v4``.
          episodic_life: a lost life ends the episode (``terminated``), while the game goes on: the next
            episode starts in it, with FIRE pressed if ``fire_reset``. A training aid: evaluate without it.
          full_action_space: all 18 actions instead of the game's own.
          noop_max: fewer than this many frames without action start each game, drawn at random.
          fire_reset: press FIRE at the start, where the game has it.
          frame_stack: number of pictures that the network sees; they are stacked there, not here.
          max_episode_frames: emulator frames after which a game is truncated.
          num_threads: emulator threads of this batch.
          render: keep a second emulator of environment 0 in step, for pictures in full size and colour.

        Raises:
          ConfigError: the game or a value does not exist.
        """
        from ale_py.vector_env import AtariVectorEnv

        game, sticky = _look_up(env_id)
        self.num_envs = num_envs
        self._stream = Stream(num_envs)
        self.told = FinalInfo()
        settings: dict[str, Any] = {
            "stack_num": 1,
            "frameskip": whole(env_id, "frame_skip", frame_skip, 1),
            "repeat_action_probability": _probability(
                env_id, sticky if sticky_actions is None else sticky_actions
            ),
            "full_action_space": full_action_space,
            "noop_max": whole(env_id, "noop_max", noop_max, 0),
            "use_fire_reset": fire_reset,
            "life_loss_info": episodic_life,
            "max_num_frames_per_episode": whole(env_id, "max_episode_frames", max_episode_frames, 1),
            "reward_clipping": False,
        }
        threads = whole(env_id, "num_threads", num_threads, 1)
        self._env: Any = AtariVectorEnv(game, num_envs, num_threads=threads, **settings)
        self._screen: Any = AtariVectorEnv(game, 1, num_threads=1, **settings, **_SCREEN) if render else None
        self._picture: Any = None
        actions = [action.name for action in self._env.ale.get_action_set()]
        # Done in place of the action at a final step where no reset happens: after a lost life. A reward of
        # that step belongs to no transition and is left out; an end is told one step later.
        self._opening = np.int32(actions.index("FIRE") if fire_reset and "FIRE" in actions else 0)
        self._untold: _Untold | None = None
        self.spec = EnvSpec(
            env_id,
            ArraySpec((_SIDE, _SIDE, 1), "uint8"),
            ArraySpec((), "int32", (len(actions),)),
            frames_per_step=frame_skip,
            frame_stack=whole(env_id, "frame_stack", frame_stack, 1),
        )

    def reset(self, seed: int) -> TimeStep:
        """Starts every game anew; each emulator is seeded from ``(seed, i)``."""
        seeds = environment_seeds(seed, self.num_envs)
        observation, _ = self._env.reset(seed=seeds)
        if self._screen is not None:
            self._picture, _ = self._screen.reset(seed=seeds[:1])
        self._untold = None
        return self._stream.start(_channel_last(observation))

    def send(self, action: Any) -> None:
        """Starts the step and returns."""
        chosen = np.where(self._stream.ended, self._opening, np.asarray(action, np.int32))
        self._env.send(chosen)
        if self._screen is not None:
            self._screen.send(chosen[:1])

    def receive(self) -> TimeStep:
        """Waits for the step that is under way."""
        observation, reward, terminated, truncated, info = self._env.recv()
        if self._screen is not None:
            self._picture = self._screen.recv()[0]
        shown = _channel_last(observation)
        held = self._untold
        if held is not None:
            shown, terminated, truncated = held.tell(shown, terminated, truncated)
        # The frame limit may be reached by the very step that opens an episode. A first step cannot be a final
        # one: the episode gets one transition, and the emulator starts the next game under it.
        over = self._stream.ended & (terminated | truncated)
        self._untold = _Untold(over, shown, terminated, truncated) if over.any() else None
        step = self._stream.step(shown, reward, terminated, truncated)
        # An end that is told a step late has lost its info: the emulator is in the next game.
        ended = self._stream.ended if held is None else self._stream.ended & ~held.over
        self.told.add(*final_infos(info, ended, _NO_STATISTICS))
        return step

    def render(self) -> Any:
        """The screen of environment 0, uint8 ``[210, 160, 3]``."""
        if self._picture is None:
            raise ConfigError(f"{self.spec.id} gives no picture: make it with render=True and reset it first")
        return self._picture[0, -1]

    def close(self) -> None:
        """Ends the emulator threads."""
        self._env = self._screen = self._picture = None


def is_atari(env_id: str) -> bool:
    """Returns whether ``env_id`` is written like an Atari game's."""
    return env_id.startswith("ALE/") or "NoFrameskip-v" in env_id


def is_raw_atari(registration: Registration) -> bool:
    """Returns whether an id is ALE's without being one that :mod:`seedbed.envs.atari` takes (``Pong-v4``)."""
    return str(registration.entry_point).startswith("ale_py") and not is_atari(registration.id)


def atari_ids() -> list[str]:
    """The ids that :func:`make_atari` takes."""
    import ale_py  # noqa: F401  (registers its ids)
    import gymnasium

    return [env_id for env_id in gymnasium.registry if is_atari(env_id)]


def make_atari(env_id: str, num_envs: int, options: Options, *, render: bool) -> Atari:
    """Makes ``num_envs`` Atari games; ``options`` are the keyword arguments of :class:`Atari`."""
    takes = taken_by(Atari, "env_id", "num_envs", "render")
    return Atari(env_id, num_envs, render=render, **arguments(env_id, options, takes))


def _look_up(env_id: str) -> tuple[str, float]:
    """Game and stickiness that an id stands for."""
    import gymnasium

    known = atari_ids()
    if env_id not in known:
        raise ConfigError(unknown_name("Atari environment", env_id, known))
    kwargs = gymnasium.spec(env_id).kwargs
    return str(kwargs["game"]), float(kwargs["repeat_action_probability"])


def _probability(env_id: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
        raise ConfigError(f"{env_id}: sticky_actions is {value!r}; it must be a probability, from 0 to 1")
    return float(value)


def _channel_last(observation: Any) -> Any:
    """``[B, 1, 84, 84]`` as ``[B, 84, 84, 1]``; with one channel the memory is the same."""
    return observation.reshape(len(observation), _SIDE, _SIDE, 1)
