"""The first environment of a run, looked at before anything is built: ``python -m seedbed.envs.first FOLDER``.

It is made, reset and stepped, so that a certain fault is known at once. A run whose actors are processes does so in a
process that ends right after: the learner never runs foreign code, which may change its process (its folder, its
signals, its standard streams) or end it. It imports no JAX, unless the environment does.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from seedbed import faults
from seedbed.envs.make import make
from seedbed.envs.masks import allowed_actions
from seedbed.envs.options import Options
from seedbed.types import ArraySpec, EnvSpec

STEPS = 3
JOB, SPEC, MOMENTS = "job.json", "spec.json", "moments"
"""Files of the folder: the arguments of :func:`look`, its result, and a letter for each moment that passed."""


def look(
    env_id: str, options: Options, num_envs: int, seed: int = 0, passed: Callable[[], object] = lambda: None
) -> EnvSpec:
    """Makes environments, resets them, takes a few steps and closes them; returns their spec.

    Environments that are JAX functions are only made: their steps would have to be compiled.

    Args:
      env_id: name for :func:`seedbed.envs.make.make`.
      options: options for the same.
      num_envs: number of environments; of two a factory may be seen to return one object twice.
      seed: seed of the environments.
      passed: called when they are made, when they are reset, and after each step.

    Raises:
      ConfigError: they cannot be made.
      EnvironmentFault: they fail, or break the contract.
    """
    environment = make(env_id, num_envs, options, rounded_up=True)
    rows = environment.num_envs
    try:
        passed()
        if not environment.on_device:
            step = environment.reset(seed)
            passed()
            for _ in range(STEPS):
                action = _plain_actions(environment.spec.action, rows)
                environment.send(allowed_actions(environment.spec, step, action))
                step = environment.receive()
                passed()
    finally:
        environment.close()
    return environment.spec


def _plain_actions(spec: ArraySpec, num_envs: int) -> NDArray[Any]:
    """The first choices, or numbers as close to 0 as the bounds let them be."""
    zeros = np.zeros((num_envs, *spec.shape), spec.dtype)
    if spec.num_values:
        return zeros
    low, high = (bound.astype(spec.dtype) for bound in spec.bounds)
    return np.clip(zeros, low, high)


def main() -> None:
    """Entry of the process; leaves the spec in the folder, or its fault where the launcher has said."""
    folder = Path(sys.argv[1]).absolute()
    moments = (folder / MOMENTS).open("wb", buffering=0)
    try:
        spec = look(**json.loads((folder / JOB).read_text()), passed=lambda: moments.write(b"."))
    except BaseException as error:
        faults.end(faults.leave(error))
    (folder / SPEC).write_text(json.dumps(spec.to_json()))
    faults.end(0)


if __name__ == "__main__":
    main()
