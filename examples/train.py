"""What ``seedbed train`` does, in a few lines of Python: python examples/train.py [run folder]."""

import sys

import seedbed


def main(run_dir: str | None = None) -> None:
    # The same names and defaults as the flags: seedbed train toy:catch --actors 1 --frames 30000 …
    config = seedbed.configure(
        "toy:catch", actors=1, transport="inproc", frames=30_000, seed=1, video=False, run_dir=run_dir
    )
    summary = seedbed.train(config)  # seedbed train
    folder = summary.run_dir
    print(f"stopped: {summary.stopped_because}; weights version {summary.weights_version}")

    result = seedbed.evaluate(folder, episodes=32)  # seedbed eval RUN --episodes 32
    print(f"mean return {result.mean:.2f} over {result.count} episodes")

    summary = seedbed.resume(folder, frames=35_000, until_return=None)  # seedbed resume RUN --frames 35000
    print(f"resumed, stopped: {summary.stopped_because}; weights version {summary.weights_version}")

    print(seedbed.record(folder))  # seedbed record RUN


if __name__ == "__main__":
    main(*sys.argv[1:2])
