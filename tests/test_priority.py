"""The priority of what steps aside."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

_STEPS_ASIDE = """
import os, threading
from seedbed.priority import step_aside
{before}
begun = os.nice(0)
step_aside({niceness})
thread = threading.Thread(target=lambda: print(os.sched_getscheduler(0), os.nice(0) - begun))
thread.start()
thread.join()
"""


@pytest.mark.skipif(not hasattr(os, "SCHED_IDLE"), reason="this system has no such class")
@pytest.mark.parametrize(
    ("niceness", "before", "idle", "nice"),
    [(0, "", False, 0), (3, "", False, 3), (20, "", True, 0), (20, "del os.SCHED_IDLE", False, 19)],
)
def test_threads_that_are_started_later_have_the_priority(
    niceness: int, before: str, idle: bool, nice: int
) -> None:
    program = _STEPS_ASIDE.format(niceness=niceness, before=before)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    scheduler, above = map(int, done.stdout.split())
    assert (scheduler == os.SCHED_IDLE) == idle
    assert above == min(nice, 19 - os.nice(0))
