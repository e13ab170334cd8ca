"""The changelog tells each change once."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

CHANGELOG = (Path(__file__).parents[2] / "CHANGELOG.md").read_text()


def repeated(lines: list[str]) -> list[str]:
    """What occurs more than once."""
    return [line for line, times in Counter(lines).items() if times > 1]


def test_a_version_has_each_heading_once() -> None:
    for version in re.split(r"(?m)^## ", CHANGELOG)[1:]:
        headings = re.findall(r"(?m)^### .*$", version)
        assert headings and not repeated(headings), version.splitlines()[0]


def test_no_change_is_told_twice() -> None:
    entries = [entry.strip() for entry in re.split(r"(?m)^(?:- |#.*$)", CHANGELOG)[1:] if entry.strip()]
    assert len(entries) > 100
    assert not repeated(entries)
