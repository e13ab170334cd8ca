"""Reports of a run: its learning curve, and its summary as one JSON object."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from seedbed import regular_files
from seedbed.errors import ConfigError, RunFailed, unknown_name
from seedbed.metrics.sinks import read_rows
from seedbed.metrics.statistics import bootstrap_interval, interquartile_mean

_GRID_POINTS = 200
_RUNS_OF_AN_INTERVAL = 5  # of three, it would be their range under another name
_COLOURS = 10
"""Colours of Matplotlib's own cycle."""
_NAMES_INSIDE, _MOST_NAMES = 5, 18
"""Names of curves for which there is room in a panel, and beside the panels."""
_FEW_SKIPPED = 0.01
"""Share of the updates that may be skipped without a word."""


@dataclass(frozen=True)
class Summary:
    """The result of a run; ``summary.json`` and the last line of ``seedbed train --json``.

    Attributes:
      env, arch, agent, transport, seed: settings of the run.
      seconds: seconds of training.
      agent_steps: decisions that environments carried out; one that only resets is none.
      env_frames: frames that the environments simulated.
      agent_steps_per_second: speed in steady state, after compilation; None if it was not reached.
      mean_return: mean of the last 100 episodes, undiscounted; None if no episode ended.
      best_mean_return: the highest such mean; None if no episode ended.
      episodes: episodes that ended.
      weights_version: updates in the final weights.
      policy_lag_mean, policy_lag_max: updates, over all trained steps; None if none was trained.
      params_sha256: :func:`seedbed.learning.checkpoint.digest` of the final parameters; empty if a failure took them
        along.
      stopped_because: one sentence.
      more: other things worth keeping; its keys stand beside the others, and are attributes too.
    """

    env: str
    arch: str
    agent: str
    transport: str
    seed: int
    seconds: float
    agent_steps: int
    env_frames: int
    agent_steps_per_second: float | None
    mean_return: float | None
    best_mean_return: float | None
    episodes: int
    weights_version: int
    policy_lag_mean: float | None
    policy_lag_max: float | None
    params_sha256: str
    stopped_because: str
    more: Mapping[str, Any] = field(default_factory=dict)

    @property
    def run_dir(self) -> str | None:
        """The run folder; None in a summary of a version that did not keep it."""
        return self.more.get("run_dir")

    if not TYPE_CHECKING:  # names of attributes are checked

        def __getattr__(self, name: str) -> Any:
            """Returns a value of ``more``."""
            more = self.__dict__.get("more", {})  # none yet in a copy that is being made
            if name not in more:
                raise AttributeError(
                    unknown_name("attribute of a summary", name, {*self.__dict__, *more} - {"more"})
                )
            return more[name]

    def __dir__(self) -> Iterable[str]:
        return {*super().__dir__(), *self.more}

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values; numbers that are not finite are None."""
        values = asdict(self)
        more = values.pop("more")
        return {
            name: None if isinstance(value, float) and not math.isfinite(value) else value
            for name, value in (values | more).items()
        }

    def write(self, path: Path) -> None:
        """Writes ``path`` whole or not at all; raises :class:`RunFailed` if the disk does not take it."""
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            regular_files.write_whole(path, json.dumps(self.to_json(), indent=2, allow_nan=False) + "\n")
        except OSError as error:
            raise RunFailed(f"summary: cannot write {path}: {error.strerror}") from error


def summary_from(values: Mapping[str, Any]) -> Summary:
    """Makes a summary of the values of :meth:`Summary.to_json`; raises :class:`ConfigError` if some are missing."""
    names = {part.name for part in fields(Summary)} - {"more"}
    if missing := names - values.keys():
        raise ConfigError(
            f"a summary without {', '.join(sorted(missing))}: it is of another version of Seedbed"
        )
    more = {name: value for name, value in values.items() if name not in names}
    return Summary(**{name: values[name] for name in names}, more=more)


def read_summary(path: Path) -> dict[str, Any]:
    """Reads a ``summary.json``; raises :class:`ConfigError` if it is not there or not one."""
    try:
        return regular_files.read_object(path)
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"cannot read the summary {path}: {getattr(error, 'strerror', None) or error}"
        ) from error


def many_skipped(skipped: int, updates: int) -> str | None:
    """Returns one line for people if more than 1% of the updates were skipped; else None."""
    if skipped <= _FEW_SKIPPED * updates:
        return None
    return (
        f"{skipped:,} of {updates:,} updates ({skipped / updates:.0%}) were skipped, since loss or gradient was not "
        "finite: look for nan and inf in what the environment shows and pays "
        "(seedbed.testing.environments.check_environment), or lower the learning rate"
    )


_SEEDS_OF_A_TITLE = 5


def title(env: str, arch: str, agent: str, seeds: Sequence[int]) -> str:
    """The title of a curve: ``"ALE/Pong-v5 · vtrace agent · seed architecture · seed 1"``."""
    numbers = ", ".join(map(str, seeds))
    if len(seeds) > _SEEDS_OF_A_TITLE:
        numbers = f"{min(seeds)} … {max(seeds)} ({len(seeds)})"
    return f"{env} · {agent} agent · {arch} architecture · seed{'s' if len(seeds) > 1 else ''} {numbers}"


@dataclass(frozen=True)
class Curve:
    """The learning curve of one run: parallel arrays, one entry a row of its metrics.

    Attributes:
      agent_steps: decisions that environments carried out.
      frames: frames that the environments simulated.
      seconds: seconds of training.
      mean_return: mean return of the last 100 episodes.
      task: name of the task, within which runs are resampled for an interval.
    """

    agent_steps: NDArray[np.float64]
    frames: NDArray[np.float64]
    seconds: NDArray[np.float64]
    mean_return: NDArray[np.float64]
    task: str = ""


Axis = Callable[[Curve], NDArray[np.float64]]
"""Returns the values of an axis."""


def read_curve(path: Path) -> Curve:
    """Reads the learning curve out of a ``metrics.jsonl``.

    Rows that a resumed run went back behind are left out: the curve shows the history of the final weights.
    """
    return curve_of(read_rows(path))


def curve_of(rows: Iterable[Mapping[str, float]]) -> Curve:
    """Returns the learning curve in the rows of a run, as :func:`read_curve` does."""
    points: list[tuple[float, ...]] = []
    for row in rows:
        steps = row.get("agent_steps", math.nan)
        while points and points[-1][0] >= steps:
            points.pop()
        point = (steps, *(row.get(name, math.nan) for name in ("seconds", "mean_return")))
        if all(map(math.isfinite, point)):
            points.append((*point, row.get("env_frames", steps)))
    columns = np.array(points, np.float64).reshape(-1, 4)
    return Curve(columns[:, 0], columns[:, 3], columns[:, 1], columns[:, 2])


def together(
    xs: Sequence[NDArray[np.float64]], ys: Sequence[NDArray[np.float64]], goal: float | None = None
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Several curves on one grid, ``(x [P], y [runs, P])``, over the stretch of x that all of them cover.

    A curve that ends at the goal stays there: it ended because it was reached, and without it the slower ones would be
    left out of the rest.
    """
    ends = [x[-1] for x, y in zip(xs, ys, strict=True) if goal is None or y[-1] < goal]
    grid = np.linspace(max(x[0] for x in xs), min(ends, default=max(x[-1] for x in xs)), _GRID_POINTS)
    return grid, np.stack([np.interp(grid, x, y) for x, y in zip(xs, ys, strict=True)])


