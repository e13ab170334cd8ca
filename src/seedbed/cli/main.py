"""``seedbed VERB …``: finds the verb's file and runs it; turns errors into one line and an exit status."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import textwrap
from collections.abc import Callable, Sequence
from importlib import import_module

from seedbed import __version__
from seedbed.cli.status import Status
from seedbed.cli.streams import mend
from seedbed.errors import (
    ConfigError,
    ExecuteAgain,
    Overtaken,
    SeedbedError,
    StoreUnreachable,
    unknown_name,
)
from seedbed.faults import end_command
from seedbed.installation import missing_package, whole_line
from seedbed.metrics.say import flush, say
from seedbed.regular_files import current_folder

VERBS = {
    "train": "train an agent",
    "resume": "go on with a run from its last checkpoint",
    "eval": "play episodes with a trained agent: mean, interquartile mean, 95% interval",
    "record": "make a video of a trained agent",
    "export": "write a trained policy as one file for programs without Seedbed",
    "serve": "serve a trained policy to programs that step their own environments",
    "collect": "write a data set of what a trained agent does",
    "logs": "print the log of an instance of a run",
    "compare": "compare runs: returns at equal frames and seconds, intervals, curves",
    "crossplay": "play every policy of self-play runs against every other: scores, ratings, cycles",
    "watch": "watch runs in a browser: curves, traffic between the parts, faults, videos",
    "sweep": "search for settings: many runs, of which the worse ones are stopped early",
    "top": "watch runs in the terminal: returns, speed, where the time goes, faults",
    "actor": "step environments for a learner that runs elsewhere",
    "bench": "time every stage and the whole, and name the bottleneck",
    "compatibility": "show which agent runs under which architecture, and why not",
    "program": "show the processes and threads of a run, and what travels between them",
    "manifest": "write the files with which Slurm, Kubernetes, KubeRay or SkyPilot start a run",
    "plan": "predict steps/s, bound and price of a run on other machines, from timed stages",
    "doctor": "show devices, versions, environments and limits of this machine",
}


def main(argv: Sequence[str] | None = None) -> None:
    """Entry point of ``seedbed``.

    Exits with a :class:`~seedbed.cli.status.Status`.
    """
    mend()
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        try:
            status: int = _dispatch(arguments)
        finally:
            flush()
    except ConfigError as error:
        status = _told(Status.WRONG_USAGE, error)
    except StoreUnreachable as error:
        status = _told(Status.FAILED if error.denied else Status.EXECUTE_AGAIN, error)
    except ExecuteAgain as error:
        status = _told(Status.EXECUTE_AGAIN, error)
    except Overtaken as error:
        status = _told(Status.OVERTAKEN, error)
    except SeedbedError as error:
        status = _told(Status.FAILED, error)
    except KeyboardInterrupt:
        status = Status.INTERRUPTED
    except BrokenPipeError:
        # Whoever read the output has left (seedbed train --help | head).
        status = Status.FAILED
    if argv is None:
        _end_by_ctrl_c()
        end_command(status)
    raise SystemExit(status)


def _end_by_ctrl_c() -> None:
    """Lets Ctrl-C end the process at once: all is done, and while Python shuts down, it would be a traceback."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, lambda *_: os._exit(Status.INTERRUPTED))


def _told(status: Status, error: SeedbedError) -> Status:
    say(f"seedbed: {error}", sys.stderr)
    return status


def _dispatch(arguments: list[str]) -> int:
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(_help())  # noqa: T201
        return Status.OVER if arguments else Status.WRONG_USAGE
    if arguments[0] in ("-V", "--version"):
        print(f"seedbed {__version__}")  # noqa: T201
        return 0
    verb, *rest = arguments
    if verb not in VERBS:
        raise ConfigError(unknown_name("command", verb, VERBS))
    if current_folder() is None:
        raise ConfigError("the folder that this was started in has been removed: cd to another one")
    try:
        run: Callable[[list[str]], int | None] = import_module(f"seedbed.cli.{verb}").run
        return run(rest) or 0
    except ModuleNotFoundError as error:
        if package := missing_package(error):
            raise ConfigError(
                f"seedbed {verb} needs the package {package} here, which is not installed: {whole_line()}"
            ) from error
        raise


def _help() -> str:
    width = max(map(len, VERBS))
    lines = [
        "usage: seedbed COMMAND …",
        "",
        "Scalable deep reinforcement learning in JAX.",
        "",
        *(f"  {verb:<{width}}  {about}" for verb, about in VERBS.items()),
        "",
        "seedbed COMMAND --help shows the settings of each, --help-all every one.",
    ]
    return "\n".join(lines if not sys.stdout.isatty() else map(_folded, lines))


def _folded(line: str) -> str:
    """Folds a line at words, as a terminal does not, in columns of the terminal's width."""
    columns = max(shutil.get_terminal_size().columns, 20)
    beneath = " " * (columns // 3 if line.startswith(" ") else 0)
    return textwrap.fill(line, columns, subsequent_indent=beneath[: max(map(len, VERBS)) + 4])
