"""Writes docs/metrics.md from the registry of metrics. Run without arguments; ``--check`` only compares."""

from __future__ import annotations

import sys
from pathlib import Path

from seedbed.metrics import registry

PAGE = Path(__file__).parent.parent / "docs" / "metrics.md"
HEAD = """\
# Metrics

<!-- Written by tools/metrics_page.py from src/seedbed/metrics/registry.py; do not edit. -->

Every number that a run writes, under one name in `metrics.jsonl`, in TensorBoard and on the console. A name
that ends in `/*` is a family: whatever begins like it belongs to it.

| name | unit | meaning |
|---|---|---|
"""


def page() -> str:
    """The whole page."""
    rows = (f"| `{metric.name}` | {metric.unit} | {metric.sentence} |\n" for metric in registry.registered())
    return HEAD + "".join(rows)


def main() -> None:
    if "--check" not in sys.argv:
        PAGE.write_text(page())
    elif PAGE.read_text() != page():
        sys.exit("docs/metrics.md is out of date: run .venv/bin/python tools/metrics_page.py")


if __name__ == "__main__":
    main()
