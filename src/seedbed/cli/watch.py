"""``seedbed watch [RUN …]``."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import Annotated

import tyro

from seedbed.cli.parse import parse
from seedbed.launch.signals import ending_as_by_ctrl_c
from seedbed.metrics.say import say


@dataclass(frozen=True)
class Watch:
    """Runs to watch in a browser, and the place of the page."""

    runs: Annotated[tuple[str, ...], tyro.conf.Positional] = ("runs",)
    """Run folders, or folders of runs; of other processes too, and ended ones."""
    port: int = 8765
    """Port of the page; 0 for a free one."""
    host: str = "127.0.0.1"
    """Address to listen at; off loopback the page needs the token that is printed, and TLS."""
    tls_cert: tuple[str, ...] = ()
    """Two PEM files, a certificate to show and its key; none: off loopback one is made."""
    insecure: bool = False
    """Plain text off loopback, which everybody on the way can read."""


def run(arguments: list[str]) -> None:
    """Serves the page until Ctrl-C; see :mod:`seedbed.watching.server`."""
    flags = parse(
        "watch", Watch, arguments, about="Watch runs in a browser: curves, traffic, faults, videos."
    )
    from seedbed.watching.server import Place, serve

    place = Place(flags.host, flags.port, flags.tls_cert, flags.insecure)
    # Also after SIGTERM, the files of a certificate that was made are removed.
    with contextlib.suppress(KeyboardInterrupt), ending_as_by_ctrl_c():
        serve(flags.runs or ("runs",), place, say)
