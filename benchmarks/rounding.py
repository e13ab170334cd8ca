"""How far gradients with convolutions in bfloat16 are from those in float32, beside what batches differ by.

``.venv/bin/python benchmarks/rounding.py RUN [--steps 400]`` plays with the newest weights of a run, cuts an unroll of
every environment of a batch, and prints cosines between gradients of the loss: of the two dtypes with the same batch,
and of the two halves of that batch. A row goes to ``benchmarks/results/rounding.jsonl``.
"""

from __future__ import annotations

import argparse
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from side_by_side import keep

from seedbed.acting.rollout import CompiledPolicy, Rollout
from seedbed.config.resolve import replace
from seedbed.evaluation.player import Player
from seedbed.launch.build import build_agent
from seedbed.learning.update import Update
from seedbed.seeding import key
from seedbed.timing.stages import provenance
from seedbed.types import Agent, EnvSpec, Tree, Unroll

DTYPES = ("float32", "bfloat16")


def unroll_of(player: Player, environments: int, steps: int) -> tuple[Unroll, EnvSpec, Tree]:
    """An unroll ``[T+1, B, ...]`` of so many environments, which begins after ``steps`` steps or somewhat later.

    With the spec of the environments and the parameters that acted.
    """
    environment = player.make(environments)
    policy = player.policy
    assert policy is not None
    slots = np.arange(environments, dtype=np.int32)
    program = CompiledPolicy(policy.agent, environment.spec, environments, key(0, "rounding"))
    rollout = Rollout(program, jax.devices()[0], slots, 0)
    timestep, step = environment.reset(0), 0
    while True:
        if rollout.full:
            unroll = rollout.cut(timestep, player.version)
            if step >= steps:
                environment.close()
                return unroll, environment.spec, policy.params
        environment.send(rollout.act(policy.params, timestep, step))
        timestep, step = environment.receive(), step + 1


def gradient(agent: Agent, params: Tree, batch: Unroll) -> np.ndarray[Any, Any]:
    """Of the loss, with a batch that is prepared for this agent, as one vector."""
    _, batch = Update(agent, jax.devices()[:1]).prepare(params, batch)

    def loss(params: Tree, batch: Unroll) -> jax.Array:
        return jnp.asarray(agent.loss(params, None, batch, jax.random.key(0))[0])

    found = jax.jit(jax.grad(loss))(params, batch)
    return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(found)])


def cosine(one: np.ndarray[Any, Any], other: np.ndarray[Any, Any]) -> float:
    """Of the angle between two vectors."""
    return float(one @ other / np.sqrt((one @ one) * (other @ other)))


def measured(run: str, steps: int) -> dict[str, float]:
    """The cosines, by name."""
    player = Player(run)
    rows: int = player.config.settings.batch_size
    batch, spec, params = unroll_of(player, rows, steps)
    agents = {dtype: build_agent(replace(player.config, compute_dtype=dtype), spec) for dtype in DTYPES}
    of_all = {dtype: gradient(agent, params, batch) for dtype, agent in agents.items()}
    update = Update(agents["float32"], jax.devices()[:1])
    halves = [update.minibatch(batch, jnp.arange(rows)[part::2]) for part in (0, 1)]
    return {
        "float32 and bfloat16, the same batch": cosine(*of_all.values()),
        "two halves of the batch, float32": cosine(
            *(gradient(agents["float32"], params, half) for half in halves)
        ),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run")
    parser.add_argument("--steps", type=int, default=400)
    given = parser.parse_args()
    cosines = measured(given.run, given.steps)
    for name, value in cosines.items():
        print(f"{value:9.4f}  {name}")
    keep("rounding.jsonl", {"cosines": cosines, **provenance()})


if __name__ == "__main__":
    main()
