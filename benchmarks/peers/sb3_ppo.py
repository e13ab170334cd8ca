"""A peer: Stable-Baselines3's PPO as it comes, without any setting, on one environment.

It runs in an environment of its own (``pip install stable-baselines3 'gymnasium[box2d]' minatar``, and PyTorch),
started by ``benchmarks/out_of_the_box.py``; prints one line of JSON.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.metadata
import json
import sys
import time
from pathlib import Path

import gymnasium
from gymnasium import spaces
from stable_baselines3 import PPO
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.monitor import Monitor

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))


def made(name: str) -> gymnasium.Env:
    """The environment of an id, or of ``module:function``."""
    module, _, function = name.rpartition(":")
    return getattr(importlib.import_module(module), function)() if module else gymnasium.make(name)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--env", required=True)
    parser.add_argument("--frames", type=int, required=True)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--episodes", type=int, default=100)
    given = parser.parse_args()
    env = made(given.env)
    policy = "MultiInputPolicy" if isinstance(env.observation_space, spaces.Dict) else "MlpPolicy"
    begun = time.perf_counter()
    model = PPO(policy, env, seed=given.seed, device="cpu").learn(given.frames)
    seconds = time.perf_counter() - begun
    mean, _ = evaluate_policy(model, Monitor(made(given.env)), given.episodes, deterministic=True)
    names = ("stable-baselines3", "torch", "gymnasium")
    versions = {name: importlib.metadata.version(name) for name in names}
    print(
        json.dumps(
            {
                "eval": float(mean),
                "frames": model.num_timesteps,
                "seconds": round(seconds),
                "versions": versions,
            }
        )
    )


if __name__ == "__main__":
    main()
