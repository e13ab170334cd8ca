"""Your own architecture, SEED's parts in one process: python examples/own_architecture.py trains on Catch.

In this folder ``seedbed train toy:catch --arch own_architecture:TOGETHER --pairs 2`` is the same.
"""

import sys
from dataclasses import dataclass

import seedbed
from seedbed.architectures import SEED, Architecture, TrainingDeviceSettings


@dataclass(frozen=True)
class TogetherSettings(TrainingDeviceSettings):
    pairs: int = 1
    """Pairs of actor threads, each with one half of a batch's environments."""


def place(config):
    threads = 2 * config.placement.pairs
    envs = max(1, config.settings.batch_size // threads)
    return seedbed.replace(
        config, arch="seed", transport="inproc", actors=threads, envs_per_actor=envs, lag=1
    )


TOGETHER = Architecture(
    "together", TogetherSettings, SEED.build, SEED.program, SEED.refuses, place=place, policy="server"
)


if __name__ == "__main__":
    sys.modules.setdefault(
        "own_architecture", sys.modules[__name__]
    )  # a script is not importable by its name
    goal = {"until_return": 0.9, "minutes": 0.5, "video": False, "run_dir": (sys.argv[1:] or [None])[0]}
    summary = seedbed.train(seedbed.configure("toy:catch", arch="own_architecture:TOGETHER", pairs=2, **goal))
    print(f"mean return {summary.mean_return:.2f}: {summary.stopped_because}")
