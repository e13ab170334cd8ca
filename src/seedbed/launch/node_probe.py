"""The task with which ``seedbed doctor --on ray`` examines a node.

Ray is sent this module by value, so that it also works on a node without Seedbed: it imports Python's own library only,
and in the function.
"""

from __future__ import annotations

from typing import Any


def probe(host: str, port: int, word: str, seconds: float) -> dict[str, Any]:
    """Returns the findings about the node on which this runs, as JSON values.

    Args:
      host, port: address at which the learner would listen.
      word: word that is said there to everybody who connects.
      seconds: time in s for the connection.

    Returns:
      ``python``, ``ray`` and ``seedbed``: versions; the last is "" where it cannot be imported, and ``broken`` is the
      reason. ``niceness``: that of Ray's processes. ``superuser``: whether they may lower it. ``shared_memory``: free
      and all bytes of /dev/shm, or None. ``learner``: the reason why the address cannot be reached; "" if it can.
    """
    import os
    import platform
    import shutil
    import socket
    from pathlib import Path

    import ray

    told: dict[str, Any] = {"python": platform.python_version(), "ray": ray.__version__, "learner": ""}
    try:
        import seedbed.launch.bundle

        told |= {"seedbed": seedbed.__version__, "broken": ""}
    except Exception as error:
        told |= {"seedbed": "", "broken": f"{type(error).__name__}: {error}"}
    try:
        with socket.create_connection((host, port), timeout=seconds) as connection:
            if connection.makefile().readline().strip() != word:
                told["learner"] = "something else listens there"
    except OSError as error:
        told["learner"] = str(error) or type(error).__name__
    told["niceness"], told["superuser"] = os.getpriority(os.PRIO_PROCESS, 0), os.geteuid() == 0
    told["shared_memory"] = None
    if Path("/dev/shm").is_dir():
        usage = shutil.disk_usage("/dev/shm")
        told["shared_memory"] = [usage.free, usage.total]
    return told
