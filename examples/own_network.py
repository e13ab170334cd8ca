"""Your own network: python examples/own_network.py trains it on Catch for a few seconds."""

import sys

import flax.linen as nn
import jax

import seedbed


class Residual(nn.Module):
    """Maps the observation ``[N, 10, 5]`` to features ``[N, 64]``; heads and LSTM are added to them."""

    width: int = 64

    @nn.compact
    def __call__(self, observation: jax.Array) -> jax.Array:
        features = nn.Dense(self.width)(observation.reshape(len(observation), -1))
        for _ in range(2):
            features = features + nn.Dense(self.width)(nn.relu(nn.LayerNorm()(features)))
        return nn.relu(features)


def main(run_dir: str | None = None) -> None:
    # Run as a script, this module is not importable by its name: learning and acting find it here.
    sys.modules.setdefault("own_network", sys.modules[__name__])
    config = seedbed.configure(
        "toy:catch", network="own_network:Residual", minutes=0.2, video=False, run_dir=run_dir
    )
    summary = seedbed.train(config)
    print(
        f"mean return {summary.mean_return:.2f} after {summary.agent_steps} steps: {summary.stopped_because}"
    )


if __name__ == "__main__":
    main(*sys.argv[1:2])
