import io
import math
import re

import pytest
from rich.console import Console

from seedbed.metrics import registry
from seedbed.metrics.console import _SHOWN, STARTING, Budget, Lines, Terminal, display, duration, entries

ROW = {
    "agent_steps": 1_234_567,
    "env_frames": 4_000_000,
    "frames_per_second": 2_000.0,
    "mean_return": 12.345,
    "policy_lag_batches": 1.25,
    "batch_fill": 0.5,
    "updates": 800,
    "seconds": 90.0,
}


def test_time_left_is_that_of_the_nearest_limit() -> None:
    assert Budget().seconds_left(ROW) is None
    assert Budget(frames=10_000_000).seconds_left(ROW) == 3000
    assert Budget(frames=10_000_000, seconds=100).seconds_left(ROW) == 10
    assert Budget(frames=10_000_000).seconds_left({"env_frames": 5}) is None
    assert Budget(frames=1).seconds_left(ROW) == 0


def test_share_of_the_budget() -> None:
    assert Budget().share(ROW) == 0
    assert Budget(frames=8_000_000, seconds=120).share(ROW) == 0.75
    assert Budget(seconds=1).share(ROW) == 1


def test_durations_for_people() -> None:
    assert [duration(x) for x in (0.4, 59.6, 598, 7380)] == ["0 s", "1:00", "9:58", "2:03:00"]


def test_what_is_shown_is_registered_and_unknown_numbers_are_dashes() -> None:
    registry.check(name for name, _, _ in _SHOWN)
    shown = dict(entries(ROW | {"mean_return": math.nan}, Budget(seconds=100)))
    assert shown["mean return (100)"] == "–"
    assert shown["time left"] == "10 s"
    assert dict(entries(ROW, Budget(seconds=100, until_return=9.0)))["time left, at most"] == "10 s"
    assert entries({}, Budget()) == []


def test_a_pipe_gets_a_line_every_ten_seconds() -> None:
    now = 0.0
    stream = io.StringIO()
    lines = Lines("CartPole", Budget(), stream, clock=lambda: now)
    for second in range(25):
        now = float(second)
        lines.write({"updates": second})
    lines.note("actor 3 was started again")
    lines.close()
    lines.close()
    assert stream.getvalue().splitlines() == [
        "CartPole",
        STARTING,
        "updates 0",
        "updates 10",
        "updates 20",
        "actor 3 was started again",
        "updates 24",
    ]


@pytest.mark.parametrize("budget", [Budget(), Budget(seconds=30.0, until_return=18.0)])
def test_a_panel_without_a_row_says_that_the_run_starts(budget: Budget) -> None:
    stream = io.StringIO()
    panel = Terminal(
        "CartPole", budget, Console(file=stream, force_terminal=True, width=100, highlight=False)
    )
    assert STARTING in stream.getvalue() and "time left" not in stream.getvalue()
    panel.write(ROW)
    assert stream.getvalue().count(STARTING) == 1
    panel.close()


def test_a_terminal_gets_a_panel_and_a_pipe_does_not() -> None:
    assert isinstance(display("t", Budget(), io.StringIO()), Lines)
    stream = io.StringIO()
    console = Console(file=stream, force_terminal=True, width=100, highlight=False)
    panel = Terminal("ALE/Pong-v5 [vtrace] \x1b]0;t\x07", Budget(frames=8_000_000), console)
    panel.write(ROW)
    panel.note("checkpoint [1] written")
    panel.note("the host \x1b]0;mine\x07 joins")
    panel.close()
    panel.close()
    text = stream.getvalue()
    assert "\x1b]0;" not in text and r"the host \x1b]0;mine\x07 joins" in text
    for part in ("Pong-v5 [vtrace]", "1,234,567", "2,000", "12.35", "50%", "33:20", "checkpoint [1] written"):
        assert part in text, part


def test_a_narrow_panel_breaks_no_label_and_no_number() -> None:
    for width in (30, 40, 60, 80, 200):
        console = Console(file=io.StringIO(), force_terminal=True, width=width, color_system=None)
        panel = Terminal("CartPole-v1 · ppo agent · seed architecture", Budget(frames=8_000_000), console)
        panel.write(ROW)
        panel.close()
        assert isinstance(console.file, io.StringIO)
        lines = console.file.getvalue().splitlines()
        framed = [line for line in lines if line.endswith(("│", "╮", "╯"))]
        assert framed and {len(re.sub(r"\x1b\[[^a-zA-Z]*[a-zA-Z]", "", line)) for line in framed} == {width}
        for label, value in entries(ROW, Budget(frames=8_000_000)):
            assert any(f"{label} {value}" in line for line in framed), (width, label)


def test_a_terminal_that_cannot_be_redrawn_gets_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    class Tty(io.StringIO):
        def isatty(self) -> bool:
            return True

    for name, kind in (("dumb", Lines), ("xterm", Terminal)):
        monkeypatch.setenv("TERM", name)
        assert isinstance(display("t", Budget(), Tty()), kind)


def test_nobody_reading_any_more_stops_the_lines_and_nothing_else() -> None:
    class Pipe(io.StringIO):
        broken = False

        def write(self, text: str) -> int:
            if self.broken:
                raise BrokenPipeError
            return super().write(text)

    pipe = Pipe()
    lines = Lines("CartPole", Budget(), pipe, every=0.0)
    pipe.broken = True
    lines.write({"updates": 1})
    lines.note("interrupted")
    pipe.broken = False
    lines.note("too late")
    lines.close()
    assert pipe.getvalue().splitlines() == ["CartPole", STARTING]
