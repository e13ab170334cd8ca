"""``seedbed top [RUN …]``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import tyro

from seedbed.cli.parse import parse
from seedbed.errors import ConfigError


@dataclass(frozen=True)
class Top:
    """Runs to watch in the terminal."""

    runs: Annotated[tuple[str, ...], tyro.conf.Positional] = ("runs",)
    """Run folders, or folders of runs; of other processes too, and ended ones."""
    once: bool = False
    """Print one picture and end; it is so wherever standard output is no terminal (or TERM=dumb)."""
    every: float = 1.0
    """Seconds between two pictures."""

    def __post_init__(self) -> None:
        if not self.every > 0:
            raise ConfigError(f"every is {self.every}, and has to be more than 0 seconds")


def run(arguments: list[str]) -> None:
    """Shows the runs until Ctrl-C; see :func:`seedbed.watching.terminal.show`."""
    flags = parse(
        "top", Top, arguments, about="Watch runs: returns, speed, lag, where the time goes, faults."
    )
    from seedbed.watching.terminal import show

    show(flags.runs or ("runs",), once=flags.once, every=flags.every)
