"""The standing of one run, read from its folder: also of other processes, of ended runs, and of killed ones."""

from __future__ import annotations

import math
import socket
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from seedbed import regular_files
from seedbed.architectures.program import Program
from seedbed.config.variants import recorded_variants
from seedbed.errors import ConfigError, cause_of
from seedbed.launch.folder import RunFolder
from seedbed.metrics.console import Budget
from seedbed.metrics.reports import Curve, curve_of
from seedbed.watching.bottleneck import bottleneck, shares, traffic
from seedbed.watching.rows import GrowingRows, LogLine, faults

_SILENT_SECONDS = 30.0
_WINDOW_SECONDS = 10.0
_GAUGES = ("learner_busy", "inference_batch", "inference_milliseconds")
_OF_CURVES = ("agent_steps", "env_frames", "seconds", "mean_return")


@dataclass(frozen=True)
class Standing:
    """The standing of a run at one moment.

    Attributes:
      folder: its folder.
      settings: recorded settings, by name.
      agents: settings of each of its agents side by side that are not the run's; empty where there is one agent.
      state: ``starting``, ``running``, ``silent`` (no row for a while), ``killed``, ``ended`` or ``damaged``.
      why: reason for the state, for people; may be empty.
      row: newest row of metrics; empty before the first one.
      machine: name of the machine of its head; empty if nothing is known.
      instances: processes and threads of the run, as :meth:`~seedbed.launch.supervisor.Supervisor.standing` tells them.
      shares: shares of time of its parts, by name.
      bottleneck: name of the part that holds up the others, and the reason; None if nothing is known.
      traffic: bytes a second between roles.
      program: roles of the run; None for a run of an older version.
      faults: last warnings and errors of its log.
    """

    folder: RunFolder
    settings: Mapping[str, Any]
    agents: tuple[Mapping[str, Any], ...]
    state: str
    why: str
    row: Mapping[str, float]
    machine: str
    instances: tuple[Mapping[str, Any], ...]
    shares: Mapping[str, float]
    bottleneck: tuple[str, str] | None
    traffic: tuple[Mapping[str, Any], ...]
    program: Program | None
    faults: tuple[LogLine, ...]

    @property
    def name(self) -> str:
        """The folder as the user gave it."""
        return str(self.folder.given)

    @property
    def is_over(self) -> bool:
        """True if no process trains the run."""
        return self.state in ("ended", "killed", "damaged")

    @property
    def machines(self) -> Mapping[str, Mapping[str, int]]:
        """The number of instances on each machine, by role; the first is that of the head, which counts, too.

        Instances that wait for a machine are left out, and all of them in a run that is over.
        """
        if self.is_over:
            return {}
        head = [self.program.head] if self.program else []
        found = {self.machine: Counter(head)} if self.machine else {}
        for each in self.instances:
            if machine := each.get("machine"):
                found.setdefault(str(machine), Counter())[str(each.get("role"))] += 1
        return found


