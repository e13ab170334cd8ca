"""Faults: what they say of an error, how they travel, and which of them repeat."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import gymnasium
import numpy as np
import pytest

from seedbed import faults
from seedbed.envs.make import Guarded, make
from seedbed.envs.own import _batched
from seedbed.errors import ConfigError, EnvironmentFault, RunFailed, described
from seedbed.faults import Fault


class World(gymnasium.Env):
    """Does ``fail`` in its third step."""

    observation_space = gymnasium.spaces.Box(0, 1, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, fail):
        self._fail, self._left = fail, 3

    def reset(self, *, seed=None, options=None):
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self._left -= 1
        if not self._left:
            self._fail()
        return np.zeros(1, np.float32), 0.0, False, False, {}


def stall():
    raise ValueError("the engine\nhas stalled")


def silent():
    raise AssertionError


def from_another():
    try:
        stall()
    except ValueError as error:
        raise RuntimeError("no answer") from error


def inside_python():
    json.loads("{")


def ends():
    raise SystemExit("no licence")


def ends_quietly():
    raise SystemExit


LINES = Path(__file__).read_text().splitlines()
FAILED = "EnvironmentFault: mine failed in receive(): "
FAULTS = [
    (stall, "ValueError: the engine has stalled", 'raise ValueError("the engine\\nhas stalled")'),
    (
        silent,
        "AssertionError in the line 'raise AssertionError'",
        "raise AssertionError",
    ),
    (from_another, "RuntimeError: no answer", 'raise RuntimeError("no answer") from error'),
    (inside_python, "JSONDecodeError: Expecting property name", 'json.loads("{")'),
    (ends, "it ended the program (SystemExit: no licence)", 'raise SystemExit("no licence")'),
    (ends_quietly, "it ended the program (SystemExit)", "raise SystemExit"),
]


def fault_of(fail):
    environment = Guarded(_batched("mine", 2, lambda: World(fail)))
    environment.reset(1)
    with pytest.raises(EnvironmentFault) as error:
        for _ in range(9):
            environment.send(np.zeros(2, np.int32))
            environment.receive()
    return Fault.of(error.value)


@pytest.mark.parametrize(("fail", "text", "line"), FAULTS, ids=[row[0].__name__ for row in FAULTS])
def test_a_fault_of_an_environment(fail, text, line, tmp_path, monkeypatch):
    fault = fault_of(fail)
    assert fault.text.startswith(FAILED + text)
    assert (fault.kind, fault.file, fault.step) == ("EnvironmentFault", __file__, 3)
    assert LINES[fault.line - 1].strip() == line
    assert re.search(rf"\(test_faults.py, line {fault.line}, at step 3\)$", str(fault))
    assert "Traceback" in fault.traceback
    # It travels whole.
    monkeypatch.setenv(faults.FILE, str(tmp_path / "fault"))
    faults.note(fault)
    assert faults.read(tmp_path / "fault") == fault


def test_an_error_of_ours_has_no_place():
    with pytest.raises(ConfigError) as error:
        make("toy:catsh", 1)
    assert str(Fault.of(error.value)) == f"ConfigError: {error.value}"


def test_errors_that_were_raised_from_one_another_are_each_told_once():
    first, second = ValueError("first"), ValueError("second")
    first.__cause__, second.__cause__ = second, first
    assert Fault.of(first).text == "ValueError: first"


def test_an_error_may_carry_the_fault_of_another_thread():
    fault = fault_of(stall)
    assert Fault.of(RunFailed(fault)) == fault


def test_what_ends_a_process_is_left_for_its_launcher_and_printed(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv(faults.FILE, str(tmp_path / "fault"))
    try:
        stall()
    except ValueError as error:
        assert faults.leave(error) == faults.STATUS
    fault = faults.read(tmp_path / "fault")
    assert fault is not None
    printed = capsys.readouterr().err
    assert fault.traceback in printed
    assert printed.endswith(f"{fault}\n")
    monkeypatch.delenv(faults.FILE)
    faults.note(fault)  # a process that was started by hand


@pytest.mark.parametrize("text", [None, "", "{", "[]", '{"text": 1, "other": 2}', "\xff"])
def test_a_file_that_holds_no_fault(text, tmp_path):
    if text is not None:
        (tmp_path / "fault").write_text(text, encoding="latin-1")
    assert faults.read(tmp_path / "fault") is None


@pytest.mark.parametrize(
    ("change", "repeats"),
    [
        ({}, True),
        ({"text": "ValueError: engine 0x7f has stalled"}, True),
        ({"step": 4}, False),
        ({"line": 1}, False),
        ({"file": "other.py"}, False),
        ({"kind": "RuntimeError"}, False),
    ],
)
def test_a_fault_repeats_at_the_same_place_and_step(change, repeats):
    fault = fault_of(stall)
    assert replace(fault, **change).repeats(fault) == repeats


def test_what_has_no_step_does_not_repeat():
    died = Fault("killed by signal 9")
    assert not died.repeats(died)
    assert not died.repeats(None)


def test_a_message_with_a_whole_traceback_is_cut():
    error = RuntimeError("callback failed\nTraceback (most recent call last):\n  File …\nValueError: no")
    assert described(error) == "RuntimeError: callback failed … ValueError: no"


class Wordless(Exception):
    def __str__(self):
        raise RuntimeError("it cannot say it")


def raised(error):
    try:
        raise error
    except BaseException as found:
        return found


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (ValueError("x" * 3_000_000), f"ValueError: {'x' * 2000} … (3,000,000 letters)"),
        (ValueError("\x1b[31mred\x07 \udcff"), "ValueError: \\x1b[31mred\\x07 \\udcff"),
        (ValueError("Größe 5 µm"), "ValueError: Größe 5 µm"),
        (Wordless(), "Wordless in the line 'raise error'"),
    ],
)
def test_any_message_is_one_line_that_a_terminal_shows(error, words):
    assert described(raised(error)) == words


@pytest.mark.parametrize("stuck", [False, True])
def test_a_command_in_which_something_is_stuck_ends_with_its_status_and_without_exit_handlers(
    stuck: bool,
) -> None:
    program = (
        "import atexit, sys\nfrom seedbed import faults\natexit.register(print, 'handled')\n"
        f"print('told')\n{'faults.stuck.set()' if stuck else ''}\nfaults.end_command(75)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.split()) == (75, ["told"] if stuck else ["told", "handled"])
