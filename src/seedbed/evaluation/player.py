"""Playing with a trained agent: returns with their uncertainty, and a video."""

from __future__ import annotations

import itertools
import os
import sys
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from ctypes.util import find_library
from dataclasses import asdict
from pathlib import Path
from typing import Any

import jax
import numpy as np

from seedbed import regular_files
from seedbed.acting.unrolls import step_arrays
from seedbed.config.settings import RunConfig
from seedbed.envs.episodes import EpisodeMeter
from seedbed.envs.interface import Environment
from seedbed.envs.make import Guarded, make
from seedbed.envs.options import split
from seedbed.errors import ConfigError, EnvironmentFault
from seedbed.evaluation.policy import Policy
from seedbed.launch.folder import RunFolder
from seedbed.launch.surroundings import held
from seedbed.metrics.statistics import Evaluation, estimate
from seedbed.seeding import integer, key
from seedbed.types import ActOutput, TimeStep

_ENVS = 16
_FRAMES_A_SECOND = 60
_VIDEOS = (".mp4", ".mkv", ".mov", ".avi")
"""Endings of files that take H.264."""
_LONGEST_VIDEO_SECONDS = 120
_LINE_SECONDS = 10.0
MAX_STEPS = 27_000
"""Steps after which an episode is cut: a game of Atari has as many, which ALE ends after 108,000 frames."""

Say = Callable[[str], object]
"""Takes a line for people."""


