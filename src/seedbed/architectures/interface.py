"""The interface of architectures: a record of settings, compatibility, declared program and builder."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from seedbed.acting.lanes import Member
from seedbed.architectures.program import Program
from seedbed.config.settings import RunConfig
from seedbed.learning.checkpoint import Checkpoint
from seedbed.learning.run import Run
from seedbed.transport.admission import Gate
from seedbed.types import Agent, DataPlan, EnvSpec


def _no_variants(values: Mapping[str, Any]) -> Agent:
    raise NotImplementedError(f"there is one agent, and {dict(values)} are not its numbers")


@dataclass(frozen=True)
class Setup:
    """The ingredients of a run.

    Attributes:
      config: settings of the run.
      agent: the agent.
      spec: spec of the environments.
      token: secret by which actors, workers and shards are admitted.
      claim: secret of this session by which its own actors on other machines are known; empty if there are none.
      gate: admission of remote actors; None if none may join.
      log: log of the run's own process.
      checkpoint: checkpoint to go on from; None to begin.
      agent_with: function that makes the agent with other values of some settings, which may be traced.
      first_epoch: least epoch of the first actor at each index; a checkpoint may demand a higher one.
      on_join: callback for an actor that has joined; called from other threads.
      on_leave: callback for an actor that has left, with the reason; called from other threads.
      on_note: callback for each line of an environment for the user.
    """

    config: RunConfig
    agent: Agent
    spec: EnvSpec
    token: str = ""
    claim: str = ""
    gate: Gate | None = None
    log: Path = Path("the log of this process")
    checkpoint: Checkpoint | None = None
    agent_with: Callable[[Mapping[str, Any]], Agent] = _no_variants
    first_epoch: int = 0
    on_join: Callable[[Member], None] = lambda member: None
    on_leave: Callable[[Member, str], None] = lambda member, reason: None
    on_note: Callable[[str], None] = lambda note: None


def runs_any(plan: DataPlan) -> str | None:
    """Accepts every agent: returns None."""
    del plan
    return None


def nothing_to_check(config: RunConfig, agent: Agent) -> str | None:
    """Accepts all settings: returns None."""
    del config, agent
    return None


def as_configured(config: RunConfig) -> RunConfig:
    """Returns the settings unchanged."""
    return config


def own_share(config: RunConfig, transitions: float) -> float:
    """Returns the number of updates for ``transitions`` acted ones, under one learner."""
    learned: float = (
        transitions - config.settings.transitions_before_learning
    ) * config.settings.updates_a_transition
    return learned


@dataclass(frozen=True)
class Architecture:
    """An architecture: *where the parts run*. Each has one file, and one row in :mod:`seedbed.registry`.

    Attributes:
      name: name for ``--arch``.
      Settings: frozen dataclass of the settings that it reads, made of groups of :mod:`seedbed.config.placement`.
      build: ``setup -> run``, builder of the parts in the run's own process, the head.
      program: ``(config, agent, spec) -> program``, declaration of all roles of a run.
      refuses: ``plan -> reason``, the reason why agents with this data plan can never run here; None if they can.
      check: ``(config, agent) -> reason``, the reason why these settings do not go together; None if they do.
      place: ``config -> config``, conversion to the settings with which the run is built, for an architecture made of
        another one's parts; the run folder keeps the original settings.
      policy: place of the policy, by which the stages of a run are timed alone; None: they cannot be.
      always_exact: whether every checkpoint holds the environments, so that a resumed run continues exactly.
      updates: ``(config, transitions) -> updates``, number of updates for a number of acted transitions, over which
        learning rates are annealed.
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
