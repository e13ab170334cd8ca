"""Small runs on a JAX-native environment, by any architecture, and the parameters that came of them."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from seedbed.config.resolve import configure
from seedbed.envs.make import make
from seedbed.launch.train import train
from seedbed.learning.checkpoint import load_latest
from seedbed.metrics.reports import Summary
from seedbed.replay.dataset import Decided, write

ENVS, STEPS = 8, 10
AGENTS: dict[str, dict[str, Any]] = {
    "vtrace": {"agent": "vtrace", "reuse": 2, "minibatches": 2},
    "vtrace lstm": {"agent": "vtrace", "lstm": 8, "previous_action": True, "previous_reward": True},
    "ppo": {
        "agent": "ppo",
        "reuse": 3,
        "minibatches": 2,
        "normalize_observations": True,
        "scale_rewards": True,
    },
    "ppo until too far": {"agent": "ppo", "reuse": 4, "minibatches": 2, "target_kl": 1e-5},
    "a2c": {"agent": "a2c"},
    # Each environment explores by a share of its own, which sinks while the run lasts.
    "pqn": {
        "agent": "pqn",
        "reuse": 2,
        "minibatches": 4,
        "epsilon_base": 0.4,
        "epsilon_exponent": 3.0,
        "epsilon_steps": 300,
    },
}


def frames_of(batches: int) -> int:
    """A limit that ends a run after so many batches.

    Decisions that only reset are no frames: of each batch, one in ten or fewer (episodes have 9 steps or more).
    """
    return round((batches - 0.9) * ENVS * STEPS)


def run(folder: Path, batches: int = 6, **settings: Any) -> Summary:
    return train(
        configure(
            **{
                "env": "gymnax:CartPole-v1",
                "preset": "none",
                "arch": "anakin",
                "run_dir": str(folder),
                "batch_size": ENVS,
                "unroll_length": STEPS,
                "hidden": (16,),
                "learning_rate": 1e-2,
                "frames": frames_of(batches),
                "video": False,
                **settings,
            },
        )
    )


def params(folder: Path) -> dict[str, np.ndarray[Any, Any]]:
    kept = load_latest(folder / "checkpoints")._load("train.safetensors")
    return {name: leaf for name, leaf in kept.items() if name.startswith("params")}


def write_catch(path: Path) -> Path:
    """Writes a data set: what a policy that always takes the same action did in toy:catch."""
    environment = make("toy:catch", 4)

    def steps() -> Iterator[Decided]:
        timestep = environment.reset(0)
        while True:
            action = np.full(4, 2, np.int32)
            yield Decided(timestep, action, {})
            environment.send(action)
            timestep = environment.receive()

    write(path, environment.spec, islice(steps(), 301), dict)
    return path
