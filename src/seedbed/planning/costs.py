"""The costs of the stages of a run, from rows that ``seedbed bench`` has written, here or on another machine."""

from __future__ import annotations

import json
import re
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal

from seedbed import regular_files
from seedbed.config.settings import RunConfig
from seedbed.errors import ConfigError
from seedbed.nets.network import Network

Where = Literal["cores", "accelerator"]
_ABOUT_BATCH = re.compile(r"batches of (\d+) on (.+)$|one thread's (\d+) rows on (.+)$")
_ABOUT_PROCESSES = re.compile(r"(\d+) processes of (\d+) environments")
_OWN_THREADS = ("ALE/", "envpool:")
"""Beginnings of the names of environments that are stepped by threads of their own, outside of Python."""


@dataclass(frozen=True)
class Curve:
    """The time of one call by its number of rows, from measured points.

    Between two points it is on the line between them; a smaller call takes its share of the smallest one if that is the
    only one, and as long as the smallest one otherwise; a larger call takes its multiple of the largest one.

    Attributes:
      points: pairs ``(rows, seconds)``, ascending by rows.
    """

    points: tuple[tuple[int, float], ...]

    def at(self, rows: float) -> float:
        """Returns the time in s of a call with ``rows`` rows."""
        sizes = [size for size, _ in self.points]
        index = bisect_left(sizes, rows)
        if index == len(sizes):
            return self.points[-1][1] * rows / sizes[-1]
        if index == 0:
            return self.points[0][1] * (rows / sizes[0] if len(sizes) == 1 else 1.0)
        (low, short), (high, long) = self.points[index - 1 : index + 1]
        return short + (long - short) * (rows - low) / (high - low)

    def covers(self, rows: float) -> bool:
        """Returns whether ``rows`` is within the measured sizes."""
        return self.points[0][0] <= rows <= self.points[-1][0]


@dataclass(frozen=True)
class Served:
    """The Python work of central inference beside the call itself, in s of one core.

    Attributes:
      message: work for one message of a lane: arrival, its part of the batch, reply.
      row: work for one environment of it.
      sent: work of the actor for one message: sending a step, taking its actions.
      delay: time in s on the way between two processes.
    """

    message: float
    row: float
    sent: float
    delay: float


ASSUMED_SERVED: Mapping[str, Served] = {
    "inproc": Served(message=60e-6, row=1.5e-6, sent=20e-6, delay=20e-6),
    "shm": Served(message=75e-6, row=1.5e-6, sent=75e-6, delay=30e-6),
    "grpc": Served(message=240e-6, row=2.5e-6, sent=300e-6, delay=100e-6),
}
"""Work of the served path where it is not timed (``seedbed bench --serve``): version 0.1 on an AMD EPYC (Zen 4), with
16 actors of 16 environments that replay pictures; shared memory on a quiet machine, gRPC beside other work."""
ASSUMED_JOIN = 1e-6
"""Seconds of a core by which one step of a batch is joined and put on the device, where that is not timed."""
ASSUMED_SPREAD = 0.2
"""Standard deviation of the time of a lane's step, as a share of its mean."""


@dataclass(frozen=True)
class Costs:
    """The costs of a run's stages, in seconds.

    Attributes:
      step: core-seconds by which one environment makes one step.
      act: time of one call of the policy, by its place.
      train: time on the training devices for one agent step: all updates with a batch, divided by its agent steps.
      play: time on the devices for one agent step where environments and policy are one program.
      act_threads: cores that a call keeps busy where the policy runs on cores.
      train_threads: cores that updates keep busy where they run on cores.
      crowded: further time of a call of the policy while all cores of its machine have a thread.
      own_threads: whether environments are stepped by threads of their own, outside of Python.
      join: core-seconds for one step of a batch that is joined and put on the device.
      spread: standard deviation of the time of a lane's step, as a share of its mean.
      served: work of the served path, by carrier.
      attained: share of its simulated speed that a run on the timed machine had; see :mod:`seedbed.planning.loss`.
      attained_by: that run, for people; empty if none is known.
      cores: number of cores of the machine that was timed.
      accelerators: number of accelerators of that machine.
      machine: processor, cores and devices of that machine.
      source: the machine and the version that was timed, for people.
      assumed: everything that was not timed, a sentence each.
    """

    step: float | None = None
    act: Mapping[Where, Curve] = field(default_factory=dict)
    train: float | None = None
    play: float | None = None
    act_threads: float = 1.0
    train_threads: float = 1.0
    crowded: float = 0.0
    own_threads: bool = True
    join: float = ASSUMED_JOIN
    spread: float = ASSUMED_SPREAD
    served: Mapping[str, Served] = field(default_factory=lambda: ASSUMED_SERVED)
    attained: float = 1.0
    attained_by: str = ""
    cores: float = 1.0
    accelerators: int = 0
    machine: tuple[str, ...] = ()
    source: str = ""
    assumed: tuple[str, ...] = ()

    def but(self, *assumed: str, **changes: Any) -> Costs:
        """Returns the costs with changes, and with more that is assumed."""
        return replace(self, assumed=(*self.assumed, *assumed), **changes)


