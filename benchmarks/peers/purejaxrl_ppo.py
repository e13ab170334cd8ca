"""A peer: PureJaxRL's PPO, environment and update in one compiled program on one device.

It runs in an environment of its own (``pip install jax flax optax distrax gymnax brax``, Python and versions as its
README says) with a checkout of github.com/luchris429/purejaxrl in ``--checkout``; started by ``benchmarks/anakin.py``.
Prints one line of JSON.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import sys
import time
from statistics import median

COMMON = {
    "GAMMA": 0.99,
    "GAE_LAMBDA": 0.95,
    "CLIP_EPS": 0.2,
    "ENT_COEF": 0.01,
    "VF_COEF": 0.5,
    "MAX_GRAD_NORM": 0.5,
}
"""What all of its recipes have."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--checkout", required=True)
    parser.add_argument("--env", required=True)
    parser.add_argument("--envs", type=int, required=True)
    parser.add_argument("--steps", type=int, default=128)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--minibatches", type=int, default=8)
    parser.add_argument("--updates", type=int, required=True, help="in one call")
    parser.add_argument("--calls", type=int, default=4)
    parser.add_argument(
        "--shared", action="store_true", help="one network for policy and value, as Seedbed has"
    )
    given = parser.parse_args()
    sys.path.insert(0, given.checkout)
    import jax
    from purejaxrl import ppo

    if given.shared:
        ppo.ActorCritic = shared_network()

    config = {
        **COMMON,
        "LR": 2.5e-4,
        "NUM_ENVS": given.envs,
        "NUM_STEPS": given.steps,
        "TOTAL_TIMESTEPS": given.updates * given.steps * given.envs,
        "UPDATE_EPOCHS": given.epochs,
        "NUM_MINIBATCHES": given.minibatches,
        "ACTIVATION": "tanh",
        "ENV_NAME": given.env,
        "ANNEAL_LR": False,
    }
    train = jax.jit(ppo.make_train(config))
    rates = []
    for call in range(given.calls + 1):  # the first one compiles
        begun = time.perf_counter()
        jax.block_until_ready(train(jax.random.PRNGKey(call)))
        rates.append(given.updates * given.steps * given.envs / (time.perf_counter() - begun))
    names = ("jax", "flax", "optax", "gymnax")
    versions = {name: importlib.metadata.version(name) for name in names}
    print(json.dumps({"steps_per_second": median(rates[1:]), "rates": rates[1:], "versions": versions}))


def shared_network() -> type:
    """The peer's network with one body of two layers for both heads."""
    import distrax
    import flax.linen as nn
    from flax.linen.initializers import orthogonal

    class Shared(nn.Module):
        action_dim: int
        activation: str = "tanh"

        @nn.compact
        def __call__(self, x):  # type: ignore[no-untyped-def]
            for _ in range(2):
                x = nn.tanh(nn.Dense(64, kernel_init=orthogonal(2**0.5))(x))
            policy = nn.Dense(self.action_dim, kernel_init=orthogonal(0.01))(x)
            return distrax.Categorical(logits=policy), nn.Dense(1, kernel_init=orthogonal(1.0))(x)[..., 0]

    return Shared


if __name__ == "__main__":
    main()
