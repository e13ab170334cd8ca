"""The word among an environment's options for agents with policies of their own: ``--policies own`` or ``kind``.

With it an environment tells which agent an observation is of, and pads the spaces of agents that differ. It travels
with the options wherever environments are made, in other processes and on other machines too. Its name is no argument
that a function could have.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from seedbed.envs.options import Options, split
from seedbed.errors import ConfigError
from seedbed.types import AGENT_INDEX

SEVERAL = ("pettingzoo:", "jaxmarl:", "pgx:")
"""Prefixes of the environments that may have several agents."""

_NAME = "(policies)"
OWN = f"{_NAME}=own"
"""The option."""


def name_taken(env_id: str) -> ConfigError:
    """Returns the refusal of an environment whose observations have an entry of the leaf's name already."""
    return ConfigError(
        f"{env_id}: observations have an entry {AGENT_INDEX!r}, the name by which --policies says which agent "
        "they are of: give it another one"
    )


def without_policies(options: Options) -> tuple[dict[str, Any], bool]:
    """Returns the options of the environment itself, and whether agents have policies of their own."""
    given = dict(options) if isinstance(options, Mapping) else split(options)
    own = given.pop(_NAME, None) is not None
    return given, own
