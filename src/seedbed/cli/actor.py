"""``seedbed actor ADDRESS …``. Imports no JAX, unless the learner says that actors run the policy."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from typing import Annotated, Any

import tyro

from seedbed.cli.parse import parse
from seedbed.cli.status import Status
from seedbed.errors import ConfigError, EnvironmentFault
from seedbed.launch.actor import act_and_reconnect, act_for_run
from seedbed.launch.signals import Terminated, ending_as_by_ctrl_c
from seedbed.metrics.say import say


@dataclass(frozen=True)
class ActorFlags:
    """An actor for a learner that runs elsewhere."""

    address: Annotated[str, tyro.conf.Positional] = ""
    """Address of the learner, as it printed: HOST:PORT, unix:PATH or shm:PATH."""
    run: str = ""
    """Run folder on a shared disk, in the place of address and token: both are read there."""
    join: str = ""
    """FINGERPRINT.TOKEN as the learner printed it, or @FILE, a private file with it; else SEEDBED_JOIN."""
    tls_ca: str = ""
    """PEM file with certificates, one of which has signed the learner's (--tls-cert there)."""
    insecure: bool = False
    """Plain text over the network, where the learner has the same flag."""
    trust: tuple[str, ...] = ()
    """Names (module:name) of worlds, networks and agents that the learner may have this actor import."""
    envs: int | None = None
    """Environments to step; none: as many as the learner's own actors."""
    platform: str = "cpu"
    """Device of actors that run the policy: cpu, or an accelerator as JAX names it."""


def run(arguments: list[str]) -> Status:
    """Acts until the run is over or it is stopped; waits for a learner that goes away to come back."""
    flags = parse(
        "actor", ActorFlags, arguments, about="Step environments for a learner that runs elsewhere."
    )
    # An environment that is a JAX function runs on the processor.
    os.environ.setdefault("JAX_PLATFORMS", "cpu" if flags.platform == "cpu" else f"cpu,{flags.platform}")
    try:
        # Environments are closed then, as after Ctrl-C.
        with ending_as_by_ctrl_c():
            _act(flags)
    except EnvironmentFault as fault:
        say(f"seedbed: {fault}", sys.stderr)
        return Status.FAULT
    except KeyboardInterrupt as interrupt:
        say("stopped")
        return Status.EXECUTE_AGAIN if isinstance(interrupt, Terminated) else Status.OVER
    return Status.OVER


def _act(flags: ActorFlags) -> None:
    own: dict[str, Any] = {
        "say": say,
        "trust": flags.trust,
        "envs": flags.envs,
        "platform": flags.platform,
        "alone": True,
    }
    joining = os.environ.pop("SEEDBED_JOIN", "")  # programs that environments start do not inherit it
    if bool(flags.address) == bool(flags.run):
        raise ConfigError(
            "an actor has to be told where its learner is: seedbed actor ADDRESS --join …, as the learner printed it, "
            "or seedbed actor --run RUN on a machine that shares the run folder's disk; one of the two"
        )
    if flags.run:
        if flags.join or flags.tls_ca or flags.insecure:
            raise ConfigError(
                "--run reads everything in the run folder: leave --join, --tls-ca and --insecure out"
            )
        act_for_run(flags.run, **own)
        return
    act_and_reconnect(
        flags.address,
        join=flags.join or joining,
        tls_ca=flags.tls_ca,
        insecure=flags.insecure,
        **own,
    )
