"""``seedbed doctor``: shows the abilities of this machine, and the obstacles to training on it."""

from __future__ import annotations

from dataclasses import dataclass

from seedbed.cli.parse import parse, print_line

_WIDTH = 45


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
    for what, found, advice in findings():
        print_line(f"{what:<{_WIDTH}} {found}" + (f"  ({advice})" if advice else ""))
        broken |= advice.startswith("needed")
    return int(broken)
