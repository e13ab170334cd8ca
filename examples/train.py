"""What ``orchard train`` does, in a few lines of Python: python examples/train.py [run folder]."""

import sys

import orchard


def main(run_dir: str | None = None) -> None:
    # The same names and defaults as the flags: orchard train toy:catch --actors 1 --frames 30000 …
    config = orchard.configure(
        "toy:catch", actors=1, transport="inproc", frames=30_000, seed=1, video=False, run_dir=run_dir
    )
    summary = orchard.train(config)  # orchard train
    folder = summary.to_json()["run_dir"]
    print(f"stopped: {summary.stopped_because}; weights version {summary.weights_version}")

    result = orchard.evaluate(folder, episodes=32)  # orchard eval RUN --episodes 32
    print(f"mean return {result.mean:.2f} over {result.count} episodes")

    summary = orchard.resume(folder, frames=35_000, until_return=None)  # orchard resume RUN --frames 35000
    print(f"resumed, stopped: {summary.stopped_because}; weights version {summary.weights_version}")

    print(orchard.record(folder))  # orchard record RUN


if __name__ == "__main__":
    main(*sys.argv[1:2])
