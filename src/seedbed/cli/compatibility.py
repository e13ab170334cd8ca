"""``seedbed compatibility``: which agent runs under which architecture."""

from __future__ import annotations

from dataclasses import dataclass

from seedbed.cli.parse import parse, print_line


@dataclass(frozen=True)
class CompatibilityFlags:
    """No settings."""


def run(arguments: list[str]) -> None:
    """Prints the table, and why its empty cells are empty."""
    parse(
        "compatibility",
        CompatibilityFlags,
        arguments,
        about="Show which agent runs under which architecture, and why not.",
    )
    from seedbed.launch.compatibility import table_of_pairs

    table = table_of_pairs()
    architectures = list(next(iter(table.values())))
    print_line(" " * 8 + "  ".join(architectures))
    reasons = list(dict.fromkeys(reason for cells in table.values() for reason in cells.values() if reason))
    for agent, cells in table.items():
        marks = ("yes" if reason is None else str(reasons.index(reason) + 1) for reason in cells.values())
        row = (f"{mark:<{len(arch)}}" for mark, arch in zip(marks, architectures, strict=True))
        print_line(f"{agent:<8}" + "  ".join(row).rstrip())
    print_line("")
    for number, reason in enumerate(reasons, 1):
        print_line(f"{number}  {reason}")
