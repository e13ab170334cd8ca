"""The comparison of runs: returns at equal frames and at equal seconds, folded over seeds.

Groups of runs are compared by the interquartile mean over their runs, its stratified bootstrap interval, and the
probability that a run of one group is better than a run of another (Agarwal et al. 2021, "Deep Reinforcement Learning
at the Edge of the Statistical Precipice"; rliable, their library, does not run with today's pandas).

All returns are read where the shortest run ends, so that no group has an advantage of length. A run far shorter than
the others would move that place for all: it is left out, and named.
"""

from __future__ import annotations

import csv
import io
import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from seedbed.config.variants import recorded_variants
from seedbed.errors import ConfigError, unknown_name
from seedbed.launch.folder import RunFolder
from seedbed.launch.listing import run_folders
from seedbed.metrics.pictures import drawn
from seedbed.metrics.reports import Curve, draw_groups, read_curve
from seedbed.metrics.statistics import bootstrap_interval, interquartile_mean, probability_of_improvement

_TOO_SHORT = 0.5
"""Share of the median length below which a run is left out."""
_BESIDE = {
    *(
        "seed",
        "seeds",
        "sweep",
        "draws",
        "run_dir",
        "json",
        "video",
        "begin_or_resume",
        "preset",
        "init_from",
    ),
    *("frames", "minutes", "until_return", "checkpoint_minutes", "keep_checkpoints", "env_timeout"),
    "store",
}
"""Settings in which runs of one group may differ without a word."""


