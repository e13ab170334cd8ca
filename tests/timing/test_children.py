"""Children of a command end with it, also where it ends in the worst moment."""

import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from harness import alive, until

STARTS_ONE_AND_LOSES_IT = """
import os, signal, subprocess, sys
from seedbed.timing.children import children

class Losing(subprocess.Popen):
    def __init__(self, command, **options):
        super().__init__(command, **options)
        if "seedbed.nothing" in command:
            print(self.pid, flush=True)
            if sys.argv[1] == "killed":
                os.kill(os.getpid(), signal.SIGKILL)
            raise KeyboardInterrupt

subprocess.Popen = Losing
sys.executable = sys.argv[2]
with children() as started:
    # Its output goes elsewhere than to the test, which awaits the end of this one's.
    started.start("seedbed.nothing", {}, stderr=subprocess.DEVNULL)
"""


@pytest.mark.parametrize("how", ["killed", "interrupted"])
def test_a_child_is_not_lost_in_the_moment_in_which_it_is_started(how: str, tmp_path: Path) -> None:
    endless = tmp_path / "endless"
    # The guard is a program of this interpreter too.
    endless.write_text(
        f'#!/bin/sh\ncase "$*" in *seedbed.nothing*) exec sleep 600;; esac\nexec {sys.executable} "$@"\n'
    )
    endless.chmod(0o755)
    ended = subprocess.run(
        [sys.executable, "-c", STARTS_ONE_AND_LOSES_IT, how, str(endless)],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert ended.returncode != 0
    child = int(ended.stdout)

    def gone() -> bool:
        return not any(process.pid == child and alive(process) for process in psutil.process_iter())

    until(gone, "the end of the child", timeout=60)
