"""The table and the picture of a sweep."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from seedbed import regular_files
from seedbed.errors import ConfigError
from seedbed.metrics.reports import read_curve, short_number
from seedbed.search.space import Axis
from seedbed.search.sweep import Plan, Result, Tried


def table(result: Result) -> str:
    """Returns the trials as a Markdown table, best first."""
    names = list(dict.fromkeys(name for one in result.tried for name in one.values))
    lines = [["run", "state", "score", *names], ["---", "---", "---:", *["---:" for _ in names]]]
    for one in result.tried:
        state = one.state if one.state in ("finished", "failed") else f"{one.state} at {one.part:.0%}"
        cells = (_shown(one.values.get(name)) for name in names)
        lines.append([f"{one.number:04}", state, _shown(one.score), *cells])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _shown(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}" if math.isfinite(value) else "–"
    return str(value)


def draw(plan: Plan, result: Result, picture: Path) -> None:
    """Draws the curves of all trials, and the score over each setting; raises :class:`ConfigError` if that fails."""
    # An object of its own instead of pyplot: no global state, and no window system is looked for.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    panels = 1 + len(plan.axes)
    figure = Figure(figsize=(4.4 * panels, 4), layout="constrained")
    FigureCanvasAgg(figure)
    config = plan.config
    figure.suptitle(f"{config.env} · {config.agent} agent · {config.arch} architecture", parse_math=False)
    first, *others = figure.subplots(1, panels, squeeze=False)[0]
    _curves(first, result)
    for axes, axis in zip(others, plan.axes, strict=True):
        _scores(axes, axis, result.tried)
    others[0].set_ylabel("score (mean return over the budget)")
    try:
        regular_files.require_room(picture)
        figure.savefig(picture, dpi=110)
    except OSError as error:
        raise ConfigError(f"cannot draw {picture}: {error.strerror}") from error


def _curves(axes: Any, result: Result) -> None:
    best = next((one.number for one in result.tried if one.state == "finished"), None)
    for one in result.tried:
        try:
            curve = read_curve(result.folder / f"{one.number:04}" / "metrics.jsonl")
        except ConfigError:  # it has not come to a row
            continue
        chosen = one.number == best
        axes.plot(
            curve.frames,
            curve.mean_return,
            color="C1" if chosen else "C0",
            linewidth=2 if chosen else 0.8,
            alpha=1 if chosen else 0.5,
            zorder=3 if chosen else 2,
            label=f"best: {one.number:04}" if chosen else None,
        )
    axes.xaxis.set_major_formatter(short_number)
    axes.set_xlabel("environment frames")
    axes.set_ylabel("mean return of the last 100 episodes")
    axes.grid(alpha=0.3)
    if best is not None:
        axes.legend(frameon=False)


def _scores(axes: Any, axis: Axis, tried: tuple[Tried, ...]) -> None:
    """Scores over the values of a setting: dots of finished trials, crosses of stopped ones."""
    for state, marker in (("finished", "o"), ("stopped", "x")):
        points = [one for one in tried if one.state == state and math.isfinite(one.score)]
        values = [one.values[axis.name] for one in points]
        if axis.values:
            values = [str(value) for value in values]
        axes.scatter(values, [one.score for one in points], marker=marker, color="C0", label=state)
    if axis.log:
        axes.set_xscale("log")
    axes.set_xlabel(axis.name)
    axes.grid(alpha=0.3)
    axes.legend(frameon=False)
