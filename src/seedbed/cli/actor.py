"""``seedbed actor ADDRESS …``. Imports no JAX, unless the learner says that actors run the policy."""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass
from typing import Annotated

import tyro

from seedbed.cli.parse import parse, print_line
from seedbed.launch.actor import act_and_reconnect


@dataclass(frozen=True)
class ActorFlags:
    """An actor for a learner that runs elsewhere."""

    address: Annotated[str, tyro.conf.Positional]
    """Address of the learner, as it printed: HOST:PORT, unix:PATH or shm:PATH."""
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
    """Device of actors that run the policy (impala, apex): cpu, or an accelerator as JAX names it."""


def run(arguments: list[str]) -> None:
    """Acts until it is stopped; waits for a learner that goes away to come back."""
    flags = parse(
        "actor", ActorFlags, arguments, about="Step environments for a learner that runs elsewhere."
    )
    # An environment that is a JAX function runs on the processor.
    os.environ.setdefault("JAX_PLATFORMS", "cpu" if flags.platform == "cpu" else f"cpu,{flags.platform}")
    # Ended from outside, as by Ctrl-C: environments are closed.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        act_and_reconnect(
            flags.address,
            join=flags.join or os.environ.get("SEEDBED_JOIN", ""),
            say=print_line,
            tls_ca=flags.tls_ca,
            insecure=flags.insecure,
            trust=flags.trust,
            envs=flags.envs,
            platform=flags.platform,
        )
    except KeyboardInterrupt:
        print_line("stopped")