@dataclass(frozen=True)
class Score:
    """A figure of a group of runs, with its 95% interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Group:
    """The runs that have the same values of the settings by which runs are compared.

    Attributes:
      name: these values in words.
      curves: learning curves of the runs.
      steps_per_second: median of the runs' mean speeds.
      at_frames, at_seconds: interquartile mean of the returns at the frames and at the seconds of the comparison.
      better_than: by the name of another group, the probability that a run of this one has the higher return at the
        frames of the comparison.
    """

    name: str
    curves: tuple[Curve, ...]
    steps_per_second: float
    at_frames: Score
    at_seconds: Score
    better_than: Mapping[str, Score]


@dataclass(frozen=True)
class Comparison:
    """Groups of runs side by side.

    Attributes:
      groups: the groups, best first.
      env: environment of all runs, with its options; empty where they have several.
      frames: environment frames at which returns are compared.
      seconds: seconds of training at which returns are compared.
      notes: lines for people: runs that are left out, and settings in which the runs of a group differ.
      normalized: whether returns are normalized.
    """

    groups: tuple[Group, ...]
    env: str
    frames: float
    seconds: float
    notes: tuple[str, ...]
    normalized: bool


@dataclass(frozen=True)
class _Run:
    """One run, or one of the agents that a run trained side by side."""

    name: str
    settings: Mapping[str, Any]
    curve: Curve

    @property
    def env(self) -> str:
        return " ".join([str(self.settings.get("env")), *self.settings.get("env_options", ())])

    @property
    def frames(self) -> float:
        return float(self.curve.frames[-1])


def compare(
    paths: Sequence[str | Path], by: Sequence[str] = ("agent",), scales: Sequence[str] = ()
) -> Comparison:
    """Compares runs.

    Args:
      paths: run folders, or folders of runs.
      by: settings whose values make the groups.
      scales: ``ENV=LOW..HIGH``, the returns that become 0 and 1; runs of all these environments are compared together.

    Raises:
      ConfigError: there is no such run or setting, a scale cannot be read, or nothing is left to compare.
    """
    notes: list[str] = []
    runs = [run for folder in run_folders(paths) for run in _read(folder, notes)]
    by = [name.lstrip("-").replace("-", "_") for name in by]
    _require_known(by, runs)
    limits = dict(map(_scale, scales))
    runs = _of_one_scale(runs, by, limits, notes)
    runs = _long_enough(runs, notes)
    if not runs:
        raise ConfigError("; ".join(["no run is left to compare", *notes]))
    groups: dict[str, list[_Run]] = {}
    for run in runs:
        groups.setdefault(_label(run.settings, by), []).append(run)
    if limits and not {"env", "env_options"} & {*by}:
        groups = _of_common_environments(groups, notes)
        runs = [run for members in groups.values() for run in members]
    for name, members in groups.items():
        notes += _differences(name, [run.settings for run in members], by)
    frames = min(run.frames for run in runs)
    seconds = min(float(run.curve.seconds[-1]) for run in runs)
    found = [_group(name, members, frames, seconds) for name, members in groups.items()]
    found.sort(key=lambda group: -group.at_frames.value)
    envs = {run.env for run in runs}
    return Comparison(
        tuple(replace(group, better_than=_better(group, found, frames)) for group in found),
        envs.pop() if len(envs) == 1 else "",
        frames,
        seconds,
        tuple(notes),
        bool(limits),
    )


# -- the runs ----------------------------------------------------------------------------------------------


def _read(folder: RunFolder, notes: list[str]) -> Iterator[_Run]:
    """Yields a run, or the agents that it trained side by side; notes what has no curve."""
    try:
        settings = folder.record()
        agents = recorded_variants(settings)
        several = len(agents) > 1
        for index, agent in enumerate(agents):
            own = {**settings, **agent.values, "seed": agent.seed}
            name = f"{folder.given} ({agent})" if several else str(folder.given)
            curve = read_curve(folder.metrics_of(index) if several else folder.metrics)
            if len(curve.frames):
                run = _Run(name, own, curve)
                yield replace(run, curve=replace(curve, task=run.env))
            else:
                notes.append(f"left out: {name}, in which no episode has ended")
    except ConfigError as error:
        notes.append(f"left out: {folder.given}: {error}")


def _require_known(by: Sequence[str], runs: Sequence[_Run]) -> None:
    known = {name for run in runs for name in run.settings}
    for name in by if runs else ():
        if name not in known:
            raise ConfigError(unknown_name("setting", name, known))


def _scale(text: str) -> tuple[str, tuple[float, float]]:
    env, _, limits = text.rpartition("=")
    low, _, high = limits.partition("..")
    try:
        bounds = float(low), float(high)
    except ValueError:
        bounds = (0.0, 0.0)
    if not env or not bounds[0] < bounds[1] < float("inf"):
        raise ConfigError(f"scale {text!r}: write ENV=LOW..HIGH, for instance ALE/Pong-v5=-21..21")
    return env, bounds


def _of_one_scale(
    runs: Sequence[_Run],
    by: Sequence[str],
    limits: Mapping[str, tuple[float, float]],
    notes: list[str],
) -> list[_Run]:
    """Returns the runs whose returns can be compared: of one environment, or of those with a scale."""
    if limits:
        fits = [run for run in runs if run.settings.get("env") in limits]
        why = "and no --scale is given for it"
        notes += [_left_out(run, why) for run in runs if run.settings.get("env") not in limits]
        return [_scaled(run, *limits[str(run.settings["env"])]) for run in fits]
    if "env" in by or not runs:
        return list(runs)
    most = Counter(run.env for run in runs).most_common(1)[0][0]
    why = f"and most runs have {most}; --by env, or --scale, compares several"
    notes += [_left_out(run, why) for run in runs if run.env != most]
    return [run for run in runs if run.env == most]


def _of_common_environments(groups: Mapping[str, Sequence[_Run]], notes: list[str]) -> dict[str, list[_Run]]:
    """Returns the groups with the runs of those environments alone in which every group has one.

    Raises:
      ConfigError: there is no such environment.
    """
    of_each = {name: {str(run.settings["env"]) for run in members} for name, members in groups.items()}
    common = set.intersection(*of_each.values())
    if not common:
        told = "; ".join(f"{name} has {', '.join(sorted(envs))}" for name, envs in of_each.items())
        raise ConfigError(f"no environment is common to all groups: {told}")
    notes += [
        _left_out(run, "in which not every group has a run")
        for members in groups.values()
        for run in members
        if run.settings["env"] not in common
    ]
    return {
        name: [run for run in members if run.settings["env"] in common] for name, members in groups.items()
    }


def _left_out(run: _Run, why: str) -> str:
    return f"left out: {run.name}: its environment is {run.env}, {why}"


def _scaled(run: _Run, low: float, high: float) -> _Run:
    returns = (run.curve.mean_return - low) / (high - low)
    return replace(run, curve=replace(run.curve, mean_return=returns))


def _long_enough(runs: Sequence[_Run], notes: list[str]) -> list[_Run]:
    """Returns the runs without those that are far shorter than the others."""
    if not runs:
        return []
    middle = median(run.frames for run in runs)
    short = [run for run in runs if run.frames < _TOO_SHORT * middle]
    notes += [
        f"left out: {run.name}: it has {run.frames:,.0f} frames, and half of the runs have {middle:,.0f} or more"
        for run in short
    ]
    return [run for run in runs if run not in short]


def _label(settings: Mapping[str, Any], by: Sequence[str]) -> str:
    """The values of the settings in words; names of agents, architectures and environments speak for themselves."""
    return ", ".join(
        _shown(settings.get(name))
        if name in ("agent", "arch", "env")
        else f"{name} {_shown(settings.get(name))}"
        for name in by
    )


def _shown(value: Any) -> str:
    if isinstance(value, list):
        return " ".join(map(_shown, value)) or "none"
    if isinstance(value, bool) or value is None:
        return json.dumps(value) if value is not None else "none"
    return f"{value:.10g}" if isinstance(value, float) else str(value)


def _differences(name: str, members: Sequence[Mapping[str, Any]], by: Sequence[str]) -> Iterator[str]:
    """Yields a line for each setting that divides the runs of a group."""
    for setting in dict.fromkeys(each for settings in members for each in settings):
        values = dict.fromkeys(_shown(settings[setting]) for settings in members if setting in settings)
        if len(values) > 1 and setting not in _BESIDE and setting not in by:
            yield f"{name}: its runs differ in {setting} ({', '.join(values)}); --by {setting} divides them"


# -- the figures -------------------------------------------------------------------------------------------


def _group(name: str, members: Sequence[_Run], frames: float, seconds: float) -> Group:
    curves = tuple(run.curve for run in members)
    speeds = [curve.agent_steps[-1] / curve.seconds[-1] for curve in curves if curve.seconds[-1] > 0]
    return Group(
        name,
        curves,
        float(median(speeds)) if speeds else float("nan"),
        _score(curves, frames, lambda curve: curve.frames),
        _score(curves, seconds, lambda curve: curve.seconds),
        {},
    )


def returns_at(curves: Sequence[Curve], x: float, x_of: Callable[[Curve], Any]) -> list[float]:
    """Returns the return of each curve at ``x``, between its rows; before its first row, the return there."""
    return [float(np.interp(x, x_of(curve), curve.mean_return)) for curve in curves]


def _score(curves: Sequence[Curve], x: float, x_of: Callable[[Curve], Any]) -> Score:
    returns = returns_at(curves, x, x_of)
    low, high = bootstrap_interval(returns, strata=[curve.task for curve in curves])
    return Score(float(interquartile_mean(returns)), float(low), float(high))


def _better(group: Group, groups: Sequence[Group], frames: float) -> dict[str, Score]:
    """The probability that a run of a group is better than one of each other group, over the tasks of both."""
    found = {}
    for other in groups:
        tasks = {curve.task for curve in group.curves} & {curve.task for curve in other.curves}
        if other is group or not tasks:
            continue
        ours, theirs = (
            [
                returns_at([curve for curve in each.curves if curve.task == task], frames, lambda c: c.frames)
                for task in sorted(tasks)
            ]
            for each in (group, other)
        )
        found[other.name] = Score(*probability_of_improvement(ours, theirs))
    return found


# -- the reports -------------------------------------------------------------------------------------------


def table(comparison: Comparison, form: str = "md") -> str:
    """Returns the comparison as a Markdown table (``md``) or as rows of commas (``csv``)."""
    rows = list((_csv_rows if form == "csv" else _markdown_rows)(comparison))
    if form == "csv":
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows(rows)
        return text.getvalue().rstrip("\n")
    ruled = [rows[0], ["---", *["---:"] * (len(rows[0]) - 1)], *rows[1:]]
    return "\n".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |" for row in ruled)


def _markdown_rows(comparison: Comparison) -> Iterator[list[str]]:
    names = [group.name for group in comparison.groups]
    against = names if len(names) > 1 else []
    yield [
        "group",
        "runs",
        f"return at {comparison.frames:,.0f} frames",
        f"return at {comparison.seconds:,.0f} s",
        "steps/s",
        *(f"P(better than {name})" for name in against),
    ]
    for group in comparison.groups:
        yield [
            group.name,
            str(len(group.curves)),
            _cell(group.at_frames),
            _cell(group.at_seconds),
            f"{group.steps_per_second:,.0f}",
            *(_cell(group.better_than[name], ".2f") if name in group.better_than else "" for name in against),
        ]


def _cell(score: Score, form: str = ".4g") -> str:
    return f"{score.value:{form}} ({score.low:{form}} to {score.high:{form}})"


def _csv_rows(comparison: Comparison) -> Iterator[list[Any]]:
    names = [group.name for group in comparison.groups]
    against = names if len(names) > 1 else []
    figures = ["at_frames", "at_seconds", *(f"better_than {name}" for name in against)]
    yield [
        *("group", "runs", "frames", "seconds", "steps_per_second"),
        *(f"{figure}{part}" for figure in figures for part in ("", " low", " high")),
    ]
    for group in comparison.groups:
        scores = [group.at_frames, group.at_seconds, *(group.better_than.get(name) for name in against)]
        yield [
            *(group.name, len(group.curves), comparison.frames, comparison.seconds, group.steps_per_second),
            *(
                cell
                for score in scores
                for cell in ((score.value, score.low, score.high) if score else ("", "", ""))
            ),
        ]


def draw(comparison: Comparison, picture: str | Path) -> None:
    """Draws the curves of all groups over frames and over time; raises :class:`ConfigError` if that cannot be written.

    Runs are thin lines, interquartile means thick ones, and bands their 95% intervals.
    """
    groups = {f"{group.name} ({len(group.curves)})": group.curves for group in comparison.groups}
    what = "normalized return" if comparison.normalized else "mean return of the last 100 episodes"
    heading = comparison.env or "several environments"
    drawn(lambda path: draw_groups(groups, path, heading, label=what), picture)
