"""What every actor of a run is told to do."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from seedbed.envs.options import Options
from seedbed.errors import ConfigError
from seedbed.seeding import integer
from seedbed.types import EnvSpec, Exploration

EPOCHS_A_SESSION = 1 << 16
"""Actors that may have one index between a start of a run and its resumption: more than were ever started again."""


def lanes_of(envs: int) -> tuple[int, int]:
    """How an actor's environments are split: ``(lanes, environments in each)``; a lone one is one lane."""
    if envs > 1 and envs % 2:
        raise ConfigError(
            f"{envs} environments an actor cannot be split into halves (one steps while the other waits): "
            f"use {envs + 1}"
        )
    return (1, 1) if envs == 1 else (2, envs // 2)


def half_seeds(run_seed: int, index: int, epoch: int, lanes: int) -> list[int]:
    """A seed for the environments of each half of the actor ``index``, the ``epoch``-th at that index."""
    # 30 bits: seeds of environments are to fit an int32.
    return [
        integer(run_seed, f"environments/epoch {epoch}/half {half}", index, bits=30) for half in range(lanes)
    ]


@dataclass(frozen=True)
class Assignment:
    """What every actor is told to do.

    Attributes:
      env: the environment's id.
      options: its options, as they are written.
      spec: what it must look like.
      actors: how many actors this run starts itself.
      envs: environments of each actor.
      seed: the run's seed.
      unroll_length: T.
      overlap: transitions that an unroll shares with the one before.
      evaluating: how many of the environments of this run's actors, the last ones, only evaluate.
      token: what an actor must know to be let in.
      keep_log: whether the actions are logged so that environments can be brought back.
      lockstep: whether the lag is exact, which no actor from elsewhere could join.
      host: which of the run's hosts this is.
      hosts: how many there are; each starts as many actors.
    """

    env: str
    options: Options
    spec: EnvSpec
    actors: int
    envs: int
    seed: int
    unroll_length: int
    token: str = field(repr=False)
    overlap: int = 0
    evaluating: int = 0
    keep_log: bool = False
    lockstep: bool = False
    host: int = 0
    hosts: int = 1

    def evaluates(self, slot: int) -> bool:
        """Whether the environment ``slot`` only evaluates."""
        planned = self.actors * self.envs
        return planned - self.evaluating <= slot < planned

    def exploration(self, slots: Iterable[int]) -> Exploration:
        """Returns how much the environments of these slots explore, as lists."""
        chosen = list(slots)
        return Exploration([self._rank(slot) for slot in chosen], [self.evaluates(slot) for slot in chosen])

    def _rank(self, slot: int) -> float:
        if self.evaluates(slot):
            return 1.0
        explorers = (self.actors * self.envs - self.evaluating) * self.hosts
        number = number_of(slot, self.actors * self.envs - self.evaluating, self.host, self.hosts)
        if number < explorers:
            return number / max(explorers - 1, 1)
        # Those that come from elsewhere are spread evenly, however many there will be (a golden-ratio sequence).
        return (number - explorers + 1) * 0.6180339887498949 % 1.0

    def actor_number(self, index: int) -> int:
        """The number, among the actors of all hosts, of this host's actor ``index``."""
        return number_of(index, self.actors, self.host, self.hosts)

    def slot_number(self, slot: int) -> int:
        """The number, among the environments of all hosts, of this host's environment ``slot``."""
        return number_of(slot, self.actors * self.envs, self.host, self.hosts)


def number_of(index: int, planned: int, host: int, hosts: int) -> int:
    """What the ``index``-th of a host is among those of all hosts, where each has ``planned`` from the start.

    Those come first, host by host, so that two hosts have what one host with twice as many has. What comes later takes
    the numbers after them in turn; no two are equal.
    """
    if index < planned:
        return host * planned + index
    return hosts * planned + (index - planned) * hosts + host
