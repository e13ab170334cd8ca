"""Writes the tables of docs/plan.md: predicted beside measured. With ``--check`` it only compares.

Measured are rows that the repository keeps (``bench.jsonl``, ``compare.jsonl``, ``gpu.jsonl``), those that
``benchmarks/planned.py`` has added (``planned.jsonl``), and the published ones of ``seed_paper.toml``. All is
predicted here.
"""

from __future__ import annotations

import json
import sys
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from seedbed.architectures.program import Acts, Edge, Environments, Program, Resources, Role, Traffic, Trains
from seedbed.architectures.roles import carrier_of
from seedbed.cli.program import declared as _declared
from seedbed.config.resolve import from_json
from seedbed.config.resolve import replace as configured
from seedbed.planning.costs import Costs, Curve, Served, costs_of
from seedbed.planning.loss import with_loss
from seedbed.planning.machines import Machine, machine_of
from seedbed.planning.plan import Request, plan

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "plan.md"
RESULTS = ROOT / "benchmarks" / "results"
BEGIN = "<!-- Written by tools/plan_page.py; do not edit. -->"
END = "<!-- end of what tools/plan_page.py writes -->"
_GOAL, _PAPER_GOAL = 0.15, 0.30
_CALIBRATED_MS, _CALIBRATED_ROWS = 6.323, 160
"""Time and rows of a call in the run on the H100 that the waiting of its threads is taken from."""
declared = partial(_declared, earlier={})  # each environment is tried once


@dataclass(frozen=True)
class Compared:
    """A prediction beside its measurement.

    Attributes:
      name: the run.
      measured, predicted: agent steps (of the paper: frames) a second; None where there is no prediction.
      remark: assumption, or the reason why there is no prediction.
    """

    name: str
    measured: float
    predicted: float | None
    remark: str = ""

    @property
    def off(self) -> float | None:
        """The prediction's distance from the measurement, as a share of that."""
        return None if self.predicted is None else self.predicted / self.measured - 1


def rows_of(name: str) -> list[dict[str, Any]]:
    """The rows of a file of results; none if there is no such file."""
    file = RESULTS / name
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def predicted(config: Any, costs: Costs) -> float:
    """Agent steps a second of a run on the machine that was timed."""
    machine = Machine(costs.cores, costs.accelerators)
    return plan(
        Request(declared(config), costs, (machine,), carrier_of(config)), moves=False
    ).steps_per_second


def on_cores() -> Iterator[Compared]:
    """The kept rows of two-core machines."""
    rows = rows_of("bench.jsonl")
    for row in rows:
        if "seedbed" in row["versions"]:
            continue  # those of this version are in planned.jsonl
        config = from_json(row["settings"])
        place = config.placement
        sizes = f"{place.actors} × {place.envs_per_actor}"
        name = f"{row['commit'].removesuffix('-dirty')}: Breakout, {config.arch}, {sizes}"
        dtype = "" if config.net.compute_dtype == "float32" else f", {config.net.compute_dtype}"
        whole = row["stages"]["whole"]["steps_per_second"]
        yield Compared(name + dtype, whole, predicted(config, costs_of([row], config)))
    compared = next(row for row in rows_of("compare.jsonl") if row.get("commit") == "6c8fb6e")
    timed = next(row for row in rows if row["commit"] == "317b780-dirty")
    for each in compared["compared"]:
        if (each["agent"], each["network"]) == ("vtrace", "medium"):
            config = configured(from_json(timed["settings"]), arch=each["arch"], transport="inproc")
            name = f"6c8fb6e: Breakout, {each['arch']}, 2 × 16"
            costs = costs_of([timed], config)
            yield Compared(name, each["frames_per_second"] / 4, predicted(config, costs), "stages of 317b780")


def on_the_h100() -> Iterator[Compared]:
    """The kept rows of an H100 with 16 cores."""
    rows = rows_of("gpu.jsonl")
    timed = [row for row in rows if "stages" in row]
    runs = [row for row in rows if "in_the_end" in row]
    for index, row in enumerate(runs):
        config = from_json(row["settings"])
        place, net = config.placement, config.net
        remark = "the call's waiting is taken from this run" if index == 0 else ""
        if config.arch == "sebulba":
            remark = "calls hold Python, which was not timed"
        name = f"Breakout, {config.arch}, {net.network}, {place.actors} × {place.envs_per_actor}"
        steps = row["in_the_end"]["agent_steps_per_second"]
        yield Compared(name, steps, predicted(config, waiting(costs_of(timed, config))), remark)
    compared = rows_of("compare.jsonl")[0]
    networks = {"small": "nature", "medium": "nature", "large": "deep"}
    for each in compared["compared"]:
        name = f"Breakout, {each['arch']}, {each['network']}, 16 × 16"
        steps = each["frames_per_second"] / 4
        if each["arch"] == "impala":
            yield Compared(name, steps, None, "the policy was not timed on these cores")
            continue
        source = timed[networks[each["network"]] == "deep"]
        config = configured(from_json(source["settings"]), envs_per_actor=16)
        remark = {"small": "costs of nature", "large": "costs of deep with an LSTM"}.get(each["network"], "")
        yield Compared(name, steps, predicted(config, waiting(costs_of(timed, config))), remark)


