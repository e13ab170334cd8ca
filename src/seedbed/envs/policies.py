"""The word among an environment's options for agents with policies of their own: ``--policies own`` or ``kind``.

With it an environment tells which agent an observation is of, and pads the spaces of agents that differ. It travels
with the options wherever environments are made, in other processes and on other machines too. Its name is no argument
that a function could have.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from seedbed.envs.options import Options, split
from seedbed.errors import ConfigError
from seedbed.types import AGENT_INDEX

SEVERAL = ("pettingzoo:", "jaxmarl:", "pgx:")
"""Prefixes of the environments that may have several agents."""

SHARED, OWN, KIND = "shared", "own", "kind"
"""One policy for all agents, one for each, or one for each kind."""

_NAME = "(policies)"
_NUMBER = re.compile(r"[\s_.:-]*\d+$")


def option(policies: str) -> str:
    """Returns the option that says so to an environment, of ``own`` or ``kind``."""
    return f"{_NAME}={policies}"


def kind_of(agent: str) -> str:
    """Returns the kind of an agent: its name without the number at its end, ``adversary_1`` is an ``adversary``.

    One whose name is a number is of a kind of its own.
    """
    return _NUMBER.sub("", agent) or agent


def policy_names(agents: Sequence[str], policies: str) -> tuple[str, ...]:
    """Returns the names of the policies, in their order: those of agents or of kinds; none where they share one."""
    if policies == SHARED:
        return ()
    return tuple(dict.fromkeys(map(kind_of, agents))) if policies == KIND else tuple(agents)


def policies_of(agents: Sequence[str], policies: str) -> tuple[int, ...]:
    """Returns the policy of each agent, by its number among :func:`policy_names`.

    Args:
      agents: names of the agents.
      policies: ``own`` or ``kind``.
    """
    names = policy_names(agents, policies)
    return tuple(names.index(kind_of(agent) if policies == KIND else agent) for agent in agents)


def unequal_kind(env_id: str, kind: str, differ: str) -> ConfigError:
    """Returns the refusal of a kind of agents that cannot share a policy.

    Args:
      env_id: name of the environment.
      kind: the kind.
      differ: description of the spaces in which its agents differ.
    """
    return ConfigError(
        f"{env_id}: {differ}, and the agents of the kind {kind!r} are to share a policy: give each agent its own by "
        "--policies own, or name those of one kind alike, but for a number at the end, and no others"
    )


def name_taken(env_id: str) -> ConfigError:
    """Returns the refusal of an environment whose observations have an entry of the leaf's name already."""
    return ConfigError(
        f"{env_id}: observations have an entry {AGENT_INDEX!r}, the name by which --policies says which agent "
        "they are of: give it another one"
    )


def without_policies(options: Options) -> tuple[dict[str, Any], str]:
    """Returns the options of the environment itself, and the policies of its agents, ``shared`` unless they say so."""
    given = dict(options) if isinstance(options, Mapping) else split(options)
    return given, str(given.pop(_NAME, SHARED))
