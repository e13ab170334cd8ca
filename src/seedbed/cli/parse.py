"""Flags from dataclasses, by tyro, with errors of one line."""

from __future__ import annotations

import contextlib
import io
import re
from collections.abc import Iterator, Sequence
from typing import Any, TypeVar

import tyro

from seedbed.errors import ConfigError
from seedbed.metrics.say import flush

Settings = TypeVar("Settings")
_BOX = re.compile(r"[│╭╮╰╯─┃┏┓┗┛━]+|-{3,}")
"""Signs of which tyro draws boxes, on terminals with and without UTF-8."""


_WITH_COMMAS = (
    "--inference-devices",
    "--actor-devices",
    "--training-devices",
    "--learner-devices",
    "--hidden",
)
"""Flags that take whole numbers, with spaces between them or commas."""


def parse(
    verb: str, kind: type[Settings], arguments: Sequence[str], default: Any = None, about: str = ""
) -> Settings:
    """Reads ``arguments`` into a ``kind``; raises :class:`ConfigError` in one line if they do not fit.

    ``--help`` prints and exits.
    """
    complaint = io.StringIO()
    try:
        with contextlib.redirect_stderr(complaint):
            settings: Settings = tyro.cli(
                kind,
                prog=f"seedbed {verb}",
                description=about or None,
                args=list(_with_spaces(arguments)),
                config=(tyro.conf.OmitArgPrefixes, tyro.conf.AvoidSubcommands),
                **({} if default is None else {"default": default}),
            )
            return settings
    except SystemExit as stop:
        if stop.code in (0, None):
            raise
        raise ConfigError(one_line(complaint.getvalue(), verb)) from None


def _with_spaces(arguments: Sequence[str]) -> Iterator[str]:
    """``--hidden 1,2`` and ``--hidden=1,2`` as ``--hidden 1 2``."""
    flag = ""
    for argument in arguments:
        name, equals, value = argument.partition("=")
        if equals and _takes_commas(name):
            yield from (name, *value.split(","))
            continue
        flag = argument if argument.startswith("--") else flag
        yield from argument.split(",") if _takes_commas(flag) else [argument]


def _takes_commas(flag: str) -> bool:
    return flag.replace("_", "-") in _WITH_COMMAS


def one_line(complaint: str, verb: str) -> str:
    """Returns tyro's complaint, a box under a title, as one line; of suggested flags it keeps the names."""
    _, *lines = _BOX.sub(" ", complaint).strip().split("\n")
    words = " ".join(" ".join(lines).split()).replace(" ,", ",")
    words = re.sub(r"\s*(Got errors:|For full helptext|Argument helptext:).*$", "", words)
    words, _, suggested = words.partition(" Perhaps you meant: ")
    if suggested:
        flags = dict.fromkeys(re.findall(r"(?<!\S)--[\w-]+", suggested))
        words = f"{words}; did you mean {' or '.join(flags)}?"
    return f"{words} (seedbed {verb} --help shows all settings)"


def print_line(text: str) -> None:
    """Prints one line that a command was asked for.

    Raises:
      BrokenPipeError: the reader has left.
      RunFailed: it cannot be written.
    """
    flush(text + "\n")
