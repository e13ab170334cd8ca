"""Programs that work for a command and end with it, however it ends.

Each leads a process group, so that its own children can be ended with it. One that is left while it works is asked to
end, and killed if it does not; if this process is killed, or interrupted while it starts one, a guard
(:mod:`seedbed.launch.guard`) ends them.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from seedbed.launch.processes import Guard

_PATIENCE_SECONDS = 10.0
"""In which a run that is asked to end may stop its actors."""


@contextlib.contextmanager
def children() -> Iterator[Children]:
    """Children that have ended when the block has."""
    with contextlib.closing(Guard()) as guard:
        started = Children(guard)
        try:
            yield started
        finally:
            started.end()


class Children:
    """Programs that were started together; made by :func:`children`.

    Args:
      guard: process that ends them should this one be killed.
    """

    def __init__(self, guard: Guard) -> None:
        self._guard = guard
        self._processes: list[subprocess.Popen[str]] = []

    def start(self, module: str, job: Mapping[str, Any], **options: Any) -> subprocess.Popen[str]:
        """Starts ``python -m module JOB``; output is read through ``communicate``, and ``options`` go to Popen."""
        command = [sys.executable, "-P", "-m", module, json.dumps(job)]
        process = self._guard.start(
            command, stdout=subprocess.PIPE, encoding="utf-8", errors="replace", **options
        )
        self._processes.append(process)
        return process

    def end(self) -> None:
        """Asks the programs that still work to end, and kills the rest of every group."""
        for process in self._processes:
            process.terminate()
        for process in self._processes:
            if process.poll() is None:
                # Read on: one that has more to say than a pipe holds could not end.
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.communicate(timeout=_PATIENCE_SECONDS)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            self._guard.forget(process.pid)
