"""Reports of a cross-play: JSON, commas, a table for the terminal, and a heat map."""

from __future__ import annotations

import contextlib
import csv
import io
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from seedbed import regular_files
from seedbed.acting.opponents import START_RATING
from seedbed.errors import ConfigError
from seedbed.evaluation.crossplay import CrossPlay
from seedbed.metrics.pictures import drawn


def as_json(found: CrossPlay) -> dict[str, Any]:
    """Returns the table as JSON values; a player against itself is null."""
    scores = [[None if np.isnan(score) else score for score in row] for row in found.scores.tolist()]
    return {
        "env": found.env,
        "agents": list(found.agents),
        "games": found.games,
        "players": list(found.players),
        "scores": scores,
        "ratings": found.ratings.tolist(),
        "mean_scores": found.mean_scores.tolist(),
        "cyclic_triples": found.cyclic,
        "triples": found.triples,
        "margin": found.margin,
        "first_agent": found.first,
        "cut": found.cut,
        "max_steps": found.max_steps,
        "notes": list(found.notes),
    }


def as_csv(found: CrossPlay) -> str:
    """Returns the table as rows of commas, one for each player."""
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    rows.writerow(["player", "elo", "mean_score", *found.players])
    for name, rating, mean, scores in zip(
        found.players, found.ratings.tolist(), found.mean_scores.tolist(), found.scores.tolist(), strict=True
    ):
        rows.writerow([name, rating, mean, *("" if np.isnan(score) else score for score in scores)])
    return text.getvalue()


def require_csv(file: str | Path) -> None:
    """Refuses a file to which no table can be written; asked before the games."""
    with _named(file):
        regular_files.require_room(file, links=True)


def write_csv(found: CrossPlay, file: str | Path) -> None:
    """Writes the rows of :func:`as_csv` to a file; raises :class:`ConfigError` if it cannot be written."""
    require_csv(file)
    with _named(file):
        Path(file).parent.mkdir(parents=True, exist_ok=True)
        regular_files.write_whole(Path(file), as_csv(found))