class Player:
    """The policy of a run, with the weights of its newest intact checkpoint, in the run's environment.

    Args:
      path: the run folder.
      greedy: take the policy's most likely action instead of drawing from it.
      trust: names ``module:name`` that the run may have imported, if this user did not begin it here; None for any.
      env_options: options of the environment, ``name=value``, that take the place of the run's.

    Attributes:
      policy: the policy that plays; set by :meth:`make`.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        greedy: bool = False,
        trust: Collection[str] | None = (),
        env_options: Sequence[str] = (),
    ) -> None:
        self.folder = RunFolder.open(path)
        self.config: RunConfig = self.folder.config(trust)
        self.folder.require_modules()
        checkpoint = self.folder.newest()
        self.version = int(checkpoint.meta["version"])
        self._greedy = greedy
        self._options = split(env_options)
        self._checkpoint = checkpoint
        self.policy: Policy | None = None

    def make(self, num_envs: int, *, render: bool = False) -> Guarded:
        """Makes the run's environment, and the policy for its spec.

        Where environments have several agents, there are as many of them as have ``num_envs`` agents or a few more.
        """
        options = split(self.config.making)
        # What counts is the whole game, also for an agent that was trained on single lives.
        options.pop("episodic_life", None)
        options.update(self._options)
        environment = make(self.config.env, num_envs, options, render=render, rounded_up=True)
        if self.policy is None:
            self.policy = Policy(self.config, environment.spec, self._checkpoint, greedy=self._greedy)
        return environment

    def play(
        self, environment: Environment, seed: int, begun: int = 0
    ) -> Iterator[tuple[TimeStep, ActOutput]]:
        """Steps the environment with the agent for ever; yields every time step with the agent's decision.

        The time step may be written over when the next one is asked for. ``begun`` counts the resets of all
        environments: each begins other episodes.
        """
        assert self.policy is not None
        state = self.policy.agent.initial_state(environment.num_envs)
        timestep = environment.reset(integer(seed, "evaluation", begun, bits=30))
        root = key(seed, "evaluation", begun)
        step = 0
        while True:
            keys = jax.random.split(jax.random.fold_in(root, step), environment.num_envs)
            output, state = self.policy.decide(keys, step_arrays(timestep), state)
            step += 1
            yield timestep, output
            environment.send(np.asarray(output.action))
            timestep = environment.receive()


def nobody(line: str) -> None:
    """Takes a line without a listener."""


class Lines:
    """A teller of lines about the progress, each made when it is due."""

    def __init__(self, say: Say) -> None:
        self._say = say
        self._begun = self._said = time.monotonic()

    def maybe(self, line: Callable[[], str]) -> None:
        """Says a line, and since when, if the last one is old enough."""
        now = time.monotonic()
        if now - self._said >= _LINE_SECONDS:
            self._said = now
            self._say(f"{line()}, {now - self._begun:.0f} s")


class _Returns:
    """The returns of ``quota`` episodes of each row (an environment, or an agent of one), so that short ones are not
    favoured.

    Attributes:
      cut: number of cut episodes.
    """

    def __init__(self, envs: int, quota: int, max_steps: int) -> None:
        self._each: list[list[float]] = [[] for _ in range(envs)]
        self._quota = quota
        self._max_steps = max_steps
        self._never_came = np.zeros(envs, np.bool_)
        self.cut = 0

    @property
    def all(self) -> list[float]:
        """Of all environments."""
        return [value for found in self._each for value in found]

    @property
    def complete(self) -> bool:
        """True if no row owes an episode."""
        return not self._owing().any()

    def _owing(self) -> Any:
        return np.array([len(found) < self._quota for found in self._each]) & ~self._never_came

    def of_agents(self, names: Sequence[str]) -> dict[str, float]:
        """Returns the mean return of each agent that had an episode; rows have these agents in turn."""
        found = {
            name: list(itertools.chain(*self._each[row :: len(names)])) for row, name in enumerate(names)
        }
        return {name: float(np.mean(values)) for name, values in found.items() if values}

    def add_until_all_rest(self, steps: Iterator[tuple[TimeStep, ActOutput]]) -> Iterator[int]:
        """Takes steps, from a reset on, until each environment has its quota or stands in an episode that was cut.

        Yields how many steps it has taken. Only a reset of all environments ends an episode that was cut. An agent that
        does not come for as long as the longest episode is not waited for.
        """
        meter = EpisodeMeter(len(self._each))
        plays = self._owing()
        waited = np.zeros(len(self._each), np.int64)
        for count, (timestep, _) in enumerate(steps):
            waited = np.where(timestep.absent, waited + 1, 0)
            self._never_came |= waited > self._max_steps
            plays &= ~self._never_came
            ended = meter.add(timestep)
            for index, (value, _) in zip(meter.finished, ended, strict=True):
                if plays[index]:
                    self._take(index, value, plays)
            # The length of one that has ended stands until the next one begins.
            late = plays & meter.open & (meter.lengths >= self._max_steps)
            for index in np.flatnonzero(late).tolist():
                self.cut += 1
                self._take(index, float(meter.returns[index]), plays)
                plays[index] = False
            yield count
            if not plays.any():
                return

    def _take(self, index: int, value: float, plays: Any) -> None:
        self._each[index].append(value)
        plays[index] = len(self._each[index]) < self._quota


@held()
def evaluate(
    path: str | Path,
    *,
    episodes: int = 100,
    greedy: bool = False,
    seed: int = 0,
    max_steps: int = MAX_STEPS,
    trust: Collection[str] | None = (),
    env_options: Sequence[str] = (),
    say: Say = nobody,
) -> Evaluation:
    """Plays ``episodes`` episodes and estimates the expected return.

    Every environment, and every agent of one, contributes the same number of episodes (the total is rounded up to
    that), so that short episodes are not favoured. One that has not ended after ``max_steps`` steps is cut, and counted
    with its return up to there.

    Args:
      path: the run folder.
      episodes: number of episodes.
      greedy: take the policy's most likely action instead of drawing from it.
      seed: root of the randomness.
      max_steps: the most steps of an episode.
      trust: names ``module:name`` that the run may have imported, if this user did not begin it here; None for any.
      env_options: options of the environment, ``name=value``, that take the place of the run's.
      say: takes a line every 10 s.

    Raises:
      ConfigError: no such run, no checkpoint, or fewer than one episode or step asked for.
    """
    for name, given in (("episodes", episodes), ("steps", max_steps)):
        if given < 1:
            raise ConfigError(f"{given} {name}: give at least 1")
    player = Player(path, greedy=greedy, trust=trust, env_options=env_options)
    environment = player.make(min(_ENVS, episodes))
    rows = environment.num_envs
    returns, lines = _Returns(rows, -(-episodes // rows), max_steps), Lines(say)
    try:
        for begun in itertools.takewhile(lambda _: not returns.complete, itertools.count()):
            for count in returns.add_until_all_rest(player.play(environment, seed, begun)):
                lines.maybe(lambda count=count: _how_far(returns, episodes, count))  # type: ignore[misc]
    finally:
        environment.close()
    found = estimate(returns.all, seed)
    agents = returns.of_agents(environment.spec.agents)
    return Evaluation(**asdict(found), cut=returns.cut, max_steps=max_steps, agents=agents)


def _how_far(returns: _Returns, episodes: int, count: int) -> str:
    cut = f", {returns.cut} of them cut" if returns.cut else ""
    return f"playing: {len(returns.all)} of {episodes} episodes{cut}, {count:,} steps since all began"


def draw_without_a_screen() -> None:
    """Sets the variables by which libraries draw without a screen, unless they are set."""
    os.environ.setdefault("SDL_VIDEODRIVER", "dummy")
    if sys.platform == "linux" and not (os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")):
        os.environ.setdefault(
            "MUJOCO_GL", "osmesa" if find_library("OSMesa") and not find_library("EGL") else "egl"
        )


def _even(picture: Any, env_id: str) -> Any:
    """The picture without its last odd row and column: the codec stores colours for pairs of pixels."""
    picture = np.asarray(picture)
    if picture.dtype != np.uint8 or picture.ndim != 3 or picture.shape[2] != 3:
        raise EnvironmentFault(
            f"{env_id} was drawn as {picture.dtype}{list(picture.shape)}; needed is uint8 [height, width, 3]"
        )
    return picture[: picture.shape[0] // 2 * 2, : picture.shape[1] // 2 * 2]


@held()
def record(
    path: str | Path,
    *,
    to: str | Path | None = None,
    seed: int = 0,
    greedy: bool = False,
    episodes: int = 1,
    max_steps: int | None = None,
    trust: Collection[str] | None = (),
    say: Say = nobody,
) -> Path:
    """Plays one episode, or several, and writes them as an mp4; returns its path.

    Args:
      path: the run folder.
      to: the file; None: ``video.mp4`` in the run folder.
      seed: root of the randomness.
      greedy: take the policy's most likely action instead of drawing from it.
      episodes: number of episodes, one after the other.
      max_steps: steps after which the video is cut; None: two minutes of video.
      trust: names ``module:name`` that the run may have imported, if this user did not begin it here; None for any.
      say: takes a line every 10 s, and one if the video was cut.

    Raises:
      ConfigError: no such run, no checkpoint, no episodes, or a file that cannot be written.
      EnvironmentFault: the environment cannot be drawn.
    """
    import imageio.v3 as imageio

    for name, given in (("episodes", episodes), ("max_steps", max_steps)):
        if given is not None and given < 1:
            raise ConfigError(f"{name} is {given}: a video needs one or more")
    draw_without_a_screen()
    player = Player(path, greedy=greedy, trust=trust)
    target = Path(to) if to else player.folder.video
    if target.suffix.lower() not in _VIDEOS:
        raise ConfigError(f"cannot write the video {target}: give a name that ends in {' or '.join(_VIDEOS)}")
    try:
        regular_files.require_room(target, links=to is not None)
    except OSError as error:
        raise ConfigError(f"cannot write the video {target}: {error.strerror}") from error
    environment = player.make(1, render=True)
    rate = environment.render_fps or max(1, _FRAMES_A_SECOND // environment.spec.frames_per_step)
    most, lines = rate * _LONGEST_VIDEO_SECONDS if max_steps is None else max_steps, Lines(say)
    whole = target.resolve()
    draft, ended = whole.with_name(f"{whole.stem}~{whole.suffix}"), 0
    try:
        with imageio.imopen(draft, "w", plugin="pyav") as video:
            # Encoded in this process: a process that holds JAX must not fork an encoder.
            video.init_video_stream("libx264", fps=rate)
            for count, (timestep, _) in enumerate(player.play(environment, seed)):
                video.write_frame(_even(environment.render(), environment.spec.id))
                ended += bool((timestep.terminated | timestep.truncated).all())  # of all agents
                if ended == episodes or count >= most:
                    break
                lines.maybe(lambda count=count: f"recording: {count:,} of at most {most:,} steps")  # type: ignore[misc]
        draft.replace(whole)
    except OSError as error:
        raise ConfigError(f"cannot write the video {target}: {error}") from error
    finally:
        environment.close()
        draft.unlink(missing_ok=True)
    if ended < episodes:
        of_several = "the episode" if episodes == 1 else f"episode {ended + 1} of {episodes}"
        say(f"{of_several} had not ended after {count:,} steps: the video is cut there")
    return target
