"""The actor that holds a copy of the policy, against a learner that writes down what it is told."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest

from seedbed.acting.codec import Introduction
from seedbed.acting.notes import Notes
from seedbed.acting.policy_actor import PolicyActor
from seedbed.agents.dqn import DQNSettings, make_agent
from seedbed.envs.make import make
from seedbed.errors import ConnectionLost
from seedbed.nets.network import Network
from seedbed.types import Agent, EnvSpec

ROWS, LENGTH = 2, 4
TRACED = "/jax/core/compile/jaxpr_trace_duration"


class Learner:
    """A learner that has every version of the weights, and hears so many unrolls."""

    def __init__(self, agent: Agent, unrolls: int) -> None:
        params = agent.init(jax.random.key(1))
        self._weights = [np.array(0, np.int64), *map(np.asarray, jax.tree.leaves(params))]
        self._replies: list[tuple[int, list[Any]]] = []
        self._left = unrolls
        self.heard: list[int] = []

    def open(self, lanes: Any) -> None:
        self.control = len(lanes) - 1

    def ask(self, message: dict[str, Any]) -> dict[str, Any]:
        return {}

    def send(self, lane: int, arrays: Any) -> None:
        self.heard.append(lane)
        if lane == self.control:
            self._replies.append((lane, self._weights))
            return
        self._left -= 1
        if not self._left:
            raise ConnectionLost("it has heard enough")
        self._replies.append((lane, [np.array(0, np.int64)]))

    def receive(self, *, wait: bool) -> Any:
        assert self._replies or not wait, "it would wait for ever"
        return self._replies.pop(0) if self._replies else None


def agent_for(spec: EnvSpec) -> Agent:
    settings = DQNSettings(unroll_length=LENGTH)
    return make_agent(settings, spec, Network(network="mlp", hidden=(8,)))


def test_everything_is_compiled_before_its_first_message() -> None:
    """From that on it owes steps, and one that compiled would be taken for one that hangs."""
    environments = [make("CartPole-v1", ROWS) for _ in range(2)]
    agent = agent_for(environments[0].spec)
    assert agent.priorities is not None, "those are compiled too"
    learner: Any = Learner(agent, unrolls=6)
    numbers = [*range(2 * ROWS)]
    told = Introduction(3, 0, numbers, ([0.0] * len(numbers), [False] * len(numbers)), [0, 0])
    traced: list[str] = []

    def note(event: str, seconds: float, **more: Any) -> None:
        if event == TRACED and learner.heard:
            traced.append(str(more))

    jax.monitoring.register_event_duration_secs_listener(note)
    notes = Notes()
    try:
        with pytest.raises(ConnectionLost, match="heard enough"):
            PolicyActor(learner, agent, environments, [1, 2], told, jax.devices()[0]).play(notes)
    finally:
        notes.close()
        jax.monitoring.unregister_event_duration_listener(note)
    assert learner.heard[0] == learner.control and learner.heard.count(0) == learner.heard.count(1) == 3
    assert traced == []