def draw_curve(
    metrics: Mapping[str, Sequence[Path]], picture: Path, heading: str, goal: float | None = None
) -> None:
    """Draws mean return over agent steps and over time, from ``metrics.jsonl`` files.

    One run is a line. Several of one name are thin lines, with their interquartile mean and its 95% bootstrap interval,
    or, of fewer than five, their range.

    Args:
      metrics: files, one a run, by the name of a group of runs, which gets a colour; "" for no name.
      picture: the PNG to write.
      heading: stands above, see :func:`title`.
      goal: a return to mark with a dashed line.
    """
    groups = {name: list(map(read_curve, files)) for name, files in metrics.items()}
    steps = ("agent steps", lambda curve: curve.agent_steps)
    picture.parent.mkdir(parents=True, exist_ok=True)
    regular_files.require_room(picture)
    draw_groups(groups, picture, heading, goal=goal, steps=steps)


def draw_groups(
    groups: Mapping[str, Sequence[Curve]],
    picture: Path,
    heading: str,
    *,
    goal: float | None = None,
    steps: tuple[str, Axis] = ("environment frames", lambda curve: curve.frames),
    label: str = "mean return of the last 100 episodes",
) -> None:
    """Draws curves as :func:`draw_curve` does.

    Args:
      groups: curves of the runs, by the name of a group of runs.
      picture: the PNG to write.
      heading: title above the panels.
      goal: a return to mark with a dashed line.
      steps: name and values of the axis of the left panel.
      label: name of the vertical axis.
    """
    groups = {name: [curve for curve in curves if len(curve.agent_steps)] for name, curves in groups.items()}
    # An object of its own instead of pyplot: no global state, and no window system is looked for.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 4.2), layout="constrained")
    FigureCanvasAgg(figure)
    # As it was written: no formulas between dollars, and nothing that is no letter (an option may hold any bytes).
    figure.suptitle(heading.encode(errors="replace").decode(), parse_math=False)
    left, right = figure.subplots(1, 2, sharey=True)
    longest = max([0.0, *(curve.seconds[-1] for curves in groups.values() for curve in curves)])
    unit, length = _unit_of(longest)
    _panel(left, groups, *steps, goal)
    _panel(right, groups, f"{unit} of training", lambda curve: curve.seconds / length, goal)
    left.set_ylabel(label)
    left.xaxis.set_major_formatter(short_number)
    _explain(figure, groups)
    figure.savefig(picture, dpi=130)


