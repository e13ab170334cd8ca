"""A run that begins with the parameters of another one: ``--init-from RUN``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from seedbed.config.settings import RunConfig
from seedbed.envs.policies import SHARED, policy_names
from seedbed.errors import ConfigError, listed
from seedbed.launch.folder import RunFolder
from seedbed.learning.checkpoint import flatten
from seedbed.seeding import key
from seedbed.types import Agent, EnvSpec, Tree

_MOST_NAMES = 4


def warm_started(agent: Agent, path: str | Path) -> tuple[Agent, str]:
    """Returns the agent with an ``init`` that gives the newest parameters of a run, and a line about them.

    An array is taken if path, shape and dtype are the same; the others begin anew, and so do optimizer, counts, and
    coefficients that are tuned, whose settings would have no effect (:attr:`~seedbed.types.Agent.own_begin`).

    Args:
      agent: the agent.
      path: folder of the run whose parameters are taken; nothing that its settings name is imported.

    Raises:
      ConfigError: there is no such run, or nothing of it fits.
      CheckpointError: none of its checkpoints is intact.
    """
    checkpoint = RunFolder.open(path).newest()
    kept = checkpoint.leaves("train", "params")
    wanted = flatten(jax.eval_shape(agent.init, key(0, "template")))
    fit = {
        name
        for name, leaf in wanted.items()
        if name in kept and _form(kept[name]) == _form(leaf) and name.partition("/")[0] not in agent.own_begin
    }
    rest = [f"{name} {_form(leaf)}" for name, leaf in wanted.items() if name not in fit]
    if not fit:
        raise ConfigError(
            f"init_from is {path}, and none of its {len(kept)} arrays fits this agent and network, which begin with "
            f"{rest[0]}: give a run of the same --agent and --network"
        )

    def init(root: Any) -> Tree:
        fresh = agent.init(root)
        taken = [jnp.asarray(kept[name]) if name in fit else leaf for name, leaf in flatten(fresh).items()]
        return jax.tree.unflatten(jax.tree.structure(fresh), taken)

    line = f"begins with {len(fit)} of {len(wanted)} arrays of parameters of {checkpoint.path}"
    if rest:
        line += f"; these begin anew: {_some(rest)}"
    # What it had to normalize observations with, for one: what was learned behind that sees other numbers now.
    if left := [f"{name} {_form(leaf)}" for name, leaf in kept.items() if name not in wanted]:
        line += f"; these have no place in this run: {_some(left)}"
    return replace(agent, init=init), line


def begun_alike(agent: Agent, first: Agent) -> Agent:
    """Returns an agent that begins with another one's parameters, but for the entries that its own settings begin.

    Args:
      agent: the agent, which has other values of some settings than ``first``.
      first: the agent of the run, see :func:`warm_started`.
    """

    def init(root: Any) -> Tree:
        own = agent.init(root)
        return {**first.init(root), **{name: own[name] for name in agent.own_begin if name in own}}

    return replace(agent, init=init if agent.own_begin else first.init)


def require_same_policies(config: RunConfig, spec: EnvSpec, path: str | Path) -> None:
    """Raises :class:`ConfigError` if agents have policies of their own, and those of a run are of others.

    Their arrays may fit all the same, and each would get another one's.

    Args:
      config: settings of the run that begins.
      spec: spec of its environments.
      path: folder of the run whose parameters are taken.
    """
    folder = RunFolder.open(path)
    theirs = str(folder.record().get("policies", SHARED))
    if theirs == config.policies == SHARED or (recorded := folder.spec()) is None:
        return
    ours, others = policy_names(spec.agents, config.policies), policy_names(recorded.agents, theirs)
    if ours != others:
        told = [f"are of {listed(names)}" if names else "are one for all" for names in (others, ours)]
        raise ConfigError(
            f"init_from is {path}, whose policies {told[0]}, and those of this run {told[1]}: give a run of the same "
            "--policies and agents"
        )


def _some(names: Sequence[str]) -> str:
    """The first names, and how many more there are."""
    more = f", and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
    return ", ".join(names[:_MOST_NAMES]) + more


def _form(array: Any) -> str:
    """Dtype and shape of an array, or of a description of one."""
    return f"{array.dtype.name}{list(array.shape)}"
