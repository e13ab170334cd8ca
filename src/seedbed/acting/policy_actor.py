"""The actor that holds a copy of the policy: decides for its environments itself, and sends whole unrolls.

Its slots, random keys and unrolls are the same as under central inference, so that both compute the same actions; only
the place of the computation differs.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from numpy.typing import NDArray

from seedbed.acting.codec import (
    Introduction,
    UnrollCodec,
    WeightsCodec,
    blind,
    lanes_of_unrolls,
    version_array,
)
from seedbed.acting.inference import Inference
from seedbed.acting.lanes import columns
from seedbed.acting.notes import Notes
from seedbed.acting.reporting import Reporter
from seedbed.acting.unrolls import OpenUnroll, step_arrays
from seedbed.envs.interface import Environment
from seedbed.errors import ConfigError
from seedbed.seeding import key
from seedbed.transport.interface import Client, Layout
from seedbed.types import Agent, Exploration, Unroll, Weights


@dataclass(eq=False)
class _Half:
    """A lane of the actor.

    Attributes:
      number: index of the lane.
      environment: batch of the lane's environments.
      slots: int32 ``[n]``, slots of its environments among the slots of the actor.
      open: the unroll that it fills.
      told: version of the weights that its next unroll begins with; None while it is not known.
      weights: the weights that it acts with.
      steps: number of decisions so far.
    """

    number: int
    environment: Environment
    slots: NDArray[np.int32]
    open: OpenUnroll
    told: int | None = None
    weights: Weights | None = None
    steps: int = 0


class PolicyActor:
    """The loop of one actor that runs the policy for its environments; used by one thread.

    Args:
      client: connection to the learner, for unrolls and weights.
      agent: the agent whose ``act`` is run.
      environments: batches of environments, one for each lane, not reset yet.
      seeds: seed of each batch of environments.
      introduction: the learner's answer to ``ready``.
      device: the JAX device that acts.
    """

    def __init__(
        self,
        client: Client,
        agent: Agent,
        environments: Sequence[Environment],
        seeds: Sequence[int],
        introduction: Introduction,
        device: Any,
    ) -> None:
        self._client = client
        self._agent = agent
        self._seeds = seeds
        self._epoch = introduction.epoch
        self._device = device
        spec, rows = environments[0].spec, len(introduction.numbers) // len(environments)
        data = agent.data
        self._halves = [
            _Half(
                number,
                environment,
                np.arange(number * rows, (number + 1) * rows, dtype=np.int32),
                OpenUnroll(spec, rows, data.overlap + data.unroll_length, data.overlap),
                told=version,
            )
            for number, (environment, version) in enumerate(
                zip(environments, introduction.versions, strict=True)
            )
        ]
        self._codec = UnrollCodec(agent, spec, rows)
        self._snapshots = WeightsCodec(agent)
        self._inference = Inference(
            agent,
            spec,
            len(introduction.numbers),
            (rows,),
            device,
            key(introduction.seed, "acting"),
            np.array(introduction.numbers, np.int32),
            Exploration(*introduction.exploration),
        )
        self._priorities = None if agent.priorities is None else jax.jit(agent.priorities)
        self._held: dict[int, Weights] = {}
        self._asked: int | None = None
        self._stepping: deque[_Half] = deque()

    @property
    def _control_lane(self) -> int:
        """Index of the lane that fetches weights."""
        return len(self._halves)

    def warm_up(self) -> None:
        """Compiles everything: from its first message on, an actor owes steps, and none of them waits for that."""
        weights = self._snapshots.unpack(_zeros(self._snapshots.layout), self._device)
        self._inference.warm_up(weights.params)
        unroll, *_ = self._codec.unpack(_zeros(self._codec.layout))
        self._priorities_of(unroll)

    def play(self, notes: Notes) -> None:
        """Acts until the conversation ends, which raises :class:`~seedbed.errors.ConnectionLost`."""
        self._client.open(lanes_of_unrolls(self._codec, self._snapshots, len(self._halves)))
        self.warm_up()
        for half, seed in zip(self._halves, self._seeds, strict=True):
            half.open.observe(step_arrays(half.environment.reset(seed)))
        reporter = Reporter(self._client, notes, [half.environment for half in self._halves])
        while True:
            self._begin_what_can()
            reporter.report_if_due()
            while (reply := self._client.receive(wait=not self._stepping)) is not None:
                self._take(*reply)
                self._begin_what_can()
            half = self._stepping.popleft()
            if half.open.observe(step_arrays(half.environment.receive())):
                self._send(half)
            else:
                self._decide(half, reporter.waits.add)

    def _take(self, lane: int, arrays: list[NDArray[Any]]) -> None:
        """Takes a reply: the version that a lane's next unroll begins with, or a snapshot."""
        if lane < self._control_lane:
            self._halves[lane].told = int(arrays[0])
            return
        weights = self._snapshots.unpack(arrays, self._device)
        assert self._asked is not None
        for half in self._halves:
            if half.told is not None and self._asked <= half.told <= weights.version:
                half.told = weights.version  # a newer one, where the version that it was told is gone
        self._asked = None
        self._held[weights.version] = weights

    def _begin_what_can(self) -> None:
        """Begins the unrolls of all lanes whose weights are here, and asks for weights that are missing."""
        for half in self._halves:
            if half.told is None:
                continue
            if half.told in self._held:
                half.weights, half.told = self._held[half.told], None
                self._decide(half)
            elif self._asked is None:
                self._asked = half.told
                self._client.send(self._control_lane, [version_array(half.told)])
        oldest = min((half.weights.version for half in self._halves if half.weights), default=0)
        self._held = {version: held for version, held in self._held.items() if version >= oldest}

    def _decide(self, half: _Half, took: Callable[[float], None] = lambda seconds: None) -> None:
        assert half.weights is not None
        begin = time.monotonic()
        facts = columns(half.slots, self._epoch, half.steps, half.open)
        action, record = self._inference.act(half.weights.params, [(half.open.observed, facts)])
        took(time.monotonic() - begin)
        half.open.decide(action, record, half.weights.version)
        half.steps += 1
        half.environment.send(np.ascontiguousarray(action, half.environment.spec.action.dtype))
        self._stepping.append(half)

    def _send(self, half: _Half) -> None:
        unroll = half.open.cut(self._inference.first_states(half.slots))
        self._client.send(half.number, self._codec.pack(unroll, self._priorities_of(unroll)))

    def _priorities_of(self, unroll: Unroll) -> NDArray[np.float32] | None:
        if self._priorities is None:
            return None
        return np.asarray(self._priorities(jax.device_put(blind(unroll), self._device)))


