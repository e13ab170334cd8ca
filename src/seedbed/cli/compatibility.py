"""``seedbed compatibility``: which agent runs under which architecture."""

from __future__ import annotations

from dataclasses import dataclass

from seedbed.cli.parse import parse, print_line


@dataclass(frozen=True)
class CompatibilityFlags:
    """More rows and columns."""

    agent: tuple[str, ...] = ()
    """Agents of other packages, as module:NAME."""
    arch: tuple[str, ...] = ()
    """Architectures of other packages, as module:NAME."""


def run(arguments: list[str]) -> None:
    """Prints the table, and why its empty cells are empty."""
    flags = parse(
        "compatibility",
        CompatibilityFlags,
        arguments,
        about="Show which agent runs under which architecture, and why not.",
    )
    from seedbed.launch.compatibility import table_of_pairs

    table = table_of_pairs(flags.agent, flags.arch)
    architectures = list(next(iter(table.values())))
    width = max(map(len, table)) + 2
    print_line(" " * width + "  ".join(architectures))
    reasons = list(dict.fromkeys(reason for cells in table.values() for reason in cells.values() if reason))
    for agent, cells in table.items():
        marks = ("yes" if reason is None else str(reasons.index(reason) + 1) for reason in cells.values())
        row = (f"{mark:<{len(arch)}}" for mark, arch in zip(marks, architectures, strict=True))
        print_line(f"{agent:<{width}}" + "  ".join(row).rstrip())
    print_line("")
    for number, reason in enumerate(reasons, 1):
        print_line(f"{number}  {reason}")
