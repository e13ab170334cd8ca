"""Writes docs/metrics.md from the registry of metrics. Run without arguments; ``--check`` only compares."""

from __future__ import annotations

import sys
from pathlib import Path

from seedbed.metrics import registry

PAGE = Path(__file__).parent.parent / "docs" / "metrics.md"
HEAD = """\
# Metrics

<!-- Written by tools/metrics_page.py from src/seedbed/metrics/registry.py; do not edit. -->

Every number that a run writes, under one name in `metrics.jsonl`, in TensorBoard (there below its group, as
`agent/mean_return`) and on the console. A name that ends in `/*` is a family: any name that begins like it belongs to
it, and its prefix is its group.

## What is a step

An **agent step** is a decision that an environment carried out. `agent_steps`, `env_frames` (the same times frame
skip), steps/s, frames/s, `--frames`, annealing and the replay's ratio count these; a run ends after the first batch
with which `env_frames` has come to `--frames`. The decision at the final observation of an episode is none: the
environment only resets. It has a **place** in an unroll like every other, though, and the books (`steps_received` =
`steps_trained` + `steps_queued` + `steps_open` + `steps_dropped`) are kept in places: `agent_steps` =
`steps_received` - `steps_resets`. Lag, batches and `sample_reuse` are of places too. Under DistBelief a step is a
transition of the data set that does not lead into a new episode. A run of version 0.1 that is resumed keeps what it
had counted, resets included, and goes on by this rule ([decision
41](decisions/0041-steps-are-decisions-that-were-carried-out.md)).

A **session** is what one process does between `seedbed train` or `resume` and its end. A resumed run writes a row
first, where its checkpoint stands: rows of an earlier `session` at as many steps or more are no history of the
weights. Curves leave them out, and so does TensorBoard.

## Names

| group | name | unit | meaning |
|---|---|---|---|
"""


def page() -> str:
    """The whole page."""
    rows = (
        f"| {metric.group} | `{metric.name}` | {metric.unit} | {metric.sentence} |\n"
        for metric in registry.registered()
    )
    return HEAD + "".join(rows)


def main() -> None:
    if "--check" not in sys.argv:
        PAGE.write_text(page())
    elif PAGE.read_text() != page():
        sys.exit("docs/metrics.md is out of date: run .venv/bin/python tools/metrics_page.py")


if __name__ == "__main__":
    main()