def _panel(
    axes: Any, groups: Mapping[str, Sequence[Curve]], label: str, x_of: Axis, goal: float | None
) -> None:
    axes.set_xlabel(label)
    axes.grid(alpha=0.3)
    if goal is not None:
        axes.axhline(goal, color="grey", linestyle="--", linewidth=1)
    if not any(groups.values()):
        axes.text(0.5, 0.5, "no episode has ended yet", ha="center", va="center", transform=axes.transAxes)
        return
    for colour, (name, curves) in zip(_colours(len(groups)), groups.items(), strict=True):
        if curves:
            _group(axes, x_of, curves, name, colour, goal)


def _colours(count: int) -> list[Any]:
    """Colours that differ, for so many groups."""
    if count <= _COLOURS:
        return [f"C{number}" for number in range(count)]
    from matplotlib import colormaps

    return [*colormaps["turbo"](np.linspace(0.05, 0.95, count))]


def _explain(figure: Any, groups: Mapping[str, Sequence[Curve]]) -> None:
    """Names the curves: inside both panels, or, if there are too many names for that, beside them, the best first."""
    if not any(groups.values()) or (len(groups) == 1 and max(map(len, groups.values())) == 1):
        return
    if len(groups) <= _NAMES_INSIDE:
        for axes in figure.axes:
            axes.legend(loc="lower right", frameon=False)
        return
    lines, _ = figure.axes[0].get_legend_handles_labels()
    shown = sorted(lines, key=lambda line: -line.get_ydata()[-1])[:_MOST_NAMES]
    figure.set_size_inches(14.5, 4.2)
    figure.legend(
        handles=shown,
        loc="outside right upper",
        frameon=False,
        fontsize="small",
        title="best first" if len(shown) == len(lines) else f"the best {len(shown)} of {len(lines)}",
    )


def _group(
    axes: Any, x_of: Axis, curves: Sequence[Curve], name: str, colour: str, goal: float | None
) -> None:
    xs = [x_of(curve) for curve in curves]
    several = len(curves) > 1
    for x, curve in zip(xs, curves, strict=True):
        axes.plot(
            x,
            curve.mean_return,
            color=colour,
            linewidth=0.7 if several else 1.8,
            alpha=0.4 if several else 1,
            label=None if several else name or None,
        )
    if several:
        _middle(axes, xs, curves, name, colour, goal)


def _middle(
    axes: Any,
    xs: Sequence[NDArray[np.float64]],
    curves: Sequence[Curve],
    name: str,
    colour: str,
    goal: float | None,
) -> None:
    grid, returns = together(xs, [curve.mean_return for curve in curves], goal)
    if len(curves) < _RUNS_OF_AN_INTERVAL:
        (low, high), band = (returns.min(axis=0), returns.max(axis=0)), "range"
    else:
        low, high = bootstrap_interval(returns, resamples=500, strata=[curve.task for curve in curves])
        band = "95% interval"
    axes.plot(
        grid, interquartile_mean(returns), color=colour, linewidth=2, label=name or "interquartile mean"
    )
    axes.fill_between(grid, low, high, color=colour, alpha=0.2, linewidth=0, label=None if name else band)


def _unit_of(seconds: float) -> tuple[str, int]:
    """The unit for an axis of so many seconds, and its length in seconds: such that it has three or more of them."""
    return next(
        ((name, length) for name, length in (("hours", 3600), ("minutes", 60)) if seconds >= 3 * length),
        ("seconds", 1),
    )


def short_number(value: float, _: int | None = None) -> str:
    """Returns a number of steps as an axis shows it: ``"250k"``, ``"1.5M"``."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:g}{letter}"
    return f"{value:g}"
