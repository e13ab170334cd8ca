"""A peer: RLlib's PPO on several CartPoles as agents of one environment, as its example ``multi_agent_cartpole.py`` has
them.

It runs in an environment of its own (``pip install 'ray[rllib]' torch``), started by ``benchmarks/several_agents.py``;
prints one line of JSON.
"""

from __future__ import annotations

import argparse
import json
import time
from statistics import median
from typing import Any

import ray
import torch
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.examples.envs.classes.multi_agent import MultiAgentCartPole
from ray.tune.registry import register_env

ENVS_PER_RUNNER = 20


def sampled(result: dict[str, Any]) -> float:
    """Steps of all agents, since the beginning."""
    return float(sum(result["env_runners"]["num_agent_steps_sampled_lifetime"].values()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--agents", type=int, default=2)
    parser.add_argument("--policies", choices=("own", "shared"), default="own")
    parser.add_argument("--runners", type=int, default=2)
    parser.add_argument("--batch", type=int, default=4000, help="steps of environments an update")
    parser.add_argument("--minibatch", type=int, default=128, help="steps of one policy")
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--seconds", type=float, default=45.0)
    given = parser.parse_args()
    register_env("cartpoles", lambda _: MultiAgentCartPole(config={"num_agents": given.agents}))
    own = given.policies == "own"
    config = (
        PPOConfig()
        .environment("cartpoles")
        .env_runners(num_env_runners=given.runners, num_envs_per_env_runner=ENVS_PER_RUNNER)
        .training(
            train_batch_size_per_learner=given.batch, minibatch_size=given.minibatch, num_epochs=given.epochs
        )
        .multi_agent(
            policies={f"p{index}" for index in range(given.agents)} if own else {"p0"},
            policy_mapping_fn=lambda agent, *_, **__: f"p{agent}" if own else "p0",
        )
    )
    algorithm = config.build_algo()
    rates = []
    try:
        before = sampled(algorithm.train())  # the first iteration warms up
        began = begun = time.perf_counter()
        while begun - began < given.seconds:
            steps = sampled(algorithm.train())
            now = time.perf_counter()
            rates.append((steps - before) / (now - begun))
            before, begun = steps, now
    finally:
        algorithm.stop()
        ray.shutdown()
    versions = {"ray": ray.__version__, "torch": torch.__version__}
    print(json.dumps({"steps_per_second": median(rates), "updates": len(rates), "versions": versions}))


if __name__ == "__main__":
    main()
