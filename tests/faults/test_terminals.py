"""Runs and commands on terminals: narrow ones, and ones that are closed."""

from __future__ import annotations

import codecs
import contextlib
import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
import threading
from pathlib import Path

import psutil
import pytest
from harness import PATIENCE, SEEDBED, alive, checkpoints, flags, is_actor, learned, rows, summary, until

IGNORING = "import os, signal, sys; signal.signal(signal.SIGHUP, signal.SIG_IGN); os.execv(sys.argv[1], sys.argv[1:])"
"""What nohup does."""


class Terminal:
    """A terminal on which one command runs, as the leader of its session."""

    def __init__(self, folder: Path, *command: str, columns: int = 80, **environment: str) -> None:
        self._ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        own = "import os, sys; os.login_tty(0); os.execv(sys.argv[1], sys.argv[1:])"
        self.process = subprocess.Popen(
            [sys.executable, "-c", own, *command],
            cwd=folder,
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env={**os.environ, "TERM": "xterm", **environment},
        )
        os.close(theirs)
        self._shown = b""
        self._left = threading.Event()
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        with contextlib.suppress(OSError):  # the last process has let go of it
            while not self._left.is_set():
                if select.select([self._ours], [], [], 0.05)[0]:
                    self._shown += os.read(self._ours, 4096)

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        self._reader.join()
        os.close(self._ours)

    def hang_up(self) -> None:
        """Closes the terminal, as its window does; the system sends SIGHUP."""
        self._left.set()
        self._reader.join()
        os.close(self._ours)
        self._ours = os.open(os.devnull, os.O_RDWR)

    def end(self) -> tuple[int, str]:
        """Exit status and output of the command, once it is over; a letter that a hang-up cut in two is left out."""
        status = self.process.wait(PATIENCE)
        self._reader.join(PATIENCE)
        return status, codecs.getincrementaldecoder("utf-8")().decode(self._shown)


ENDLESS = flags("toy:catch", "run", frames=10**9, transport="shm")


@pytest.mark.slow
def test_a_terminal_that_is_closed_ends_a_run_as_sigterm_does(tmp_path: Path) -> None:
    with Terminal(tmp_path, SEEDBED, *ENDLESS) as terminal:
        learned(tmp_path / "run")
        actors = [
            each for each in psutil.Process(terminal.process.pid).children(recursive=True) if is_actor(each)
        ]
        assert len(actors) == 2
        terminal.hang_up()
        assert terminal.end()[0] == 75
        until(lambda: not any(map(alive, actors)), "the end of the actors", 10)
    left = summary(tmp_path / "run")
    assert (left["stopped_because"], left["interrupted_by"]) == ("interrupted", "SIGHUP")
    assert int(checkpoints(tmp_path / "run")[-1].name) == left["weights_version"]


@pytest.mark.slow
def test_under_nohup_a_run_goes_on_when_its_terminal_is_closed(tmp_path: Path) -> None:
    with Terminal(tmp_path, sys.executable, "-c", IGNORING, SEEDBED, *ENDLESS) as terminal:
        learned(tmp_path / "run")
        terminal.hang_up()
        seen = len(rows(tmp_path / "run"))
        until(lambda: len(rows(tmp_path / "run")) > seen + 1, "rows after the terminal")
        terminal.process.send_signal(signal.SIGTERM)
        assert terminal.end()[0] == 75
    assert summary(tmp_path / "run")["interrupted_by"] == "SIGTERM"


@pytest.mark.slow
def test_a_run_on_a_narrow_terminal_shows_labels_and_numbers_whole(tmp_path: Path) -> None:
    words = flags("toy:catch", "run", frames=600, transport="inproc")
    with Terminal(tmp_path, SEEDBED, *words, columns=40) as terminal:
        status, shown = terminal.end()
    assert status == 0 and "Traceback" not in shown
    assert "mean return (100)" in shown and "frames/s" in shown


@pytest.mark.slow
def test_a_terminal_that_cannot_move_its_cursor_gets_lines(tmp_path: Path) -> None:
    words = flags("toy:catch", "run", frames=600, transport="inproc")
    with Terminal(tmp_path, SEEDBED, *words, TERM="dumb") as terminal:
        status, shown = terminal.end()
    assert status == 0
    assert "\x1b" not in shown and "╭" not in shown and "agent steps" in shown
