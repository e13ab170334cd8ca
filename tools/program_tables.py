"""Writes what each architecture's page says of its processes, and of what travels between them, from its program.

Run without arguments. The numbers are of Breakout with the Nature CNN, two actors of sixteen environments, and the
agent that is named.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

from seedbed.architectures.compatibility import load_architecture
from seedbed.architectures.program import Program, Role
from seedbed.architectures.roles import carrier_of
from seedbed.cli.program import kind
from seedbed.config.resolve import configure
from seedbed.launch.build import build_agent, build_spec
from seedbed.types import EnvSpec

PAGES = Path(__file__).parent.parent / "docs" / "architectures"
BEGIN = "<!-- Written by tools/program_tables.py from the architecture's program; do not edit. -->"
END = "<!-- end of what tools/program_tables.py writes -->"
AGENTS = {"apex": "dqn", "gorila": "dqn", "a3c": "a2c", "distbelief": "bc"}
SETTINGS = {"preset": "none", "network": "nature"}


@cache
def spec() -> EnvSpec:
    """Of Breakout, which every page's numbers are of."""
    return build_spec(configure("ALE/Breakout-v5"))


def program_of(arch: str) -> tuple[Program, str]:
    """The program of an architecture and its carrier, for its page."""
    config = configure("ALE/Breakout-v5", arch=arch, agent=AGENTS.get(arch, "vtrace"), **SETTINGS)
    architecture = load_architecture(arch)
    config = architecture.place(config)
    return architecture.program(config, build_agent(config, spec()), spec()), carrier_of(config)


def block(arch: str) -> str:
    """The part of an architecture's page that is written here."""
    program, carrier = program_of(arch)
    lines = [
        BEGIN,
        "",
        "| role | instances | what it is | needs |",
        "|---|---|---|---|",
        *(_role(program, role, carrier) for role in program.roles),
        "",
    ]
    rows = [
        (role.name, edge.to, each) if each.direction == "up" else (edge.to, role.name, each)
        for role, edge in program.edges
        for each in edge.traffic
    ]
    if rows:
        if carrier == "inproc":
            lines += ["All of it is one process, in which this is handed over:", ""]
        lines += ["| what travels | from, to | bytes | per |", "|---|---|---|---|"]
        lines += [
            f"| {each.what} | {one} to {other} | {each.bytes:,.0f} | {each.per} |"
            for one, other, each in rows
        ]
    else:
        lines.append("Nothing travels between processes.")
    agent = AGENTS.get(arch, "vtrace")
    command = f"seedbed program ALE/Breakout-v5 --arch {arch} --agent {agent} --preset none --network nature"
    lines += ["", f"(`{command}`;", "a step and an unroll are of one environment.)", "", END]
    return "\n".join(lines)


def _role(program: Program, role: Role, carrier: str) -> str:
    devices = f", {role.needs.accelerators} device" if role.needs.accelerators else ""
    return f"| {role.name} | {role.count} | {kind(program, role, carrier)} | {role.needs.cores:g} core{devices} |"


def with_block(arch: str, page: str) -> str:
    """The page with the present block in the place of the one before."""
    return re.sub(f"{re.escape(BEGIN)}.*?{re.escape(END)}", lambda _: block(arch), page, flags=re.DOTALL)


def pages() -> dict[Path, str]:
    """Every page with its block."""
    found = {path: path.read_text() for path in sorted(PAGES.glob("*.md"))}
    return {path: with_block(path.stem, text) for path, text in found.items() if BEGIN in text}


if __name__ == "__main__":
    for path, text in pages().items():
        path.write_text(text)
