"""Children of a command end with it, also where it ends in the worst moment."""

import json
import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from harness import PATIENCE, alive, until

from seedbed.timing.children import children

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


RUDE = """
import os, sys
import gymnasium, numpy as np

class World(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(0, 1, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        os.write(1, b"a line of \\xff\\n")
        print("another", flush=True)
        return np.zeros(2, np.float32), {}

    def step(self, action):
        return np.zeros(2, np.float32), 0.0, False, False, {}

if __name__ == "__main__":
    sys.stdout.buffer.write(b"\\xff, and that is all")
"""


def test_output_that_is_no_text_is_read_as_far_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "rude.py").write_text(RUDE)
    with children() as started:
        rude = started.start("rude", {}, env={**os.environ, "PYTHONPATH": f"{tmp_path}:{':'.join(sys.path)}"})
        assert rude.communicate(timeout=PATIENCE)[0] == "\ufffd, and that is all"


def test_an_environment_that_prints_can_be_timed(tmp_path: Path) -> None:
    (tmp_path / "rude.py").write_text(RUDE)
    job = {"env": "rude:World", "options": [], "envs": 1, "seconds": 0.01, "windows": 2}
    with children() as started:
        timed = started.start("seedbed.timing.step_environment", job, cwd=tmp_path, stderr=subprocess.PIPE)
        told, said = timed.communicate(timeout=PATIENCE)
    assert len(json.loads(told)) == 2
    assert "a line of \ufffd\nanother" in said