@contextlib.contextmanager
def _named(file: str | Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ConfigError(f"cannot write {file}: {error.strerror or error}") from error


def table(found: CrossPlay, width: int) -> str:
    """Returns the table for a terminal of ``width`` characters: in several parts where it is narrow."""
    names = max(map(len, found.players))
    names = max(6, min(names, width // 3))
    number = len(str(len(found.players)))
    beside = number + names + 14  # with the columns of ratings and mean scores, and what is between columns
    at_once = max(1, (width - beside) // 5)
    parts = [
        _part(found, range(begin, min(begin + at_once, len(found.players))), names, width)
        for begin in range(0, len(found.players), at_once)
    ]
    return "\n\n".join([*parts, "\n".join(_lines(found))])


def _part(found: CrossPlay, columns: range, names: int, width: int) -> str:
    """The rows of all players against some of them; in the first part with ratings."""
    from rich.console import Console
    from rich.table import Table as Grid
    from rich.text import Text

    grid = Grid(box=None, padding=(0, 1, 0, 0), pad_edge=False)
    grid.add_column("", justify="right", no_wrap=True)
    grid.add_column("player", no_wrap=True, overflow="ellipsis", max_width=names)
    if columns.start == 0:
        grid.add_column("Elo", justify="right", no_wrap=True)
        grid.add_column("mean", justify="right", no_wrap=True)
    for column in columns:
        grid.add_column(str(column + 1), justify="right", no_wrap=True, min_width=4)
    for row, name in enumerate(found.players):
        rated = [f"{found.ratings[row]:.0f}", f"{found.mean_scores[row]:.2f}"] if columns.start == 0 else []
        cells = ["–" if row == column else f"{found.scores[row, column]:.2f}" for column in columns]
        grid.add_row(str(row + 1), Text(name), *rated, *cells)
    text = io.StringIO()
    Console(file=text, width=max(width, names + 24), color_system=None, legacy_windows=False).print(grid)
    return "\n".join(line.rstrip() for line in text.getvalue().rstrip("\n").split("\n"))


def _lines(found: CrossPlay) -> Iterator[str]:
    """Yields the lines below the table."""
    yield (
        f"{found.games:,} games of each pair in {found.env}, half of them on either side; "
        f"{found.agents[0]} scored {found.first:.2f}"
    )
    if found.cut:
        yield (
            f"{found.cut:,} games were cut after {found.max_steps:,} steps and count by their returns up to there"
        )
    yield (
        f"cyclic triples: {found.cyclic:,} of {found.triples:,} (A beats B, B beats C, C beats A, each by a score "
        f"over {0.5 + found.margin:.3f}, beyond the noise of {found.games:,} games)"
    )


def draw(found: CrossPlay, picture: str | Path) -> None:
    """Draws the scores as a heat map, with the ratings beside it; raises :class:`ConfigError` if it cannot be written.

    The ending of the name chooses the format: ``.png``, ``.svg`` or ``.pdf``.
    """
    drawn(lambda path: _draw(found, path), picture)


_MOST_NUMBERS = 30
"""Players above which no numbers are written into the heat map."""


def _draw(found: CrossPlay, picture: Path) -> None:
    # An object of its own instead of pyplot: no global state, and no window system is looked for.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    count = len(found.players)
    side = min(11.0, max(3.4, 0.42 * count + 1.2))
    figure = Figure(figsize=(side + 2.6, side + 1.1), layout=ConstrainedLayoutEngine(h_pad=0.1))
    FigureCanvasAgg(figure)
    heat, beside = figure.subplots(1, 2, width_ratios=(side, 2.2), sharey=True)
    _heat_map(figure, heat, found)
    _ratings_beside(beside, found)
    triples = f"{found.cyclic:,} of {found.triples:,} triples cyclic"
    figure.suptitle(f"{found.env}: {found.games:,} games a pair, {triples}", fontsize=10, parse_math=False)
    picture.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(picture, dpi=130)


def _heat_map(figure: Any, axes: Any, found: CrossPlay) -> None:
    import matplotlib

    count = len(found.players)
    colours = matplotlib.colormaps["RdBu"].with_extremes(bad="0.88")
    image = axes.imshow(np.ma.masked_invalid(found.scores), cmap=colours, vmin=0.0, vmax=1.0)
    names = [name.encode(errors="replace").decode() for name in found.players]
    axes.set_xticks(
        range(count), names, rotation=90 if max(map(len, names)) > 4 else 0, fontsize=8, parse_math=False
    )
    axes.set_yticks(range(count), names, fontsize=8, parse_math=False)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    # White lines between the fields.
    axes.set_xticks(np.arange(count + 1) - 0.5, minor=True)
    axes.set_yticks(np.arange(count + 1) - 0.5, minor=True)
    axes.grid(which="minor", color="white", linewidth=1.2)
    axes.tick_params(which="minor", length=0)
    axes.set_xlabel("opponent")
    axes.set_ylabel("player")
    for row, column in itertools.product(range(count), repeat=2) if count <= _MOST_NUMBERS else ():
        if row != column:
            score = found.scores[row, column]
            ink = "white" if abs(score - 0.5) > 0.3 else "0.15"
            axes.text(column, row, f"{score:.2f}", ha="center", va="center", fontsize=7, color=ink)
    bar = figure.colorbar(image, ax=axes, location="bottom", shrink=0.6, aspect=30, pad=0.02)
    bar.set_label("score of the player (1 a win, ½ a draw)", fontsize=8)
    bar.ax.tick_params(labelsize=8)
    bar.outline.set_visible(False)


def _ratings_beside(axes: Any, found: CrossPlay) -> None:
    rows = range(len(found.players))
    axes.axvline(START_RATING, color="0.8", linewidth=1)
    axes.hlines(rows, START_RATING, found.ratings, color="0.6", linewidth=1.5)
    axes.plot(found.ratings, rows, "o", color="0.2", markersize=5)
    for row, rating in enumerate(found.ratings.tolist()):
        ahead = rating >= START_RATING
        axes.annotate(
            f"{rating:.0f}",
            (rating, row),
            xytext=(6 if ahead else -6, 0),
            textcoords="offset points",
            ha="left" if ahead else "right",
            va="center",
            fontsize=8,
        )
    reach = 1.45 * max(30.0, float(np.abs(found.ratings - START_RATING).max()))
    axes.set_xlim(START_RATING - reach, START_RATING + reach)
    axes.set_title("Elo", fontsize=9)
    axes.tick_params(axis="y", which="both", length=0, labelleft=False)
    axes.tick_params(axis="x", labelsize=8)
    axes.spines[["left", "right", "top"]].set_visible(False)
