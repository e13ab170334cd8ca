"""A rollout on its accelerator against SEED's inference and unrolls cut on the host."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest

from seedbed.acting.inference import Inference
from seedbed.acting.rollout import CompiledPolicy, Rollout
from seedbed.acting.unrolls import OpenUnroll, step_arrays
from seedbed.agents.vtrace import VTraceSettings, make_agent
from seedbed.envs.make import make
from seedbed.nets.network import Network

ROWS, LENGTH, UNROLLS, EPOCH = 3, 4, 3, 2
SLOTS = np.array([5, 6, 7], np.int32)


@pytest.mark.parametrize("env", ["toy:catch", "Pendulum-v1"])
def test_it_acts_and_cuts_as_inference_and_lanes_do(env: str) -> None:
    environment = make(env, ROWS)
    settings = VTraceSettings(unroll_length=LENGTH, previous_action=True, previous_reward=True)
    agent = make_agent(settings, environment.spec, Network(network="mlp", hidden=(8,), lstm=4))
    params, device, key = agent.init(jax.random.key(3)), jax.devices()[0], jax.random.key(4)
    inference = Inference(agent, environment.spec, 8, (ROWS,), device, key)
    lane = OpenUnroll(environment.spec, ROWS, LENGTH)
    rollout = Rollout(CompiledPolicy(agent, environment.spec, ROWS, key), device, SLOTS, EPOCH)
    step = 0
    timestep = environment.reset(1)
    lane.observe(step_arrays(timestep))
    for version in range(UNROLLS):
        while not rollout.full:
            columns = np.array([SLOTS, [EPOCH] * ROWS, [step] * ROWS, [lane.decided == 0] * ROWS], np.int32)
            action, record = inference.act(params, [(step_arrays(timestep), columns)])
            lane.decide(action, record, version)
            ours = rollout.act(params, timestep, step)
            np.testing.assert_array_equal(ours, action)
            assert ours.dtype == environment.spec.action.dtype
            environment.send(action)
            timestep = environment.receive()
            complete = lane.observe(step_arrays(timestep))
            step += 1
        assert complete
        expected, found = lane.cut(inference.first_states(SLOTS)), rollout.cut(timestep, version)
        assert jax.tree.structure(expected) == jax.tree.structure(found)
        jax.tree.map(np.testing.assert_array_equal, found, expected)
        assert all(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(found.timestep)), (
            "it stays on the device"
        )
    environment.close()


def test_what_was_handed_over_does_not_change_afterwards() -> None:
    environment = make("toy:catch", ROWS)
    agent = make_agent(
        VTraceSettings(unroll_length=LENGTH), environment.spec, Network(network="mlp", hidden=(8,))
    )
    params = agent.init(jax.random.key(3))
    rollout = Rollout(
        CompiledPolicy(agent, environment.spec, ROWS, jax.random.key(4)), jax.devices()[0], SLOTS, 0
    )
    timestep = environment.reset(1)
    kept: list[tuple[Any, Any]] = []
    for step in range(3 * LENGTH):
        environment.send(rollout.act(params, timestep, step))
        timestep = environment.receive()
        if rollout.full:
            unroll = rollout.cut(timestep, step)
            kept.append((unroll, jax.tree.map(np.copy, jax.device_get(unroll))))
    for unroll, copy in kept:
        jax.tree.map(np.testing.assert_array_equal, jax.device_get(unroll), copy)
    environment.close()
