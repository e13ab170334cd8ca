"""``seedbed crossplay RUN …``."""

from __future__ import annotations

import json
import shutil
import sys
from dataclasses import dataclass
from functools import partial
from typing import Annotated

import tyro

from seedbed.cli.parse import parse, print_line
from seedbed.metrics.pictures import require_picture
from seedbed.metrics.say import say


@dataclass(frozen=True)
class CrossPlay:
    """Runs whose policies play each other, and the form of the result."""

    runs: Annotated[tuple[str, ...], tyro.conf.Positional]
    """Run folders, or folders of runs."""
    games: int = 100
    """Games of each pair, half of them on either side."""
    final: bool = False
    """Take the final policy of each run alone, without its pool."""
    greedy: bool = False
    """Take the most likely actions instead of drawing from the policies."""
    seed: int = 0
    """Root of the games' randomness."""
    env: str = ""
    """Environment of two agents; without it that of the first run that has two."""
    env_options: tuple[str, ...] = ()
    """Options of the environment, name=value; without --env beside those of the run."""
    max_steps: int = 27_000
    """Steps after which a game is cut; it counts by the returns up to there."""
    out: str | None = None
    """Picture (.png, .svg, .pdf) for the table and the ratings."""
    csv: str | None = None
    """File for the table with commas."""
    json: bool = False
    """Print one JSON object instead of a table."""
    trust: tuple[str, ...] = ()
    """Names (module:name) that runs may have imported that this user did not begin here."""


def run(arguments: list[str]) -> None:
    """Plays and prints; see :func:`seedbed.evaluation.crossplay.crossplay`."""
    flags = parse(
        "crossplay",
        CrossPlay,
        arguments,
        about="Play every policy of self-play runs against every other one.",
    )
    from seedbed.errors import ConfigError
    from seedbed.evaluation.crossplay import crossplay
    from seedbed.evaluation.crossplay_report import as_json, draw, require_csv, table, write_csv

    if not flags.runs:
        raise ConfigError("crossplay needs runs: give run folders, or a folder of runs")
    told = partial(say, stream=sys.stderr)
    if flags.csv:
        require_csv(flags.csv)
    if flags.out:
        require_picture(flags.out)
    found = crossplay(
        flags.runs,
        games=flags.games,
        final=flags.final,
        greedy=flags.greedy,
        seed=flags.seed,
        env=flags.env,
        env_options=flags.env_options,
        max_steps=flags.max_steps,
        trust=flags.trust,
        say=told,
    )
    # The files first: a reader of the table may leave.
    if flags.csv:
        write_csv(found, flags.csv)
        told(f"written to {flags.csv}")
    if flags.out:
        draw(found, flags.out)
        told(f"drawn to {flags.out}")
    print_line(json.dumps(as_json(found)) if flags.json else table(found, shutil.get_terminal_size().columns))
