"""The program of every instance that is a process: ``python -m seedbed.launch.entry TASK``.

``TASK`` is a JSON file with a :class:`~seedbed.architectures.program.Task`. The program calls the task's entry, and
imports JAX only if that does.
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
from seedbed.priority import step_aside
from seedbed.transport.admission import Invitation

_INVITATION, _CLAIM = "SEEDBED_INVITATION", "SEEDBED_CLAIM"


def secrets(invitation: Invitation, claim: str = "") -> dict[str, str]:
    """Returns the environment variables with an instance's secrets.

    Only its own user can read them, and it removes them before it starts anything.
    """
    return {_INVITATION: str(invitation), _CLAIM: claim}


def _taken() -> tuple[Invitation, str]:
    """Takes the secrets out of the environment, so that what an environment starts does not inherit them."""
    fingerprint, _, token = os.environ.pop(_INVITATION, "").rpartition(".")
    # A head that shows no certificate to its own instances speaks plain text to them.
    return Invitation(token, fingerprint, insecure=not fingerprint), os.environ.pop(_CLAIM, "")


def make_config(record: dict[str, Any]) -> Any:
    """Returns the settings of a run from their JSON values; may import JAX."""
    from seedbed.config.resolve import from_json

    return from_json(record)


def make_agent(config: Any, spec: Any) -> Any:
    """Returns the agent of a run; imports JAX."""
    from seedbed.launch.build import build_agent

    return build_agent(config, spec)


def context_of(
    task: Task, over: threading.Event, invitation: Invitation, claim: str = "", *, alone: bool = False
) -> Context:
    """Returns the argument for the entry of a task; ``alone`` says that it has a process to itself."""
    return Context(task, invitation, claim, over, make_config, make_agent, alone)


def entry_of(task: Task) -> Callable[[Context], None]:
    """Returns the function that is a task's entry; raises :class:`~seedbed.errors.ConfigError` if there is none."""
    module, _, name = task.entry.partition(":")
    if not module.startswith("seedbed."):
        entry: Callable[[Context], None] = load(task.entry)
        return entry
    # Modules of Seedbed are not looked for in the current directory: a file there may shadow a standard module.
    own: Callable[[Context], None] = getattr(import_module(module), name)
    return own


def main() -> None:
    """Runs an instance; exits with status 0 when it is told to end or loses its connection, 3 on a fault."""
    parser = argparse.ArgumentParser(prog="seedbed.launch.entry")
    parser.add_argument("task", type=Path)
    path = parser.parse_args().task
    over = threading.Event()
    forgive()
    logging.basicConfig(format="%(message)s")  # warnings of environments, into this instance's log
    # The supervisor decides when instances stop.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # An engine may have blocked them in the process that started this one.
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT, signal.SIGTERM})
    status = 0
    invitation, claim = _taken()
    try:
        task = Task(**json.loads(path.read_text(encoding="utf-8")))
        if (
            task.listens is not None
        ):  # others notice that it is gone; one that only dials hears it by its connection
            signal.signal(signal.SIGTERM, lambda *_: over.set())
        step_aside(task.niceness)
        entry_of(task)(context_of(task, over, invitation, claim, alone=True))
    except ConnectionLost as error:
        print(error, file=sys.stderr, flush=True)  # noqa: T201
        faults.note(Fault.of(error))
    except BaseException as error:
        status = faults.leave(error)
    faults.end(status)


if __name__ == "__main__":
    main()
