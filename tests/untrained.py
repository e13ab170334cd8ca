"""Run folders of agents that were never trained, written in no time: with settings, spec and one checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
from harness import tiny

from seedbed.envs.make import spec_of
from seedbed.envs.options import split
from seedbed.launch.build import build_agent
from seedbed.launch.folder import RunFolder
from seedbed.learning.checkpoint import Contents, save
from seedbed.learning.learner import Learner
from seedbed.seeding import key


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
    save(kept.checkpoints, 0, Contents({"train": learner.state}, {"version": 0}))
    return folder