def _zeros(layout: Layout) -> list[NDArray[Any]]:
    return [np.zeros(shape, dtype) for shape, dtype in layout.fields]


def device_of(platform: str) -> Any:
    """Returns the first JAX device of a platform; raises :class:`ConfigError` if there is none."""
    try:
        return jax.local_devices(backend=platform)[0]
    except RuntimeError as error:
        raise ConfigError(
            f"the policy is to run on platform {platform!r}, and JAX has none: {error}"
        ) from error


def play(
    client: Client,
    agent: Agent,
    environments: Sequence[Environment],
    seeds: Sequence[int],
    answer: dict[str, Any],
    platform: str,
    notes: Notes,
) -> None:
    """Acts with a copy of the agent's policy until the conversation ends.

    Args:
      client: connection to the learner, after ``ready`` was answered.
      agent: the learner's agent.
      environments: batches of environments, one for each lane, not reset yet.
      seeds: seed of each batch of environments.
      answer: answer to ``ready``, an :class:`~seedbed.acting.codec.Introduction`.
      platform: JAX platform on which the policy runs.
      notes: warnings of the environments.

    Raises:
      ConfigError: JAX has no such platform.
      ConnectionLost: the conversation has ended.
    """
    device = device_of(platform)
    PolicyActor(client, agent, environments, seeds, Introduction(**answer), device).play(notes)
