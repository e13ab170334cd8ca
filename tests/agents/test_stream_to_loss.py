"""From the stream of environments over inference's tables and the replay to the loss, with three sets of weights.

Every item that is sampled is found again in the stream by its observation, and worked out from there: the stream's own
steps, the state that the acting weights come to by themselves, the loss of the trained and the target weights.
"""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from harness import thorough

from seedbed.acting.example import example_unroll
from seedbed.acting.inference import Inference
from seedbed.acting.unrolls import OpenUnroll, step_arrays
from seedbed.agents import dqn, muzero, r2d2, sac
from seedbed.nets.network import Network
from seedbed.replay.replay import Replay
from seedbed.testing.agents import SPECS, at, experience
from seedbed.types import Unroll

ROWS, LENGTH, STEPS, BATCH = 4, 6, 60, 8
ENDS = [
    (4, 0, "terminated"),
    (9, 1, "truncated"),
    (13, 2, "terminated"),
    (14, 0, "truncated"),
    (31, 3, "terminated"),
]
REPLAY = {
    "unroll_length": LENGTH,
    "batch_size": BATCH,
    "replay_size": 400,
    "replay_min_size": 24,
    "replay_ratio": None,
    "n_step": 3,
}
AGENTS = {
    "dqn": lambda spec: dqn.make_agent(dqn.DQNSettings(head_size=8, **REPLAY), spec),
    "r2d2": lambda spec: r2d2.make_agent(
        r2d2.R2D2Settings(burn_in=4, head_size=8, **REPLAY), spec, Network(lstm=6)
    ),
    "muzero": lambda spec: muzero.make_agent(
        muzero.MuZeroSettings(
            unroll_steps=1,
            simulations=3,
            model_size=8,
            state_size=6,
            reanalyse=0.5,
            **{**REPLAY, "n_step": 2},
        ),
        spec,
        Network(hidden=(8,)),
    ),
    "sac": lambda spec: sac.make_agent(
        sac.SACSettings(priority_exponent=0.6, **REPLAY), spec, Network(hidden=(8,))
    ),
}
WORLDS = {
    **{name: SPECS[name] for name in ("vector", "image")},
    "bounded vector": replace(SPECS["vector"], action=SPECS["bounded"].action),
    "bounded image": replace(SPECS["image"], action=SPECS["bounded"].action),
}


def shaken(params, seed):
    """Other weights of the same structure, so that no value is like another."""
    noise = np.random.default_rng(seed)
    return jax.tree.map(lambda x: x + jnp.asarray(0.3 * noise.normal(size=x.shape), x.dtype), params)


def acted(agent, spec, params, stream, replay):
    """Acts on the whole stream as a run does and fills the replay; returns actions and records ``[STEPS - 1, ...]``."""
    inference = Inference(agent, spec, ROWS, (ROWS,), jax.devices()[0], jax.random.key(1))
    lane = OpenUnroll(spec, ROWS, agent.data.overlap + LENGTH, agent.data.overlap)
    slots, outputs = np.arange(ROWS, dtype=np.int32), []
    for t in range(STEPS):
        if lane.observe(step_arrays(at(stream, t))):
            unroll = lane.cut(inference.first_states(slots))
            priorities = np.asarray(agent.priorities(unroll))
            assert replay.offer(unroll, slots.astype(np.int64), t, priorities) is not None
        columns = np.array([slots, np.zeros(ROWS), np.full(ROWS, t), np.full(ROWS, lane.begins)], np.int32)
        action, record = inference.act(params, [(lane.observed, columns)])
        lane.decide(action, record, 0)
        outputs.append((action, record))
    return jax.tree.map(lambda *rows: np.stack(rows), *outputs)


def states_of(agent, params, stream, actions):
    """The state before each step, by the acting weights from the beginning of the stream."""
    act, states = jax.jit(agent.act), [agent.initial_state(ROWS)]
    for t in range(STEPS - 1):
        _, after = act(params, jax.random.split(jax.random.key(0), ROWS), at(stream, t), states[-1])
        states.append(after | ({"action": jnp.asarray(actions[t])} if "action" in after else {}))
    return states


def places(stream, sample):
    """Step and row of the stream at which each sampled item begins."""
    shown = np.asarray(stream.observation).reshape(STEPS, ROWS, -1)
    for first in np.asarray(sample.unroll.timestep.observation[0]).reshape(BATCH, -1):
        found = np.argwhere((shown == first).all(-1))
        assert len(found) == 1, "an observation is in the stream once"
        yield tuple(found[0].tolist())


def from_the_stream(stream, actions, records, states, begins, length, weights):
    """The items that begin there, put together from the stream."""

    def pick(array, steps):
        return np.stack([np.asarray(array)[t : t + steps, row] for t, row in begins], axis=1)

    before = [jax.tree.map(lambda array, row=row: np.asarray(array[row]), states[t]) for t, row in begins]
    return Unroll(
        jax.tree.map(lambda array: pick(array, length + 1), stream),
        pick(actions, length),
        jax.tree.map(lambda array: pick(array, length), records),
        jax.tree.map(lambda *rows: np.stack(rows), *before),
        np.zeros((length, len(begins)), np.int32),
        weights,
    )


@pytest.mark.parametrize(
    ("name", "world"),
    [
        ("dqn", "image"),
        ("r2d2", "vector"),
        ("muzero", "vector"),
        ("sac", "bounded vector"),
        *thorough(("dqn", "vector"), ("r2d2", "image"), ("muzero", "image"), ("sac", "bounded image")),
    ],
)
def test_what_is_sampled_has_the_loss_of_its_place_in_the_stream(name, world):
    spec = WORLDS[world]
    agent = AGENTS[name](spec)
    acting, trained, target = (shaken(jax.jit(agent.init)(jax.random.key(0)), seed) for seed in (1, 2, 3))
    stream = experience(spec, STEPS, ROWS, ENDS)
    replay = Replay(
        agent.data,
        example_unroll(agent, spec, agent.data.overlap + LENGTH, 1)._replace(weight=None),
        batch_size=BATCH,
        largest_insert=ROWS * LENGTH,
        seed=0,
    )
    actions, records = acted(agent, spec, acting, stream, replay)
    states = states_of(agent, acting, stream, actions)
    loss = jax.jit(agent.loss)
    for _ in range(3):
        sample = replay.take(0.0)
        assert sample is not None
        begins = list(places(stream, sample))
        own = from_the_stream(
            stream, actions, records, states, begins, agent.data.trained_length, sample.unroll.weight
        )
        given, (_, priorities) = loss(trained, target, sample.unroll, jax.random.key(0))
        expected, (_, its_own) = loss(trained, target, own, jax.random.key(0))
        assert float(given) == pytest.approx(float(expected), rel=1e-4)
        np.testing.assert_allclose(priorities, its_own, rtol=1e-3, atol=1e-4)
        for other in ((acting, target), (trained, trained)):
            assert float(loss(*other, own, jax.random.key(0))[0]) != pytest.approx(float(expected), rel=1e-3)
        replay.update(sample.items, sample.generations, priorities)
