"""Behaviour cloning learns a script from a data set of what it did."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import jax
import numpy as np
import optax
import pytest

from seedbed.agents.bc import BCSettings, make_agent
from seedbed.envs.interface import Environment
from seedbed.envs.make import make
from seedbed.nets.network import Network
from seedbed.replay.dataset import Decided, write
from seedbed.types import Agent, Tree


def catches(boards: np.ndarray) -> np.ndarray:
    """The action ``[B]`` that moves the paddle below the ball, of boards ``[B, rows, columns]``."""
    ball = boards[:, :-1].any(axis=1).argmax(axis=1)
    paddle = boards[:, -1].argmax(axis=1)
    # In the last row the two are one, or the ball has passed.
    falling = boards[:, :-1].any(axis=(1, 2))
    return np.where(falling, np.sign(ball - paddle) + 1, 1).astype(np.int32)


def scripted(environment: Environment, seed: int) -> Iterator[Decided]:
    timestep = environment.reset(seed)
    while True:
        action = catches(np.asarray(timestep.observation))
        yield Decided(timestep, action, {})
        environment.send(action)
        timestep = environment.receive()


def returns(agent: Agent, params: Tree, episodes: int) -> np.ndarray:
    """Of episodes of ``toy:catch`` that are played greedily, one in each environment."""
    environment = make("toy:catch", episodes)
    mode, state = jax.jit(agent.mode), agent.initial_state(episodes)
    timestep, total = environment.reset(99), np.zeros(episodes)
    while not timestep.terminated.any():  # all last equally long
        action, state = mode(params, timestep, state)
        environment.send(np.asarray(action))
        timestep = environment.receive()
        total += timestep.reward
    return total


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", ["adam", "adagrad"])
def test_a_script_is_cloned_from_a_data_set(tmp_path: Path, optimizer: str) -> None:
    environment = make("toy:catch", 8)
    dataset = write(
        tmp_path / "data", environment.spec, islice(scripted(environment, 1), 401), dict, most_bytes=100_000
    )
    rate = {"adam": 3e-3, "adagrad": 0.1}[optimizer]
    settings = BCSettings(unroll_length=10, batch_size=16, optimizer=optimizer, learning_rate=rate)
    agent = make_agent(settings, environment.spec, Network(network="mlp", hidden=(64,)))

    @jax.jit
    def update(params, state, unroll):
        gradient, (metrics, _) = jax.grad(agent.loss, has_aux=True)(params, params, unroll, jax.random.key(0))
        updates, state = agent.optimizer.update(gradient, state, params)
        return optax.apply_updates(params, updates), state, metrics

    params = agent.init(jax.random.key(0))
    state = agent.optimizer.init(params)
    batches = dataset.shard(0, 1).batches(agent.data, agent.initial_state, seed=0)
    accuracies = []
    for unroll in islice(batches, 600):
        params, state, metrics = update(params, state, unroll)
        accuracies.append(float(metrics["accuracy"]))
    assert accuracies[0] < 0.6
    assert np.mean(accuracies[-50:]) > 0.99
    assert returns(agent, params, 64).mean() > 0.95
