"""The actor program for people: ``seedbed actor``.

It imports no JAX, unless the learner says that actors run the policy themselves.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from seedbed.acting import actor
from seedbed.launch.surroundings import held
from seedbed.transport.interface import Client
from seedbed.types import Agent, EnvSpec


def make_agent(policy: dict[str, Any], spec: EnvSpec) -> Agent:
    """The agent of the run whose record is ``policy``; imports JAX.

    Raises:
      ConfigError: the record is of another version of Seedbed, or names an agent or network that is not installed here.
    """
    from seedbed.config.resolve import from_json
    from seedbed.launch.build import build_agent

    return build_agent(from_json(policy), spec)


def act(client: Client, **join: Any) -> None:
    """:func:`seedbed.acting.actor.act`, for any learner."""
    actor.act(client, make_agent=make_agent, **join)


@held()
def act_and_reconnect(address: str, *, say: Callable[[str], None], **join: Any) -> None:
    """Acts for a learner that may go and come back; ends when the learner refuses or an environment fails.

    Args:
      address: where the learner listens.
      say: takes one line for people.
      **join: ``token``, and as it may be ``index``, ``envs`` and ``platform``, see :func:`seedbed.acting.actor.act`.
    """
    actor.act_and_reconnect(address, say=say, make_agent=make_agent, **join)
