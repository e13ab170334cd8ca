"""``seedbed program``: the processes and threads of a run, and the traffic between them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING

from seedbed.cli.defaults import read_config
from seedbed.cli.parse import print_line
from seedbed.priority import IDLE

ABOUT = "Show the processes and threads of a run with these flags, and the bytes that travel between them."

_ASIDE = {0: "", IDLE: ", on idle cores", None: ", on idle cores beside an accelerator"}
"""Priorities of a role's processes, by niceness."""

if TYPE_CHECKING:
    from seedbed.architectures.program import Program, Role
    from seedbed.config.settings import RunConfig
    from seedbed.launch.build import Trials
    from seedbed.types import Agent


def run(arguments: list[str]) -> None:
    """Prints roles, needs, edges and bytes; starts nothing."""
    config = read_config("program", arguments, ABOUT)
    from seedbed.architectures.roles import carrier_of

    program = declared(config)
    if config.json:
        print_line(json.dumps(program.to_json(), indent=2))
        return
    for line in lines(program, carrier_of(config)):
        print_line(line)


def declared(config: RunConfig, earlier: Trials | None = None) -> Program:
    """Returns the program that a run with these settings would start; takes and raises what :func:`built` does."""
    return built(config, earlier)[1]


def built(config: RunConfig, earlier: Trials | None = None) -> tuple[Agent, Program]:
    """Returns the agent and the program of a run with these settings.

    Args:
      config: settings of the run.
      earlier: trials of environments that are not made again, see :func:`seedbed.launch.build.build_spec`.

    Raises:
      ConfigError: a setting does not fit.
    """
    from seedbed.architectures.compatibility import load_architecture, require_fit
    from seedbed.launch.build import build_agent, build_spec

    spec = build_spec(config, earlier)
    agent = build_agent(config, spec)
    require_fit(config, agent)
    architecture = load_architecture(config.arch)
    return agent, architecture.program(architecture.place(config), agent, spec)


def kind(program: Program, role: Role, carrier: str) -> str:
    """Returns what the instances of a role are; with the carrier ``inproc`` all are threads of one process."""
    if role.name == program.head:
        return "the head"
    return "process" if role.entry and carrier != "inproc" else "thread of the head"


def lines(program: Program, carrier: str) -> Iterator[str]:
    """Yields the program as people read it: a table of roles, and one of the traffic.

    Args:
      program: the program.
      carrier: name of the carrier between roles on one machine.
    """
    if program.hosts > 1:
        yield f"on each of {program.hosts} hosts:"
    yield f"{'role':<20} {'count':>5} {'cores':>6} {'devices':>7}  what it is"
    for role in program.roles:
        watched = f", silent for {role.silent_after:g} s at most" if role.silent_after else ""
        again = f", restarted {role.restarts} times at most" if role.restarts is not None else ""
        aside = _ASIDE.get(role.niceness, f", nice {role.niceness}")
        more = f", and {role.guests} guests that come and go" if role.guests else ""
        near = f", near the {role.near}" if role.near else ""
        yield (
            f"{role.name:<20} {role.count:>5} {role.needs.cores:>6g} {role.needs.accelerators:>7}  "
            f"{kind(program, role, carrier)}{more}{near}{watched}{again}{aside}"
        )
    rows = [
        (role.name, edge.to, each) if each.direction == "up" else (edge.to, role.name, each)
        for role, edge in program.edges
        for each in edge.traffic
    ]
    if not rows:
        yield "nothing travels between processes"
        return
    yield ""
    if carrier == "inproc":
        yield "all of it is one process, in which this is handed over:"
    yield f"{'from':<20} {'to':<20} {'bytes':>12}  per       what"
    for source, to, each in rows:
        yield f"{source:<20} {to:<20} {each.bytes:>12,.0f}  {each.per:<9} {each.what}"
