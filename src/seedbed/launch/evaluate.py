"""Playing with a trained agent: returns with their uncertainty, and a video."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from seedbed.acting.unrolls import step_arrays, timestep_of
from seedbed.config.settings import RunConfig
from seedbed.envs.episodes import EpisodeMeter
from seedbed.envs.interface import Environment
from seedbed.envs.make import make
from seedbed.envs.options import split
from seedbed.errors import ConfigError, EnvironmentFault
from seedbed.launch.build import build_agent
from seedbed.launch.folder import RunFolder
from seedbed.launch.surroundings import held
from seedbed.learning.checkpoint import load_latest
from seedbed.learning.learner import Learner
from seedbed.metrics.statistics import Estimate, estimate
from seedbed.seeding import integer, key
from seedbed.types import ActOutput, Agent, EnvSpec, TimeStep, Tree

_ENVS = 16
_FRAMES_A_SECOND = 60
_LONGEST_VIDEO_SECONDS = 120


class Player:
    """The agent of a run, with the weights of its newest intact checkpoint.

    Args:
      path: the run folder.
      greedy: take the policy's most likely action instead of drawing from it.

    Attributes:
      agent, params: what it plays with; there once :meth:`make` was called.
    """

    def __init__(self, path: str | Path, *, greedy: bool = False) -> None:
        self.folder = RunFolder.open(path)
        self.config: RunConfig = self.folder.config()
        checkpoint = load_latest(self.folder.checkpoints)
        self.version = int(checkpoint.meta["version"])
        self._greedy = greedy
        self._checkpoint = checkpoint
        self.params: Tree = None
        self.agent: Agent | None = None

    def make(self, num_envs: int, *, render: bool = False) -> Environment:
        """The run's environment; also builds the agent for its spec."""
        options = split(self.config.env_options)
        # What counts is the whole game, also for an agent that was trained on single lives.
        options.pop("episodic_life", None)
        environment = make(self.config.env, num_envs, options, render=render)
        if self.agent is None:
            self.agent = build_agent(self.config, environment.spec)
            like = Learner(self.agent, jax.local_devices()[:1], key(0, "template")).state
            self.params = self._checkpoint.tree("train", like).params
        return environment

    def play(self, environment: Environment, seed: int) -> Iterator[tuple[TimeStep, ActOutput]]:
        """Steps the environment with the agent for ever; yields every time step, with what was decided there.

        The time step may be written over when the next one is asked for.
        """
        assert self.agent is not None
        decide = _decider(self.agent, environment.spec, self.params, self._greedy)
        state = self.agent.initial_state(environment.num_envs)
        timestep = environment.reset(integer(seed, "evaluation", bits=30))
        root = key(seed, "evaluation")
        step = 0
        while True:
            output, state = decide(jax.random.fold_in(root, step), step_arrays(timestep), state)
            step += 1
            yield timestep, output
            environment.send(np.asarray(output.action))
            timestep = environment.receive()


def _decider(agent: Agent, spec: EnvSpec, params: Tree, greedy: bool) -> Callable[..., Any]:
    @jax.jit
    def decide(step_key: Any, arrays: list[Any], state: Tree) -> tuple[ActOutput, Tree]:
        timestep = timestep_of(spec, [jnp.asarray(array) for array in arrays])
        if greedy:
            action, state = agent.mode(params, timestep, state)
            return ActOutput(action, {}), state
        keys = jax.random.split(step_key, timestep.reward.shape[0])
        return agent.act(params, keys, timestep, state)

    return decide


@held()
def evaluate(path: str | Path, *, episodes: int = 100, greedy: bool = False, seed: int = 0) -> Estimate:
    """Plays ``episodes`` episodes and estimates the expected return.

    Every environment contributes the same number of episodes (the total is rounded up to that), so that short
    episodes are not favoured.

    Raises:
      ConfigError: no such run, no checkpoint, or fewer than one episode asked for.
    """
    if episodes < 1:
        raise ConfigError(f"{episodes} episodes: give at least 1")
    player = Player(path, greedy=greedy)
    envs = min(_ENVS, episodes)
    quota = -(-episodes // envs)
    environment = player.make(envs)
    returns: list[list[float]] = [[] for _ in range(envs)]
    meters = [EpisodeMeter(1) for _ in range(envs)]
    try:
        for timestep, _ in player.play(environment, seed):
            for index, meter in enumerate(meters):
                row = TimeStep(None, *(part[index : index + 1] for part in timestep[1:]))
                if len(returns[index]) < quota:
                    returns[index] += [episode_return for episode_return, _ in meter.add(row)]
            if all(len(found) >= quota for found in returns):
                break
    finally:
        environment.close()
    return estimate([value for found in returns for value in found], seed)


def _even(picture: Any, env_id: str) -> Any:
    """The picture without its last odd row and column: the codec stores colours for pairs of pixels."""
    picture = np.asarray(picture)
    if picture.dtype != np.uint8 or picture.ndim != 3 or picture.shape[2] != 3:
        raise EnvironmentFault(
            f"{env_id} was drawn as {picture.dtype}{list(picture.shape)}; needed is uint8 [height, width, 3]"
        )
    return picture[: picture.shape[0] // 2 * 2, : picture.shape[1] // 2 * 2]


@held()
def record(path: str | Path, *, to: str | Path | None = None, seed: int = 0, greedy: bool = False) -> Path:
    """Plays one episode (two minutes of video at most) and writes it as an mp4; returns its path.

    Raises:
      ConfigError: no such run, no checkpoint, or a file that cannot be written.
      EnvironmentFault: the environment cannot be drawn.
    """
    import imageio.v3 as imageio

    # Environments that draw with SDL must not look for a screen.
    os.environ.setdefault("SDL_VIDEODRIVER", "dummy")
    player = Player(path, greedy=greedy)
    target = Path(to) if to else player.folder.video
    environment = player.make(1, render=True)
    rate = max(1, _FRAMES_A_SECOND // environment.spec.frames_per_step)
    try:
        with imageio.imopen(target, "w", plugin="pyav") as video:
            # Encoded in this process: a process that holds JAX must not fork an encoder.
            video.init_video_stream("libx264", fps=rate)
            for count, (timestep, _) in enumerate(player.play(environment, seed)):
                video.write_frame(_even(environment.render(), environment.spec.id))
                ended = bool(timestep.terminated[0] or timestep.truncated[0])
                if ended or count >= rate * _LONGEST_VIDEO_SECONDS:
                    break
    except OSError as error:
        raise ConfigError(f"cannot write the video {target}: {error}") from error
    finally:
        environment.close()
    return target