def waiting(costs: Costs) -> Costs:
    """The costs with the waiting of threads for cores that one run on that machine showed."""
    nature = rows_of("gpu.jsonl")[0]["stages"]["inference"]["steps_per_second"]
    # All cores are taken for the share of the time in which a run there used them.
    used = rows_of("compare.jsonl")[0]["compared"][0]
    crowd = used["cpu_seconds"] * used["frames_per_second"] / 1e6 / costs.cores
    late = (_CALIBRATED_MS / 1e3 - _CALIBRATED_ROWS / nature) / crowd
    return costs.but("a call waits for cores as in one run on that machine", crowded=late)


# -- the paper -------------------------------------------------------------------------------------------------


def paper() -> list[tuple[Compared, float, float | None]]:
    """The published rows, each with the price of 10^9 frames, predicted and published."""
    found = []
    for row in published()["row"]:
        rate = rate_of(row)
        costs = calibrated(rate, row["repeat"])
        made = plan(Request(of_the_paper(row), costs, machines_of(row), "grpc", row["repeat"]), moves=False)
        remark = f"{rate:,.0f} frames/s a CPU" + (", from this row" if row.get("calibrates") else "")
        name = f"{row['env']}, {row['accelerators']} {row['accelerator'].upper()}, {row['cpus']:,} CPUs"
        compared = Compared(name, row["frames"], made.frames_per_second, remark)
        found.append((compared, made.price_of_billion_frames, row.get("cost")))
    return found


def published() -> dict[str, Any]:
    """The file of the paper's figures."""
    return tomllib.loads((RESULTS / "seed_paper.toml").read_text())


def rate_of(row: dict[str, Any]) -> float:
    """Frames a second of one CPU in the row's environment, from the row that calibrates it."""
    env = row.get("rate_of", row["env"])
    one = next(each for each in published()["row"] if each["env"] == env and each.get("calibrates"))
    return float(one["frames"] / one["cpus"])


