"""Agents, as a run's settings have them."""

import jax
import pytest

import seedbed
from seedbed.launch.build import build_agent
from seedbed.nets.build import COMPUTE_DTYPES
from seedbed.registry import AGENTS
from seedbed.testing.agents import SPECS, at, experience


@pytest.mark.parametrize("agent", AGENTS.names)
def test_every_agent_convolves_in_the_dtype_that_is_asked_for(agent: str) -> None:
    step, found = at(experience(SPECS["image"], 1, 2), 0), {}
    for dtype in COMPUTE_DTYPES[:2]:
        config = seedbed.configure(
            "ALE/Pong-v5", agent=agent, preset="none", compute_dtype=dtype, frames=1000
        )
        ours = build_agent(config, SPECS["image"])
        params = jax.eval_shape(ours.init, jax.random.key(0))
        program = jax.make_jaxpr(ours.mode)(params, step, ours.initial_state(2))
        found[dtype] = "bf16[" in str(program)
    assert found == {"float32": False, "bfloat16": True}
