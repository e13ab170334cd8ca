"""Run folders of agents that were never trained, written in no time: with settings, spec and one checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import numpy as np
from harness import tiny

from seedbed.envs.make import spec_of
from seedbed.envs.options import split
from seedbed.launch.build import build_agent
from seedbed.launch.folder import RunFolder
from seedbed.learning.checkpoint import Contents, save
from seedbed.learning.learner import Learner
from seedbed.nets.normalizer import add_observations
from seedbed.seeding import key
from seedbed.types import map_leaves


def untrained(env: str, folder: Path, *, like: str = "", **settings: Any) -> Path:
    """Writes the run folder.

    Args:
      env: environment of the run.
      folder: the folder.
      like: environment whose spec it has; the same one if empty.
      **settings: settings of the run.

    Returns:
      The folder.
    """
    config = tiny(env, folder, **settings)
    spec = spec_of(like or env, split(config.making))
    kept = RunFolder.create(config)
    kept.keep_spec(spec)
    learner = Learner(build_agent(config, spec), jax.local_devices()[:1], key(1, "untrained"))
    save(kept.checkpoints, 0, Contents({"train": _having_seen(learner.state, spec)}, {"version": 0}))
    return folder


def _having_seen(state: Any, spec: Any) -> Any:
    """The state of a learner whose statistics of observations, if it has any, are not those of its beginning.

    With those, to normalize an observation changes nothing, and to forget it would go unnoticed.
    """
    if (statistics := state.params.get("observations")) is None:
        return state
    random = np.random.default_rng(0)
    seen = map_leaves(
        lambda leaf: random.normal(0.5, 3.0, (20, 2, *leaf.shape)).astype(leaf.dtype), spec.observation
    )
    moved = add_observations(statistics, spec.observation, seen)
    return state._replace(params={**state.params, "observations": moved})