@dataclass
class WatchedRun:
    """A reader of one run folder, which reads only the new part of growing files; used by one thread.

    Attributes:
      folder: the folder.
      last: most bytes of the present end of its metrics to read; None for all, as a curve needs them.
    """

    folder: RunFolder
    last: int | None = 1 << 16
    _rows: GrowingRows = field(init=False, repr=False)
    _recent: list[dict[str, float]] = field(default_factory=list, init=False, repr=False)
    _of_curve: list[dict[str, float]] = field(default_factory=list, init=False, repr=False)
    _of_agents: list[tuple[GrowingRows, list[dict[str, float]]]] = field(
        default_factory=list, init=False, repr=False
    )

    def __post_init__(self) -> None:
        self._rows = GrowingRows(self.folder.metrics, self.last)

    def look(self) -> Standing:
        """Reads the folder; what is damaged or missing is left out, or all of a run whose files make no sense."""
        try:
            return self._look()
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
            return Standing(
                self.folder, {}, (), "damaged", cause_of(error), {}, "", (), {}, None, (), None, ()
            )

    def _look(self) -> Standing:
        self._read()
        row = self._recent[-1] if self._recent else {}
        before = self._before(row)
        settings, live = _object(self.folder, "config"), _object_at(self.folder.live)
        agents = _agents(settings)
        for index in range(len(self._of_agents), len(agents)):
            self._of_agents.append((GrowingRows(self.folder.metrics_of(index), self.last), []))
        program = _program(self.folder.program)
        state, why = self._state(live)
        found = shares(self._smoothed(row), before, live.get("cores"), _acting(settings))
        instances = tuple(map(_plain, live.get("instances") or ()))
        return Standing(
            self.folder,
            settings,
            agents,
            state,
            why,
            row,
            str(live.get("machine") or ""),
            instances,
            found,
            bottleneck(found, program) if found and row.get("updates") else None,
            tuple(traffic(program, row, before, settings.get("unroll_length", math.nan)) if program else ()),
            program,
            tuple(faults(self.folder.log)),
        )

    def curves(self) -> list[Curve]:
        """Returns the learning curve of each agent, in the rows that there are; see :attr:`Standing.agents`."""
        if not self._of_agents:
            return [curve_of(self._of_curve)]
        for rows, read in self._of_agents:
            read.extend(map(_of_a_curve, rows.new()))
        return [curve_of(read) for _, read in self._of_agents]

    def _read(self) -> None:
        for row in self._rows.new():
            self._recent.append(row)
            self._of_curve.append(_of_a_curve(row))
        newest = self._recent[-1].get("seconds", math.nan) if self._recent else math.nan
        # The newest row that is older than the window stays, so that rates are over all of it.
        while len(self._recent) > 2 and newest - self._recent[1].get("seconds", math.nan) > _WINDOW_SECONDS:
            self._recent.pop(0)

    def _before(self, row: Mapping[str, float]) -> Mapping[str, float]:
        """The oldest recent row of the same session."""
        same = (each for each in self._recent if each.get("session") == row.get("session"))
        return next((each for each in same if "cpu_seconds" in each or "cpu_seconds" not in row), row)

    def _smoothed(self, row: Mapping[str, float]) -> Mapping[str, float]:
        """The row with means over the recent rows in the place of its gauges: a row is of a second."""
        means = {}
        for name in _GAUGES:
            values = [each[name] for each in self._recent if math.isfinite(each.get(name, math.nan))]
            if name in row and values:
                means[name] = sum(values) / len(values)
        return {**row, **means}

    def _state(self, live: Mapping[str, Any]) -> tuple[str, str]:
        """The state, and why; by the newer one of the summary and the file that a training process renews."""
        told, renewed = (_modified(path) for path in (self.folder.summary, self.folder.live))
        rows = _modified(self.folder.metrics)
        if told is not None and told >= (renewed or rows or 0.0):
            return "ended", str(_object_at(self.folder.summary).get("stopped_because", ""))
        if live.get("machine") == socket.gethostname() and not _lives(live):
            return "killed", "its process is gone, and has written no summary"
        if (newest := renewed or rows) is None:
            return "starting", "it has written no row yet"
        silent = time.time() - newest
        if silent > _SILENT_SECONDS:
            return "silent", f"no row for {silent:,.0f} s"
        return "running", ""


def _plain(instance: Mapping[str, Any]) -> dict[str, Any]:
    """The words and numbers of an instance, and a number of restarts."""
    told = {name: value for name, value in instance.items() if isinstance(value, str | int | float)}
    return {**told, "restarts": int(told.get("restarts", 0))}


def budget(settings: Mapping[str, Any]) -> Budget:
    """Returns the limits of a run, from its recorded settings."""

    def number(name: str) -> float | None:
        value = settings.get(name)
        return float(value) if isinstance(value, int | float) else None

    minutes = number("minutes")
    return Budget(number("frames"), None if minutes is None else 60 * minutes)


def _of_a_curve(row: Mapping[str, float]) -> dict[str, float]:
    return {name: row[name] for name in _OF_CURVES if name in row}


def _agents(settings: Mapping[str, Any]) -> tuple[Mapping[str, Any], ...]:
    """The values of each agent of several side by side; empty if there is one, which has the curve of the run."""
    try:
        agents = recorded_variants(settings)
    except ConfigError:
        return ()
    return tuple({**each.values, "seed": each.seed} for each in agents) if len(agents) > 1 else ()


def _acting(settings: Mapping[str, Any]) -> int:
    """The number of devices, or of servers with one each, that compute actions side by side."""
    if type(servers := settings.get("forward_servers")) is int:
        return max(1, servers)
    devices = settings.get("inference_devices")
    return max(1, len(devices)) if isinstance(devices, list) else 1


def _lives(live: Mapping[str, Any]) -> bool:
    try:
        return abs(psutil.Process(int(live["pid"])).create_time() - float(live["begun"])) < 1.0
    except (psutil.NoSuchProcess, KeyError, TypeError, ValueError):
        return False
    except psutil.Error:  # of another user
        return True


def _modified(path: Path) -> float | None:
    try:
        return path.stat(follow_symlinks=False).st_mtime
    except OSError:
        return None


def _object(folder: RunFolder, name: str) -> Mapping[str, Any]:
    return _object_at(folder.path / f"{name}.json")


def _object_at(path: Path) -> Mapping[str, Any]:
    try:
        return regular_files.read_object(path)
    except (OSError, ValueError):
        return {}


def _program(path: Path) -> Program | None:
    try:
        return Program.from_json(_object_at(path))
    except ConfigError:
        return None
