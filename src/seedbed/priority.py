"""Priority of processes and threads that step environments, beside others that decide and train."""

from __future__ import annotations

import contextlib
import os

IDLE = 20
"""Niceness of processes and threads that run only on cores that nothing else wants."""


def step_aside(niceness: int) -> None:
    """Lowers the priority of this thread, by a niceness above the present one; threads that it starts later inherit it.

    Args:
      niceness: 0 to 19, or :data:`IDLE`; where the system knows no such class, 19.
    """
    if niceness == IDLE and hasattr(os, "SCHED_IDLE"):
        with contextlib.suppress(OSError):
            os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
            return
    os.nice(niceness)


def niceness_beside(platform: str) -> int:
    """Returns the niceness of processes that only step environments, where the policy runs on this JAX platform.

    Beside an accelerator calls of the policy take little work on the cores, and wait for one again and again.
    """
    return 0 if platform == "cpu" else IDLE
