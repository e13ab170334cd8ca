"""``seedbed compare RUN …``."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Annotated, Literal

import tyro

from seedbed.cli.parse import parse, print_line
from seedbed.metrics.say import say


@dataclass(frozen=True)
class Compare:
    """Runs to compare, and the form of the result."""

    runs: Annotated[tuple[str, ...], tyro.conf.Positional]
    """Run folders, or folders of runs."""
    by: tuple[str, ...] = ("agent",)
    """Settings whose values make the groups: agent, arch, env, learning_rate, …; seeds are folded."""
    scale: tuple[str, ...] = ()
    """ENV=LOW..HIGH: returns that become 0 and 1, so that several environments are compared together."""
    out: str | None = None
    """PNG for the learning curves, at equal frames and at equal seconds."""
    format: Literal["md", "csv"] = "md"
    """Form of the table on standard output."""


def run(arguments: list[str]) -> None:
    """Compares and prints; see :func:`seedbed.evaluation.comparison.compare`."""
    flags = parse(
        "compare", Compare, arguments, about="Compare runs: interquartile means, intervals, and curves."
    )
    from seedbed.errors import ConfigError
    from seedbed.evaluation.comparison import compare, draw, table

    if not flags.runs:
        raise ConfigError("compare needs runs: give run folders, or a folder of runs")
    found = compare(flags.runs, [name for word in flags.by for name in word.split(",")], flags.scale)
    for line in found.notes:
        say(line, sys.stderr)
    print_line(table(found, flags.format))
    if flags.out:
        draw(found, flags.out)
        say(f"drawn to {flags.out}", sys.stderr)
