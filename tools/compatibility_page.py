"""Writes docs/compatibility.md from the table of agents and architectures. Run without arguments."""

from __future__ import annotations

from pathlib import Path

from seedbed.launch.compatibility import table_of_pairs

PAGE = Path(__file__).parent.parent / "docs" / "compatibility.md"
HEAD = """\
# Agents and architectures

<!-- Written by tools/compatibility_page.py from src/seedbed/architectures; do not edit. -->

*What is computed* (`--agent`) and *where it runs* (`--arch`) are chosen apart. `seedbed compatibility` prints this
table. A pair that has a number is refused, with that reason, before anything is started. Settings may exclude each
other too, which is said in the same way.

"""


def page() -> str:
    """The whole page."""
    table = table_of_pairs()
    architectures = list(next(iter(table.values())))
    reasons = list(dict.fromkeys(reason for cells in table.values() for reason in cells.values() if reason))
    lines = [
        "| | " + " | ".join(f"`{arch}`" for arch in architectures) + " |",
        "|---" * (len(architectures) + 1) + "|",
    ]
    for agent, cells in table.items():
        marks = ("yes" if reason is None else str(reasons.index(reason) + 1) for reason in cells.values())
        lines.append(f"| `{agent}` | " + " | ".join(marks) + " |")
    notes = [f"{number}. {reason}" for number, reason in enumerate(reasons, 1)]
    return HEAD + "\n".join([*lines, "", *notes]) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page())
