"""Your own agent, V-trace with a robust loss of the value: python examples/own_agent.py trains it on Catch.

In this folder ``seedbed train toy:catch --agent own_agent:ROBUST`` is the same, and so is every other command.
"""

import dataclasses
import sys

import jax
import optax

import seedbed
from seedbed import ops
from seedbed.agents import AgentDefinition, make_model
from seedbed.agents.vtrace import VTRACE


@dataclasses.dataclass(frozen=True)
class RobustSettings(VTRACE.Settings):
    huber_delta: float = 1.0
    """Error of the value from which its loss grows linearly (Huber 1964)."""


def make_agent(settings, spec, network, *, total_updates=None):
    model, distribution = make_model(settings, spec, network)

    def value_loss(values, targets, valid):
        return (valid * optax.huber_loss(values, targets, delta=settings.huber_delta)).mean()

    def loss(params, target_params, unroll, key):
        policy, values, _ = model.apply(params["network"], unroll.timestep, unroll.action, unroll.state)
        valid, discounts, rewards = ops.transitions(
            unroll.timestep, discount=settings.discount, reward_clip=0.0
        )
        log_probs = distribution.log_prob(policy[:-1], unroll.action)
        acted = distribution.log_prob(unroll.record["policy"], unroll.action)
        log_rhos, fixed = jax.lax.stop_gradient((log_probs - acted, values))
        targets, advantages = ops.over_batch(ops.vtrace)(log_rhos, discounts, rewards, fixed, valid)
        parts = {
            "policy_loss": ops.mean_over_batch(ops.policy_gradient_loss, log_probs, advantages, valid),
            "value_loss": ops.mean_over_batch(value_loss, values[:-1], targets, valid),
            "entropy_loss": ops.mean_over_batch(ops.entropy_loss, distribution.entropy(policy[:-1]), valid),
        }
        policy_part, value_part, entropy_part = parts.values()
        total = policy_part + settings.baseline_cost * value_part + settings.entropy_cost * entropy_part
        return total, ({**parts, "value": ops.average(values[:-1], valid)}, None)

    return dataclasses.replace(VTRACE.make(settings, spec, network, total_updates=total_updates), loss=loss)


ROBUST = AgentDefinition("robust", RobustSettings, make_agent)


if __name__ == "__main__":
    sys.modules.setdefault("own_agent", sys.modules[__name__])  # a script is not importable by its name
    goal = {"until_return": 0.9, "minutes": 0.5, "video": False, "run_dir": (sys.argv[1:] or [None])[0]}
    summary = seedbed.train(seedbed.configure("toy:catch", agent="own_agent:ROBUST", huber_delta=0.5, **goal))
    print(f"mean return {summary.mean_return:.2f}: {summary.stopped_because}")
