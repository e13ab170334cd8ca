"""``seedbed sweep ENV --over name=values …``."""

from __future__ import annotations

import shlex
import sys
from dataclasses import dataclass, field, make_dataclass, replace
from pathlib import Path
from typing import Any, Literal

from seedbed.cli.defaults import defaults_of, more_for, plain, typed
from seedbed.cli.parse import parse
from seedbed.cli.status import Status
from seedbed.config.settings import RunConfig
from seedbed.config.words import given_as
from seedbed.errors import ConfigError, cause_of
from seedbed.metrics.say import say

ABOUT = "Search for settings: many runs with other values, of which the worse ones are stopped early."


@dataclass(frozen=True)
class SweepFlags:
    """Settings of the search; --run-dir is its folder."""

    over: tuple[str, ...] = ()
    """Settings that differ: name=log:1e-4..1e-2, name=0..1 or name=value,value,…"""
    trials: int | None = None
    """Runs of the whole sweep; none: 32, or all combinations."""
    by: Literal["halving", "median", "none", "all"] = "median"
    """Rule by which runs are stopped early; all: every combination of the values once, each to its end."""
    at_once: int | None = None
    """Runs at a time; none: as many as the machine's cores allow."""
    run: RunConfig = field(default_factory=RunConfig)


def run(arguments: list[str]) -> Status:
    """Sweeps, prints the table and draws the picture; see :mod:`seedbed.search.sweep`."""
    flags = _read(arguments)
    from seedbed.search.report import draw, table
    from seedbed.search.sweep import plan, sweep

    planned = plan(flags.run, flags.over, trials=flags.trials, by=flags.by, at_once=flags.at_once)
    say(f"sweep in {planned.folder}: {planned.trials} runs, {planned.at_once} at once")
    result = sweep(planned, say)
    say(table(result))
    try:
        (result.folder / "trials.md").write_text(table(result) + "\n")
        draw(planned, result, result.folder / "sweep.png")
    except (OSError, ConfigError) as error:
        say(f"no picture: {cause_of(error)}")
    else:
        say(f"  table {result.folder}/trials.md   picture {result.folder}/sweep.png")
    if result.interrupted:
        say("interrupted: the same command goes on")
        return Status.EXECUTE_AGAIN
    best = result.tried[0]
    if best.state == "failed":
        say(f"seedbed: no run of the sweep has succeeded: see {result.folder}", sys.stderr)
        return Status.FAILED
    if flags.by == "all":
        others = [axis.name for axis in planned.axes if axis.name != "seed"]
        by = f" --by {' '.join(others)}" if others else ""
        say(f"curves, folded over seeds: seedbed compare {result.folder}{by}")
    elif best.state == "finished":
        words = [word for name, value in best.values.items() for word in given_as(name, value)]
        say(f"best: {Path(result.folder) / f'{best.number:04}'} with {shlex.join(words)}")
    return Status.OVER


def _read(arguments: list[str]) -> SweepFlags:
    default = typed(defaults_of("sweep", arguments, SweepFlags), arguments)
    kind: Any = make_dataclass(
        "SweepFlags", [("run", type(default), default)], bases=(SweepFlags,), frozen=True
    )
    kind.__doc__ = SweepFlags.__doc__
    given: SweepFlags = parse("sweep", kind, arguments, kind(run=default), ABOUT + more_for(arguments))
    if given.run.json:
        raise ConfigError("--json prints the summary of one run, and a sweep has many: leave it out")
    return replace(given, run=plain(given.run))