def read_rows(file: Path) -> list[dict[str, Any]]:
    """Reads the rows of a file of costs: JSON objects, one a line.

    Raises:
      ConfigError: there is no such file, or a line is none.
    """
    try:
        with regular_files.open_to_read(file, links=True) as opened:
            text = opened.read().decode()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--costs {file} cannot be read: {error}") from error
    rows = []
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError as error:
            raise ConfigError(f"--costs {file}: line {number} is no JSON: {error}") from error
        if not isinstance(row, dict):
            raise ConfigError(f"--costs {file}: line {number} is no JSON object, and no row of seedbed bench")
        rows.append(row)
    return rows


def costs_of(rows: Iterable[Mapping[str, Any]], config: RunConfig) -> Costs:
    """Returns the costs of a run, from the rows that time its stages on one machine.

    Rows of other environments, agents and networks are left out, and so are rows of other machines than that of the
    last one that is left. Of several rows with a stage the last one counts.

    Args:
      rows: rows of ``seedbed bench``.
      config: settings of the run.

    Raises:
      ConfigError: no row is left, or a row is damaged.
    """
    rows = [row for row in rows if row.get("stages") or row.get("served")]
    fitting = [row for row in rows if row.get("stages") and _differs(row, config) is None]
    if not fitting:
        why = list(dict.fromkeys(filter(None, (_differs(row, config) for row in rows if row.get("stages")))))
        told = f": its rows are of {'; '.join(why[-3:])}" if why else ", nor of any other run"
        raise ConfigError(
            f"the file has no costs of {config.env} with this network under the agent {config.agent}{told}; "
            f"{_remedy(config)}"
        )
    machine = fitting[-1]["machine"]
    try:
        return _merged(
            [row for row in rows if row in fitting or row.get("served")], fitting[-1], machine, config
        )
    except (KeyError, TypeError, ValueError, ZeroDivisionError) as error:
        raise ConfigError(f"a row of the costs is damaged: {error!r}; {_remedy(config)}") from error


def is_of(row: Mapping[str, Any], config: RunConfig) -> bool:
    """Returns whether a row is of the run's environment and network, with any agent."""
    return _differs(row, config, "agent") is None


def timed_on(row: Mapping[str, Any]) -> tuple[str, ...]:
    """Returns processor, cores and devices of the machine that a row was timed on."""
    machine = row.get("machine") or {}
    return tuple(repr(machine.get(name)) for name in ("processor", "cores", "devices"))


def _remedy(config: RunConfig) -> str:
    return (
        f"time them: seedbed bench {config.env} --arch {config.arch} --agent {config.agent} … --results FILE"
    )


def _differs(row: Mapping[str, Any], config: RunConfig, *but: str) -> str | None:
    """Returns the first setting by which a row is of another computation than the run; None if there is none."""
    timed = row.get("settings") or {}
    own = {part.name: getattr(config.net, part.name) for part in fields(Network)}
    names = ("env", "env_options", "policies", "agent")
    wanted: dict[str, Any] = {name: getattr(config, name) for name in names}
    for name, value in (wanted | own).items():
        if name in timed and name not in but and _as_json(timed[name]) != _as_json(value):
            return f"{name} {timed[name]}"
    return None


def _as_json(value: Any) -> Any:
    # Versions before this one wrote 0 where there is None now.
    return (list(value) if isinstance(value, tuple) else value) or None


