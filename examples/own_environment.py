"""Your own environment: python examples/own_environment.py checks it, then trains on it for a few seconds."""

import sys

import gymnasium
import numpy as np

import seedbed
from seedbed.testing.environments import check_environment


class Follow(gymnasium.Env[np.ndarray, np.int64]):
    """A light jumps left and right at random; say where it is: +1 or -1, twenty times."""

    observation_space = gymnasium.spaces.Box(-1, 1, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.time, self.side = 0, self.np_random.integers(2)
        return np.array([2 * self.side - 1], np.float32), {}

    def step(self, action):
        reward = 1.0 if action == self.side else -1.0
        self.time, self.side = self.time + 1, self.np_random.integers(2)
        # Nothing ends by itself here: after 20 steps a time limit cuts the episode.
        return np.array([2 * self.side - 1], np.float32), reward, False, self.time == 20, {}


def main(run_dir: str | None = None) -> None:
    # Run as a script, this module is not importable by its name: the actors of a thread find it here.
    sys.modules.setdefault("own_environment", sys.modules[__name__])
    check_environment("own_environment:Follow")
    config = seedbed.configure(
        "own_environment:Follow", preset="catch", until_return=18.0, minutes=0.3, video=False, run_dir=run_dir
    )
    summary = seedbed.train(config)
    print(
        f"mean return {summary.mean_return:.1f} after {summary.agent_steps} steps: {summary.stopped_because}"
    )


if __name__ == "__main__":
    main(*sys.argv[1:2])
