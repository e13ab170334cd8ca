"""The program of an actor that joins a run from elsewhere: ``seedbed actor``.

It imports JAX only if the learner says that actors run the policy themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import partial
from pathlib import Path
from typing import Any

from seedbed.acting import actor
from seedbed.launch.directory import learner_of
from seedbed.launch.surroundings import held
from seedbed.transport.admission import Invitation
from seedbed.transport.interface import Client
from seedbed.types import Agent, EnvSpec


def make_agent(policy: dict[str, Any], spec: EnvSpec) -> Agent:
    """Returns the agent of a run; imports JAX.

    Args:
      policy: settings of the run, as JSON values.
      spec: spec of the environments.

    Raises:
      ConfigError: the settings are of another version of Seedbed, or name an agent or network that is not installed
        here.
    """
    from seedbed.config.resolve import from_json
    from seedbed.launch.build import build_agent

    return build_agent(from_json(policy), spec)


def act(client: Client, **join: Any) -> None:
    """Acts for any learner, see :func:`seedbed.acting.actor.act`."""
    actor.act(client, make_agent=make_agent, **join)


@held()
def act_and_reconnect(
    address: str,
    *,
    join: str,
    say: Callable[[str], object],
    tls_ca: str = "",
    insecure: bool = False,
    trust: Collection[str] = (),
    **others: Any,
) -> None:
    """Acts for a learner that may stop and start again; ends when the learner refuses or an environment fails.

    Args:
      address: address at which the learner listens.
      join: the learner's ``FINGERPRINT.TOKEN`` or ``TOKEN``, or ``@FILE``, a private file with it.
      say: callback for each line for the user.
      tls_ca: file with certificates of which one must have signed the learner's; empty for none.
      insecure: whether to send plain text over the network, as the learner does with the same flag.
      trust: names ``module:name`` that the learner may have this actor import; anything else is refused.
      **others: further arguments of :func:`seedbed.acting.actor.act`: ``index``, ``envs``, ``platform``.
    """
    invitation = Invitation.parse(join, authority=tls_ca, insecure=insecure)
    actor.act_and_reconnect(
        lambda: (address, invitation), say=say, make_agent=make_agent, trust=trust, **others
    )


@held()
def act_for_run(
    run: str, *, say: Callable[[str], object], trust: Collection[str] = (), **others: Any
) -> None:
    """Acts for the learner of a run whose folder is on a disk that this machine shares; ends as the one above.

    The learner may begin later, and may go on elsewhere: its address is read anew before every attempt to reach it.

    Args:
      run: run folder, which need not be there yet.
      say: callback for each line for the user.
      trust: names ``module:name`` that the learner may have this actor import; anything else is refused.
      **others: further arguments of :func:`seedbed.acting.actor.act`: ``index``, ``envs``, ``platform``.
    """
    actor.act_and_reconnect(
        partial(learner_of, Path(run)), say=say, make_agent=make_agent, trust=trust, **others
    )