def of_the_paper(row: dict[str, Any]) -> Program:
    """The program of a published run of SEED, one actor on each CPU."""
    hosts = row.get("hosts", 1)
    actors, envs = row["cpus"] // hosts, row["envs"] // hosts
    rows = max(1, round(envs / actors))
    batch, unroll = row["batch"] // hosts or 1, 20
    devices = tuple(range(row["accelerators"] // hosts))
    head = Role(
        "learner",
        1,
        needs=Resources(1.0, len(devices)),
        acts=Acts(max(rows, envs // 2), 0.002, devices[:1]),
        trains=Trains(float(batch * unroll), unroll, waiting=4.0, devices=devices[-1:]),
    )
    picture = Traffic("observation", "up", 72.0 * 96 * 3, "step")
    actor = Role("actor", actors, "a:b", dials=(Edge("learner", (picture,)),), steps=Environments(rows))
    return Program((head, actor), hosts=hosts)


def calibrated(frames_a_cpu: float, repeat: float) -> Costs:
    """Costs in which only the environments take time."""
    nothing = Served(0.0, 0.0, 0.0, 1e-4)
    return Costs(
        step=repeat / frames_a_cpu,
        act={"accelerator": Curve(((1, 1e-6), (100_000, 1e-6)))},
        train=0.0,
        join=0.0,
        served={"grpc": nothing},
        accelerators=1,
        source="frames a second of one CPU, from the paper",
    )


def machines_of(row: dict[str, Any]) -> tuple[Machine, Machine]:
    """The machines of one host of a published row, with the paper's prices."""
    prices, hosts = published()["prices"], row.get("hosts", 1)
    accelerators, cpus = row["accelerators"] // hosts, row["cpus"] // hosts
    head = Machine(64, accelerators, price=accelerators * prices[row["accelerator"]], network=1e4)
    return head, Machine(cpus, price=cpus * prices["cpu"], network=1e4)


# -- the page --------------------------------------------------------------------------------------------------


def _cells(each: Compared, goal: float) -> str:
    """The two cells of a prediction; a miss is bold."""
    if each.predicted is None or each.off is None:
        return "– | –"
    bold = "**" if abs(each.off) > goal else ""
    return f"{each.predicted:,.0f} | {bold}{each.off:+.0%}{bold}"


def table(found: list[Compared], goal: float, head: str = "steps/s") -> Iterator[str]:
    """Yields a Markdown table, and a line that counts the misses."""
    yield f"| run | measured, {head} | predicted | | |"
    yield "|---|---:|---:|---:|---|"
    for each in found:
        yield f"| {each.name} | {each.measured:,.0f} | {_cells(each, goal)} | {each.remark} |"
    made = [each for each in found if each.off is not None]
    within = sum(abs(each.off or 0.0) <= goal for each in made)
    yield ""
    yield f"{within} of {len(made)} predictions are within {goal:.0%}; misses are bold."


def block() -> str:
    """The part of the page that is written here."""
    lines = [BEGIN, "", "### On two cores", "", *table(list(on_cores()), _GOAL), ""]
    lines += ["### On an H100 with 16 cores", "", *table(list(on_the_h100()), _GOAL), ""]
    if planned := rows_of("planned.jsonl"):
        lines += ["### Stages and run timed one after the other", "", *_planned_table(planned), ""]
    lines += ["### The SEED paper", "", *_paper_table(), "", END]
    return "\n".join(lines)


def _planned(rows: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, float, float, float | None]]:
    """Yields name, measured rate, and that from the stages alone and with the loss of the runs before it."""
    for index, row in enumerate(rows):
        config = from_json(row["settings"])
        own = {**row, "stages": {name: stage for name, stage in row["stages"].items() if name != "whole"}}
        before = [each for each in rows[:index] if each["settings"]["env"] == config.env]
        costs = costs_of([own], config)
        made = (
            with_loss(costs_of([*before, own], config), [*before, own], config, declared) if before else None
        )
        yield row["name"], row["measured"], predicted(config, costs), made and predicted(config, made)


def _planned_table(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yields a table of the runs with both predictions; the first of an environment has no earlier run's loss."""
    yield "| run | measured, steps/s | stages alone | | with an earlier run's loss | |"
    yield "|---|---:|---:|---:|---:|---:|"
    judged = within = 0
    for name, measured, *both in _planned(rows):
        alone, made = (Compared(name, measured, each) for each in both)
        yield f"| {name} | {measured:,.0f} | {_cells(alone, _GOAL)} | {_cells(made, _GOAL)} |"
        if made.off is not None:
            judged += 1
            within += abs(made.off) <= _GOAL
    yield ""
    yield f"{within} of {judged} predictions with an earlier run's loss are within {_GOAL:.0%}; misses are bold."


def _paper_table() -> Iterator[str]:
    found = paper()
    yield from table([compared for compared, *_ in found], _PAPER_GOAL, "frames/s")
    yield ""
    yield "| run | 10^9 frames, predicted | published |"
    yield "|---|---:|---:|"
    for compared, price, cost in found:
        yield f"| {compared.name} | ${price:,.0f} | {f'${cost:,.0f}' if cost else ''} |"
    yield ""
    yield "| Breakout, SEED, 128 actors of 32 environments, costs of the H100 | frames/s | 10^9 frames |"
    yield "|---|---:|---:|"
    yield from rented()


def rented() -> Iterator[str]:
    """Yields a line for each kind of machine that can be rented, with the H100's costs and as many actors as cores."""
    row = rows_of("gpu.jsonl")[0]
    for given in published()["machine"]:
        config = configured(from_json(row["settings"]), actors=128, envs_per_actor=32, transport="grpc")
        machines = (machine_of(given["head"]), replace(machine_of(given["actors"]), count=2))
        made = plan(Request(declared(config), costs_of([row], config), machines, "grpc", 4.0), moves=False)
        yield f"| {given['name']} | {made.frames_per_second:,.0f} | ${made.price_of_billion_frames:,.2f} |"


def main() -> None:
    text = PAGE.read_text()
    begin, end = text.index(BEGIN), text.index(END) + len(END)
    written = text[:begin] + block() + text[end:]
    if "--check" in sys.argv:
        raise SystemExit(
            0 if written == text else f"{PAGE.name} is not what its rows say: run tools/plan_page.py"
        )
    PAGE.write_text(written)


if __name__ == "__main__":
    main()
