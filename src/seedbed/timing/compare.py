"""One agent under several architectures, with the same network and environments: the cost and the speed of each.

It is the comparison of Espeholt et al. 2020 ("SEED RL", sections 4.2 and 4.3), on one machine: as the network grows,
does it pay to run the policy for all actors in one place? Architectures of replay agents and the others' cannot run
one agent, so each kind is compared among its own; SEED runs both.
"""

from __future__ import annotations

import dataclasses
import itertools
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from seedbed.architectures.compatibility import why_not
from seedbed.config.placement import names_of
from seedbed.config.resolve import defaults, replace, to_json
from seedbed.config.settings import RunConfig
from seedbed.errors import ConfigError, RunFailed
from seedbed.launch.build import build_agent, build_spec
from seedbed.launch.signals import ending_as_by_ctrl_c
from seedbed.registry import ARCHITECTURES
from seedbed.timing.stages import leave_memory, provenance, whole_run
from seedbed.types import EnvSpec, leaves

NETWORKS: dict[str, dict[str, Any]] = {
    "small": {"network": "small"},
    "medium": {"network": "nature"},
    "large": {"network": "deep"},
}
"""Networks for images."""
DENSE: dict[str, dict[str, Any]] = {
    "small": {"network": "mlp", "hidden": (64, 64)},
    "medium": {"network": "mlp", "hidden": (512, 512)},
    "large": {"network": "mlp", "hidden": (2048, 2048)},
}
"""Networks for everything else."""
_REPLAY = {"replay_size": 20_000, "replay_min_size": 1_000}
"""Small sizes, so that learning begins at once: the cost of a replay does not depend on its contents."""


@dataclasses.dataclass(frozen=True)
class Case:
    """One run of the comparison.

    Attributes:
      agent, arch, network: names of the agent, the architecture and the size: small, medium or large.
      config: settings of the run.
    """

    agent: str
    arch: str
    network: str
    config: RunConfig

    @property
    def name(self) -> str:
        """Of the case, for people."""
        return f"{self.agent} {self.arch} {self.network}"


@dataclasses.dataclass(frozen=True)
class Found:
    """The cost and the speed of a run, in the second half of its time.

    Attributes:
      frames_per_second: environment frames.
      cpu_seconds: processor time of all its processes, for a million frames.
      bytes_per_second: arrays that travelled between actors and learner, both ways.
      action_wait_p50, action_wait_p99: ms from an observation to its action, as the actor sees it.
      policy_lag: updates, mean.
      batch_fill: size of inference batches, as a share of full ones; 1 where actors run the policy.
      learner_busy: share of the time in which the learner was training.
    """

    frames_per_second: float
    cpu_seconds: float
    bytes_per_second: float
    action_wait_p50: float
    action_wait_p99: float
    policy_lag: float
    batch_fill: float
    learner_busy: float


def cases(config: RunConfig, archs: Sequence[str], spec: EnvSpec) -> list[Case]:
    """Returns the runs of a comparison, in the order in which they are made.

    Args:
      config: the agent, the environments and the places of the parts; settings that only its architecture has must
        have their defaults.
      archs: names of architectures.
      spec: spec of the environments.

    Raises:
      ConfigError: an architecture is none of these, or there is nothing to compare.
    """
    for arch in archs:
        ARCHITECTURES.load(arch)
    if len(set(archs)) < 2:
        raise ConfigError(
            f"--compare {','.join(archs)}: give two or more of {', '.join(ARCHITECTURES.names)}"
        )
    _require_shared(config, archs)
    networks = NETWORKS if any(leaf.is_image for _, leaf in leaves(spec.observation)) else DENSE
    found = []
    for network, agent, arch in itertools.product(networks, _agents(config), archs):
        case = replace(_of(config, agent), arch=arch, **networks[network])
        if why_not(case, build_agent(case, spec)) is None:
            found.append(Case(agent, arch, network, case))
    kept = [
        case for case in found if sum((case.agent, case.network) == (o.agent, o.network) for o in found) > 1
    ]
    if not kept:
        given = build_agent(config, spec)
        reasons = [why_not(replace(config, arch=arch), given) for arch in archs]
        why = "; ".join(reason for reason in reasons if reason)
        raise ConfigError(f"{config.agent} runs under at most one of {', '.join(archs)}: {why}")
    return kept


def _require_shared(config: RunConfig, archs: Sequence[str]) -> None:
    """Raises :class:`ConfigError` at a setting that is not by default, and that one of the architectures lacks."""
    for arch in archs:
        shared = names_of(ARCHITECTURES.load(arch).Settings)
        for part in dataclasses.fields(config.placement):
            given = getattr(config.placement, part.name)
            if given != part.default and part.name not in shared:
                raise ConfigError(
                    f"{part.name} is {given}, and {arch} has no such setting: leave it out to compare"
                )


def _agents(config: RunConfig) -> tuple[str, str]:
    """The one that was given, and one of the other kind."""
    return (config.agent, "vtrace" if hasattr(config.settings, "replay_size") else "dqn")


def _of(config: RunConfig, agent: str) -> RunConfig:
    """The same run of another agent, as its preset has that; without limits, and with a small replay."""
    # Environments that only evaluate would cost one kind of agent what the other has no use for.
    shared = {"frames": None, "anneal_to_zero": False, "eval_envs": 0}
    if agent != config.agent:
        other = defaults(config.env, config.preset, agent)
        config = replace(config, eval_envs=0)
        same = {
            name: getattr(config, name) for name in ("env_options", "policies", "seed", "placement", "net")
        }
        config = dataclasses.replace(other, **same)
    return replace(config, **shared, **(_REPLAY if hasattr(config.settings, "replay_size") else {}))


