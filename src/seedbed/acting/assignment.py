"""The assignment of an actor: its environments, their seeds, slots, numbers and exploration."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from seedbed.envs.options import Options
from seedbed.errors import ConfigError
from seedbed.seeding import integer
from seedbed.types import EnvSpec, Exploration

EPOCHS_A_SESSION = 1 << 16
"""Bound on the actors at one index between a start of a run and its resumption; far above real restarts."""


def lanes_of(envs: int) -> tuple[int, int]:
    """Splits an actor's environments into ``(lanes, environments in each)``: two halves, or one lane of one.

    Raises:
      ConfigError: the number is odd and not 1.
    """
    if envs > 1 and envs % 2:
        raise ConfigError(
            f"{envs} environments an actor cannot be split into halves (one steps while the other waits): "
            f"use {envs + 1}"
        )
    return (1, 1) if envs == 1 else (2, envs // 2)


def half_seeds(run_seed: int, index: int, epoch: int, lanes: int) -> list[int]:
    """Derives a seed for the environments of each half of the actor ``index``, the ``epoch``-th at that index."""
    # 30 bits: seeds of environments must fit an int32.
    return [
        integer(run_seed, f"environments/epoch {epoch}/half {half}", index, bits=30) for half in range(lanes)
    ]


@dataclass(frozen=True)
class Assignment:
    """The part of a run's settings from which all its actors take their environments and seeds.

    Attributes:
      env: id of the environment.
      options: options of the environment, as they are written on the command line.
      spec: spec that the environment must have.
      actors: number of actors that this run starts itself, on each host.
      envs: number of environments of each actor.
      seed: seed of the run.
      unroll_length: T, transitions in an unroll without its overlap.
      overlap: number of transitions that an unroll shares with the one before.
      evaluating: number of environments of this host's own actors, the last ones, that only evaluate.
      token: secret that admits an actor.
      claim: secret of this session with which an actor on another machine takes an index of the run's own actors; empty
        if none may.
      keep_log: whether the actions are logged, so that environments can be brought back by replaying them.
      lockstep: whether the lag is exact, so that only the run's own actors can join.
      guests: number of further actors of this run, with the indices after, that come and go.
      host: index of this host.
      hosts: number of hosts; each starts as many actors.
      env_timeout: seconds that one call of an environment may take.
    """

    env: str
    options: Options
    spec: EnvSpec
    actors: int
    envs: int
    seed: int
    unroll_length: int
    token: str = field(repr=False)
    claim: str = field(default="", repr=False)
    overlap: int = 0
    evaluating: int = 0
    keep_log: bool = False
    lockstep: bool = False
    guests: int = 0
    host: int = 0
    hosts: int = 1
    env_timeout: float = 60.0

    @property
    def own(self) -> int:
        """Number of actors that this run starts itself, with its guests; their indices are the first ones."""
        return self.actors + self.guests

    def evaluates(self, slot: int) -> bool:
        """Returns whether the environment ``slot`` only evaluates."""
        planned = self.actors * self.envs
        return planned - self.evaluating <= slot < planned

    def exploration(self, slots: Iterable[int]) -> Exploration:
        """Returns the exploration of the environments in these slots, as lists."""
        chosen = list(slots)
        return Exploration([self._rank(slot) for slot in chosen], [self.evaluates(slot) for slot in chosen])

    def _rank(self, slot: int) -> float:
        if self.evaluates(slot):
            return 1.0
        explorers = (self.actors * self.envs - self.evaluating) * self.hosts
        number = number_of(slot, self.actors * self.envs - self.evaluating, self.host, self.hosts)
        if number < explorers:
            return number / max(explorers - 1, 1)
        # Environments from elsewhere are spread evenly, for any number of them (a golden-ratio sequence).
        return (number - explorers + 1) * 0.6180339887498949 % 1.0

    def actor_number(self, index: int) -> int:
        """Returns the number of this host's actor ``index`` among the actors of all hosts."""
        return number_of(index, self.actors, self.host, self.hosts)

    def slot_number(self, slot: int) -> int:
        """Returns the number of this host's environment ``slot`` among the environments of all hosts."""
        return number_of(slot, self.actors * self.envs, self.host, self.hosts)


def number_of(index: int, planned: int, host: int, hosts: int) -> int:
    """Numbers the ``index``-th item of a host among the items of all hosts; numbers are unique.

    The ``planned`` items of each host come first, host by host, so that two hosts number them as one host with twice
    as many does. Items that come later take the numbers after them, the hosts in turn.
    """
    if index < planned:
        return host * planned + index
    return hosts * planned + (index - planned) * hosts + host
