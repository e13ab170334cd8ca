"""The standing of runs on a terminal: a panel for each of a few, a line for each of many."""

from __future__ import annotations

import math
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console, ConsoleOptions, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from seedbed.errors import legible
from seedbed.metrics.console import Budget, beside, can_redraw, figures
from seedbed.metrics.say import let_go
from seedbed.watching.run import Standing, budget
from seedbed.watching.watcher import Watcher

_PANELS = 3
"""Most runs that have a panel each, where there are more."""
_FAULTS = 3
_BAR = 12
_INSTANCES = 8
"""Most instances that are named one by one."""
_COLOURS = {
    "running": "green",
    "starting": "cyan",
    "silent": "yellow",
    "killed": "red",
    "ended": "dim",
    "damaged": "red",
}


def frame(runs: Sequence[Standing]) -> RenderableType:
    """Returns one picture of the runs."""
    shown = [each for each in runs if not each.is_over][:_PANELS] or list(runs[:1])
    others = [each for each in runs if each not in shown] if len(runs) > _PANELS else []
    panels = shown if others else runs
    return _Legible(Group(*map(_panel, panels), *([_lines(others)] if others else [])))


@dataclass(frozen=True)
class _Legible:
    """A picture without characters that the terminal would obey: a run's files may be a stranger's."""

    picture: RenderableType

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Segment]:
        for segment in console.render(self.picture, options):
            yield segment if segment.control else segment._replace(text=legible(segment.text))


def show(paths: Sequence[str | Path], *, once: bool, every: float, console: Console | None = None) -> None:
    """Shows the runs until Ctrl-C; once only if asked to, or if standard output is no terminal that can be redrawn.

    Raises:
      ConfigError: there is no run.
      BrokenPipeError: the reader of a single frame has left.
    """
    console = console or Console(file=sys.stdout, highlight=False)
    watcher = Watcher(paths)
    if once or not can_redraw(console):
        console.print(frame(watcher.look()))
        return
    try:
        with Live(frame(watcher.look()), console=console, auto_refresh=False, screen=True) as live:
            while True:
                time.sleep(every)
                live.update(frame(watcher.look()), refresh=True)
    except KeyboardInterrupt:
        console.print(frame(watcher.look()))
    except (OSError, ValueError):  # the terminal is gone
        let_go(console.file)


# -- the parts of a picture --------------------------------------------------------------------------------


def _panel(run: Standing) -> Panel:
    settings = run.settings
    about = " · ".join(str(settings[name]) for name in ("env", "agent", "arch") if name in settings)
    title = Text.assemble((run.name, "bold"), " · ", about)
    lines: list[RenderableType] = [Text.assemble(_state(run), f" {run.why}" if run.why else "")]
    if shown := figures(run.row, Budget() if run.is_over else budget(settings)):
        lines.append(shown)
    lines += [*_where_time_goes(run), *_instances(run), *_machines(run), *_faults(run)]
    return Panel(Group(*lines), title=title, title_align="left", border_style=_COLOURS.get(run.state, ""))


def _state(run: Standing) -> Text:
    return Text(run.state, style=_COLOURS.get(run.state, ""))


def _where_time_goes(run: Standing) -> Iterator[RenderableType]:
    if run.is_over:
        return
    if run.shares:
        parts = [
            Text.assemble((f"{part} ", "dim"), _bar(share), f" {share:.0%}")
            for part, share in run.shares.items()
        ]
        yield beside([Text("time", style="dim"), *parts])
    if run.bottleneck:
        part, why = run.bottleneck
        yield Text.assemble(("bottleneck  ", "dim"), (part, "bold yellow"), f": {why}")
    flows = [each for each in run.traffic if math.isfinite(each["bytes_per_second"])]
    if flows:
        told = [
            f"{each['from']} → {each['to']} {_bytes(each['bytes_per_second'])} ({each['what']})"
            for each in flows
        ]
        yield Text.assemble(("travels  ", "dim"), "   ".join(told))


def _bar(share: float) -> Text:
    full = round(share * _BAR)
    return Text.assemble(("█" * full, "cyan"), ("░" * (_BAR - full), "dim"))


def _bytes(per_second: float) -> str:
    for size, unit in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if per_second >= size:
            return f"{per_second / size:.1f} {unit}/s"
    return f"{per_second:.0f} B/s"


def _instances(run: Standing) -> Iterator[RenderableType]:
    if run.is_over or not run.instances:
        return
    if len(run.instances) > _INSTANCES:
        counts = Counter((each.get("role"), each.get("state")) for each in run.instances)
        told = [f"{count} {role}s {state}" for (role, state), count in counts.items()]
        restarted = [each for each in run.instances if each.get("restarts")]
        told += [_instance(each) for each in restarted[:_INSTANCES]]
    else:
        told = [_instance(each) for each in run.instances]
    yield beside([Text("instances", style="dim"), *map(Text, told)])


def _machines(run: Standing) -> Iterator[RenderableType]:
    if len(run.machines) > 1:
        told = [
            f"{machine}: {', '.join(f'{count} {role}' + 's' * (count > 1) for role, count in of.items())}"
            for machine, of in run.machines.items()
        ]
        yield beside([Text("machines", style="dim"), *map(Text, told)])


def _instance(each: Mapping[str, Any]) -> str:
    restarts = each.get("restarts")
    again = f" ({restarts} restart{'s' if restarts > 1 else ''}: {each.get('fault')})" if restarts else ""
    return f"{each.get('role')} {each.get('index')} {each.get('state')}{again}"


def _faults(run: Standing) -> Iterator[Text]:
    for line in run.faults[-_FAULTS:]:
        text = line.text.splitlines()
        shown = text[0] if len(text) == 1 else f"{text[0]} … {text[-1].strip()}"
        yield Text.assemble((f"{line.time} {line.level.lower()}  ", "red"), shown)


def _lines(runs: Sequence[Standing]) -> Table:
    table = Table(expand=False, box=None, padding=(0, 2, 0, 0))
    for head in ("run", "agent", "arch", "state"):
        table.add_column(head, overflow="fold")
    for head in ("steps", "steps/s", "return"):
        table.add_column(head, justify="right", no_wrap=True)
    for run in runs:
        row = run.row
        table.add_row(
            run.name,
            str(run.settings.get("agent", "")),
            str(run.settings.get("arch", "")),
            _state(run),
            *(
                _number(row, name, form)
                for name, form in (("agent_steps", ",.0f"), ("agent_steps_per_second", ",.0f"))
            ),
            _number(row, "mean_return", ".2f"),
        )
    return table


def _number(row: Mapping[str, float], name: str, form: str) -> str:
    value = row.get(name, math.nan)
    return f"{value:{form}}" if math.isfinite(value) else "–"
