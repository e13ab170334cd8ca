"""``seedbed doctor``: shows the abilities of this machine, and the obstacles to training on it."""

from __future__ import annotations

import shutil
import sys
from dataclasses import dataclass
from itertools import chain

from seedbed.cli.parse import parse, print_line
from seedbed.config.launchers import LauncherName

_WIDTH = 45
"""Columns of what was looked at; fewer on a narrow terminal, whose lines the rest would not fit into."""


@dataclass(frozen=True)
class DoctorFlags:
    """An examination of this machine, and of a cluster."""

    on: LauncherName = "here"
    """Place of the actors: with ray, the nodes of a Ray cluster are examined too."""


def run(arguments: list[str]) -> int:
    """Prints a table of findings; exit status 1 if something needed for training is missing."""
    flags = parse(
        "doctor", DoctorFlags, arguments, about="Show what this machine can do, and what stands in the way."
    )
    from seedbed.launch.launcher import findings_on
    from seedbed.launch.machine import findings

    broken = False
    width = min(_WIDTH, shutil.get_terminal_size().columns // 3) if sys.stdout.isatty() else _WIDTH
    for what, found, advice in chain(findings(), findings_on(flags.on)):
        print_line(f"{what:<{width}} {found}" + (f"  ({advice})" if advice else ""))
        broken |= advice.startswith("needed")
    return int(broken)
