"""The loss of a whole run beside its stages, where both were timed, for plans of other runs on such machines.

Stages are timed alone. In a run their threads also wait for one another, wake one another and share caches, which the
simulation does not know. That took 7 to 48% on two cores, and much the same of runs of one environment and network.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import Any

from seedbed.acting.trust import foreign_names
from seedbed.architectures.program import Program
from seedbed.architectures.roles import carrier_of
from seedbed.config.resolve import from_json, to_json
from seedbed.config.settings import RunConfig
from seedbed.errors import ConfigError, listed
from seedbed.planning.costs import Costs, costs_of, is_of, timed_on
from seedbed.planning.machines import Machine
from seedbed.planning.plan import Request, plan

Row = Mapping[str, Any]
_MOST_ROWS = 8
"""Newest rows whose runs are simulated; each takes a second or so."""


def with_loss(
    costs: Costs, rows: Sequence[Row], config: RunConfig, declare: Callable[[RunConfig], Program]
) -> Costs:
    """Returns the costs with the share of the stages' speed that a run attained on the machine that was timed.

    It is the median over the newest rows that have a run with the environment, the network and the architecture; if
    there are none, over those with any architecture. A plan has that share on machines like the timed one.

    Args:
      costs: costs of the stages.
      rows: the rows that they come from.
      config: settings of the run that is planned.
      declare: function that returns the program of a run.
    """
    own = foreign_names(to_json(config))
    whole = [
        row
        for row in rows
        if "whole" in (row.get("stages") or {}) and is_of(row, config) and timed_on(row) == costs.machine
    ]
    same = [row for row in whole if (row.get("settings") or {}).get("arch") == config.arch]
    found: dict[str, list[float]] = {}
    for row in (same or whole)[-_MOST_ROWS:]:
        try:
            if not foreign_names(dict(row["settings"])) <= own:
                continue  # a file of costs has nobody's code imported
            then = from_json(dict(row["settings"]))
            simulated = _simulated(then, [*(one for one in rows if one.get("served")), row], declare)
            share = row["stages"]["whole"]["steps_per_second"] / simulated
        # A row of another version, or of an architecture that cannot be planned.
        except (ConfigError, KeyError, TypeError, ZeroDivisionError):
            continue
        if share > 0:
            found.setdefault(f"under {then.arch} with {then.agent}", []).append(share)
    if shares := [share for each in found.values() for share in each]:
        runs = f"{'a run' if len(shares) == 1 else f'{len(shares)} runs'} {listed([*found])}"
        return costs.but(attained=median(shares), attained_by=runs)
    return costs.but("a run loses nothing beside its stages; no row with the stage 'whole' can be compared")


def _simulated(config: RunConfig, rows: Sequence[Row], declare: Callable[[RunConfig], Program]) -> float:
    costs = costs_of(rows, config)
    machine = Machine(costs.cores, costs.accelerators)
    return plan(Request(declare(config), costs, (machine,), carrier_of(config)), moves=False).steps_per_second