def measured(config: RunConfig, seconds: float) -> Found:
    """Runs it for so many seconds; raises :class:`~seedbed.errors.RunFailed` as the bench does."""
    _, rows = whole_run(config, seconds)
    first, last = rows[0], rows[-1]

    def rate(name: str, per: str = "seconds") -> float:
        return (last.get(name, 0.0) - first.get(name, 0.0)) / max(last[per] - first[per], 1e-9)

    def middle(name: str, otherwise: float = 0.0) -> float:
        return statistics.median([row[name] for row in rows if name in row] or [otherwise])

    return Found(
        frames_per_second=rate("env_frames"),
        cpu_seconds=1e6 * rate("cpu_seconds", "env_frames"),
        bytes_per_second=rate("bytes_from_actors") + rate("bytes_to_actors"),
        action_wait_p50=middle("action_wait_p50"),
        action_wait_p99=middle("action_wait_p99"),
        policy_lag=middle("policy_lag_mean"),
        batch_fill=middle("batch_fill", otherwise=1.0),
        learner_busy=middle("learner_busy"),
    )


@ending_as_by_ctrl_c()
def compare(
    config: RunConfig,
    archs: Sequence[str],
    seconds: float,
    rounds: int = 1,
    say: Callable[[Case, Found | RunFailed], None] = lambda case, found: None,
) -> dict[str, Any]:
    """Runs every case in turn, round after round; returns the row for ``benchmarks/results/``.

    Args:
      config: see :func:`cases`; its limits are ignored.
      archs: architectures to compare.
      seconds: length of each run, of which the second half counts.
      rounds: number of rounds.
      say: takes the figures of each run, or its failure; the others go on.

    Raises:
      RunFailed: no run has shown anything.
    """
    leave_memory()
    row = provenance()
    spec = build_spec(config)
    runs = cases(config, archs, spec)
    found: dict[str, list[Found]] = {case.name: [] for case in runs}
    for _, case in itertools.product(range(rounds), runs):
        try:
            found[case.name].append(measured(case.config, seconds))
        except RunFailed as error:
            say(case, error)
        else:
            say(case, found[case.name][-1])
    if not any(found.values()):
        raise RunFailed("bench: no run of the comparison came to an end; what each said stands above")
    return {
        "compared": [
            {
                "agent": case.agent,
                "arch": case.arch,
                "network": case.network,
                **_medians(found[case.name]),
                "rounds": [dataclasses.asdict(each) for each in found[case.name]],
            }
            for case in runs
            if found[case.name]
        ],
        "seconds": seconds,
        "settings": to_json(config),
        **row,
    }


def _medians(found: Sequence[Found]) -> dict[str, float]:
    names = [field.name for field in dataclasses.fields(Found)]
    return {name: statistics.median(getattr(each, name) for each in found) for name in names}


COLUMNS = {
    "frames_per_second": ("frames/s", "{:,.0f}"),
    "cpu_seconds": ("CPU s/M frames", "{:,.0f}"),
    "bytes_per_second": ("MB/s", "{:,.2f}"),
    "action_wait_p50": ("wait p50 ms", "{:,.2f}"),
    "action_wait_p99": ("p99 ms", "{:,.1f}"),
    "policy_lag": ("lag", "{:,.1f}"),
    "batch_fill": ("batch fill", "{:.2f}"),
    "learner_busy": ("learner busy", "{:.2f}"),
}
"""Format of each figure."""


def shown(figures: Mapping[str, Any]) -> Iterator[str]:
    """The cells of a line of the table."""
    for name, (_, form) in COLUMNS.items():
        yield form.format(figures[name] / (1e6 if name == "bytes_per_second" else 1))


def table(row: Mapping[str, Any]) -> str:
    """A comparison as a Markdown table."""
    heads = ["network", "agent", "architecture", *(head for head, _ in COLUMNS.values())]
    lines = [heads, ["---"] * 3 + ["---:"] * len(COLUMNS)]
    lines += [[each["network"], each["agent"], each["arch"], *shown(each)] for each in row["compared"]]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def draw(row: Mapping[str, Any], picture: Path) -> None:
    """Draws a comparison as a PNG: a panel for each figure, a group of bars for each network."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    panels = {
        "frames_per_second": "frames a second",
        "cpu_seconds": "CPU seconds for a million frames",
        "action_wait_p50": "wait for an action, ms (median)",
        "bytes_per_second": "bytes a second between actors and learner",
    }
    lines = list(dict.fromkeys((each["agent"], each["arch"]) for each in row["compared"]))
    networks = list(dict.fromkeys(each["network"] for each in row["compared"]))
    by = {(each["agent"], each["arch"], each["network"]): each for each in row["compared"]}
    figure = Figure(figsize=(12, 7), layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(
        f"{row['settings']['env']} on {row['machine']['cores']} cores, {row['machine']['devices'][0]}"
    )
    for axes, (name, label) in zip(figure.subplots(2, 2).flat, panels.items(), strict=True):
        for index, (agent, arch) in enumerate(lines):
            places = [
                place + (index - (len(lines) - 1) / 2) * 0.8 / len(lines) for place in range(len(networks))
            ]
            nothing: Mapping[str, Any] = {}
            heights = [by.get((agent, arch, network), nothing).get(name, 0.0) for network in networks]
            axes.bar(places, heights, 0.75 / len(lines), label=f"{agent} under {arch}")
        axes.set_xticks(range(len(networks)), networks)
        axes.set_yscale("log")
        axes.set_title(label)
        axes.grid(axis="y", alpha=0.3)
    figure.axes[0].legend()
    picture.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(picture, dpi=110)
