"""Stepping environments with random actions, as fast as one process can; imports no JAX.

``python -m seedbed.timing.step_environment JOB`` prints the steps/s of each window as JSON; it is the environment
stage of :mod:`seedbed.timing.stages`.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

import numpy as np

from seedbed.envs.make import make
from seedbed.envs.masks import allowed_actions


def step_environment(job: dict[str, Any]) -> list[float]:
    """Steps one batch of environments with random actions; returns steps/s of each window."""
    environment = make(job["env"], job["envs"], job["options"])
    random = np.random.default_rng(0)
    action = environment.spec.action
    high = np.reshape(action.num_values, action.shape) if action.num_values else None
    shown = environment.reset(0)

    def step() -> int:
        nonlocal shown
        shape = (job["envs"], *action.shape)
        choice = random.integers(0, high, shape) if high is not None else random.uniform(-1, 1, shape)
        environment.send(allowed_actions(environment.spec, shown, choice.astype(action.dtype)))
        shown = environment.receive()
        return int(job["envs"])

    try:
        rates = []
        for _ in range(job["windows"]):
            begin, steps = time.perf_counter(), 0
            while (elapsed := time.perf_counter() - begin) < job["seconds"]:
                steps += step()
            rates.append(steps / elapsed)
        return rates
    finally:
        environment.close()


if __name__ == "__main__":
    with os.fdopen(os.dup(1), "w") as told:
        os.dup2(2, 1)  # environments print what they like, and their libraries too
        told.write(json.dumps(step_environment(json.loads(sys.argv[1]))))
