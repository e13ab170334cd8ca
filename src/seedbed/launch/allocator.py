"""The allocator's settings, which decide a part of the learner's speed on CPU.

glibc maps and unmaps every large temporary of a training step by default, and each comes back with page faults
(decision 0026 has what that costs). The settings must be in the environment before the process starts, so the command
line starts itself anew with them.
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
    """Starts this very command anew with the settings (Linux), unless it has them or ``SEEDBED_ALLOCATOR=off``."""
    if sys.platform != "linux" or _MARK in os.environ:
        return
    environment = {**_SETTINGS, **os.environ, _MARK: "tuned"}
    os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], environment)


def without_tuning(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment for a process that does not train: actors stay small with glibc's own settings."""
    return {
        name: value for name, value in environment.items() if name != _MARK and _SETTINGS.get(name) != value
    }
