"""``seedbed doctor``: shows the abilities of this machine, and the obstacles to training on it."""

from __future__ import annotations

import shutil
import sys
from dataclasses import dataclass

from seedbed.cli.parse import parse, print_line

_WIDTH = 45
"""Columns of what was looked at; fewer on a narrow terminal, whose lines the rest would not fit into."""


@dataclass(frozen=True)
class DoctorFlags:
    """No settings."""


def run(arguments: list[str]) -> int:
    """Prints a table of findings; exit status 1 if something needed for training is missing."""
    parse(
        "doctor", DoctorFlags, arguments, about="Show what this machine can do, and what stands in the way."
    )
    from seedbed.launch.machine import findings

    broken = False
    width = min(_WIDTH, shutil.get_terminal_size().columns // 3) if sys.stdout.isatty() else _WIDTH
    for what, found, advice in findings():
        print_line(f"{what:<{width}} {found}" + (f"  ({advice})" if advice else ""))
        broken |= advice.startswith("needed")
    return int(broken)
