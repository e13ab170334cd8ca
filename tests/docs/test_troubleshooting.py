"""What the page quotes is said somewhere in the source."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "troubleshooting.md").read_text()
SEEN = [row.split("|")[1] for row in PAGE.splitlines() if row.startswith("|")]
QUOTED = [
    quote
    for seen in SEEN
    for quote in re.findall(r"`([^`]+)`", seen)
    if not re.search(r"^seedbed|:$|^--", quote) or quote == "no video:"
]


def said() -> str:
    """All texts of the source, a line each."""
    texts = []
    for path in (ROOT / "src" / "seedbed").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.JoinedStr):
                texts.append(
                    "".join(
                        str(part.value) if isinstance(part, ast.Constant) else "{}" for part in node.values
                    )
                )
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                texts.append(node.value)
    return "\n".join(texts)


SAID = said()


@pytest.mark.parametrize("quote", QUOTED)
def test_a_quoted_line_is_said(quote: str) -> None:
    words = quote.split("  ")  # of a table: its name and its value
    assert all(word in SAID for word in words), quote


def test_there_are_quotes_in_each_part() -> None:
    parts = PAGE.split("\n## ")[1:]
    assert len(QUOTED) > 20 and all("| `" in part for part in parts)
