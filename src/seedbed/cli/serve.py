"""``seedbed serve RUN --listen ADDRESS``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, NoReturn

import tyro

from seedbed.cli.parse import parse
from seedbed.evaluation.serve import Serving, serving
from seedbed.launch.signals import ending_as_by_ctrl_c
from seedbed.metrics.say import say


@dataclass(frozen=True, kw_only=True)
class Serve(Serving):
    """Policy and settings."""

    run: Annotated[str, tyro.conf.Positional]
    """The run folder."""
    trust: tuple[str, ...] = ()
    """Names (module:name) that the run may have imported, if this user did not begin it here."""


def run(arguments: list[str]) -> NoReturn:
    """Serves until it is interrupted; see :func:`seedbed.evaluation.serve.serving`."""
    flags = parse(
        "serve", Serve, arguments, about="Serve the policy of a run to programs that step environments."
    )
    with ending_as_by_ctrl_c(), serving(flags.run, flags, trust=flags.trust, say=say) as served:
        say(served.about)
        for address, invitation in zip(served.addresses, served.invitations, strict=True):
            insecure = ", insecure=True" if invitation.insecure else ""
            say(f'clients: seedbed.connect("{address}", join="{invitation}"{insecure})')
        while True:
            served.wait(1.0)
