"""The scripts that a bare checkout begins with, with stand-ins for what they would find elsewhere."""

import os
import pty
import re
import runpy
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def fake_python(path: Path, works: bool) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\nexit {0 if works else 1}\n")
    path.chmod(0o755)
    return path


def find_python(path: Path, home: Path) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        ["/bin/sh", str(ROOT / "tools" / "find_python.sh")],
        env={"PATH": str(path), "HOME": str(home)},
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_newest_python_that_works_is_taken(tmp_path: Path) -> None:
    path, home = tmp_path / "bin", tmp_path / "my home"
    found: list[str] = []
    for candidate in (
        path / "python",
        path / "python3",
        home / ".pyenv/versions/3.11.7/bin/python",
        path / "python3.11",
        home / ".pyenv/versions/3.13.0/bin/python",
        path / "python3.13",
        path / "python3.14",
    ):
        fake_python(candidate, works=True)
        found.append(find_python(path, home).stdout.strip())
        assert found[-1] == str(candidate)
    fake_python(path / "python3.14", works=False)  # as pyenv's are when that version is not switched on
    fake_python(path / "python3.15", works=True)
    assert find_python(path, home).stdout.strip() == found[-2]


def test_without_a_python_one_line_says_what_to_do(tmp_path: Path) -> None:
    fake_python(tmp_path / "python3.12", works=False)
    done = find_python(tmp_path, tmp_path)
    assert done.returncode == 1
    assert done.stdout == ""
    assert re.fullmatch(r"no Python between 3\.11 and 3\.14 .* make PYTHON=python3\.12 \.\.\.\n", done.stderr)


def test_constraints_are_exact_and_name_no_host() -> None:
    lines = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if not line.startswith("#")]
    form = re.compile(
        r"[a-z0-9-]+==[0-9][0-9a-z.+]*(; python_version [<>]=? '3\.\d+'( and python_version < '3\.\d+')?)?"
    )
    assert [line for line in lines if not form.fullmatch(line)] == []


def test_constraint_lines_cover_every_python_once() -> None:
    lines = runpy.run_path(str(ROOT / "tools" / "constraints.py"))["lines"]
    found = {
        "3.12": {"a": "1", "b": "2", "c": "2"},
        "3.11": {"a": "1", "b": "1", "c": "1", "d": "1"},
        "3.13": {"a": "1", "b": "2", "c": "3"},
    }
    assert lines(found) == [
        "a==1",
        "b==1; python_version < '3.12'",
        "b==2; python_version >= '3.12'",
        "c==1; python_version < '3.12'",
        "c==2; python_version >= '3.12' and python_version < '3.13'",
        "c==3; python_version >= '3.13'",
        "d==1; python_version < '3.12'",
    ]


STAND_IN = """\
#!{python}
import signal, sys, time
stop = []
for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, lambda *_: stop.append(1))
print(sys.argv[1:], "training", flush=True)
while not stop:
    time.sleep(0.02)
time.sleep(0.7)
print("saved", flush=True)
time.sleep(0.3)
"""


@pytest.mark.parametrize("how", ["ctrl-c", "terminate"])
def test_make_waits_until_a_stopped_run_has_saved(tmp_path: Path, how: str) -> None:
    (tmp_path / "Makefile").write_text((ROOT / "Makefile").read_text())
    for name in ("pyproject.toml", "constraints.txt"):
        (tmp_path / name).write_text("")
    seedbed = tmp_path / ".venv" / "bin" / "seedbed"
    seedbed.parent.mkdir(parents=True)
    seedbed.write_text(STAND_IN.format(python=sys.executable))
    seedbed.chmod(0o755)
    for stamp in (".created", ".installed", ".onednn"):
        (tmp_path / ".venv" / stamp).write_text("")

    text = on_a_terminal(tmp_path, ["make", "train", "ENV=x:y", "ARGS=--seed 2"], how)
    assert "['train', 'x:y', '--seed', '2'] training" in text
    assert text.rstrip().endswith("saved")  # and make has nothing to complain of


def on_a_terminal(folder: Path, command: list[str], how: str) -> str:
    """Runs ``command`` on a terminal of its own, stops it when it prints, and returns all that it printed."""
    leader, follower = pty.openpty()
    process = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import os, sys, pty; os.login_tty(0); os.execvp(sys.argv[1], sys.argv[1:])",
            *command,
        ],
        cwd=folder,
        stdin=follower,
        stdout=follower,
        stderr=follower,
        # As a person would: not as a part of the make that these tests may run in.
        env={name: value for name, value in os.environ.items() if "MAKE" not in name and name != "MFLAGS"},
    )
    os.close(follower)
    text, told, deadline = b"", False, time.monotonic() + 30
    while time.monotonic() < deadline and select.select([leader], [], [], 10)[0]:
        try:
            text += os.read(leader, 4096)
        except OSError:  # the last process has let go of the terminal
            break
        if b"saved" in text:
            assert process.poll() is None, "make went before the run did"
        if b"training" in text and not told:
            told = True
            if how == "ctrl-c":
                os.write(leader, b"\x03")
            else:
                process.send_signal(signal.SIGTERM)
    process.wait(10)
    os.close(leader)
    return text.decode()


def test_ci_stops_at_the_first_failure_and_leaves_no_process(tmp_path: Path) -> None:
    (tmp_path / ".ci").mkdir()
    script = tmp_path / ".ci" / "run"
    script.write_bytes((ROOT / ".ci" / "run").read_bytes())
    script.chmod(0o755)
    (tmp_path / "Makefile").write_text(
        "check:\n\t@sleep 300 & echo $$! > pid\n\t@exit 7\ntest:\n\t@touch tested\n"
    )
    done = subprocess.run([script], capture_output=True, text=True, check=False, timeout=20)
    assert done.returncode != 0
    assert not (tmp_path / "tested").exists()
    assert ended(int((tmp_path / "pid").read_text()))


def ended(pid: int) -> bool:
    """Whether a process is gone within a second (or is only waiting for its parent to notice)."""
    for _ in range(50):
        stat = Path(f"/proc/{pid}/stat")
        if not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] == "Z":
            return True
        time.sleep(0.02)
    return False
