"""Settings of the memory allocator, on which the learner's speed on CPU depends.

By default glibc maps and unmaps every large temporary array of a training step, and each new one costs page faults
(decision 0026 has the measurements). The settings must be in the environment before the process starts, so the command
line restarts itself with them.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping

_SETTINGS = {
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TRIM_THRESHOLD_": str(1 << 34),
    "MALLOC_TOP_PAD_": str(1 << 28),
    "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1",
}
_MARK = "SEEDBED_ALLOCATOR"


def restart_tuned() -> None:
    """Restarts this command with the settings (Linux only), unless it has them or ``SEEDBED_ALLOCATOR=off`` is set."""
    if sys.platform == "linux" and _MARK not in os.environ:
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], with_tuning(os.environ))


def with_tuning(environment: Mapping[str, str]) -> dict[str, str]:
    """Returns the variables for a process that trains; the same ones if they say something on that already."""
    return dict(environment) if _MARK in environment else {**_SETTINGS, **environment, _MARK: "tuned"}


def without_tuning(environment: Mapping[str, str]) -> dict[str, str]:
    """Returns the variables for a process that does not train: actors use less memory with glibc's defaults."""
    return {
        name: value for name, value in environment.items() if name != _MARK and _SETTINGS.get(name) != value
    }
