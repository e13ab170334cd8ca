"""``seedbed plan [ENV] …``: predicts a run on some machines from the measured costs of its stages."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, make_dataclass
from dataclasses import replace as with_changes
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from seedbed.cli.defaults import defaults_of, more_for, plain, typed
from seedbed.cli.parse import parse, print_line
from seedbed.cli.program import declared
from seedbed.config.resolve import replace
from seedbed.config.settings import RunConfig
from seedbed.errors import ConfigError
from seedbed.installation import clone
from seedbed.metrics.pictures import drawn, require_picture

if TYPE_CHECKING:
    from seedbed.launch.build import Trials
    from seedbed.planning.plan import Plan, Request

ABOUT = (
    "Predict a run with the settings of seedbed train from the stages that seedbed bench has timed: steps/s, lag, use "
    "of cores, accelerators and network, the bound, and the price."
)
_BOTH_KINDS = ("vtrace", "dqn")
"""Agents that learn from a queue and from a replay, of which every architecture can run one."""


@dataclass(frozen=True)
class PlanFlags:
    """Settings of the plan."""

    costs: str | None = None
    """File with rows of seedbed bench; none: bench.jsonl of a clone."""
    machine: tuple[str, ...] = ()
    """Machine of the head, and of actors: cores=64,accelerators=1,price=3.5,count=1; none: as timed."""
    target_steps_per_second: float | None = None
    """Agent steps a second: the actors (and their machines) are multiplied until the plan has them."""
    compare: tuple[str, ...] = ()
    """Architectures to compare instead."""
    picture: str | None = None
    """PNG or SVG that the use of every resource is drawn to."""
    run: RunConfig = field(default_factory=RunConfig)


def run(arguments: list[str]) -> None:
    """Prints the plan; starts nothing."""
    flags = _read(arguments)
    archs = [arch for word in flags.compare for arch in word.split(",") if arch]
    if flags.picture:
        require_picture(flags.picture)
    if archs and flags.target_steps_per_second is not None:
        raise ConfigError("--compare and --target-steps-per-second are two questions: give one of them")
    trials: Trials = {}
    _show(flags, _compared(flags, archs, trials) if archs else {flags.run.arch: _planned(flags, trials)})


def _read(arguments: list[str]) -> PlanFlags:
    default = typed(defaults_of("plan", arguments, PlanFlags), arguments)
    kind = make_dataclass("PlanFlags", [("run", type(default), default)], bases=(PlanFlags,), frozen=True)
    kind.__doc__ = PlanFlags.__doc__
    given: PlanFlags = parse("plan", kind, arguments, kind(run=default), ABOUT + more_for(arguments))
    return with_changes(given, run=plain(given.run))


def _planned(flags: PlanFlags, trials: Trials) -> Plan:
    from seedbed.planning.plan import plan, scaled_to

    request = _request(flags, flags.run, trials)
    target = flags.target_steps_per_second
    if target is None:
        return plan(request, _doubled(flags.run, trials))
    if not target > 0:
        raise ConfigError(f"target_steps_per_second is {target}, and has to be more than 0")
    found = scaled_to(target, lambda times: _times(flags, request, times, trials))
    return found.plan


def _doubled(config: RunConfig, trials: Trials) -> Any:
    """The program with twice the actors; None where there are none, or their number has to be what it is."""
    actors = getattr(config.placement, "actors", 0)
    if not actors:
        return None
    try:
        return declared(replace(config, actors=2 * actors), trials)
    except ConfigError:
        return None


def _times(flags: PlanFlags, request: Request, times: int, trials: Trials) -> Request:
    actors = getattr(flags.run.placement, "actors", 0)
    if not actors:
        raise ConfigError(
            f"{flags.run.arch} has no actors: --target-steps-per-second has nothing to multiply"
        )
    machines = tuple(
        with_changes(machine, count=machine.count * times) if index else machine
        for index, machine in enumerate(request.machines)
    )
    program = declared(replace(flags.run, actors=actors * times), trials) if times > 1 else request.program
    return with_changes(request, program=program, machines=machines)


def _request(flags: PlanFlags, config: RunConfig, trials: Trials) -> Request:
    from seedbed.architectures.roles import carrier_of
    from seedbed.launch.build import build_spec
    from seedbed.planning.costs import costs_of, read_rows
    from seedbed.planning.loss import with_loss
    from seedbed.planning.machines import Machine, machines_of
    from seedbed.planning.plan import Request

    machines = machines_of(flags.machine)
    rows = read_rows(_costs_file(flags))
    costs = with_loss(costs_of(rows, config), rows, config, partial(declared, earlier=trials))
    return Request(
        declared(config, trials),
        costs,
        machines or (Machine(cores=costs.cores, accelerators=costs.accelerators),),
        carrier_of(config),
        build_spec(config, trials).frames_per_step,
    )


def _costs_file(flags: PlanFlags) -> Path:
    if flags.costs is not None:
        return Path(flags.costs)
    root = clone()
    if root is None:
        raise ConfigError(
            "the costs of the stages are missing: time them with seedbed bench … --results FILE, and give --costs FILE"
        )
    return root / "benchmarks" / "results" / "bench.jsonl"


def _compared(flags: PlanFlags, archs: list[str], trials: Trials) -> dict[str, Plan | str]:
    from seedbed.planning.plan import plan

    found: dict[str, Plan | str] = {}
    for arch in archs:
        try:
            agent, config = _runnable(flags.run, arch, trials)
            found[f"{arch} {agent}"] = plan(_request(flags, config, trials), _doubled(config, trials))
        except ConfigError as error:
            found[arch] = str(error)
    return found


def _runnable(config: RunConfig, arch: str, trials: Trials) -> tuple[str, RunConfig]:
    """The run under another architecture: with its agent, or with one of the other kind if that does not fit.

    Raises:
      ConfigError: neither fits, or there is no such architecture.
    """
    from seedbed.architectures.compatibility import why_not
    from seedbed.launch.build import build_agent, build_spec

    spec, reasons = build_spec(config, trials), []
    for agent in dict.fromkeys((config.agent, *_BOTH_KINDS)):
        changed = replace(config, arch=arch, agent=agent)
        if (reason := why_not(changed, build_agent(changed, spec))) is None:
            return agent, changed
        reasons.append(reason)
    raise ConfigError(reasons[0])


def _show(flags: PlanFlags, plans: dict[str, Plan | str]) -> None:
    from seedbed.planning.plan import Plan
    from seedbed.planning.report import compared, draw, lines

    made = {name: each for name, each in plans.items() if isinstance(each, Plan)}
    if flags.run.json:
        told = {
            name: each.to_json() if isinstance(each, Plan) else {"why": each} for name, each in plans.items()
        }
        print_line(json.dumps(told, indent=2))
    elif flags.compare:
        for line in compared(plans):
            print_line(line)
    else:
        for plan in made.values():
            for line in lines(plan):
                print_line(line)
    if flags.picture and made:
        drawn(partial(draw, made), flags.picture)
        print_line(f"drawn to {flags.picture}")
