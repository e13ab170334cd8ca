"""``seedbed logs RUN [NAME]``: prints the log of an instance of a run, wherever it is."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Annotated

import tyro

from seedbed.cli.parse import parse, print_line
from seedbed.errors import ConfigError, legible


@dataclass(frozen=True)
class LogsFlags:
    """The log of an instance of a run."""

    run: Annotated[str, tyro.conf.Positional]
    """The run folder."""
    name: Annotated[str, tyro.conf.Positional] = ""
    """Name of the instance: learner, actor-3, …; none: the names that there are."""


def run(arguments: list[str]) -> int:
    """Prints a log, or the names of all logs."""
    flags = parse("logs", LogsFlags, arguments, about="Print the log of an instance of a run.")
    from seedbed.launch.folder import RunFolder

    folder = RunFolder.open(flags.run)
    if not flags.name:
        for path in sorted(folder.logs.glob("*.log")):
            print_line(path.stem)
        return 0
    text = log_of(flags.run, flags.name).decode(errors="replace")
    sys.stdout.write(legible(text) if sys.stdout.isatty() else text)
    return 0


def log_of(run: str, name: str) -> bytes:
    """Returns the log of an instance: from the run folder, or from the machine on which it is now.

    Raises:
      ConfigError: there is none.
    """
    from seedbed import regular_files
    from seedbed.launch.folder import RunFolder
    from seedbed.launch.launcher import log_on
    from seedbed.launch.logs import MOST_BYTES

    folder = RunFolder.open(run)
    path = folder.logs / f"{name}.log"
    try:
        return regular_files.read(path, 2 * MOST_BYTES)
    except FileNotFoundError:
        pass
    except (OSError, ValueError) as error:
        raise ConfigError(f"cannot read {path}: {error}") from error
    if (log := log_on(str(folder.record().get("on")), folder, name)) is not None:
        return log
    raise ConfigError(f"there is no log {path}: 'seedbed logs {run}' shows the names")
