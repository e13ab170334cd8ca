"""The record that an architecture is: what it reads, which agents it runs, and how its parts are put together."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from seedbed.acting.lanes import Member
from seedbed.architectures.program import Program
from seedbed.architectures.roles import learner
from seedbed.config.settings import RunConfig
from seedbed.learning.checkpoint import Checkpoint
from seedbed.learning.run import Run
from seedbed.transport.admission import Gate
from seedbed.types import Agent, DataPlan, EnvSpec


def _no_variants(values: Mapping[str, Any]) -> Agent:
    raise NotImplementedError(f"there is one agent, and {dict(values)} are not its numbers")


@dataclass(frozen=True)
class Setup:
    """Everything that a run is built from.

    Attributes:
      config: the run's settings.
      agent: the agent that is trained.
      spec: of the environments.
      token: secret that actors, workers and shards have to know.
      gate: lets actors from elsewhere in; None where none may come.
      log: the log of the run's own process.
      checkpoint: the state to go on from; None to begin.
      agent_with: makes the agent with other values for some of its numbers, which may be traced.
      first_epoch: of the first actor at each index, or a higher one if the checkpoint has come further.
      on_join, on_leave: called with actors that come and go (from other threads).
      on_note: called with a line that environments have for people.
    """

    config: RunConfig
    agent: Agent
    spec: EnvSpec
    token: str = ""
    gate: Gate | None = None
    log: Path = Path("the log of this process")
    checkpoint: Checkpoint | None = None
    agent_with: Callable[[Mapping[str, Any]], Agent] = _no_variants
    first_epoch: int = 0
    on_join: Callable[[Member], None] = lambda member: None
    on_leave: Callable[[Member, str], None] = lambda member, reason: None
    on_note: Callable[[str], None] = lambda note: None


def runs_any(plan: DataPlan) -> str | None:
    """Refuses no agent."""
    del plan
    return None


def nothing_to_check(config: RunConfig, agent: Agent) -> str | None:
    """Refuses no settings."""
    del config, agent
    return None


def as_configured(config: RunConfig) -> RunConfig:
    """Leaves the parts where the settings put them."""
    return config


def head_alone(config: RunConfig, agent: Agent, spec: EnvSpec) -> Program:
    """Returns the program of a run that is one process."""
    del spec
    return Program((learner(config, agent),), hosts=config.cluster.hosts)


def own_share(config: RunConfig, transitions: float) -> float:
    """Returns the updates that so many acted transitions allow, where each is learned from by one learner."""
    learned: float = (
        transitions - config.settings.transitions_before_learning
    ) * config.settings.updates_a_transition
    return learned


@dataclass(frozen=True)
class Architecture:
    """*Where the parts run*: one file each, one row in :mod:`seedbed.registry`.

    Attributes:
      name: as in ``--arch``.
      Settings: frozen dataclass of the settings that it reads, made of groups of :mod:`seedbed.config.placement`.
      build: ``setup -> run``, puts together everything that stands in the run's own process, the head.
      program: ``(config, agent, spec) -> program``, all roles of the run, declared.
      refuses: ``plan -> reason``, why an agent that wants such data can never run here; None if it can.
      check: ``(config, agent) -> reason``, why these settings do not go together; None if they do.
      place: ``config -> config``, the settings of the architecture whose parts it puts elsewhere; the record of the
        run keeps what was asked for.
      policy: where the policy runs, by which the stages of a run are timed alone; None: they cannot be.
      always_exact: whether every checkpoint holds the environments, so that a resumed run goes on as it was.
      updates: ``(config, transitions) -> updates``, updates that so many acted transitions allow: learning rates are
        annealed over them.
    """

    name: str
    Settings: type[Any]
    build: Callable[[Setup], Run]
    program: Callable[[RunConfig, Agent, EnvSpec], Program]
    refuses: Callable[[DataPlan], str | None] = runs_any
    check: Callable[[RunConfig, Agent], str | None] = nothing_to_check
    place: Callable[[RunConfig], RunConfig] = as_configured
    policy: Literal["server", "actor", "thread", "program"] | None = None
    updates: Callable[[RunConfig, float], float] = own_share
    always_exact: bool = False
