"""A rollout on its accelerator against SEED's inference and unrolls cut on the host."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest
from harness import thorough

from seedbed.acting.inference import Inference
from seedbed.acting.rollout import CompiledPolicy, Rollout
from seedbed.acting.unrolls import OpenUnroll, step_arrays
from seedbed.agents import r2d2
from seedbed.agents.vtrace import VTraceSettings, make_agent
from seedbed.envs.make import make
from seedbed.nets.network import Network
from seedbed.types import Agent, EnvSpec

ROWS, LENGTH, UNROLLS, EPOCH = 3, 4, 3, 2
SLOTS = np.array([5, 6, 7], np.int32)


NETWORK = Network(network="mlp", hidden=(8,), lstm=4)


def with_memory(spec: EnvSpec) -> Agent:
    return make_agent(
        VTraceSettings(unroll_length=LENGTH, previous_action=True, previous_reward=True), spec, NETWORK
    )


def with_overlap(spec: EnvSpec) -> Agent:
    return r2d2.make_agent(r2d2.R2D2Settings(unroll_length=LENGTH, burn_in=3, head_size=0), spec, NETWORK)


@pytest.mark.parametrize(
    ("env", "made"),
    [("Pendulum-v1", with_memory), ("toy:catch", with_overlap), *thorough(("toy:catch", with_memory))],
)
def test_it_acts_and_cuts_as_inference_and_lanes_do(env: str, made: Callable[[EnvSpec], Agent]) -> None:
    """Also after it was restored, in another rollout, at the beginning of each unroll."""
    environment = make(env, ROWS)
    agent = made(environment.spec)
    params, device, key = agent.init(jax.random.key(3)), jax.devices()[0], jax.random.key(4)
    inference = Inference(agent, environment.spec, 8, (ROWS,), device, key)
    overlap = agent.data.overlap
    lane = OpenUnroll(environment.spec, ROWS, overlap + LENGTH, overlap)
    program = CompiledPolicy(agent, environment.spec, ROWS, key)
    rollout = Rollout(program, device, SLOTS, EPOCH)
    step = 0
    timestep = environment.reset(1)
    lane.observe(step_arrays(timestep))
    for version in range(UNROLLS):
        while not rollout.full:
            columns = np.array([SLOTS, [EPOCH] * ROWS, [step] * ROWS, [lane.begins] * ROWS], np.int32)
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
        assert rollout.transitions == lane.transitions
        expected, found = lane.cut(inference.first_states(SLOTS)), rollout.cut(timestep, version)
        assert jax.tree.structure(expected) == jax.tree.structure(found)
        jax.tree.map(np.testing.assert_array_equal, found, expected)
        assert all(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(found.timestep)), (
            "it stays on the device"
        )
        (state, first), shared = jax.device_get((rollout.state, rollout.first)), rollout.shared()
        for ours, theirs in zip(shared, lane.shared() if overlap else [], strict=True):
            np.testing.assert_array_equal(ours, theirs)
        rollout = Rollout(program, device, SLOTS, EPOCH)
        rollout.restore(state, first, shared)
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
