"""Exploitability in rock, paper, scissors: .venv/bin/python benchmarks/rock_paper_scissors.py RUN …

Of each version in a run's pool of opponents, choices at the beginning of a game are counted. An opponent that knows
them gets the exploitability: 0 against uniform choices, 1 against a player that always chooses the same.
"""

from __future__ import annotations

import sys

import jax
import numpy as np

from seedbed.acting.opponents import frozen_trees
from seedbed.acting.unrolls import step_arrays, timestep_of
from seedbed.evaluation.observations import batch_of, step_of
from seedbed.evaluation.policy import Policy
from seedbed.launch.folder import RunFolder
from seedbed.seeding import key

CHOICES = 4000
WORTH = np.array([[0, -1, 1], [1, 0, -1], [-1, 1, 0]])
"""Worth of the row's choice against the column's: rock, paper, scissors."""


def strategies(path: str) -> np.ndarray:
    """Returns the shares of the three choices, one row a version, the oldest first."""
    folder = RunFolder.open(path)
    checkpoint, spec = folder.newest(), folder.spec()
    policy = Policy(folder.config(), spec, checkpoint)
    arrays, _ = batch_of(np.zeros((CHOICES, 3), np.float32), spec.observation)
    step = step_arrays(step_of(spec, arrays, None, True))
    state = policy.agent.initial_state(CHOICES)

    @jax.jit
    def choose(params: dict, keys: jax.Array) -> jax.Array:
        return policy.decider.act(params, keys, timestep_of(spec, step), state)[0].action

    shares = []
    for version, tree in frozen_trees(checkpoint.files).items():
        keys = jax.random.split(key(0, "choices", version), CHOICES)
        chosen = choose(checkpoint.tree(tree, policy.params), keys)
        shares.append(np.bincount(np.asarray(chosen), minlength=3) / CHOICES)
    return np.array(shares)


def exploitability(shares: np.ndarray) -> float:
    """Returns the most that an opponent gets in the mean against these shares."""
    return float((WORTH @ shares).max())


def main() -> None:
    print("| run | versions | exploitability, mean of versions | of their mean strategy |")
    print("|---|---:|---:|---:|")
    for path in sys.argv[1:]:
        found = strategies(path)
        each = np.mean([exploitability(shares) for shares in found])
        print(f"| {path} | {len(found)} | {each:.2f} | {exploitability(found.mean(axis=0)):.2f} |")


if __name__ == "__main__":
    main()
