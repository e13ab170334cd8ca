"""The live progress of a run: a panel on a terminal, and a plain line now and then everywhere else.

Both are sinks: they show the newest row, and nothing that it does not contain.
"""

from __future__ import annotations

import io
import math
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol, TextIO

from rich.columns import Columns
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.markup import escape
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.text import Text

from seedbed.errors import legible
from seedbed.metrics.meters import Clock
from seedbed.metrics.say import has_room, let_go, say
from seedbed.metrics.sinks import Row, Sink


@dataclass(frozen=True)
class Budget:
    """The limits at which a run ends.

    Attributes:
      frames: environment frames; None for no such limit.
      seconds: seconds of training; None for no such limit.
      until_return: mean return at which it ends earlier; None for no such goal.
    """

    frames: float | None = None
    seconds: float | None = None
    until_return: float | None = None

    def share(self, row: Row) -> float:
        """Returns the share of the budget that is spent, between 0 and 1; 0 if there is no limit."""
        parts = [0.0]
        if self.frames:
            parts.append(row.get("env_frames", 0.0) / self.frames)
        if self.seconds:
            parts.append(row.get("seconds", 0.0) / self.seconds)
        return min(max(parts), 1.0)

    def seconds_left(self, row: Row) -> float | None:
        """Seconds until the limits are reached at the present speed; None if nothing tells."""
        left = []
        speed = row.get("frames_per_second", 0.0)
        if self.frames is not None and speed > 0:
            left.append(max(self.frames - row.get("env_frames", 0.0), 0.0) / speed)
        if self.seconds is not None:
            left.append(max(self.seconds - row.get("seconds", 0.0), 0.0))
        return min(left) if left else None


class Display(Sink, Protocol):
    """A sink that people look at."""

    def note(self, text: str) -> None:
        """Shows one line that stays: a restart, a warning, a checkpoint."""


def display(title: str, budget: Budget, stream: TextIO | None = None) -> Display:
    """A live panel if ``stream`` (standard output unless given) is a terminal that can be redrawn, else plain lines."""
    stream = stream or sys.stdout or io.StringIO()
    console = Console(file=stream, highlight=False)
    return Terminal(title, budget, console) if can_redraw(console) else Lines(title, budget, stream)


def can_redraw(console: Console) -> bool:
    """Returns whether the console is a terminal whose cursor moves up again, which ``TERM=dumb`` denies."""
    return console.is_terminal and not console.is_dumb_terminal


STARTING = "starting: programs are compiled, which takes longest the first time"


def _whole(value: float) -> str:
    return f"{value:,.0f}"


_SHOWN: tuple[tuple[str, str, Callable[[float], str]], ...] = (
    ("agent_steps", "agent steps", _whole),
    ("frames_per_second", "frames/s", _whole),
    ("mean_return", "mean return (100)", lambda x: f"{x:.2f}"),
    ("policy_lag_batches", "policy lag", lambda x: f"{x:.1f}"),
    ("batch_fill", "batch fill", lambda x: f"{x:.0%}"),
    ("updates", "updates", _whole),
)


def duration(seconds: float) -> str:
    """``seconds`` for people: ``"42 s"``, ``"9:58"``, ``"2:03:00"``."""
    whole = round(seconds)
    hours, minutes, rest = whole // 3600, whole // 60 % 60, whole % 60
    if hours:
        return f"{hours}:{minutes:02}:{rest:02}"
    return f"{minutes}:{rest:02}" if minutes else f"{rest} s"


def entries(row: Row, budget: Budget) -> list[tuple[str, str]]:
    """Returns the shown part of ``row``: labels and values, in their order."""
    shown = [
        (label, form(row[name]) if math.isfinite(row[name]) else "–")
        for name, label, form in _SHOWN
        if name in row
    ]
    if "seconds" in row:
        shown.append(("time", duration(row["seconds"])))
    left = budget.seconds_left(row)
    if left is not None and math.isfinite(left):
        shown.append(("time left" if budget.until_return is None else "time left, at most", duration(left)))
    return shown


def figures(row: Row, budget: Budget) -> Columns | None:
    """Returns the shown part of ``row`` in as many columns as there is room for; None if it has no such part."""
    shown = [Text.assemble((f"{label} ", "dim"), (value, "bold")) for label, value in entries(row, budget)]
    return beside(shown) if shown else None


def beside(parts: Iterable[Text]) -> Columns:
    """Returns the parts in as many columns as there is room for."""
    return Columns(parts, padding=(0, 3))


class Lines:
    """A plain line every ``every`` seconds, for logs and pipes.

    Once the reader has left (``| tee`` that was killed by the same Ctrl-C, a full disk) it is silent, and while a
    pipe is full lines are left out: output must neither end a run nor hold it up.
    """

    def __init__(
        self,
        title: str,
        budget: Budget,
        stream: TextIO,
        every: float = 10.0,
        clock: Clock = time.monotonic,
    ) -> None:
        self._budget = budget
        self._stream = stream
        self._every = every
        self._clock = clock
        self._due = clock()
        self._unseen: Row | None = None
        self._read = True
        self.note(title)
        self.note(STARTING)

    def write(self, row: Row) -> None:
        """Shows ``row`` if the last line is old enough."""
        self._unseen = row
        if self._clock() >= self._due:
            self._due = self._clock() + self._every
            self._show()

    def _show(self) -> None:
        if self._unseen is not None:
            self.note("  ".join(f"{label} {value}" for label, value in entries(self._unseen, self._budget)))
            self._unseen = None

    def note(self, text: str) -> None:
        """Writes one line at once; from any thread."""
        self._read = self._read and say(text, self._stream, patience=0)

    def close(self) -> None:
        """Shows the newest row if it was not shown yet."""
        self._show()


class Terminal:
    """A panel that is redrawn in place, at each row; silent, like :class:`Lines`, once its terminal is gone."""

    def __init__(self, title: str, budget: Budget, console: Console) -> None:
        self._title = legible(title)
        self._budget = budget
        self._console = console
        self._read = True
        # Redrawn by write() and by nothing else: a thread of its own would draw over a traceback.
        self._live = Live(self._panel({}), console=console, auto_refresh=False)
        self._show(lambda: self._live.start(refresh=True))

    def write(self, row: Row) -> None:
        """Redraws the panel."""
        self._show(lambda: self._live.update(self._panel(row), refresh=True))

    def note(self, text: str) -> None:
        """Writes one line above the panel; from any thread."""
        self._show(lambda: self._console.print(escape(legible(text)), soft_wrap=True))

    def close(self) -> None:
        """Leaves the last panel on the screen and gives the cursor back."""
        self._show(self._live.stop)

    def _show(self, draw: Callable[[], None]) -> None:
        if self._read and has_room(self._console.file, 0):
            try:
                draw()
            except (OSError, ValueError):  # gone, or without some letters
                self._read = False
                let_go(self._console.file)

    def _panel(self, row: Row) -> Panel:
        shown = figures(row, self._budget) if row else None
        parts: list[RenderableType] = [shown or Text(STARTING, style="bold")]
        if self._budget.frames or self._budget.seconds:
            parts.append(ProgressBar(total=1.0, completed=self._budget.share(row)))
        return Panel(Group(*parts), title=escape(self._title), title_align="left", border_style="green")
