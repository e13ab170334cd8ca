"""A peer: PureJaxRL's PPO learns a game of MinAtar by its own recipe; prints one line of JSON with its returns.

What it needs stands in ``purejaxrl_ppo.py``; started by ``benchmarks/minatar_scores.py``. Returns are of the episodes
that ended in training: the mean of the last 100, and that of each twentieth of the steps.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import sys
import time

from purejaxrl_ppo import COMMON

RECIPE = {
    **COMMON,
    "LR": 5e-3,
    "NUM_ENVS": 64,
    "NUM_STEPS": 128,
    "UPDATE_EPOCHS": 4,
    "NUM_MINIBATCHES": 8,
    "ACTIVATION": "relu",
    "ANNEAL_LR": True,
}
"""That of its notebook ``examples/brax_minatar.ipynb``."""
PARTS = 20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--checkout", required=True)
    parser.add_argument("--env", required=True)
    parser.add_argument("--frames", type=int, required=True)
    parser.add_argument("--seed", type=int, required=True)
    given = parser.parse_args()
    sys.path.insert(0, given.checkout)
    import jax
    import numpy as np
    from purejaxrl import ppo

    config = {**RECIPE, "ENV_NAME": given.env, "TOTAL_TIMESTEPS": given.frames}
    begun = time.perf_counter()
    told = jax.block_until_ready(jax.jit(ppo.make_train(config))(jax.random.PRNGKey(given.seed)))["metrics"]
    seconds = time.perf_counter() - begun
    ended, returns = (np.asarray(told[name]) for name in ("returned_episode", "returned_episode_returns"))
    parts = zip(np.array_split(ended, PARTS), np.array_split(returns, PARTS), strict=True)
    versions = {name: importlib.metadata.version(name) for name in ("jax", "flax", "optax", "gymnax")}
    found = {
        "mean_return": float(returns[ended][-100:].mean()),
        "curve": [round(float(values[over].mean()), 2) for over, values in parts],
        "seconds": round(seconds),
        "versions": versions,
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
