"""Data sets of a trained agent's behaviour."""

from __future__ import annotations

import tempfile
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from seedbed.config.resolve import env_options
from seedbed.envs.episodes import EpisodeMeter
from seedbed.envs.interface import Environment
from seedbed.errors import ConfigError
from seedbed.evaluation.player import Player
from seedbed.launch.surroundings import held
from seedbed.replay.dataset import Dataset, Decided, require_room, write
from seedbed.replay.exchange import require_name, write_episodes

_ENVS = 16


@held()
def collect(
    path: str | Path,
    *,
    frames: int,
    out: str | Path | None = None,
    greedy: bool = False,
    seed: int = 0,
    trust: Collection[str] | None = (),
) -> Dataset:
    """Plays with the newest weights of a run and writes the experience as a data set.

    Args:
      path: the run folder.
      frames: environment frames, over all environments; rounded up to whole steps of each. A step that only resets is
        none.
      out: the data set's folder; None: ``dataset`` in the run folder.
      greedy: take the policy's most likely action instead of drawing from it; the distribution is then not kept.
      seed: root of the randomness.
      trust: names ``module:name`` that the run may have imported, if this user did not begin it here; None for any.

    Raises:
      ConfigError: no such run, no checkpoint, or fewer than one frame asked for.
      DatasetError: there is something at ``out`` already, or it cannot be written.
    """
    if frames < 1:
        raise ConfigError(f"{frames} frames: give at least 1")
    player = Player(path, greedy=greedy, trust=trust)
    folder = Path(out) if out else player.folder.path / "dataset"
    require_room(folder)
    environment = player.make(_ENVS)
    transitions = -(-frames // environment.spec.frames_per_step)
    tally = _Tally(environment.num_envs)
    options = env_options(player.config)
    options.pop("episodic_life", None)  # see Player.make
    about: dict[str, Any] = {
        "env_options": options,
        "agent": player.config.agent,
        "run": str(player.folder.path),
        "version": player.version,
        "greedy": greedy,
        "seed": seed,
    }
    try:
        steps = _until(_steps(player, environment, seed), transitions)
        return write(folder, environment.spec, tally.over(steps), lambda: about | tally.told())
    finally:
        environment.close()


def collect_for_minari(path: str | Path, *, name: str, **how: Any) -> dict[str, Any]:
    """Plays as :func:`collect` does, and writes the experience as a data set of Minari.

    What can be refused is refused before anything is played.

    Args:
      path: the run folder.
      name: Minari's name for the data set, such as ``catch/expert-v0``.
      **how: further arguments of :func:`collect`, but for ``out``.

    Returns:
      What a data set of Seedbed says of itself, and the folder as ``path``.

    Raises:
      ConfigError: as :func:`collect`, or Minari is not installed.
      DatasetError: the name is none, there is a data set of this name, or it cannot be written.
    """
    require_name(name)
    with tempfile.TemporaryDirectory(prefix="seedbed-") as folder:
        dataset = collect(path, out=Path(folder, "dataset"), **how)
        return {**dataset.about, "path": str(write_episodes(dataset, name))}


def _steps(player: Player, environment: Environment, seed: int) -> Iterator[Decided]:
    assert player.policy is not None, "it was made with the environment"
    of_policy = player.policy.agent.sample is None
    for timestep, output in player.play(environment, seed):
        # Of what was recorded, only the parameters of the distribution that actions were drawn from say anything to
        # another agent; what a search has found are shares.
        record = {name: np.asarray(x) for name, x in output.record.items() if name == "policy" and of_policy}
        yield Decided(timestep, np.asarray(output.action, environment.spec.action.dtype), record)


def _until(steps: Iterator[Decided], transitions: int) -> Iterator[Decided]:
    """The steps up to the one to which ``transitions``, over all environments, have led that were carried out."""
    yield next(steps)
    made = 0
    while made < transitions:
        step = next(steps)
        made += int(np.count_nonzero(~np.asarray(step.timestep.first)))
        yield step


class _Tally:
    """Counts the episodes of the steps that pass through; one that has not ended is in no number."""

    def __init__(self, num_envs: int) -> None:
        self._meter = EpisodeMeter(num_envs)
        self._returns: list[float] = []

    def over(self, steps: Iterator[Decided]) -> Iterator[Decided]:
        for step in steps:
            self._returns += [episode_return for episode_return, _ in self._meter.add(step.timestep)]
            yield step

    def told(self) -> dict[str, Any]:
        found = self._returns
        return {
            "episodes": len(found),
            "mean_return": float(np.mean(found)) if found else None,
            "lowest_return": min(found, default=None),
            "highest_return": max(found, default=None),
        }
