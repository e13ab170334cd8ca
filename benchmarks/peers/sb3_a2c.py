"""A peer: Stable-Baselines3's A2C on Breakout, the fastest of the others that train once on each frame.

It runs in an environment of its own (``pip install stable-baselines3 ale-py opencv-python-headless``, and
PyTorch), started by ``benchmarks/peers.py``; prints one line of JSON.
"""

from __future__ import annotations

import argparse
import json
import time
from statistics import median

import ale_py
import gymnasium
import stable_baselines3
import torch
from stable_baselines3 import A2C
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_atari_env
from stable_baselines3.common.vec_env import VecFrameStack

BIN_SECONDS = 5.0


class Clock(BaseCallback):
    """Steps per second in bins; ends the training after ``seconds``."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.seconds = seconds
        self.bins: list[float] = []

    def _on_training_start(self) -> None:
        self.begun = self.bin_begun = time.perf_counter()
        self.steps = 0

    def _on_step(self) -> bool:
        self.steps += self.training_env.num_envs
        now = time.perf_counter()
        if now - self.bin_begun >= BIN_SECONDS:
            self.bins.append(self.steps / (now - self.bin_begun))
            self.bin_begun, self.steps = now, 0
        return now - self.begun < self.seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--envs", type=int, default=32)
    parser.add_argument("--seconds", type=float, default=45.0)
    arguments = parser.parse_args()
    gymnasium.register_envs(ale_py)
    env = VecFrameStack(make_atari_env("BreakoutNoFrameskip-v4", n_envs=arguments.envs, seed=0), 4)
    clock = Clock(arguments.seconds)
    A2C("CnnPolicy", env, ent_coef=0.01, vf_coef=0.25, device="cpu").learn(10**9, callback=clock)
    versions = {"stable-baselines3": stable_baselines3.__version__, "torch": torch.__version__}
    # The first bin warms up.
    print(json.dumps({"steps_per_second": median(clock.bins[1:]), "versions": versions}))


if __name__ == "__main__":
    main()
