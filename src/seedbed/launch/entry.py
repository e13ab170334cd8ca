"""The program of every instance that is a process: ``python -m seedbed.launch.entry TASK``.

It calls the entry of the role that the task, a file of JSON, names. It imports no JAX unless that does.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

from seedbed import faults
from seedbed.architectures.program import Context, Task
from seedbed.errors import ConnectionLost
from seedbed.faults import Fault
from seedbed.launch.logs import forgive
from seedbed.plugins import load

TOKEN = "SEEDBED_TOKEN"
"""Variable with the secret that the other instances want to hear."""


def make_config(record: dict[str, Any]) -> Any:
    """Returns the run's settings of their JSON values; it may import JAX."""
    from seedbed.config.resolve import from_json

    return from_json(record)


def make_agent(config: Any, spec: Any) -> Any:
    """Returns the agent of a run; imports JAX."""
    from seedbed.launch.build import build_agent

    return build_agent(config, spec)


def context_of(task: Task, token: str, over: threading.Event) -> Context:
    """Returns what the entry of a task is called with."""
    return Context(task, token, over, make_config, make_agent)


def entry_of(task: Task) -> Callable[[Context], None]:
    """Returns the function that runs the instance; raises :class:`~seedbed.errors.ConfigError` if there is none."""
    module, _, name = task.entry.partition(":")
    if not module.startswith("seedbed."):
        entry: Callable[[Context], None] = load(task.entry)
        return entry
    # The current directory is not searched: a file there may have the name of a module of Python's.
    own: Callable[[Context], None] = getattr(import_module(module), name)
    return own


def main() -> None:
    """Runs an instance; exit status 0 when it is told to end or the others are gone, 3 on a fault."""
    parser = argparse.ArgumentParser(prog="seedbed.launch.entry")
    parser.add_argument("task", type=Path)
    path = parser.parse_args().task
    over = threading.Event()
    forgive()
    logging.basicConfig(format="%(message)s")  # warnings of environments, into this instance's log
    # The run decides when its instances stop.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    status = 0
    try:
        task = Task(**json.loads(path.read_text(encoding="utf-8")))
        if (
            task.listens is not None
        ):  # others notice that it is gone; one that only dials hears it by its connection
            signal.signal(signal.SIGTERM, lambda *_: over.set())
        entry_of(task)(context_of(task, os.environ.get(TOKEN, ""), over))
    except ConnectionLost as error:
        print(error, file=sys.stderr, flush=True)  # noqa: T201
        faults.note(Fault.of(error))
    except BaseException as error:
        status = faults.leave(error)
    if threading.active_count() > 1:
        # A thread that hangs in foreign code would keep the process from ending.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
    raise SystemExit(status)


if __name__ == "__main__":
    main()
