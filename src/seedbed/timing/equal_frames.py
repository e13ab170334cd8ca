"""Every agent under every architecture that can run it, for the same number of frames: costs and returns of each.

Each run has the preset of its agent and architecture, as ``seedbed train`` would have: architectures need different
settings, and the question is the result of the recommended ones.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from seedbed.architectures.compatibility import load_architecture, why_not
from seedbed.config.resolve import defaults, flat, replace, to_json
from seedbed.config.settings import RunConfig
from seedbed.envs.on_device.makers import make_native
from seedbed.errors import ConfigError, RunFailed
from seedbed.launch.build import build_agent, build_spec
from seedbed.launch.signals import ending_as_by_ctrl_c
from seedbed.registry import AGENTS, ARCHITECTURES
from seedbed.timing.stages import finished_run, leave_memory, provenance
from seedbed.types import EnvSpec


@dataclasses.dataclass(frozen=True)
class Pair:
    """An agent and an architecture that go together.

    Attributes:
      agent, arch: names of the two.
      config: settings of the run.
    """

    agent: str
    arch: str
    config: RunConfig


@dataclasses.dataclass(frozen=True)
class Ran:
    """The cost and the result of a run.

    Attributes:
      seconds: seconds of training.
      frames_per_second: environment frames, once everything was compiled.
      cpu_seconds: processor time of all its processes, from start to end, for a million frames.
      bytes_per_frame: bytes of arrays that travelled between actors, or workers, and their receivers, be they in
        the same process; None where nothing does.
      lag: mean number of updates between the weights that acted and the trained ones; for pushed gradients: other
        gradients that were taken in between.
      mean_return: mean of the last 100 episodes; None if none has ended.
    """

    seconds: float
    frames_per_second: float
    cpu_seconds: float
    bytes_per_frame: float | None
    lag: float | None
    mean_return: float | None


def pairs(config: RunConfig, spec: EnvSpec) -> list[Pair]:
    """Returns all pairs that go together, architecture by architecture.

    Args:
      config: settings; each one that differs from its preset is set in every run that has it.
      spec: spec of the environments.

    Raises:
      ConfigError: there is no limit of frames, or nothing goes together.
    """
    if config.stop.frames is None:
        raise ConfigError("--compare all trains every run for as many frames: add --frames N")
    before = flat(defaults(config.env, config.preset, config.agent, config.arch))
    given = {name: value for name, value in flat(config).items() if value != before.get(name)}
    given |= {"frames": config.stop.frames, "until_return": None}
    for axis in ("agent", "arch", "env", "preset"):
        given.pop(axis, None)
    found = []
    for arch, agent in itertools.product(ARCHITECTURES.names, AGENTS.names):
        pair = defaults(config.env, config.preset, agent, arch)
        try:
            if load_architecture(arch).policy == "program":
                make_native(config.env, config.making)
            pair = replace(pair, **{name: value for name, value in given.items() if name in flat(pair)})
            reason = why_not(pair, build_agent(pair, spec))
        except ConfigError:
            continue
        if reason is None:
            found.append(Pair(agent, arch, pair))
    if not found:
        raise ConfigError(f"no agent goes with any architecture as they are set: {', '.join(sorted(given))}")
    return found


def ran(config: RunConfig) -> Ran:
    """Runs it to its end; raises :class:`~seedbed.errors.RunFailed`."""
    summary, rows = finished_run(config)
    last, frames = rows[-1], summary["env_frames"]
    per_step = frames / summary["agent_steps"]
    stale = [row["gradient_staleness_mean"] for row in rows if "gradient_staleness_mean" in row]
    travelled = last.get("bytes_from_actors", 0.0) + last.get("bytes_to_actors", 0.0)
    return Ran(
        seconds=summary["seconds"],
        frames_per_second=per_step * (summary["agent_steps_per_second"] or 0.0),
        cpu_seconds=1e6 * last["cpu_seconds"] / frames,
        bytes_per_frame=travelled / frames if travelled else None,
        lag=sum(stale) / len(stale) if stale else summary["policy_lag_mean"],
        mean_return=summary["mean_return"],
    )


@ending_as_by_ctrl_c()
def compare_all(config: RunConfig, say: Callable[[Pair, Ran | RunFailed], None]) -> dict[str, Any]:
    """Makes every run in turn; returns the row for ``benchmarks/results/``.

    Args:
      config: see :func:`pairs`.
      say: takes the figures of each run, or its failure; the others go on.

    Raises:
      RunFailed: no run came to its end.
    """
    leave_memory()
    row = provenance()
    compared = []
    for pair in pairs(config, build_spec(config)):
        try:
            found = ran(pair.config)
        except RunFailed as error:
            say(pair, error)
        else:
            say(pair, found)
            settings = to_json(pair.config)
            figures = dataclasses.asdict(found)
            compared.append({"agent": pair.agent, "arch": pair.arch, **figures, "settings": settings})
    if not compared:
        raise RunFailed("bench: no run of the comparison came to its end; what each said stands above")
    return {"frames": config.stop.frames, "pairs": compared, **row}


COLUMNS = {
    "frames_per_second": ("frames/s", "{:,.0f}"),
    "cpu_seconds": ("CPU s/M frames", "{:,.0f}"),
    "bytes_per_frame": ("bytes/frame", "{:,.0f}"),
    "lag": ("staleness", "{:,.1f}"),
    "mean_return": ("return", "{:,.1f}"),
    "seconds": ("s", "{:,.0f}"),
}
"""Format of each figure."""


def shown(figures: Mapping[str, Any]) -> Iterator[str]:
    """The cells of a line of the table."""
    for name, (_, form) in COLUMNS.items():
        yield "–" if figures[name] is None else form.format(figures[name])


def table(row: Mapping[str, Any]) -> str:
    """A comparison as a Markdown table."""
    heads = ["architecture", "agent", *(head for head, _ in COLUMNS.values())]
    lines = [heads, ["---"] * 2 + ["---:"] * len(COLUMNS)]
    lines += [[each["arch"], each["agent"], *shown(each)] for each in row["pairs"]]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