def _merged(
    rows: Sequence[Mapping[str, Any]],
    newest: Mapping[str, Any],
    machine: Mapping[str, Any],
    config: RunConfig,
) -> Costs:
    stages: dict[str, Mapping[str, Any]] = {}
    points: dict[Where, dict[int, float]] = {}
    # By size: the same name stands for calls of another size in another row.
    on_cores: dict[int, Mapping[str, Any]] = {}
    served: dict[str, Served] = dict(ASSUMED_SERVED)
    for row in rows:
        if timed_on(row) != timed_on(newest):
            continue
        for carrier, timed in (row.get("served") or {}).items():
            served[carrier] = Served(**timed)
        for name, stage in (row.get("stages") or {}).items():
            stages[name] = stage
            if (sized := _call(name, stage)) is not None:
                where, size, seconds = sized
                points.setdefault(where, {})[size] = seconds
                if where == "cores":
                    on_cores[size] = stage
    cores, devices = float(machine["cores"]), [name for name in machine["devices"] if name != "cpu"]
    costs = Costs(
        act={where: Curve(tuple(sorted(found.items()))) for where, found in points.items()},
        own_threads=config.env.startswith(_OWN_THREADS),
        served=served,
        cores=cores,
        accelerators=len(devices),
        machine=timed_on(newest),
        source=f"{machine['processor']}, {cores:g} cores, {', '.join(devices) or 'no accelerator'}, commit "
        f"{newest.get('commit', 'unknown')}",
    )
    if (stage := stages.get("environment")) is not None:
        found = _ABOUT_PROCESSES.match(stage["about"])
        costs = costs.but(step=float(found.group(1) if found else cores) / stage["steps_per_second"])
    if (stage := stages.get("learner")) is not None:
        threads, assumed = _threads(stage, "updates", cores)
        seconds = _passes(newest, config) / stage["steps_per_second"]
        costs = costs.but(*assumed, train=seconds, train_threads=threads)
    if (stage := stages.get("acting")) is not None:
        costs = costs.but(play=1.0 / stage["steps_per_second"], act_threads=cores)
    if on_cores:
        threads, assumed = _threads(on_cores[max(on_cores)], "calls of the policy", cores)
        costs = costs.but(*assumed, act_threads=threads)
    costs = _crowded(costs, stages.get("crowded inference"))
    if (stage := stages.get("join")) is not None:
        costs = costs.but(join=1.0 / stage["steps_per_second"])
    return costs.but(*_differences(newest, config))


def _crowded(costs: Costs, stage: Mapping[str, Any] | None) -> Costs:
    """Returns the costs with the further time of a call of the policy beside busy cores."""
    if stage is None:
        return costs.but(
            "a call of the policy takes as long beside busy cores as alone; no row has the stage 'crowded inference'"
        )
    sized = _call("inference", stage)
    assert sized is not None
    where, rows, seconds = sized
    alone = costs.act[where].at(rows)
    if where == "cores":  # which the others have their share of
        alone *= max(1.0, (costs.act_threads + stage["crowd"]) / costs.cores)
    return costs.but(crowded=max(0.0, seconds - alone))


def _call(name: str, stage: Mapping[str, Any]) -> tuple[Where, int, float] | None:
    """Returns place, rows and time in s of one call of the policy; None if the stage times another thing."""
    if not re.fullmatch(r"inference( \d+)?", name):
        return None
    if stage.get("rows"):
        rows, device = int(stage["rows"]), stage["device"]
    elif (found := _ABOUT_BATCH.match(stage["about"])) is not None:
        rows, device = int(found.group(1) or found.group(3)), found.group(2) or found.group(4)
    else:
        raise ValueError(f"the stage {name} does not say how many rows its calls have")
    return "cores" if device == "cpu" else "accelerator", rows, rows / stage["steps_per_second"]


def _threads(stage: Mapping[str, Any], what: str, cores: float) -> tuple[float, list[str]]:
    """Returns the cores that a stage keeps busy, and the assumptions in that."""
    if stage.get("cores"):
        return max(1.0, float(stage["cores"])), []
    return cores, [f"{what} keep all {cores:g} cores of the timed machine busy, if they run on cores"]


def _passes(row: Mapping[str, Any], config: RunConfig) -> float:
    """Returns the number of times that the run trains on a step, as a multiple of the timed one."""
    times, timed = 1.0, row.get("settings") or {}
    for name in ("reuse", "replay_ratio"):
        if (value := getattr(config.settings, name, None)) and timed.get(name):
            times *= value / timed[name]
    return times


def _differences(row: Mapping[str, Any], config: RunConfig) -> Iterator[str]:
    """Yields settings that change the cost of an update or of a step, and are others than the timed ones."""
    timed = row.get("settings") or {}
    for name in ("batch_size", "unroll_length", "minibatches"):
        value = getattr(config.settings, name, None)
        if name in timed and value is not None and timed[name] != value:
            yield f"an agent step costs the learner the same with {name} {value} as with {timed[name]}, the timed one"
    if (times := _passes(row, config)) != 1.0:
        yield f"training {times:g} times as often on a step costs {times:g} times as much"
