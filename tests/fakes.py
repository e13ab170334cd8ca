"""Stand-ins for tests of the loop: peers without a wire, agents that do almost nothing, hand-made unrolls."""

from __future__ import annotations

import queue
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from numpy.typing import NDArray

from seedbed.acting.unrolls import step_arrays
from seedbed.envs.make import make, spec_of
from seedbed.transport.interface import PROTOCOL, Layouts
from seedbed.types import ActOutput, Agent, DataPlan, EnvSpec, TimeStep, Tree, Unroll

PATIENCE = 20.0
COUNT: EnvSpec = spec_of("toy:count")
"""Observations int32 ``[env, episode, step, last action]``."""


def reporter(unroll_length: int = 3, batch_size: int = 2, reuse: int = 1, actions: int = 3) -> Agent:
    """An agent for ``toy:count`` that writes down what it is given: its record can be checked step by step.

    The state is how many steps of the episode it has seen, and the sum of the envs' numbers times a weight.
    The record holds the observation, the state before it, what was drawn and the weight.
    """

    def initial_state(batch: int) -> Tree:
        return {"seen": jnp.zeros(batch, jnp.int32), "sum": jnp.zeros(batch)}

    def act(params: Tree, key: Any, timestep: TimeStep, state: Tree) -> tuple[ActOutput, Tree]:
        seen = jnp.where(timestep.first, 0, state["seen"])
        drawn = jax.vmap(lambda k: jax.random.randint(k, (), 0, 1 << 30))(key)
        total = state["sum"] + params["w"] * timestep.observation[:, 0]
        record = {"observation": timestep.observation, "before": state["seen"], "drawn": drawn, "sum": total}
        return ActOutput(drawn % actions, record), {"seen": seen + 1, "sum": total}

    def loss(params: Tree, target_params: Tree, unroll: Unroll, key: Any) -> Any:
        error = (params["w"] * unroll.timestep.observation[:-1, :, 0] - unroll.timestep.reward[1:]) ** 2
        return jnp.mean(error), ({"error": jnp.mean(error)}, None)

    return Agent(
        name="reporter",
        init=lambda key: {"w": jnp.ones(())},
        initial_state=initial_state,
        act=act,
        loss=loss,
        optimizer=optax.adam(0.1),
        data=DataPlan(unroll_length, batch_size, reuse),
        mode=lambda params, timestep, state: (jnp.zeros(timestep.reward.shape, jnp.int32), state),
    )


def numbered(length: int, names: Sequence[int]) -> Unroll:
    """An unroll ``[length + 1, len(names), ...]`` whose every entry says which environment and step it is."""
    time = np.arange(length + 1)[:, None]
    column = np.asarray(names)[None]
    steps = (column * 1000 + time).astype(np.float32)
    flags = np.zeros(steps.shape, bool)
    return Unroll(
        timestep=TimeStep({"x": steps, "y": steps[..., None]}, steps, flags, flags, flags),
        action=steps[:-1].astype(np.int32),
        record={"q": steps[:-1]},
        state={"h": np.asarray(names, np.float32)},
        version=np.broadcast_to(column, (length, len(names))).astype(np.int32),
    )


class FakePeer:
    """The registry's end of a conversation: keeps what it is told to send."""

    def __init__(self, name: str = "peer", place: str = "") -> None:
        self.name, self.place = name, place
        self.terms: Sequence[Layouts] | None = None
        self.closed: list[str] = []
        self._replies: queue.SimpleQueue[tuple[int, NDArray[Any]]] = queue.SimpleQueue()

    def open(self, lanes: Sequence[Layouts]) -> None:
        """Keeps the terms."""
        assert self.terms is None, "open is called once"
        self.terms = lanes

    def reply(self, lane: int, arrays: Sequence[NDArray[Any]]) -> None:
        """Keeps the actions, checked against the terms."""
        assert self.terms is not None
        self.terms[lane].down.check(arrays)
        self._replies.put((lane, arrays[0].copy()))

    def close(self, reason: str) -> None:
        """Keeps the reason."""
        self.closed.append(reason)

    def next(self) -> tuple[int, NDArray[Any]]:
        """The next reply; fails if none comes."""
        return self._replies.get(timeout=PATIENCE)

    @property
    def silent(self) -> bool:
        """Whether no reply is there."""
        return self._replies.empty()


class Player:
    """An actor without process or wire: joins a registry and plays ``toy:count``, one lane at a time."""

    def __init__(self, registry: Any, token: str = "secret", place: str = "", **join: Any) -> None:
        self.registry = registry
        self.peer = FakePeer(place=place)
        message = {"kind": "join", "protocol": PROTOCOL, "token": token, "index": None, "envs": None, **join}
        self.told = registry.answer(self.peer, message)
        rows = self.told["rows"]
        self.lanes = [
            make(self.told["env"], rows, {"first_index": 100 * self.told["index"] + half * rows})
            for half in range(len(self.told["seeds"]))
        ]

    def ready(self) -> Player:
        """Says what it made."""
        self.registry.answer(self.peer, {"kind": "ready", "spec": self.lanes[0].spec.to_json()})
        return self

    def begin(self, *lanes: int) -> Player:
        """Sends the first step of these lanes, or of all."""
        for lane in lanes or range(len(self.lanes)):
            self.registry.deliver(
                self.peer, lane, step_arrays(self.lanes[lane].reset(self.told["seeds"][lane]))
            )
        return self

    def play(self, replies: int = 1) -> Player:
        """Answers so many replies, each with the step that follows."""
        for _ in range(replies):
            self.step(*self.peer.next())
        return self

    def step(self, lane: int, action: NDArray[Any]) -> None:
        """Steps a lane and sends what it shows."""
        self.lanes[lane].send(action)
        self.registry.deliver(self.peer, lane, step_arrays(self.lanes[lane].receive()))

    def leave(self, reason: str = "gone") -> None:
        """Is gone."""
        self.registry.left(self.peer, reason)


class InstantInference:
    """:class:`~seedbed.acting.inference.Inference` without a device: the policy is a sum, the state a count."""

    def __init__(self, capacity: int, largest: int) -> None:
        self.largest = largest
        self._seen = np.zeros(capacity, np.int32)
        self._firsts = np.zeros(capacity, np.int32)

    def reset(self, slots: NDArray[np.int32]) -> None:
        """Forgets what these slots have seen."""
        self._seen[slots] = 0

    def act(self, params: Tree, batch: Sequence[tuple[Any, NDArray[np.int32]]]) -> tuple[NDArray[Any], Tree]:
        """Acts for several lanes; the record is the observation and the count before it."""
        observation = np.concatenate([arrays[0] for arrays, _ in batch])
        slot, epoch, step, begins = np.concatenate([columns for _, columns in batch], axis=1)
        assert len(slot) <= self.largest, "a batch is never larger than what is compiled"
        assert len(set(slot)) == len(slot), "a slot is one environment's"
        before = self._seen[slot]
        self._firsts[slot[begins == 1]] = before[begins == 1]
        self._seen[slot] += 1
        action = (slot + epoch + step + observation.sum(1)) % 3
        return action.astype(np.int32), {"observation": observation, "before": before}

    def first_states(self, slots: NDArray[np.int32]) -> Tree:
        """The counts before the open unrolls."""
        return {"seen": self._firsts[slots]}

    def tables(self) -> Tree:
        """Copies of everything."""
        return {"states": self._seen.copy(), "firsts": self._firsts.copy()}

    def restore(self, tables: Tree) -> None:
        """Puts it back."""
        self._seen, self._firsts = tables["states"].copy(), tables["firsts"].copy()
